"""What a leader does besides answering: services that live as long as one leadership.

Each is a file of its own with three steps: `begin` when the term is open, `run` as a task, `end` when
leadership is over, or given away. They begin in the order of `dledger.broker.features` and end in the
opposite one. A new one is a class, and a place in `services` of the `feature.py` of its folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger.broker.commit_log import CommitLogWriter


class LeaderService:
    """One of them. Every step may be left out. `begin`, `hand_over` and `end` are short, and on the loop."""

    def begin(self, writer: CommitLogWriter) -> None:
        """The term is open: `writer` appends and knows what is pending. Nobody is served yet."""

    async def run(self) -> None:
        """Begins in the next turn of the loop at the earliest, is cancelled at the end of the leadership.
        What it raises ends the broker (architecture rule 7)."""

    def hand_over(self) -> None:
        """Leadership is about to be given away: the last that may be appended is what is appended here."""

    def end(self, reason: str) -> None:
        """Leadership is over. Answers what waits; nothing may be written any more. `run` gets no further turn
        but for its cancellation."""


class LeaderServices:
    """Begins, runs and ends them."""

    def __init__(self, services: Sequence[LeaderService]) -> None:
        self._services = tuple(services)
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[LeaderService] = []
        """Began before `run` did."""

    async def run(self) -> None:
        """Own the tasks, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._start(self._waiting)
            self._waiting = []
            await asyncio.get_running_loop().create_future()

    def begin(self, writer: CommitLogWriter) -> None:
        """A term is open."""
        for service in self._services:
            service.begin(writer)
        if self._group is None:
            self._waiting = list(self._services)
        else:
            self._start(self._services)

    def hand_over(self) -> None:
        """See `LeaderService`."""
        for service in self._services:
            service.hand_over()

    def end(self, reason: str) -> None:
        """Leadership is over."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._waiting = []
        for service in reversed(self._services):
            service.end(reason)

    def _start(self, services: Sequence[LeaderService]) -> None:
        assert self._group is not None
        for service in services:
            if type(service).run is not LeaderService.run:
                name = f"leader-{type(service).__name__}"
                self._tasks.append(self._group.create_task(service.run(), name=name))
