"""Runs an event loop in a thread of its own. Synchronous code uses it to call asynchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, ParamSpec, TypeVar

from dledger.runtime.forks import FORKS

P = ParamSpec("P")
T = TypeVar("T")

Submitted = concurrent.futures.Future
"""What another thread gets for a coroutine that it has started on the loop: a future of
`concurrent.futures`."""
Cancelled = concurrent.futures.CancelledError
"""Error that a caller in another thread gets if its coroutine was cancelled because the loop thread ended."""


class LoopClosed(RuntimeError):
    """The loop thread has ended, or is about to end."""


class LoopThread:
    """A daemon thread that runs one asyncio loop until `close`.

    All methods may be called from any thread except the loop's own. On that thread, waiting for the loop
    would never end, so `run` refuses it. In a forked child the thread does not exist: `forked` is true, every
    call that needs the thread raises RuntimeError, and `close` does nothing.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._forks = FORKS.count
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._run():
                pass
        finally:
            self._loop.close()

    def _run(self) -> bool:
        """Run until stopped, and return True. Return False if a callback raised SystemExit or
        KeyboardInterrupt; the caller then runs the loop again.

        Asyncio does not catch these two exceptions. On this thread they do not end the process, as they would
        on the main thread. They must not end a loop that other code uses either.
        """
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            self._loop.call_exception_handler(
                {"message": "a callback raised on the loop thread", "exception": error}
            )
            return False
        return True

    @property
    def closed(self) -> bool:
        """Whether the loop thread was asked to end."""
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that has the thread."""
        return FORKS.count != self._forks

    @property
    def inside(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Raises RuntimeError after `close`."""
        if self.forked:
            coroutine.close()
        self._check_not_forked()
        with self._lock:
            if self._closed:
                coroutine.close()
                raise LoopClosed("the loop thread is closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Start a coroutine and wait for its result. If the wait is interrupted (Ctrl-C, timeout), the
        coroutine is cancelled."""
        if self.inside:
            coroutine.close()
            raise RuntimeError(
                "a blocking call from the thread of the loop would wait for itself: "
                "call it from another thread"
            )
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function on the loop. Raises RuntimeError after `close`."""
        self._check_not_forked()
        with self._lock:
            if self._closed:
                raise LoopClosed("the loop thread is closed")
            if kwargs:
                self._loop.call_soon_threadsafe(lambda: callback(*args, **kwargs))
            else:
                self._loop.call_soon_threadsafe(callback, *args)

    def end_soon(self) -> None:
        """Cancel all tasks on the loop and end the thread, without waiting for it. May be called from any
        thread."""
        if self.forked:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel all tasks as `end_soon` does, and wait for the end of the thread. Raises TimeoutError if a
        task does not end. A second call waits as well."""
        if self.forked:
            return
        self.end_soon()
        if self.inside:
            raise RuntimeError("a loop thread cannot wait for its own end")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
            raise TimeoutError(
                f"tasks on the loop thread {self._thread.name!r} did not end in {timeout_s:g} s"
            )

    def _check_not_forked(self) -> None:
        if self.forked:
            raise RuntimeError("the loop thread is in the process that this one was forked from")

    async def _drain(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


def one_at_a_time() -> AbstractContextManager[bool]:
    """Return a lock, a context manager that only one thread at a time can hold."""
    return threading.Lock()


class Waiter:
    """A flag that a thread can wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake all waiting threads, and let later waits return at once."""
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set. Returns False if `timeout_s` is over first."""
        return self._event.wait(timeout_s)


async def next_turn() -> None:
    """Wait until every task and callback that is ready now has run once."""
    loop = asyncio.get_running_loop()
    turned = asyncio.Event()
    loop.call_soon(turned.set)
    await turned.wait()
