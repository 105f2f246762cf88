"""Runs requests that must read from the device (cold requests). Each is a named task of one task group, and
their number is limited (architecture rules 7 and 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from dledger.errors import OUT_OF_MEANS, NodeFailed, why_ended
from dledger.log.reading import Rotten
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection

MAX_TASKS = 256
"""Largest number of cold requests that are processed at the same time. A further one is refused with 2
SYSTEM_BUSY."""


class Background:
    """Owns the tasks of cold requests. `start` works only while `run` is running."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], Coroutine[Any, Any, None]] = {}
        self._serial = 0

    @property
    def count(self) -> int:
        """Number of tasks that exist now."""
        return len(self._tasks)

    async def run(self) -> None:
        """Run the tasks until cancelled. Raises NodeFailed for an error of the disk, because the store can
        then not be trusted (architecture rule 7)."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await asyncio.get_running_loop().create_future()
        except* OSError as errors:
            failure = why_ended(errors)
            raise NodeFailed(f"cannot read the store: {failure.reason}", failure.exit_code) from None

    def cancel(self) -> None:
        """Cancel all tasks after the event loop stood still. The requests may be late, and the connections of
        their clients are closed."""
        for task in list(self._tasks):
            task.cancel()

    def start(self, connection: Connection, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """Start `work` as a task, which answers the request. A RemotingError that it raises becomes the
        answer."""
        if self._group is None or len(self._tasks) >= MAX_TASKS:
            work.close()
            connection.respond(
                request,
                ResponseCode.SYSTEM_BUSY,
                remark="too many reads of cold messages wait: try again later",
            )
            return
        self._serial += 1
        task = self._group.create_task(self._guard(connection, request, work), name=f"cold-{self._serial}")
        self._tasks[task] = work
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).close()  # a task cancelled before its first turn has not begun its coroutine

    async def _guard(self, connection: Connection, request: Request, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Rotten as error:
            connection.respond(request, ResponseCode.SYSTEM_BUSY, remark=f"{error}; they wait for repair")
        except OSError as error:
            if error.errno not in OUT_OF_MEANS:
                raise
            connection.respond(request, ResponseCode.SYSTEM_BUSY, remark=f"cannot be read now: {error}")
        except RemotingError as error:
            code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
            connection.respond(request, code, remark=error.remark)
