"""Checks of consumers that pop. The log is compared with what they observed. A comment above each check says
the rule in English.

The log shows what happens to each message. First a checkpoint (the record of one pop) contains the message.
Then either an acknowledgement removes it from the checkpoint, or it is removed while a copy goes to the retry
topic in the same batch. Messages are identified by their body and by how often they were delivered before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import decompress

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_judge import name_of
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.pop_history import (
    CLOCKS_DIFFER_MS,
    INVISIBLE_MS,
    POP_GROUP,
    RETRY,
    SHORT_MS,
    SLACK_NS,
    Once,
    PopHistory,
)
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.record import COMPRESSED, decode_record


class PopJudge:
    """Reads a log entry by entry, and then compares it with the history of the consumers."""

    def __init__(self, begun: int, *, clocks_are_right: bool) -> None:
        self._begun = begun
        self._right = clocks_are_right
        self._messages: dict[tuple[str, int, int], tuple[Once, int]] = {}
        self._checkpoints: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self._left: dict[tuple[Any, ...], list[int]] = {}
        self._copies: list[tuple[Once, int]] = []
        self._popped: dict[Once, None] = {}
        self._acked: dict[Once, int] = {}
        """Maps an acknowledged message to its position in the log. A message that retention removed counts as
        acknowledged."""
        self._copied: dict[Once, None] = {}
        self.revived: int = 0
        self.acknowledged: int = 0

    def apply(self, header: EntryHeader, data: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if the log breaks a rule."""
        if header.kind == Kind.MESSAGE:
            self._message(header, data)
        elif header.kind == Kind.SYSTEM:
            op = msgpack.unpackb(decode_record(data).body, strict_map_key=False)
            if op["op"] == "pop":
                self._pop(op)
            elif op["op"] == "pop_done":
                self._done(op, header)

    def _message(self, header: EntryHeader, data: bytes) -> None:
        record = decode_record(data)
        body = decompress(record.body) if record.sys_flag & COMPRESSED else record.body
        once = (body, record.reconsume_times)
        place = (record.topic, record.queue_id, record.queue_offset)
        self._messages[place] = once, header.pos + HEADER_SIZE
        if record.topic.startswith(RETRY):
            self._copies.append((once, record.store_timestamp))

    def _pop(self, op: Mapping[str, Any]) -> None:
        key = (op["group"], op["topic"], op["queue"], op["start"], op["time"])
        # A handle belongs to one checkpoint.
        if key in self._left:
            raise InvariantViolated(f"{key} is a checkpoint already")
        self._checkpoints[key], self._left[key] = op, list(op["offsets"])
        for offset in op["offsets"]:
            once, _ = self._messages[op["topic"], op["queue"], offset]
            self._popped[once] = None

    def _done(self, op: Mapping[str, Any], header: EntryHeader) -> None:
        key = (op["group"], op["topic"], op["queue"], op["start"], op["time"])
        copies, self._copies = dict(self._copies), []
        checkpoint, left = self._checkpoints.get(key), self._left.get(key, [])
        for offset in op["offsets"]:
            # A message that is removed from a checkpoint was in it, so nothing is acknowledged or copied
            # twice.
            if checkpoint is None or offset not in left:
                raise InvariantViolated(f"entry {header.index} takes {offset} from {key}, which has {left}")
            left.remove(offset)
            (value, times), position = self._messages[op["topic"], op["queue"], offset]
            if (value, times + 1) not in copies:
                self._acked[value, times] = position
                continue
            del copies[value, times + 1]
            self.revived += 1
            self._copied[value, times] = None
        # Every copy is a copy of one of these messages.
        if copies:
            raise InvariantViolated(f"copies of {[name_of(once[0]) for once in copies]} are of no checkpoint")
        if not left:
            self._checkpoints.pop(key, None)
            self._left.pop(key, None)

    def judge(self, history: PopHistory, repeated: Mapping[bytes, int]) -> None:
        """Compare the log with the history. Raises InvariantViolated if they do not fit.

        `repeated` says how often each message is in the log. A message may be there more than once because
        its producer sent it again. Then an observation cannot be assigned to one of the copies.
        """
        asked = {(ack.handed.value, ack.handed.times): None for ack in history.acks}
        for once, position in self._acked.items():
            # No message is removed without an acknowledgement of its consumer, except messages that retention
            # had removed.
            once_only = repeated.get(once[0], 1) == 1  # two copies in one batch cannot be told apart
            if once_only and once not in asked and position >= self._begun:
                raise InvariantViolated(f"{name_of(once[0])} was taken out, and nobody acknowledged it")
            self.acknowledged += 1
        for ack in history.acks:
            once = (ack.handed.value, ack.handed.times)
            if ack.outcome != ACKNOWLEDGED or ack.short or repeated.get(once[0], 1) > 1:
                continue
            # An acknowledgement that was answered is in the log, unless the message was copied for a retry
            # before.
            if once not in self._acked and once not in self._copied:
                raise InvariantViolated(
                    f"{name_of(once[0])} was acknowledged, and the log knows nothing of it"
                )
            # A message that was acknowledged in time is not delivered again.
            in_time = ack.end < ack.handed.between[0] + INVISIBLE_MS * 1_000_000 - SLACK_NS
            if self._right and in_time and once in self._copied:
                raise InvariantViolated(f"{name_of(once[0])} was acknowledged in time, and came again")
        shortened = {(ack.handed.value, ack.handed.times) for ack in history.acks if ack.short}
        first = {(handed.value, handed.times): handed for handed in reversed(history.handed)}
        for once, handed in first.items():
            before = first.get((once[0], once[1] - 1))
            if before is None or repeated.get(once[0], 1) > 1 or not self._right:
                continue
            # No message is delivered again before its time, except for the difference between the clocks of
            # two leaders.
            invisible_ms = SHORT_MS if (before.value, before.times) in shortened else INVISIBLE_MS
            differ_ms = 0 if before.terms[0] == handed.terms[1] else CLOCKS_DIFFER_MS
            early_ns = before.between[0] + (invisible_ms - differ_ms) * 1_000_000 - handed.between[1]
            if early_ns > 0:
                raise InvariantViolated(f"{name_of(once[0])} came again {early_ns // 1_000_000} ms early")
        for handed in history.handed:
            # A message that a consumer received is in a checkpoint in the log.
            if (handed.value, handed.times) not in self._popped:
                raise InvariantViolated(f"{name_of(handed.value)} was handed out without a checkpoint")


def judge_popped(
    values: Mapping[bytes, None], messages: Mapping[Queue, Sequence[Any]], begun: int, unread: Sequence[str]
) -> None:
    """Check that in the end the group has received every message, except those that retention had removed."""
    for queue, stored in messages.items():
        if queue[0] not in unread and not queue[0].startswith(RETRY):
            for message in stored:
                if message.position >= begun and message.value not in values:
                    raise InvariantViolated(
                        f"{POP_GROUP} was never handed {name_of(message.value)} of {queue}"
                    )


def copies_of(messages: Mapping[Queue, Sequence[Any]], waiting: Sequence[str] = ()) -> dict[bytes, int]:
    """How often each message is in the log. Copies in retry topics and messages of the topics `waiting` are
    not counted. `waiting` names topics in which messages wait, for example for the end of their transaction.
    """
    found: dict[bytes, int] = {}
    for queue, stored in messages.items():
        for message in stored:
            again = message.copied or message.delivered or message.rolled
            if not again and queue[0] not in waiting:
                found[message.value] = found.get(message.value, 0) + 1
    return found
