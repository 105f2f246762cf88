"""Calls that change something: what nobody answered is not called refused, and not said to be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger.admin.asking import NotReached, Refused, checked
from dledger.client import (
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    BrokerRefused,
    ClientOptions,
    NoBroker,
    OutcomeUnknown,
)
from dledger.formats.timers import RecallHandle
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.headers import AckMessageHeader
from dledger.remoting.server import Connection
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeBroker, FakeCluster

SHORT = ClientOptions(failover_timeout_s=0.5)
"""For calls that must fail."""
UNKNOWN = "outcome unknown: leadership was lost"


async def _recall(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncProducer("producers", fake.namesrv, client=client) as producer:
        return await producer.recall("orders", RecallHandle("orders", GROUP, STORED_AT_MS, "id").encode())


async def _create(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncProducer("producers", fake.namesrv, client=client) as producer:
        await producer.create_topic("bills")


async def _delete(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncProducer("producers", fake.namesrv, client=client) as producer:
        await producer.delete_topic("orders")


async def _reset(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncPullConsumer("group", fake.namesrv, client=client) as consumer:
        await consumer.queues("orders")
        await consumer._offsets.reset("orders", GROUP, "group", STORED_AT_MS)


async def _commit(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncPullConsumer("group", fake.namesrv, client=client) as consumer:
        [queue] = await consumer.queues("orders")
        await consumer._offsets.commit(queue, "group", 3, sets_back=False)


async def _ack(fake: FakeCluster, client: ClientOptions | None) -> Any:
    async with AsyncPopConsumer("group", fake.namesrv, topic="orders", client=client) as consumer:
        await consumer._core.route("orders")
        handle: Any = type("Handle", (), {"broker": GROUP})
        header = AckMessageHeader("group", "orders", 0, "", 0)
        await consumer._ask(handle, RequestCode.ACK_MESSAGE, header)


CALLS: dict[str, tuple[RequestCode, Callable[[FakeCluster, ClientOptions | None], Awaitable[Any]]]] = {
    "recall": (RequestCode.RECALL_MESSAGE, _recall),
    "create_topic": (RequestCode.UPDATE_AND_CREATE_TOPIC, _create),
    "delete_topic": (RequestCode.DELETE_TOPIC_IN_BROKER, _delete),
    "reset": (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, _reset),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET, _commit),
    "ack": (RequestCode.ACK_MESSAGE, _ack),
}
Script = Callable[[FakeBroker, Connection, Request], bool]


def after_losing(code: int, then: tuple[int, str] | None, times: int = 1) -> Script:
    """The first tries are read, and their connection is lost; then this answer comes, or none."""
    seen: list[int] = []

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != code:
            return False
        seen.append(code)
        if len(seen) > times and then is not None:
            connection.respond(request, then[0], remark=then[1])
        else:
            connection.abort()
        return True

    return script


def always(code: int, answer: tuple[int, str]) -> Script:
    return after_losing(code, answer, times=0)


def run(name: str, script: Script | None, client: ClientOptions | None = None, leads: int = 0) -> Any:
    async def main() -> Any:
        async with FakeCluster(nodes=1, topics={"orders": 1}) as fake, asyncio.timeout(60):
            fake.lead(leads, registered=False)
            fake.script = script
            return await CALLS[name][1](fake, client)

    return asyncio.run(main())


@pytest.mark.parametrize("name", CALLS)
def test_nobody_answers(name: str) -> None:
    with pytest.raises(OutcomeUnknown, match="sent and not answered, so it may be carried out"):
        run(name, after_losing(CALLS[name][0], None), SHORT)


@pytest.mark.parametrize("name", CALLS)
def test_a_try_is_lost_and_the_next_one_refused(name: str) -> None:
    """As a recall that was carried out, and whose time is over when it is asked for again."""
    with pytest.raises(OutcomeUnknown, match=r"sent and not answered.*its time is over"):
        run(name, after_losing(CALLS[name][0], (604, "its time is over")))


@pytest.mark.parametrize("name", CALLS)
def test_the_leader_is_lost_while_it_works_on_it(name: str) -> None:
    with pytest.raises(OutcomeUnknown, match="leadership was lost"):
        run(name, always(CALLS[name][0], (ResponseCode.SYSTEM_ERROR, UNKNOWN)))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused_is_not_done(name: str) -> None:
    with pytest.raises(BrokerRefused, match="the broker answered 16 NO_PERMISSION: no"):
        run(name, always(CALLS[name][0], (ResponseCode.NO_PERMISSION, "no")))


@pytest.mark.parametrize("name", CALLS)
def test_what_no_leader_took_is_not_done(name: str) -> None:
    with pytest.raises(NoBroker):
        run(name, None, SHORT, leads=-1)


@pytest.mark.parametrize("name", ["recall", "delete_topic", "ack"])
def test_a_lost_try_is_repeated(name: str) -> None:
    run(name, after_losing(CALLS[name][0], (ResponseCode.SUCCESS, "")))


def test_operators_are_told_the_same() -> None:
    answer = Response(ResponseCode.SYSTEM_ERROR, remark=UNKNOWN)
    with pytest.raises(NotReached, match="may be carried out"):
        checked("UPDATE_AND_CREATE_TOPIC", "127.0.0.1:1", answer)
    refused = Response(ResponseCode.SYSTEM_ERROR, remark="out of order")
    with pytest.raises(Refused, match="out of order"):
        checked("UPDATE_AND_CREATE_TOPIC", "127.0.0.1:1", refused)
