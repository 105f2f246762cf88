"""Sends are refused at once while the log does not move (BrokerFastFailure).

RocketMQ keeps requests in queues before threads that work on them, and empties these queues while the page
cache stands still. Here a request is worked on as it comes; what waits is what was appended and is not
committed. Its time is measured. While the oldest of it waits for longer than `osPageCacheBusyTimeOutMills`,
further sends would only wait behind it: they are refused, which tells their producers that they are not
stored, where a time-out would tell nothing.
"""

from __future__ import annotations

import asyncio

from dledger.broker.config import BrokerConfig
from dledger.broker.pending_responses import PendingResponses
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.live_settings import LiveSettings


class FastFailure:
    """Asked before each send."""

    def __init__(self, committed: PendingResponses, settings: LiveSettings[BrokerConfig]) -> None:
        self._committed = committed
        self._busy_s = 0.0
        self._told(settings.now)
        settings.listen(self._told)
        self.refused = 0
        """Sends since start."""

    def _told(self, config: BrokerConfig) -> None:
        self._busy_s = config.page_cache_busy_s if config.fast_failure else 0.0

    def check(self) -> None:
        """RemotingError 2 while the log does not move: nothing is stored."""
        oldest = self._committed.oldest
        if oldest and self._busy_s:
            waited = asyncio.get_running_loop().time() - oldest
            if waited > self._busy_s:
                self.refused += 1
                raise RemotingError(
                    ResponseCode.SYSTEM_BUSY,
                    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                    f"{waited * 1000:.0f}ms, size of queue: {len(self._committed)}",
                )
