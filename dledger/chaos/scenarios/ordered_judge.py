"""Checks of consumers that pop in order. The log is compared with what they observed. A comment above each
check says the rule in English.

The log says which pop a queue waits for (`pop_order`), the offset of the group (`offsets`, `reset`), and when
a queue no longer waits (`pop_order_end`). The judge takes nothing from the broker itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.ordered_history import (
    ACK,
    CHANGED_MS,
    INVISIBLE_MS,
    ORDERED_GROUP,
    Batch,
    Key,
    Ordered,
    OrderedHistory,
    Settled,
)
from dledger.chaos.scenarios.pop_history import CLOCKS_DIFFER_MS, SLACK_NS
from dledger.formats.entry import EntryHeader, Kind
from dledger.formats.record import decode_record

ROUNDING_MS = 2
"""Tolerance, in ms, because times in the log are whole milliseconds."""
MS_NS = 1_000_000


@dataclass
class Given:
    """One pop of a queue, as the log shows it."""

    batch: Batch
    term: int
    row: Mapping[str, Any]
    before: Given | None = None
    """The earlier pop for whose messages the queue still waited when this pop was written. None after a
    reset, or if all messages of the earlier pop were acknowledged."""
    left: tuple[int, ...] = ()
    """Offsets of `before` that were not yet acknowledged when this pop was written."""
    acked: dict[int, None] = field(default_factory=dict)
    reset: bool = False
    """Whether a reset of the group's offset ended this pop."""
    again: bool = False
    """Whether a later pop of the queue replaced this pop."""


class OrderedJudge:
    """Reads a log entry by entry, and then compares it with the history of the consumers."""

    def __init__(self, begun: int, *, clocks_are_right: bool) -> None:
        self._begun = begun
        self._right = clocks_are_right
        self._positions: dict[tuple[str, int, int], int] = {}
        """Maps (topic, queue, offset) of a message to its position in the log."""
        self._at: dict[Key, int] = {}
        """Maps a queue to the group's consumer offset."""
        self._now: dict[Key, Given] = {}
        self.given: dict[tuple[Batch, int], Given] = {}
        """Maps (queue and time in the handle, offset) of a message to its pop.

        A later pop replaces an earlier one with the same queue and time. This happens if a leader with a fast
        clock made the earlier pop, and all messages of that pop were acknowledged.
        """
        self._passed: dict[tuple[str, int, int], None] = {}
        """Messages that the group's offset passed, or that are acknowledged according to the log."""
        self._to_free: dict[Key, None] = {}
        self.frees: int = 0
        """How many queues were freed by a reset."""
        self.over_terms: int = 0
        """How many pops were written while the queue waited for messages that an earlier leader had
        delivered."""
        self.partly: int = 0
        """How many pops were written when only a part of the earlier pop was acknowledged."""

    def apply(self, header: EntryHeader, data: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if the log breaks a rule."""
        if header.kind == Kind.MESSAGE:
            record = decode_record(data)
            self._positions[record.topic, record.queue_id, record.queue_offset] = header.pos
        elif header.kind == Kind.SYSTEM:
            op = msgpack.unpackb(decode_record(data).body, strict_map_key=False)
            if op.get("group") == ORDERED_GROUP:
                self._operation(header, op)
        # A reset frees a queue that waits for acknowledgements, in the batch of the reset itself.
        if self._to_free and not header.batch_remaining:
            raise InvariantViolated(f"entry {header.index}: {list(self._to_free)} wait on after a reset")

    def _operation(self, header: EntryHeader, op: Mapping[str, Any]) -> None:
        name = op["op"]
        if name == "pop_order":
            key = (op["topic"], op["queue"])
            now = self._now.get(key)
            if now is not None and (now.batch[1], now.row["offsets"]) == (op["time"], op["offsets"]):
                self._changed(header, now, op)
            else:
                self._popped(header, key, now, op)
        elif name == "pop_order_end":
            self._ended(header, (op["topic"], op["queue"]))
        elif name == "offsets":
            for topic, queue, offset in op["offsets"]:
                before = self._at.get((topic, queue), 0)
                self._passed.update(dict.fromkeys((topic, queue, one) for one in range(before, offset)))
                self._at[topic, queue] = max(before, offset)
        elif name == "reset":
            for topic, queue, offset in op["offsets"]:
                self._at[topic, queue] = offset
                if (topic, queue) in self._now:
                    self._to_free[topic, queue] = None

    def _popped(self, header: EntryHeader, key: Key, now: Given | None, op: Mapping[str, Any]) -> None:
        given = Given((key, op["time"]), header.term, op)
        for offset in op["offsets"]:
            known = self.given.get((given.batch, offset))
            # A handle names one pop. After a reset, another leader whose clock is behind may use it again,
            # because no broker remembers the earlier pop.
            if known is not None and not (known.reset and known.term != header.term):
                raise InvariantViolated(f"entry {header.index}: {given.batch} is a pop of {offset} already")
        offsets, at = op["offsets"], self._at.get(key, 0)
        # Order: a pop begins at the first message that is not acknowledged, and has no gap.
        skipped = [one for one in range(at, offsets[0]) if self._positions[*key, one] >= self._begun]
        if offsets[0] < at or skipped or offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            raise InvariantViolated(f"entry {header.index} pops {offsets} of {key}, the group is at {at}")
        counts = dict.fromkeys(offsets, 0)
        if now is not None:
            given.before, given.left = now, _left(now)
            now.again = True
            same = bool(op["attempt"]) and op["attempt"] == now.row["attempt"]
            # A queue never has two batches at once. The next pop comes only when the invisible times of all
            # messages that are not acknowledged are over. An exception is a repeated attempt, whose consumer
            # did not get the answer. Times in the log stand still while a leader's clock is behind that of
            # the last leader, so this check allows a difference; `judge` is exact.
            over_ms = max(_hidden_until(now, offset) for offset in given.left)
            if self._right and not same and op["time"] < over_ms - CLOCKS_DIFFER_MS:
                raise InvariantViolated(
                    f"entry {header.index} pops {key} at {op['time']}, {over_ms - op['time']} ms before what "
                    f"was popped at {now.batch[1]} may come again"
                )
            told = dict(zip(now.row["offsets"], now.row["counts"], strict=True))
            counts |= {one: told[one] + (not same) for one in offsets if one in told}
            self.over_terms += now.term != header.term
            self.partly += len(given.left) < len(now.row["offsets"])
        # Each message says how often it was delivered before.
        if op["counts"] != list(counts.values()):
            raise InvariantViolated(f"entry {header.index} counts {op['counts']}, {counts} is right")
        self._now[key] = given
        self.given |= {(given.batch, offset): given for offset in offsets}

    def _changed(self, header: EntryHeader, now: Given, op: Mapping[str, Any]) -> None:
        # A message that is acknowledged stays acknowledged.
        acked = dict.fromkeys(op.get("acked", ()))
        lost = [offset for offset in now.acked if offset not in acked]
        if lost:
            raise InvariantViolated(f"entry {header.index}: {lost} were acknowledged before")
        now.row, now.acked = op, acked
        self._passed.update(dict.fromkeys((*now.batch[0], offset) for offset in acked))

    def _ended(self, header: EntryHeader, key: Key) -> None:
        now = self._now.pop(key)
        if key in self._to_free:
            del self._to_free[key]
            now.reset = True
            self.frees += 1
            return
        # A queue waits until all messages that its consumer has are acknowledged. Then the group's offset is
        # after them.
        last = now.row["offsets"][-1]
        if self._at.get(key, 0) <= last:
            raise InvariantViolated(
                f"entry {header.index} frees {key} of {now.row['offsets']}, the group is at {self._at[key]}"
            )
        now.acked = dict.fromkeys(now.row["offsets"])

    def judge(self, history: OrderedHistory) -> int:
        """Compare the log with the history. Returns how many messages of all pops were acknowledged. Raises
        InvariantViolated if they do not fit."""
        asked = {
            (*one.message.batch[0], one.message.offset): None for one in history.settled if one.kind == ACK
        }
        for message in self._passed:
            # The group's offset passes no message without its acknowledgement, except messages that retention
            # had removed.
            if message not in asked and self._positions[message] >= self._begun:
                raise InvariantViolated(f"{message} was passed by, and nobody acknowledged it")
        handed: dict[tuple[Batch, int], Ordered] = {}
        for one in history.handed:
            given = self.given.get((one.batch, one.offset))
            # A message that a consumer received is in a pop in the log, with the same number of earlier
            # deliveries.
            if given is None:
                raise InvariantViolated(f"{one.offset} of {one.batch} was handed out, and no pop has it")
            times = given.row["counts"][given.row["offsets"].index(one.offset)]
            if one.times != times:
                raise InvariantViolated(
                    f"{one.offset} of {one.batch} came as the {one.times}th, not {times}th"
                )
            handed.setdefault((one.batch, given.row["offsets"][0]), one)
        hidden = self._hidden(history)
        for first in handed.values():
            self._judge_apart(self.given[first.batch, first.offset], first, hidden)
        for done in history.settled:
            self._judge_settled(done)
        return sum(place[1] in given.acked for place, given in self.given.items())

    def _hidden(self, history: OrderedHistory) -> dict[tuple[Batch, int], int]:
        """Maps each message that was delivered to the time, in ns of the world, before which it cannot be
        delivered again, as far as its consumer knows."""
        hidden = {
            (message.batch, message.offset): message.between[0] + INVISIBLE_MS * MS_NS
            for message in history.handed
        }
        for one in history.settled:
            if one.kind == ACK:
                continue
            place = one.message.batch, one.message.offset
            until = one.begin + CHANGED_MS[one.kind] * MS_NS
            done = one.outcome == ACKNOWLEDGED and _in_time(one)
            # otherwise the change may have been made or not
            hidden[place] = until if done else min(until, hidden[place])
        return hidden

    def _judge_apart(self, given: Given, first: Ordered, hidden: Mapping[tuple[Batch, int], int]) -> None:
        before = given.before
        if before is None or not self._right:
            return
        if given.row["attempt"] and given.row["attempt"] == before.row["attempt"]:
            return
        # By world time: while one consumer has a message, no other consumer receives it before its invisible
        # time is over.
        until = max((hidden.get((before.batch, one), 0) for one in given.left), default=0)
        differ_ms = 0 if before.term == given.term else CLOCKS_DIFFER_MS
        early_ms = (until - first.between[1]) // MS_NS - differ_ms
        if early_ms > ROUNDING_MS:
            raise InvariantViolated(f"{given.batch} came {early_ms} ms before the end of {before.batch}")

    def _judge_settled(self, done: Settled) -> None:
        message = done.message
        given = self.given[message.batch, message.offset]
        if done.outcome != ACKNOWLEDGED or done.kind != ACK or message.offset in given.acked:
            return
        # An acknowledgement that was answered is in the log, if its pop was still valid.
        if not given.reset and (not given.again or (self._right and _in_time(done))):
            raise InvariantViolated(f"{message.offset} of {message.batch} was acknowledged, and is not")


def _in_time(done: Settled) -> bool:
    """Whether the request was answered long before the message could be delivered again."""
    return done.end < done.message.between[0] + INVISIBLE_MS * MS_NS - SLACK_NS


def _left(given: Given) -> tuple[int, ...]:
    return tuple(offset for offset in given.row["offsets"] if offset not in given.acked)


def _hidden_until(given: Given, offset: int) -> int:
    changed = dict(given.row.get("visible", ()))
    until: int = changed.get(offset, given.row["time"] + given.row["invisible"])
    return until
