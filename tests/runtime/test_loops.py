"""A loop in a thread: results, errors, cancellation, end."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

import pytest

from dledger.runtime.loops import LoopClosed, LoopThread, Waiter
from dledger.runtime.workers import Lane, ThreadWorkers


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
    begun, cancelled = Waiter(), Waiter()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    for timeout_s in (0.02, 0.2, 2.0, 20.0):
        with pytest.raises(TimeoutError):
            thread.run(wait(), timeout_s=timeout_s)
        if begun.wait(0):  # else the thread had not come to it yet
            break
    assert cancelled.wait(60)
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

    with pytest.raises(RuntimeError, match="from the thread of the loop"):
        thread.run(inside())
    called = Waiter()
    thread.call_soon(called.set)
    assert called.wait(60)
    thread.close()


def test_what_ends_a_program_elsewhere_ends_no_loop_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Asyncio lets SystemExit and KeyboardInterrupt out of the loop."""
    thread = LoopThread("worker loop")

    def leave() -> None:
        raise SystemExit(3)

    async def interrupted() -> None:
        raise KeyboardInterrupt

    thread.call_soon(leave)
    with pytest.raises(KeyboardInterrupt):
        thread.run(interrupted(), timeout_s=60)
    assert thread.run(name_of_thread(), timeout_s=60) == "worker loop"
    assert caplog.text.count("a callback raised on the loop thread") == 2
    thread.close()


def test_a_loop_thread_can_be_ended_from_within() -> None:
    thread = LoopThread("worker loop")
    thread.call_soon(thread.end_soon)
    future = None
    with suppress(LoopClosed):  # it may have ended already
        future = thread.submit(asyncio.sleep(0))
    thread.close()
    assert future is None or future.done()
    with pytest.raises(RuntimeError, match="closed"):
        thread.call_soon(print)


def test_in_a_forked_child_a_loop_thread_is_not_waited_for() -> None:
    thread = LoopThread("worker loop")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="forked"):
                thread.run(name_of_thread())
            with pytest.raises(RuntimeError, match="forked"):
                thread.call_soon(print)
            thread.close()
            fresh = LoopThread("fresh loop")
            assert thread.forked and not fresh.forked
            assert fresh.run(name_of_thread()) == "fresh loop"
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not thread.forked and thread.run(name_of_thread()) == "worker loop"
    thread.close()


@pytest.mark.parametrize("error", [StopIteration("end"), StopAsyncIteration("end"), KeyError("mine")])
def test_a_job_s_waiter_hears_of_whatever_it_raises(error: Exception) -> None:
    """The waiter gets every error, even StopIteration, which no future accepts."""
    workers = ThreadWorkers()

    def job() -> None:
        raise error

    async def main() -> None:
        with pytest.raises((RuntimeError, type(error))) as raised:
            async with asyncio.timeout(60):
                await workers.run(Lane.DISK, job)
        assert error in (raised.value, raised.value.__cause__)

    asyncio.run(main())
    workers.close()
