"""Index units for the event loop (safety.md S8).

Units in memory are read at once. A worker loads the others; meanwhile the caller gets `ColdUnit` and asks
again afterwards, as `settled` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dledger.formats.entry import IndexUnit
from dledger.log.index_files import FETCHED, IndexFiles, NotInMemory
from dledger.runtime import Env, Lane

T = TypeVar("T")

RETRY_S = 0.1
"""Seconds until a unit is read again that could not be read, for example because too many files were open."""


class ColdUnit(Exception):
    """Raised when an index unit is not in memory. It is being loaded; ask again when `fetched` is done.

    Wait for `fetched` with `asyncio.wait`. Others may wait for the same future, and a cancelled `await` would
    cancel it for them, too.
    """

    def __init__(self, fetched: asyncio.Future[None]) -> None:
        super().__init__("the index unit of the entry is being read")
        self.fetched = fetched


async def settled(look: Callable[[], T]) -> T:
    """Return the result of `look` once all index units that it needs are in memory."""
    while True:
        try:
            return look()
        except ColdUnit as cold:
            await asyncio.wait((cold.fetched,))


class UnitsAtHand:
    """Gives the event loop the index units of written entries."""

    def __init__(self, env: Env, index: IndexFiles) -> None:
        self._env = env
        self._index = index
        self._fetching: dict[int, asyncio.Future[None]] = {}
        """Loads in progress. The key is the index divided by `FETCHED`, which is equal for units that are
        loaded together."""

    def get(self, index: int) -> IndexUnit | None:
        """The unit of an entry, None if it is lost. Raises ColdUnit while it is being loaded."""
        try:
            return self._index.unit_now(index)
        except NotInMemory:
            pass
        fetched = self._fetching.get(index // FETCHED)
        if fetched is None:
            fetched = asyncio.get_running_loop().create_future()
            self._fetch(index, fetched)
            self._fetching[index // FETCHED] = fetched
        raise ColdUnit(fetched)

    def at_hand(self, index: int) -> IndexUnit | None:
        """The unit of an entry; None when it is lost, and also while it is being loaded."""
        try:
            return self.get(index)
        except ColdUnit:
            return None

    def _fetch(self, index: int, fetched: asyncio.Future[None]) -> None:
        reading = self._env.workers.run(Lane.DISK, self._index.fetch, index)
        reading.add_done_callback(lambda reading: self._was_read(index, fetched, reading))

    def _was_read(self, index: int, fetched: asyncio.Future[None], reading: asyncio.Future[bool]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, OSError):  # there are too many open files
            self._env.log.warning("index file not opened", index=index, error=error)
            asyncio.get_running_loop().call_later(RETRY_S, self._fetch, index, fetched)
            return
        del self._fetching[index // FETCHED]
        fetched.set_result(None)  # waiters look again
        if not reading.cancelled() and not reading.result():
            self._index.believe_lost(index)
