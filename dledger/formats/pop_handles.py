"""Handles of popped messages, and the texts about them in answers to clients (ExtraInfoUtil, KeyBuilder).

A handle (the property POP_CK) is `start time invisible reviveQid retry brokerName queueId offset`, separated
by spaces. Handles of old clients end after the queue id. Apache's proxy adds a ninth part, the position in
the commit log (-1 if the proxy does not know it). As in ExtraInfoUtil, parts after the eighth are not read.
Answers to a pop hold, for each queue and separated by `;`, `retry queueId start` and `retry queueId
offset,offset`. The client makes the handles from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RETRY_PREFIX = "%RETRY%"
ORDER_QUEUE = 999
"""Value of `reviveQid` in handles of a pop in order (POP_ORDER_REVIVE_QUEUE)."""
REVIVE_QUEUE = 0
"""Value of `reviveQid` in handles of any other pop. There is only this value, because checkpoints are in one
table, not in queues of a revive topic."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
MAX_HANDLE = 512
"""Limit, in characters, of a handle; a longer one is refused."""
MIN_PARTS = 7
"""Number of parts of the shortest handle, which lacks the offset of the message (`buildExtraInfo`)."""


def retry_topic_v1(topic: str, group: str) -> str:
    """Name of the retry topic of a group that pops, in the old form. From it the group gets messages of
    `topic` again."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topic_v2(topic: str, group: str) -> str:
    """Name of the retry topic of a group that pops, in the new form, which can be split into group and topic
    again."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def retry_mark(topic: str) -> str:
    """Mark (the part `retry` of these texts) for a topic: 0 for a normal one, 1 or 2 for a retry topic in the
    old or new form."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, mark: str) -> str:
    """The topic to which a mark refers. `topic` is the one in the request. Raises ValueError for an invalid
    mark."""
    if mark == NORMAL:
        return topic
    if mark == RETRY_V1:
        return retry_topic_v1(topic, group)
    if mark == RETRY_V2:
        return retry_topic_v2(topic, group)
    raise ValueError(f"{mark!r}: expected 0, 1 or 2")


class Handle(NamedTuple):
    """The parts of a handle. `time` and `invisible` are in ms; `offset` is None in handles of old clients."""

    start: int
    time: int
    invisible: int
    revive_queue: int
    retry: str
    broker: str
    queue: int
    offset: int | None = None

    @property
    def in_order(self) -> bool:
        """Whether the handle comes from a pop in order."""
        return self.revive_queue == ORDER_QUEUE

    def encode(self) -> str:
        """The handle as text."""
        return " ".join(str(part) for part in self if part is not None)


def decode_handle(text: str) -> Handle:
    """Parse a handle. Raises ValueError with the reason if it is invalid."""
    if len(text) > MAX_HANDLE:
        raise ValueError(f"the handle has {len(text)} characters; the limit is {MAX_HANDLE}")
    parts = text.split(" ")
    while parts and not parts[-1]:
        parts.pop()  # String.split of Java drops empty parts at the end
    if len(parts) < MIN_PARTS:
        raise ValueError(f"the handle has {len(parts)} parts; expected at least {MIN_PARTS}")
    start, time, invisible, revive_queue, queue = (_number(parts[at]) for at in (0, 1, 2, 3, 6))
    offset = _number(parts[7]) if len(parts) > MIN_PARTS else None
    return Handle(start, time, invisible, revive_queue, parts[4], parts[5], queue, offset)


def start_info(topic: str, queue: int, start: int) -> str:
    """Make the part of `startOffsetInfo` for one queue."""
    return f"{retry_mark(topic)} {queue} {start}"


def offsets_info(topic: str, queue: int, offsets: Iterable[int]) -> str:
    """Make the part of `msgOffsetInfo` for one queue."""
    return f"{retry_mark(topic)} {queue} {','.join(map(str, offsets))}"


def order_counts(topic: str, queue: int, counts: Iterable[tuple[int, int]]) -> list[str]:
    """Make the parts of `orderCountInfo` for one queue. `counts` has an item (offset, number of earlier
    deliveries) for each message."""
    counts = list(counts)
    mark = retry_mark(topic)
    told = [f"{mark} qo{queue}%{offset} {count}" for offset, count in counts if count]
    return [*told, f"{mark} {queue} {min((count for _, count in counts), default=0)}"]


def decode_info(text: str) -> dict[tuple[str, str], str]:
    """Parse a text as `start_info`, `offsets_info` or `order_counts` make it. Returns a map of (retry mark,
    queue) to the value; in `orderCountInfo` the queue may be `qo<queue>%<offset>`. Raises ValueError for an
    invalid text."""
    told: dict[tuple[str, str], str] = {}
    for item in text.split(";") if text else ():
        parts = item.split(" ")
        if len(parts) != 3:
            raise ValueError(f"{item!r}: expected three parts")
        told[parts[0], parts[1]] = parts[2]
    return told


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise ValueError(f"{text!r} in a handle: expected a number")
    return int(text)
