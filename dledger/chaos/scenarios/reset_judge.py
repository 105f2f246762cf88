"""Checks of resets of consumer offsets. The log is compared with the answers to the operator. A comment above
each check says the rule in English.

In the log, a reset is two operations in one batch: the new offsets, and the queues whose consumers do not
know of the reset yet. For each queue a later operation notes that its consumer knows the reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.history import ACKNOWLEDGED, RUNNING
from dledger.chaos.scenarios.oracle import Queue
from dledger.formats.entry import EntryHeader, Kind
from dledger.formats.record import decode_record


@dataclass
class Reset:
    """A request to set a group to other offsets in a topic, with its outcome."""

    group: str
    topic: str
    begin: int
    unseen: dict[Queue, dict[int, None]] = field(default_factory=dict)
    """Maps a queue to the offsets that existed when the request began and that the group has not received
    since."""
    end: int = -1
    outcome: str = RUNNING
    told: dict[int, int] = field(default_factory=dict)
    """Maps a queue id to its new offset, according to the answer."""

    def handed(self, queue: Queue, offset: int) -> None:
        """Note that the group received a message."""
        self.unseen.get(queue, {}).pop(offset, None)


class ResetJudge:
    """Reads a log entry by entry, and then compares it with the answers to the operator."""

    def __init__(self) -> None:
        self._offsets: tuple[int, dict[str, Any]] = (-2, {})
        """The last operation `reset` in the log: index of its entry, and the operation."""
        self._unheard: dict[tuple[str, str], dict[int, int]] = {}
        self._done: dict[tuple[str, str], list[dict[int, int]]] = {}
        self.heard: int = 0

    def apply(self, header: EntryHeader, data: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if the log breaks a rule."""
        if header.kind != Kind.SYSTEM:
            return
        op = msgpack.unpackb(decode_record(data).body, strict_map_key=False)
        name = op["op"]
        # No consumer of these runs moves back by itself, so no commit may set a group back. Only a reset may,
        # and then its consumers have to learn of it.
        index, offsets = self._offsets
        last = name == "reset" and not header.batch_remaining
        if last or (index == header.index - 1 and name != "offset_reset"):
            at, what = (header.index, op) if last else (index, offsets)
            text = f"sets {what['group']} back to {what['offsets']}, which no operator asked for"
            raise InvariantViolated(f"entry {at} {text}")
        if name == "reset":
            self._offsets = (header.index, op)
        elif name == "offset_reset":
            self._reset(header, op)
        elif name == "reset_heard":
            row = self._unheard.get((op["group"], op["topic"]), {})
            if row.get(op["queue"]) == op["offset"]:
                del row[op["queue"]]
                self.heard += 1
        elif name == "reset_over":
            self._unheard.pop((op["group"], op["topic"]), None)
        elif name == "offsets":
            self._raised(header, op)

    def _reset(self, header: EntryHeader, op: Mapping[str, Any]) -> None:
        index, offsets = self._offsets
        key, unheard = (op["group"], op["topic"]), dict(op["queues"])
        # A reset is never incomplete: its offsets are in the same batch as the list of queues whose consumers
        # do not know of it.
        if index != header.index - 1 or offsets["group"] != op["group"]:
            raise InvariantViolated(f"entry {header.index}: {key} has to hear of a reset that is not with it")
        done = {queue: offset for _, queue, offset in offsets["offsets"]}
        if any(unheard.get(queue, offset) != offset for queue, offset in done.items()):
            raise InvariantViolated(f"entry {header.index}: {key} is set to {done}, and told {unheard}")
        self._unheard[key] = unheard
        self._done.setdefault(key, []).append(done)

    def _raised(self, header: EntryHeader, op: Mapping[str, Any]) -> None:
        # A consumer that does not know of a reset does not undo it.
        for topic, queue, offset in op["offsets"]:
            wanted = self._unheard.get((op["group"], topic), {}).get(queue)
            if wanted is not None and offset > wanted:
                raise InvariantViolated(
                    f"entry {header.index} raises {op['group']} in {topic}@{queue} to {offset}: it was set "
                    f"to {wanted}, of which no consumer has heard"
                )

    def judge(self, resets: Iterable[Reset]) -> int:
        """Check that acknowledged resets are in the log. Returns how many were acknowledged. Raises
        InvariantViolated if one is missing."""
        count = 0
        for reset in resets:
            if reset.outcome == ACKNOWLEDGED:
                count += 1
                # An acknowledged reset is in the log with the offsets of the answer.
                if reset.told not in self._done.get((reset.group, reset.topic), []):
                    raise InvariantViolated(f"{reset.group} was told {reset.told}, which is not in the log")
        return count


def judge_followed(resets: Iterable[Reset], gone: Mapping[Queue, int]) -> None:
    """Check that after each reset the group has received all messages from the new offsets on. `gone` says up
    to which offset of a queue retention may have removed messages."""
    for reset in resets:
        if reset.outcome != ACKNOWLEDGED:
            continue
        for queue, unseen in reset.unseen.items():
            first = max(gone.get(queue, 0), reset.told.get(queue[1], 1 << 62))
            # After a reset the group receives all messages from the new offsets on again.
            missing = [offset for offset in unseen if offset >= first]
            if missing:
                raise InvariantViolated(
                    f"{reset.group} was set to {reset.told} in {reset.topic}, and of {queue} not handed "
                    f"{missing[:5]} since"
                )
