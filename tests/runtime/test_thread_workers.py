"""Threads that run jobs, and their end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dledger.runtime.workers import Lane, ThreadWorkers, close_meanwhile


def test_workers_are_closed_where_no_further_thread_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a handler of atexit, or in a thread that outlives the main one."""
    before = threading.active_count()

    async def main() -> None:
        workers = ThreadWorkers()
        await workers.run(Lane.DISK, int)

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        await close_meanwhile(workers)

    asyncio.run(main())
    assert threading.active_count() <= before


def test_a_loop_goes_on_while_they_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is let end by the loop, for which it waits a minute; they would wait longer for the job."""
    monkeypatch.setattr("dledger.runtime.workers.CLOSE_LIMIT_S", 600.0)

    async def main() -> None:
        workers = ThreadWorkers()
        may_end = threading.Event()
        job = workers.run(Lane.DISK, may_end.wait, 60)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await close_meanwhile(workers)
        assert await job

    asyncio.run(main())
