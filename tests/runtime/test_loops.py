"""A loop in a thread: results, errors, cancellation, end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dledger.runtime.loops import LoopThread, Waiter


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise KeyError("mine")


def test_coroutines_run_in_the_named_thread() -> None:
    thread = LoopThread("worker loop")
    assert thread.run(name_of_thread()) == "worker loop"
    with pytest.raises(KeyError, match="mine"):
        thread.run(fail())
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(name_of_thread())
    with pytest.raises(RuntimeError, match="closed"):
        thread.call_soon(print)


def test_a_timeout_cancels_what_was_waited_for() -> None:
    thread = LoopThread("worker loop")
    cancelled = Waiter()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        thread.run(wait(), timeout_s=0.02)
    assert cancelled.wait(1)
    thread.close()


def test_closing_cancels_what_still_runs() -> None:
    thread = LoopThread("worker loop")
    future = thread.submit(asyncio.sleep(60))
    thread.close()
    assert future.cancelled()


def test_waiting_on_the_loop_s_own_thread_is_refused() -> None:
    thread = LoopThread("worker loop")

    async def inside() -> None:
        thread.run(name_of_thread())

    with pytest.raises(RuntimeError, match="own thread"):
        thread.run(inside())
    called = Waiter()
    thread.call_soon(called.set)
    assert called.wait(1)
    thread.close()
