"""Timer messages in the log, and the handles that recall them.

Messages that wait for a time are in the only queue of `rmq_sys_wheel_timer` (TimerMessageStore). Records that
recall such messages are there, too. The third field of their ConsumeQueue units, which elsewhere holds the
tag code, is the time at which they are due, as in RocketMQ's delay levels. So the next due messages are found
by reading the queue alone.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from dledger.formats.properties import TIMER_DEL_UNIQKEY, TIMER_OUT_MS, find_property

TIMER_TOPIC = "rmq_sys_wheel_timer"
MAX_DUE_MS = (1 << 62) - 1
"""Latest due time, in ms since the epoch. With the bit for a recall (`timer_code`) it still fits into a
signed 64-bit number."""
MAX_HANDLE = 2048
"""Limit, in characters, of a handle; a longer one is refused."""
_OUT, _RECALL = TIMER_OUT_MS.encode(), TIMER_DEL_UNIQKEY.encode()
_VERSION = "v1"
_INVALID = "recall handle is invalid"


def timer_code(properties: bytes) -> int:
    """Third field of the ConsumeQueue unit of a record in `TIMER_TOPIC`. It is twice the time in ms at which
    the record is due, plus 1 for a recall; 0 if the record has no time and does not wait."""
    text = find_property(properties, _OUT)
    if text is None or not text.isdigit() or len(text) > 19:
        return 0
    due = int(text)
    if due > MAX_DUE_MS:
        return 0
    return due << 1 | (find_property(properties, _RECALL) is not None)


class RecallHandle(NamedTuple):
    """Handle with which a producer can recall a timer message (RecallMessageHandle.HandleV1). `due` is in
    ms."""

    topic: str
    broker_name: str
    due: int
    message_id: str

    def encode(self) -> str:
        """Encode in the form that RocketMQ's clients parse."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.due} {self.message_id}"
        return urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Inverse of `encode`. Raises ValueError for an invalid handle. A time that is not a number becomes
        -1, as in RocketMQ."""
        if not 0 < len(handle) <= MAX_HANDLE:
            raise ValueError(_INVALID)
        try:
            raw = handle.encode("ascii")
            items = urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise ValueError(_INVALID) from error
        if items[0] != _VERSION or len(items) < 5:
            raise ValueError(_INVALID)
        due = items[3]
        known = int(due) if due.isascii() and due.isdecimal() and len(due) < 20 else -1
        return cls(items[1], items[2], min(known, MAX_DUE_MS), items[4])
