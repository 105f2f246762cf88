"""Runs an asynchronous client on an event loop in a thread of its own, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dledger.client.core import NOT_OPEN, OPENED_BEFORE_FORK
from dledger.client.errors import ClientClosed, ClientError
from dledger.client.lifecycle import AsyncClient
from dledger.runtime.forks import FORKS
from dledger.runtime.loops import (
    Cancelled,
    LoopClosed,
    LoopThread,
    Submitted,
    Waiter,
    one_at_a_time,
)

T = TypeVar("T")
C = TypeVar("C", bound=AsyncClient)


@contextmanager
def ending_is_client_closed() -> Iterator[None]:
    """Context manager. If the loop thread ends inside the block, ClientClosed is raised."""
    try:
        yield
    except (Cancelled, LoopClosed) as error:
        raise ClientClosed("the client was closed while this call waited") from error


class BlockingClient(Generic[C]):
    """Base of the clients with blocking methods. Each start builds a new asynchronous client with `_make`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: LoopThread | None = None
        self._inner: C | None = None
        self._ended = Waiter()
        self._closing = False
        self._starting = one_at_a_time()
        self._forks = FORKS.count
        self._failure: BaseException | None = None
        """The exception that ended the client; None if `close` ended it."""

    def _make(self) -> C:
        raise NotImplementedError

    def start(self) -> Self:
        """Start the client, as `with` does. A closed client may be started again. Raises ClientError if it
        cannot start."""
        if self._forks != FORKS.count:  # in a fork: a start that was running goes on in the parent
            self._forks, self._starting = FORKS.count, one_at_a_time()
        self._stopped()
        with self._starting:
            return self._start()

    def _stopped(self) -> LoopThread | None:
        """The thread of the previous start if it still has to be closed; None otherwise. Raises ClientError
        if the client must not be started now."""
        thread = self._thread
        if thread is None or thread.forked:
            return None
        if not self._closing and not thread.closed:
            raise ClientError("this client is already started")
        if thread.inside or (self._inner is not None and self._called_by(self._inner)):
            raise ClientError(
                "this client is being closed and waits for this call: start another client elsewhere"
            )
        return thread

    def _start(self) -> Self:
        if self._stopped() is not None:
            self.close()
        self._ended = ended = Waiter()
        self._failure = None
        self._closing = False
        self._inner = None
        self._thread = thread = LoopThread(self._name)
        ready = Waiter()
        living = thread.submit(self._live(ready))
        living.add_done_callback(lambda done: self._over(done, thread, ready, ended))
        try:
            ready.wait()
        except BaseException:
            living.cancel()
            raise
        failure = self._failure
        if failure is not None and self._inner is None:  # else it began, and has ended by itself already
            self._thread = None
            thread.close()
            raise failure
        return self

    def close(self, drain: bool = True) -> None:
        """Close the client in good order: requests in flight are finished or reported as failed, and offsets
        are committed. Calling it again does nothing.

        With `drain=False` it does not wait for what is in flight. If a callback or a listener of this client
        calls it, the call only requests the end and returns at once. In a forked child it does nothing.
        """
        thread, inner = self._thread, self._inner
        if thread is None:
            return
        if thread.forked:
            self._thread = self._inner = None
            return
        self._closing = True
        inside = thread.inside or (inner is not None and self._called_by(inner))
        if inner is not None:
            self._stop_handing_out(inner)
            with suppress(LoopClosed):  # it has ended by itself meanwhile
                thread.call_soon(inner._stop_soon, drain)
        if not inside:
            self._ended.wait()
            thread.close()
            if self._thread is thread:  # otherwise another thread has started it again
                self._thread = self._inner = None

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the client unexpectedly; None if there was none."""
        return self._failure

    def _called_by(self, inner: C) -> bool:
        """Whether the caller is a listener in one of the client's own threads."""
        return False

    def _stop_handing_out(self, inner: C) -> None:
        """Stop what must stop at once, without waiting for the event loop to handle the end."""

    async def _live(self, ready: Waiter) -> BaseException | None:
        """Run the client from start to end. Returns the exception that ended it, or None if `close` ended
        it."""
        inner = self._make()
        await inner.start()
        self._inner = inner
        ready.set()
        await inner._wait_until_over()
        return inner.failure

    def _over(
        self,
        done: Submitted[BaseException | None],
        thread: LoopThread,
        ready: Waiter,
        ended: Waiter,
    ) -> None:
        if done.cancelled():
            self._failure = ClientClosed("the thread of this client was ended")
        else:
            self._failure = done.exception() or done.result()
        thread.end_soon()
        ended.set()
        ready.set()

    def _run(self, call: Callable[[C], Awaitable[T]]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        inner, thread = self._open()

        async def run() -> T:
            return await call(inner)

        return self._wait(thread, run())

    def _call(self, call: Callable[[C], T]) -> T:
        """Call a function on the loop and wait until it has returned its result. The function itself must not
        wait. If the caller is already on the loop, the function is called at once."""
        inner, thread = self._open()
        if thread.inside:
            return call(inner)

        async def run() -> T:
            return call(inner)

        return self._wait(thread, run())

    def _wait(self, thread: LoopThread, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. Raises ClientClosed if another thread closes
        the client meanwhile."""
        with ending_is_client_closed():
            return thread.run(coroutine)

    def _begin(self, call: Callable[[C], Coroutine[Any, Any, T]]) -> Callable[[], T]:
        """Start a coroutine on the loop; returns a function that waits for its result."""
        inner, thread = self._open()
        with ending_is_client_closed():
            future = thread.submit(call(inner))

        def result() -> T:
            with ending_is_client_closed():
                return future.result()

        return result

    def _open(self) -> tuple[C, LoopThread]:
        inner, thread = self._inner, self._thread
        if inner is None or thread is None or self._closing:
            raise ClientClosed(NOT_OPEN)
        if thread.forked:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if thread.closed:
            raise ClientClosed(f"the client has ended: {self._failure!r}") from self._failure
        return inner, thread

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
