"""Runs one leadership after the other: makes the log writer, and runs the services that live as long as the
leadership."""

from __future__ import annotations

from collections.abc import Callable

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.ports import Appender, Node
from dledger.broker.services import LeaderServices


class Leadership:
    """Opens and closes the gate for requests, and begins and ends the services."""

    def __init__(
        self,
        node: Node,
        gate: LeaderGate,
        make_writer: Callable[[Appender], CommitLogWriter],
    ) -> None:
        self._node = node
        self._gate = gate
        self._make_writer = make_writer
        self._writer: CommitLogWriter | None = None
        self._sealed_before = 0
        self.services: LeaderServices = LeaderServices(())

    @property
    def messages(self) -> int:
        """Number of messages sealed since start, in all leaderships."""
        return self._sealed_before + (0 if self._writer is None else self._writer.messages)

    def serving(self, term: int) -> None:
        """Begin a leadership, because its term is open: from then on this node assigns offsets."""
        appender = self._node.appender
        if appender is None:
            return
        if self._writer is None or self._writer.term != term:
            # After a failed hand-over the same leadership continues, with its pending offsets.
            self._writer = self._make_writer(appender)
            self.services.begin(self._writer)
        self._gate.open(self._writer)

    def applied(self, index: int) -> None:
        """Note that queues and state contain everything up to this entry."""
        if self._writer is not None:
            self._writer.applied(index)

    def ended(self, term: int) -> None:
        """End the leadership (safety.md S24)."""
        if self._writer is not None:
            self._sealed_before += self._writer.messages
            self._writer = None
        self._gate.close()
        self.services.end(f"leadership of term {term} ended before the entry was committed")

    async def hand_over(self, timeout_s: float) -> bool:
        """Hand leadership over before a shutdown. Returns whether another node has taken it."""
        if self._gate.writer is None:
            return False
        self.services.hand_over()
        self._gate.pause()
        moved = await self._node.step_aside(timeout_s=timeout_s)
        if self._node.serving and self._gate.writer is None and self._writer is not None:
            self._gate.open(self._writer)  # no other node could take over
        return moved
