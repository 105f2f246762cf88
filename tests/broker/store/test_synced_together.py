"""fsyncs that run side by side: which failure counts."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker.store.message_store import MessageStore


class Threads:
    """Runs jobs in turns of the loop."""

    async def _one(self, job: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        job()

    def run(self, lane: object, job: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._one(job))


@pytest.mark.parametrize("order", [(errno.EMFILE, errno.EIO), (errno.EIO, errno.EMFILE)])
def test_a_want_of_files_hides_no_failed_fsync(order: tuple[int, int]) -> None:
    def failing(number: int) -> Callable[[], None]:
        def job() -> None:
            raise OSError(number, "failed")

        return job

    store: Any = object.__new__(MessageStore)
    store._env = SimpleNamespace(workers=Threads())
    with pytest.raises(OSError, match="failed") as caught:
        asyncio.run(store._run_each(map(failing, order)))
    assert caught.value.errno == errno.EIO
