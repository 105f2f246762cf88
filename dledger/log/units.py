"""Index units on the event loop (safety.md S8): read where they are in memory; where they are not, a worker
fetches them, and who needs them hears `ColdUnit` and asks again then, as `settled` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dledger.log.index_files import IndexFiles, NotInMemory
from formats.entry import IndexUnit
from runtime import Env, Lane

T = TypeVar("T")


class ColdUnit(Exception):
    """An index unit is not in memory, and being fetched: ask again when `fetched` is done.

    Wait for it with `asyncio.wait`: others may wait for the same future, which an `await` would cancel.
    """

    def __init__(self, fetched: asyncio.Future[bool]) -> None:
        super().__init__("an index unit is being fetched")
        self.fetched = fetched


async def settled(look: Callable[[], T]) -> T:
    """What `look` finds once all index units that it needs are in memory."""
    while True:
        try:
            return look()
        except ColdUnit as cold:
            await asyncio.wait((cold.fetched,))


class UnitsAtHand:
    """Index units of written entries, for the event loop."""

    def __init__(self, env: Env, index: IndexFiles) -> None:
        self._env = env
        self._index = index
        self._fetching: dict[int, asyncio.Future[bool]] = {}

    def get(self, index: int) -> IndexUnit | None:
        """The unit of an entry, None when it is lost; ColdUnit."""
        try:
            return self._index.unit_now(index)
        except NotInMemory:
            pass
        fetched = self._fetching.get(index)
        if fetched is None:
            fetched = self._fetching[index] = self._env.workers.run(Lane.DISK, self._index.fetch, index)
            fetched.add_done_callback(partial(self._was_fetched, index))
        raise ColdUnit(fetched)

    def at_hand(self, index: int) -> IndexUnit | None:
        """The same, None also while it is being fetched."""
        try:
            return self.get(index)
        except ColdUnit:
            return None

    def _was_fetched(self, index: int, fetched: asyncio.Future[bool]) -> None:
        del self._fetching[index]
        if not fetched.cancelled() and not fetched.result():
            self._index.believe_lost(index)
