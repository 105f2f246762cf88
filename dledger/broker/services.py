"""Services that a leader runs in addition to answering requests. They live as long as one leadership.

Each service is a class in a file of its own. `begin` is called when the term is open, and `run` then runs as
a task. `hand_over` is called before leadership is handed over, and `end` when leadership has ended. Services
begin in the order of `dledger.broker.features` and end in the opposite order.

A new service needs a class, and an entry in `services` of the `feature.py` of its folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger.broker.commit_log import CommitLogWriter


class LeaderService:
    """One service of a leader. Every method may be omitted. `begin`, `hand_over` and `end` are called on the
    event loop and must be short."""

    def begin(self, writer: CommitLogWriter) -> None:
        """Called when the term is open, before requests are served. `writer` appends entries; its tables
        include everything that is pending."""

    async def run(self) -> None:
        """The task of the service. It starts in the next turn of the loop at the earliest, and is cancelled
        at the end of the leadership. An exception ends the broker (architecture rule 7)."""

    def hand_over(self) -> None:
        """Called before leadership is handed over. It is the last chance to append."""

    def end(self, reason: str) -> None:
        """Called when leadership has ended. The service answers the requests that wait in it; it may no
        longer write anything. `run` gets no further turn except for its cancellation."""


class LeaderServices:
    """Begins, runs and ends all services."""

    def __init__(self, services: Sequence[LeaderService]) -> None:
        self._services = tuple(services)
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[LeaderService] = []
        """Services that began before `run` was called."""

    async def run(self) -> None:
        """Run the tasks of the services until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._start(self._waiting)
            self._waiting = []
            await asyncio.get_running_loop().create_future()

    def begin(self, writer: CommitLogWriter) -> None:
        """Begin all services, because a term is open."""
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
        """End all services, because leadership has ended."""
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
