"""Reads entries for peers that lag so far that their part of the log is no longer in memory (R6).

One range is read at a time, for one peer after the other. So lagging peers cost little memory and at most one
read of the disk at once, however many they are and however far they lag.

A peer that lags by more than `throttle_lag_bytes` is also limited to a quota (DLedger's peerPushThrottlePoint
and peerPushQuota) while a quorum is not behind. If the group needs the lagging peer in order to commit, it
may catch up as fast as it can.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from dledger.config import NodeConfig
from dledger.log.index_units import ColdUnit
from dledger.log.store import LogStore
from dledger.replication.leader import LeaderReplication, PushState, SendAppend, SendCommit

Push = SendAppend | SendCommit
GROWTH_WINDOW_S = 1.0
"""Period, in seconds, over which the growth of the log is measured."""


class Throttle:
    """Decides which peers are limited to the quota, and when they may get more."""

    def __init__(self, config: NodeConfig, log: LogStore) -> None:
        self._config = config
        self._log = log
        self._ready: dict[str, float] = {}
        self._sample = (0.0, 0)
        self._growth = 0.0

    def lags(self, leader: LeaderReplication, peer: str) -> bool:
        """Whether a peer lacks more than `throttle_lag_bytes`, or lacks so much that its position in the log
        is not in memory."""
        progress = leader.progress[peer]
        if progress.state is not PushState.APPEND:
            return True
        index = min(max(progress.stored, self._log.first_index - 1), self._log.last_index)
        try:
            return self._log.end_pos - self._log.end_of(index) > self._config.throttle_lag_bytes
        except ColdUnit:
            return True

    def holds(self, leader: LeaderReplication, peer: str) -> bool:
        """Whether this peer is limited to the quota. It is if it lags and a quorum does not."""
        if peer not in leader.progress or not self.lags(leader, peer):
            return False
        near = sum(
            1
            for voter in leader.voters
            if voter == leader.self_id or (leader.counts(voter) and not self.lags(leader, voter))
        )
        return near > len(leader.voters) // 2

    def ready_at(self, peer: str) -> float:
        """Return the loop time from which the peer may get more."""
        return self._ready.get(peer, 0.0)

    def sent(self, peer: str, size: int, now: float) -> None:
        """Count `size` bytes that were sent to a throttled peer."""
        began, pos = self._sample
        if now - began >= GROWTH_WINDOW_S:
            self._growth = max(0, self._log.end_pos - pos) / (now - began) if began else 0.0
            self._sample = (now, self._log.end_pos)
        quota = max(self._config.throttle_bytes_per_s, 2 * self._growth)
        self._ready[peer] = max(now, self.ready_at(peer)) + size / quota


class ColdPushes:
    """For each peer a queue of the ranges that must be read for it, in order. `send` gets the data of each
    range."""

    def __init__(
        self,
        throttle: Throttle,
        read: Callable[[LeaderReplication, SendAppend], Awaitable[tuple[bytes, int] | None]],
        send: Callable[[LeaderReplication, Push, bytes, int], None],
        live: Callable[[LeaderReplication, Push], bool],
    ) -> None:
        self._throttle = throttle
        self._read = read
        self._send = send
        self._live = live
        self._queues: dict[str, deque[tuple[LeaderReplication, Push]]] = {}
        self._turns: deque[str] = deque()
        self._wake = asyncio.Event()

    def waits(self, peer: str) -> bool:
        """Whether anything is queued for the peer. If so, later pushes must be queued behind it."""
        return peer in self._queues

    def add(self, leader: LeaderReplication, push: Push) -> None:
        """Queue a push behind the others of its peer."""
        if push.peer not in self._queues:
            self._queues[push.peer] = deque()
            self._turns.append(push.peer)
        self._queues[push.peer].append((leader, push))
        self._wake.set()

    async def run(self) -> None:
        """Read and send until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            wait = await self._round(loop)
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _round(self, loop: asyncio.AbstractEventLoop) -> float | None:
        """Work until nothing can be sent now. Return the seconds until something can be sent, or None if
        nothing waits for its time."""
        held: dict[str, float] = {}
        while self._turns:
            peer = self._turns.popleft()
            queue = self._queues[peer]
            leader, push = queue[0]
            live = self._live(leader, push)
            throttled = live and isinstance(push, SendAppend) and self._throttle.holds(leader, peer)
            if throttled and (ready := self._throttle.ready_at(peer)) > loop.time():
                held[peer] = ready
            else:
                if live:
                    await self._push(leader, push, throttled)
                queue.popleft()
            if not queue:
                del self._queues[peer]
            elif peer not in held:
                self._turns.append(peer)
        self._turns.extend(held)
        return min(held.values()) - loop.time() if held else None

    async def _push(self, leader: LeaderReplication, push: Push, throttled: bool) -> None:
        """Read and send one range, which ends with a client batch. If it cannot be read, nothing is sent and
        the peer is paused."""
        read = await self._read(leader, push) if isinstance(push, SendAppend) else (b"", -1)
        if read is None:
            return
        data, last = read
        if self._live(leader, push):
            self._send(leader, push, data, last)
        if throttled:
            self._throttle.sent(push.peer, len(data), asyncio.get_running_loop().time())
