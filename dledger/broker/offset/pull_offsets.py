"""The offset up to which each group has pulled each queue (ConsumerOffsetManager.commitPullOffset). Tools
show it beside the consumer offset.

A group's consumer offset is the offset up to which it has consumed. The messages between the consumer offset
and the pull offset are those that its consumers have received and not committed. Pull offsets are not
replicated: a leader knows them from the pulls that it has answered. If no consumer has pulled from a queue at
this leader, only the consumer offset is known, as in RocketMQ after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService

MAX_PULLED = 50_000
"""Largest number of queues of groups whose pull offset is kept. One more replaces the queue that was noted
first."""


class PullOffsets(LeaderService):
    """Maps each queue of each group to the offset behind the last message that the group has received from
    this leader."""

    def __init__(self) -> None:
        self._pulled: dict[tuple[str, str, int], int] = {}

    def begin(self, writer: CommitLogWriter) -> None:
        """Start without any noted pulls."""
        self._pulled.clear()

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note that a pull was answered. `offset` is the offset at which the group continues."""
        self._pulled[group, topic, queue_id] = offset
        if len(self._pulled) > MAX_PULLED:
            del self._pulled[next(iter(self._pulled))]

    def shown(self, group: str, topic: str, queue_id: int, consumed: int) -> int:
        """Return the offset at which the group pulls next. It is at least `consumed`, the offset up to which
        the group has consumed."""
        return max(consumed, self._pulled.get((group, topic, queue_id), consumed))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Forget how far a group had pulled from these queues, because its offsets were reset."""
        for queue_id in offsets:
            self._pulled.pop((group, topic, queue_id), None)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """Forget the pulls of a topic or a group that is about to be deleted."""
        at = 0 if kind == "group" else 1
        for key in [key for key in self._pulled if key[at] == name]:
            del self._pulled[key]
