"""What the proxy knows about each link, and the pipe that carries the data of one connection in one
direction."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

MAX_HELD = 256 * 1024
"""Bytes that one pipe holds back. Beyond them it stops reading, and the sender's system has to wait."""
MAX_HOLD_S = 0.3
"""Longest time, in seconds, for which a flaky link holds a piece of data back."""


@dataclass
class Link:
    """The state of a link."""

    cut: bool = False
    drops: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: int = 0
    resets: float = 0.0
    holds: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def lateness_s(self) -> float:
        """How much later the next piece of data arrives, in seconds."""
        late = self.delay_s
        if self.jitter_s:
            late += self.chance.uniform(0, self.jitter_s)
        if self.holds and self.chance.random() < self.holds:
            late += self.chance.uniform(0, MAX_HOLD_S)
        return late

    def wants_reset(self) -> bool:
        """Whether the connection of the next piece of data is reset."""
        return bool(self.resets) and self.chance.random() < self.resets


class Pipe:
    """One direction of a connection: reads at one end, and writes at the other as the link allows."""

    def __init__(self, link: Link, source: asyncio.Transport, target: asyncio.Transport) -> None:
        self.link: Link = link
        self._source = source
        self._target = target
        self._queue: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self._latest = 0.0
        self._paused = False
        self._full = False
        """Whether the target takes no more data at the moment."""
        self._ends = False
        self._timer: asyncio.TimerHandle | None = None
        self.lost_data: bool = False
        """Whether the link dropped something of this connection."""

    def feed(self, data: bytes) -> None:
        """Take data that was read at the source."""
        link = self.link
        if link.drops:
            self.lost_data = True
            return
        if link.wants_reset():
            self.reset()
            return
        now = asyncio.get_running_loop().time()
        at = max(now + link.lateness_s(), self._latest)
        if link.bytes_per_s:
            at += len(data) / link.bytes_per_s
        if at <= now and not (self._queue or link.cut or self._full):
            self._write(data)
            return
        self._latest = at
        self._queue.append((at, data))
        self._held += len(data)
        if self._held > MAX_HELD and not self._paused:
            self._paused = True
            self._source.pause_reading()
        self.pump()

    def _write(self, data: bytes) -> None:
        """Write, unless the target is closed already, whose end the source has not learned of yet."""
        if not self._target.is_closing():
            self._target.write(data)

    def end(self) -> None:
        """Note that the source has closed the connection. The target learns of it after the data before."""
        self._ends = True
        self.pump()

    def hold(self, full: bool) -> None:
        """Note whether the target takes no more data at the moment."""
        self._full = full
        self.pump()

    def pump(self) -> None:
        """Write what may be written now. To be called after each change of the link."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.link.cut or self._full:
            return
        loop = asyncio.get_running_loop()
        while self._queue and not self._full:
            at, data = self._queue[0]
            if at > loop.time():
                self._timer = loop.call_at(at, self.pump)
                break
            self._queue.popleft()
            self._held -= len(data)
            self._write(data)
        if self._paused and self._held <= MAX_HELD // 2:
            self._paused = False
            if not self._source.is_closing():
                self._source.resume_reading()
        if self._ends and not self._queue and not self.link.drops:
            self._target.close()

    def reset(self) -> None:
        """Reset the connection at both ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._source.abort()
        self._target.abort()
