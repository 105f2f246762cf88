"""Declarations of requests: one method answers a code, and each has its read point (safety.md S25)."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.broker.auth import required
from dledger.broker.requests import Call, LeaderCall, Needs, declarations, handles
from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import QueueHeader
from tests.broker.harness import processor_kinds

WRITES = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
}
"""Requests that change the state and read nothing: they have no read point."""


def test_who_reads_says_from_which_point() -> None:
    here = "tests/broker/test_broker_read_points.py"
    found = {declared.code for declared in declarations(processor_kinds()) if not declared.reads}
    unsaid, wrong = sorted(found - WRITES), sorted(WRITES - found)
    assert not unsaid, (
        f"{unsaid[0].name} has no read point: say in its @handles(..., reads=...) from which state it is "
        f"answered, or add it to WRITES of {here} if it only writes"
    )
    assert not wrong, f"{wrong[0].name} has a read point, or is not answered: remove it from WRITES of {here}"


class One:
    @handles(RequestCode.GET_MIN_OFFSET, QueueHeader, needs=Needs.LEADER, may=required.ADMIN)
    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, needs=Needs.LEADER, may=required.ADMIN)
    def two_codes(self, call: LeaderCall[QueueHeader]) -> None: ...


class Other:
    @handles(RequestCode.GET_MIN_OFFSET, needs=Needs.ANY, may=required.ADMIN)
    def again(self, call: Call[None]) -> None: ...


def test_a_request_says_who_may_send_it_or_what_it_does() -> None:
    """One that any account may send would be open to every user of ACL 2.0, or to none."""
    with pytest.raises(ValueError, match=r"GET_MIN_OFFSET.*declare with `does`"):
        handles(RequestCode.GET_MIN_OFFSET, needs=Needs.ANY, may=required.ACCOUNT)


def test_two_methods_for_one_code_are_refused() -> None:
    codes = [declared.code for declared in declarations([One])]
    assert codes == sorted([RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME])
    kinds: list[type[Any]] = [One, Other]
    with pytest.raises(ValueError, match=r"Other\.again and One\.two_codes answer it"):
        declarations(kinds)
