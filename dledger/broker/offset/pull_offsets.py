"""How far each group has pulled (ConsumerOffsetManager.commitPullOffset), shown beside its consumer offsets.

A group's consumer offset is how far it has consumed. Between this offset and the pull offset are the messages
that its consumers hold and have not committed. Pull offsets are not replicated: a leader knows them from the
pulls that it answered. For a queue from which no consumer has pulled at this leader, only the consumer offset
is known, as in RocketMQ after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService

MAX_PULLED = 50_000
"""Queues of groups with a pull offset; for one more, the one that was noted first is forgotten."""


class PullOffsets(LeaderService):
    """For each queue, the offset behind the last message that a group was given, during one leadership."""

    def __init__(self) -> None:
        self._pulled: dict[tuple[str, str, int], int] = {}

    def begin(self, writer: CommitLogWriter) -> None:
        """Start without known pulls."""
        self._pulled.clear()

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A pull was answered: the group continues at this offset."""
        self._pulled[group, topic, queue_id] = offset
        if len(self._pulled) > MAX_PULLED:
            del self._pulled[next(iter(self._pulled))]

    def shown(self, group: str, topic: str, queue_id: int, consumed: int) -> int:
        """The offset that the group pulls next, at least `consumed`, the offset up to which it has
        consumed."""
        return max(consumed, self._pulled.get((group, topic, queue_id), consumed))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The offsets of a group were reset: forget how far it had pulled."""
        for queue_id in offsets:
            self._pulled.pop((group, topic, queue_id), None)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """A topic or a group is about to be deleted: forget its pulls."""
        at = 0 if kind == "group" else 1
        for key in [key for key in self._pulled if key[at] == name]:
            del self._pulled[key]
