"""Fast refusal of sends while the log is stalled (BrokerFastFailure).

RocketMQ keeps requests in queues before its worker threads, and empties these queues while the page cache is
stalled. This broker handles each request as it arrives. The only sends that wait are those that are appended
and not committed yet. If the oldest of them has waited for longer than `osPageCacheBusyTimeOutMills`, the log
counts as stalled. Further sends would only wait behind it, so they are refused. A refusal says that the
message was not stored, whereas a time-out would leave that open.
"""

from __future__ import annotations

import asyncio

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.intake.send_checks import Offered, SendCheck
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.services import LeaderService
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.live_settings import LiveSettings

LOOKS = 4
"""Number of checks within `osPageCacheBusyTimeOutMills`. So a stall is noticed late by at most a quarter of
that time."""
WHILE_OFF_S = 1.0
"""Seconds between two checks of the settings while the setting `fast_failure` is off."""


class FastFailure(LeaderService, SendCheck):
    """Refuses sends while the log is stalled (`busy`)."""

    def __init__(self, committed: PendingResponses, settings: LiveSettings[BrokerConfig]) -> None:
        self._committed = committed
        self._settings = settings
        self.busy: bool = False
        """Whether the log was stalled at the last check."""
        self.refused: int = 0
        """Number of sends refused since the start."""

    def begin(self, writer: CommitLogWriter) -> None:
        """Start as not busy, because no send waits yet."""
        self.busy = False

    async def run(self) -> None:
        """Check at intervals whether the log is stalled. So a send only needs to read `busy`."""
        while True:
            config = self._settings.now
            await asyncio.sleep(config.page_cache_busy_s / LOOKS if config.fast_failure else WHILE_OFF_S)
            self.busy = config.fast_failure and self.waited_s() > config.page_cache_busy_s

    def end(self, reason: str) -> None:
        """Reset `busy`, because this node no longer accepts sends."""
        self.busy = False

    def waited_s(self) -> float:
        """Return how long the oldest uncommitted send has waited, in seconds; 0 if there is none."""
        oldest = self._committed.oldest
        return asyncio.get_running_loop().time() - oldest if oldest else 0.0

    @property
    def active(self) -> bool:
        """See `SendCheck`."""
        return self.busy

    def check(self, send: Offered) -> None:
        """Raises RemotingError 2 SYSTEM_BUSY while the log is stalled. The message is then not stored."""
        waited = self.waited_s()
        if waited <= self._settings.now.page_cache_busy_s:
            self.busy = False
            return
        self.refused += 1
        raise RemotingError(
            ResponseCode.SYSTEM_BUSY,
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            f"{waited * 1000:.0f}ms, size of queue: {len(self._committed)}",
        )
