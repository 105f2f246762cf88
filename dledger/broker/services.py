"""Services that a leader runs in addition to answering; they live as long as one leadership.

Each is a file of its own with three steps: `begin` when the term is open, `run` as a task, `end` when
leadership ends or is handed over. They begin in the order of `dledger.broker.features` and end in the
opposite order. A new service needs a class, and an entry in `services` of the `feature.py` of its folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger.broker.commit_log import CommitLogWriter


class LeaderService:
    """One service. Every step may be omitted. `begin`, `hand_over` and `end` run on the loop and must be
    short."""

    def begin(self, writer: CommitLogWriter) -> None:
        """The term is open: `writer` appends, and its tables include everything that is pending. No request
        is served yet."""

    async def run(self) -> None:
        """Runs as a task. It starts in the next turn of the loop at the earliest, and is cancelled at the end
        of the leadership. An exception ends the broker (architecture rule 7)."""

    def hand_over(self) -> None:
        """Leadership is about to be handed over: this is the last chance to append."""

    def end(self, reason: str) -> None:
        """Leadership has ended. Answer the requests that wait; nothing may be written any longer. `run` gets
        no further turn except for its cancellation."""


class LeaderServices:
    """Begins, runs and ends all services."""

    def __init__(self, services: Sequence[LeaderService]) -> None:
        self._services = tuple(services)
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[LeaderService] = []
        """Services that began before `run` was called."""

    async def run(self) -> None:
        """Own the tasks of the services, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._start(self._waiting)
            self._waiting = []
            await asyncio.get_running_loop().create_future()

    def begin(self, writer: CommitLogWriter) -> None:
        """A term is open: begin all services."""
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
        """Leadership has ended: end all services."""
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
