"""An event loop in a thread of its own: how a synchronous face reaches asynchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs one asyncio loop until `close`.

    All methods may be called from any thread but the loop's own: waiting there for the loop would wait
    for ever, so `run` refuses it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def inside(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise RuntimeError("the loop thread is closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Start a coroutine and wait for its result. Interrupted (Ctrl-C, timeout), it is cancelled."""
        if self.inside:
            coroutine.close()
            raise RuntimeError("a blocking call on the loop's own thread would wait for itself")
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function on the loop; RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the loop thread is closed")
            if kwargs:
                self._loop.call_soon_threadsafe(lambda: callback(*args, **kwargs))
            else:
                self._loop.call_soon_threadsafe(callback, *args)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what still runs on the loop, end the thread and wait for it. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(self._drain(), self._loop)
        if self.inside:
            raise RuntimeError("a loop thread cannot close itself")
        try:
            ended.result(timeout_s)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)

    async def _drain(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class Waiter:
    """A flag that a thread can wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake whoever waits, now and later."""
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until set; False when the time was over first."""
        return self._event.wait(timeout_s)
