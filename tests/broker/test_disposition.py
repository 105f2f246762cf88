"""What kind of message it is follows from flags, properties and topic, and from nothing else."""

from __future__ import annotations

import pytest

from dledger.broker.intake.disposition import (
    DELAY_LEVEL,
    TIMERS,
    Disposition,
    check_disposition,
    disposition_of,
)
from dledger.formats.plain_messages import may_wait
from dledger.formats.properties import TRAN_MSG, encode_properties
from dledger.remoting.errors import RemotingError

KINDS = [
    ("T", 0, {}, Disposition.ORDINARY),
    ("T", 0, {"KEYS": "DELAY", "a": "TRAN_MSG"}, Disposition.ORDINARY),
    ("T", 0, {"MY_DELAY": "3", "XTRAN_MSG": "true", "TIMER_DELAY_SECX": "1"}, Disposition.ORDINARY),
    ("T", 0, {"DELAY": "0", "TRAN_MSG": "false"}, Disposition.ORDINARY),
    ("T", 0, {"DELAY": "3"}, Disposition.DELAYED),
    ("T", 0, {"KEYS": "k", "DELAY": "18", "UNIQ_KEY": "u"}, Disposition.DELAYED),
    ("T", 0, {"TIMER_DELAY_SEC": "1"}, Disposition.TIMED),
    ("T", 0, {"TIMER_DELAY_MS": "1"}, Disposition.TIMED),
    ("T", 0, {"TIMER_DELIVER_MS": "1"}, Disposition.TIMED),
    ("T", 0, {"__STARTDELIVERTIME": "1"}, Disposition.TIMED),
    ("T", 0, {"DELAY": "3", "TIMER_DELIVER_MS": "1"}, Disposition.DELAYED),
    ("T", 0, {"TIMER_OUT_MS": "1", "TIMER_DELIVER_MS": "1"}, Disposition.ORDINARY),
    ("%RETRY%g", 0, {"TIMER_DELIVER_MS": "1"}, Disposition.RETRY),
    ("T", 0, {"TRAN_MSG": "true", "DELAY": "3"}, Disposition.HALF),
    ("T", 0x4, {}, Disposition.HALF),
    ("T", 0x8, {}, Disposition.HALF),
    ("T", 0xC, {}, Disposition.HALF),
    ("%RETRY%g", 0, {}, Disposition.RETRY),
    ("%RETRY%g", 0, {"DELAY": "3"}, Disposition.DELAYED),
    ("%RETRY%g", 0, {"TRAN_MSG": "true"}, Disposition.HALF),
    ("%DLQ%g", 0, {}, Disposition.ORDINARY),
]


@pytest.mark.parametrize(("topic", "flags", "properties", "kind"), KINDS)
def test_the_kind_of_a_message(topic: str, flags: int, properties: dict[str, str], kind: Disposition) -> None:
    text = encode_properties(properties)
    assert disposition_of(topic, flags, text) is kind
    if kind is Disposition.HALF:
        with pytest.raises(RemotingError) as refused:
            check_disposition(topic, flags, text)
        assert refused.value.code == 13
    else:
        assert check_disposition(topic, flags, text) is kind


@pytest.mark.parametrize("flags", [0, 0x1, 0x4, 0x5])
def test_a_half_message_says_so_by_its_property(flags: int) -> None:
    """Its other kinds, in the table above, mean what nobody can do: delays, retries, flags of brokers."""
    text = "KEYS\x01k\x02TRAN_MSG\x01true\x02DELAY\x010\x02"
    assert check_disposition("T", flags, text) is Disposition.HALF


def test_flags_that_no_client_may_set() -> None:
    for flag in (0x10, 0x20):
        with pytest.raises(RemotingError, match="IPv6") as refused:
            check_disposition("T", flag, "")
        assert refused.value.code == 29


def test_no_name_that_decides_is_overlooked() -> None:
    assert all(may_wait(f"KEYS\x01k\x02{name}\x011\x02") for name in (DELAY_LEVEL, TRAN_MSG, *TIMERS))
    assert not may_wait(encode_properties({"KEYS": "order-17", "TAGS": "paid", "UNIQ_KEY": "7F00"}))
