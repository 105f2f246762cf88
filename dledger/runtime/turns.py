"""An event loop whose turns stay short, however many connections are ready at the same time.

Asyncio's own loop handles everything that is ready in one turn. If five thousand clients return at the same
moment, it does five thousand reads before any timer runs and before it reads an answer of a peer. In this
loop a turn handles at most `EVENTS` connections, and leaves the remaining ones to later turns, in the order
in which they became ready. Some connections are *favoured*: a turn handles them in addition, so that they do
not wait behind clients. These are the connections between peers, and the results of worker threads, because
all programs of a group wait for them.
"""

from __future__ import annotations

import asyncio
import math
import select as system
import selectors
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

EVENTS = 64
"""Largest number of connections (and listeners) from which a turn of the loop reads or to which it writes,
and the same number of favoured ones. A read with its requests mostly takes 20 to 50 microseconds."""
ACCEPTED = 32
"""Largest number of connections that a listener accepts in a turn of the loop. Each takes 100 microseconds,
with everything that follows."""
BACKLOG = 4096
"""Largest number of connections that wait to be accepted (the system may allow fewer: net.core.somaxconn).
One more is dropped. Its client tries again after one or three seconds, or believes that it is connected
although the server does not know the connection."""


class TurnSelector(selectors.BaseSelector):
    """An epoll selector that returns at most `events` connections at a time, and at most as many favoured
    ones."""

    def __init__(self, events: int = EVENTS) -> None:
        self._events = events
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._favoured: set[int] = set()
        """Descriptors of favoured connections, which belong in `_first`, whether they are registered or
        not."""
        self._all = system.epoll()
        self._first = system.epoll()
        self._all.register(self._first.fileno(), system.EPOLLIN)

    def favour(self, fd: int) -> None:
        """Favour this descriptor, which then does not wait behind others, until `unfavour`. It stays favoured
        while it is not registered, because a transport that pauses reading unregisters it."""
        if fd in self._favoured:
            return
        key = self._keys.get(fd)
        if key is not None:
            self._all.unregister(fd)
            self._first.register(fd, _mask(key.events))
        self._favoured.add(fd)

    def unfavour(self, fd: int) -> None:
        """Do not favour this descriptor any longer, because it is about to be closed and its number may then
        be used for another file."""
        if fd in self._favoured:
            key = self._keys.get(fd)
            if key is not None:
                self._first.unregister(fd)
                self._all.register(fd, _mask(key.events))
            self._favoured.discard(fd)

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Do the same as `selectors.BaseSelector`."""
        fd = _number(fileobj)
        if not events or events & ~(selectors.EVENT_READ | selectors.EVENT_WRITE):
            raise ValueError(f"invalid events: {events}")
        if fd in self._keys:
            raise KeyError(f"{fileobj} (FD {fd}) is registered already")
        self._of(fd).register(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Do the same as `selectors.BaseSelector`."""
        fd = self._known(fileobj)
        key = self._keys.pop(fd)
        with suppress(OSError):  # it was closed, and the system has removed it
            self._of(fd).unregister(fd)
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        """Do the same as `selectors.BaseSelector`."""
        fd = self._known(fileobj)
        key = self._keys[fd]
        if events != key.events:
            self._of(fd).modify(fd, _mask(events))
        key = self._keys[fd] = key._replace(events=events, data=data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return connections that are ready, up to the limit. The next calls return the remaining ones."""
        if timeout is None:
            wait_s = -1.0
        elif timeout <= 0:
            wait_s = 0.0
        else:
            wait_s = math.ceil(timeout * 1e3) * 1e-3  # epoll waits whole milliseconds, so round up
        try:
            found = self._all.poll(wait_s, self._events)
        except InterruptedError:
            return []
        keys, first = self._keys, self._first.fileno()
        if len(found) == self._events or any(fd == first for fd, _ in found):
            found = self._first.poll(0, self._events) + [one for one in found if one[0] != first]
        ready = []
        for fd, event in found:
            key = keys.get(fd)
            if key is not None:
                events = selectors.EVENT_WRITE if event & ~system.EPOLLIN else 0
                if event & ~system.EPOLLOUT:
                    events |= selectors.EVENT_READ
                ready.append((key, events & key.events))
        return ready

    def close(self) -> None:
        """Do the same as `selectors.BaseSelector`."""
        self._all.close()
        self._first.close()
        self._keys.clear()

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Do the same as `selectors.BaseSelector`."""
        return self._keys[self._known(fileobj)]

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        """Do the same as `selectors.BaseSelector`. The keys of the map are descriptors."""
        return self._keys  # type: ignore[return-value]  # its keys are some of those

    def _of(self, fd: int) -> system.epoll:
        return self._first if fd in self._favoured else self._all

    def _known(self, fileobj: FileDescriptorLike) -> int:
        fd = _number(fileobj)
        if fd not in self._keys:
            raise KeyError(f"{fileobj} is not registered")
        return fd


def _number(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _mask(events: int) -> int:
    return (system.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        system.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )


class TurnLoop(asyncio.SelectorEventLoop):
    """Asyncio's loop with a `TurnSelector`; the results of worker threads are favoured."""

    def __init__(self) -> None:
        self.turns: TurnSelector = TurnSelector()
        super().__init__(self.turns)
        for fd in list(self.turns.get_map()):  # only the one with which threads wake the loop
            self.turns.favour(_number(fd))


def turn_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a factory of loops with short turns; None if the system has no epoll."""
    return TurnLoop if sys.platform == "linux" else None


def favour(transport: asyncio.BaseTransport) -> int:
    """Favour this connection: its data does not wait behind other connections (only on `TurnLoop`). Return
    its descriptor for `unfavour`; -1 if there is none."""
    loop = asyncio.get_running_loop()
    sock = transport.get_extra_info("socket")
    fd = sock.fileno() if isinstance(loop, TurnLoop) and sock is not None else -1
    if fd >= 0 and isinstance(loop, TurnLoop):
        loop.turns.favour(fd)
    return int(fd)


def unfavour(fd: int) -> None:
    """Do not favour a connection any longer, because it is closed."""
    loop = asyncio.get_running_loop()
    if fd >= 0 and isinstance(loop, TurnLoop):
        loop.turns.unfavour(fd)


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **tls: Any
) -> asyncio.Server:
    """Listen as `create_server` of the running loop does, with `BACKLOG`. A turn of the loop accepts at most
    `ACCEPTED` connections (not on uvloop)."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.SelectorEventLoop):
        return await loop.create_server(factory, host, port, backlog=BACKLOG, **tls)
    server = await loop.create_server(factory, host, port, backlog=ACCEPTED, **tls)
    for listener in server.sockets:  # the loop uses one number for both limits
        with listener.dup() as same:
            same.listen(BACKLOG)
    return server
