"""Messages for a later time: what travels, and what is refused before it does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dledger.client.encoding import properties_text
from dledger.client.errors import InvalidMessage
from dledger.client.message import Message, comes_later
from dledger.client.producing.recalls import recall
from dledger.formats.properties import decode_properties
from dledger.formats.timers import RecallHandle

EAST = timezone(timedelta(hours=8))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delay": timedelta(seconds=2)}, {"TIMER_DELAY_MS": "2000"}),
        ({"delay": timedelta(0)}, {"TIMER_DELAY_MS": "0"}),
        ({"delay": timedelta(microseconds=1)}, {"TIMER_DELAY_MS": "1"}),
        ({"delay": timedelta(days=365)}, {"TIMER_DELAY_MS": "31536000000"}),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, 8, tzinfo=EAST)}, {"TIMER_DELIVER_MS": "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, 0, 0, 0, 1, UTC)}, {"TIMER_DELIVER_MS": "1767225600001"}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({}, {}),
    ],
)
def test_when_a_message_comes_is_a_property(given: dict[str, Any], told: dict[str, str]) -> None:
    message = Message("T", b"x", **given)
    assert comes_later(message) == bool(told)
    assert decode_properties(properties_text(message, "ID")) == {"UNIQ_KEY": "ID", "WAIT": "true", **told}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delay": timedelta(seconds=-1)}, "from 0 to"),
        ({"delay": 5}, "timedelta"),
        ({"deliver_at": datetime(2026, 1, 1)}, "time zone"),  # that is what is refused
        ({"deliver_at": 1767225600000}, "time zone"),
        ({"delay": timedelta(1), "delay_level": 3}, "one of"),
        ({"delay": timedelta(1), "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, "one of"),
        ({"properties": {"TIMER_DELAY_MS": "5"}}, "delay="),
    ],
)
def test_what_is_no_time_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        properties_text(Message("T", b"x", **given), "ID")


@pytest.mark.parametrize("handle", ["", "x", "djEgVA==", None, 5])
def test_what_is_no_handle_is_not_asked_for(handle: Any) -> None:
    with pytest.raises(InvalidMessage, match="recall_handle"):
        asyncio.run(recall(None, "PG", "T", handle))  # type: ignore[arg-type]  # nobody is asked


def test_a_handle_is_what_rocketmq_s_clients_take_apart() -> None:
    handle = RecallHandle("T", "broker-a", 1767225600000, "ID")
    assert handle.encode() == "djEgVCBicm9rZXItYSAxNzY3MjI1NjAwMDAwIElE"
    assert RecallHandle.decode(handle.encode()) == handle
    odd = RecallHandle("T", "broker-a", 17, "ID")
    assert odd.encode().endswith("=") and RecallHandle.decode(odd.encode().rstrip("=")) == odd
