"""Start and end of a client. It is opened once and closed once, as a block or with `start` and `close`."""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self

from dledger.client.core import OPENED_BEFORE_FORK, ClientCore
from dledger.client.errors import ClientClosed, ClientError


class _State(Enum):
    NEW = 0
    OPEN = 1
    ENDING = 2
    ENDED = 3


class AsyncClient:
    """Base of the clients on an event loop. A client that was closed cannot be started again.

    `async with client:` opens the client and closes it in good order, also when the block ends with an
    exception. `await client.start()` and `await client.close()` do the same for programs that open and close
    it in different functions.
    """

    def __init__(self, core: ClientCore, name: str) -> None:
        self._core = core
        self._name = name
        self._state = _State.NEW
        self._drain = True
        self._stop = asyncio.Event()
        self._over = asyncio.Event()
        self._hosting: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    # --- what the kinds of clients do ------------------------------------------------------------------

    def _check(self) -> None:
        """Check that the client can start; raises ClientError otherwise."""

    async def _begin(self) -> None:
        """Begin to work; the connections are open."""

    async def _finish(self, drain: bool) -> None:
        """End in good order, while the connections are still open. `drain` says whether to finish what is in
        flight."""

    @property
    def _inside(self) -> bool:
        """Whether the caller is itself a part of this client, so that waiting in `close` would wait for the
        caller."""
        return False

    def _stop_soon(self, drain: bool = True) -> None:
        """Request the end without waiting for it. Call it on the loop."""
        self._drain = drain
        self._stop.set()

    # --- as a block -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            if self._state is _State.OPEN:
                raise ClientError("this client is already started")
            raise ClientClosed("this client was closed and cannot be started again: make another one")
        if self._core.forked:
            raise ClientClosed(OPENED_BEFORE_FORK)
        self._check()
        self._state = _State.OPEN
        try:
            await self._core.__aenter__()
            await self._begin()
        except BaseException:
            await self._end(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(kind, error, trace)

    # --- as two calls ---------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Open the client without a block; `close` must follow. Raises ClientError if it cannot be opened."""
        if self._hosting is not None or self._state is not _State.NEW:
            return await self.__aenter__()  # raises the error that says why not
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        # The client is opened in a task of its own, which then owns the client's task group. The caller's
        # task may end before the client does, and must not be cancelled when a task of the client fails.
        self._hosting = task = loop.create_task(self._host(opened), name=f"life of {self._name}")
        task.add_done_callback(lambda done: self._hosted(done, opened))
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            self._stop.set()
            raise
        return self

    async def close(self, drain: bool = True) -> None:
        """Close the client in good order. A second call waits until that closing is done.

        With `drain=False` it does not wait for what is in flight. If the client's own listener calls it, the
        call only requests the end and returns at once.
        """
        if self._core.forked or self._state is _State.NEW:
            return
        # It has ended already, because the loop in which it was opened has ended.
        if self._over.is_set() if self._hosting is None else self._hosting.cancelled():
            return
        self._core.check_loop()
        self._stop_soon(drain)
        if self._inside:
            return
        if self._hosting is None:
            await self._end(None, None, None)
        else:
            await asyncio.shield(self._hosting)

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the client unexpectedly; None if there was none."""
        return self._failure

    async def _wait_until_over(self) -> None:
        """Wait until the client has ended."""
        if self._over.is_set():
            return
        self._core.check_loop()
        await self._over.wait()

    async def _host(self, opened: asyncio.Future[None]) -> None:
        async with self:
            if not opened.done():
                opened.set_result(None)
            await self._stop.wait()

    def _hosted(self, task: asyncio.Task[None], opened: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not opened.done():
            self._hosting = None
            self._over.set()
            opened.set_exception(error or ClientClosed("closed while it was being started"))
            return
        if error is not None:
            self._failure = self._failure or error
            self._core.log.error("client ended by an error", client=self._name, error=repr(error))
        self._over.set()

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._core.forked:
            self._state = _State.ENDED  # only in this fork: connections and groups belong to the parent
            return
        if self._state is not _State.OPEN:
            await self._over.wait()
            return
        self._state = _State.ENDING
        self._stop_soon(self._drain)
        try:
            await self._finish(self._drain and self._core.failure is None)
        finally:
            try:
                await self._core.__aexit__(kind, error, trace)
            finally:
                self._state = _State.ENDED
                if self._hosting is None:
                    self._over.set()
