"""How far each group has pulled (ConsumerOffsetManager.commitPullOffset): what is shown beside its offsets.

A group's offset says what it has consumed; between the two is what its consumers hold and have not committed.
It is not state: a leader knows it from the pulls that it answered, and of queues where nobody has pulled from
it, the consumer offset is all that is known, as in RocketMQ after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService

MAX_PULLED = 50_000
"""Queues of groups with an offset; the one that was pulled first of all is forgotten for a further one."""


class PullOffsets(LeaderService):
    """Offset behind the last message that a group was given, of each of its queues, during one leadership."""

    def __init__(self) -> None:
        self._pulled: dict[tuple[str, str, int], int] = {}

    def begin(self, writer: CommitLogWriter) -> None:
        """Nobody has pulled yet."""
        self._pulled.clear()

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A pull was answered: the group goes on at this offset."""
        self._pulled[group, topic, queue_id] = offset
        if len(self._pulled) > MAX_PULLED:
            del self._pulled[next(iter(self._pulled))]

    def shown(self, group: str, topic: str, queue_id: int, consumed: int) -> int:
        """Where the group pulls next, at least the offset that it has `consumed` up to."""
        return max(consumed, self._pulled.get((group, topic, queue_id), consumed))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The group was sent elsewhere: what it pulled before says nothing any more."""
        for queue_id in offsets:
            self._pulled.pop((group, topic, queue_id), None)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """A topic or a group is about to be deleted."""
        at = 0 if kind == "group" else 1
        for key in [key for key in self._pulled if key[at] == name]:
            del self._pulled[key]
