"""The time up to which timer messages are being delivered: a new message must be due later.

Before a leader delivers what is due up to a time, it claims that time. All that it appends from then on is
due later. So everything that it has to deliver is in the queue when all entries appended before are applied.
"""

from __future__ import annotations

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.services import LeaderService
from dledger.broker.timer.waiting import rounded_up
from dledger.formats.state import MAX_TIMER_ROWS, TIMER, TIMERS, TimerProgress
from dledger.formats.state.timers import in_order
from dledger.formats.timers import TIMER_TOPIC
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.live_settings import LiveSettings

SKEW_MS = 1000
"""Milliseconds. A message that is due before the claimed time by at most this is delivered as soon as it can
be: the previous leader's clock was a little ahead. For a larger difference, a row of the table records that
the clock went back."""


class TimerClaims(LeaderService):
    """The claims of one leadership. `claimed`: time in ms, for messages behind the last row of the table."""

    def __init__(self, settings: LiveSettings[BrokerConfig]) -> None:
        self._settings = settings
        self.claimed: int = 0
        self.delivering: int = 0
        """Messages due up to this time are being delivered; 0 if none are."""
        self.waiting: int = 0
        """About how many messages wait."""

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        rows = in_order(writer.pending[TIMERS].rows.values())
        self.claimed = rows[-1].time if rows else 0
        self.delivering = 0

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self.waiting = 0

    def claim(self, time_ms: int) -> None:
        """Messages due up to this time are about to be delivered."""
        self.claimed = max(self.claimed, time_ms)
        self.delivering = time_ms

    def may_recall(self, due: int) -> bool:
        """Whether a recall of a message that is due at this time would still have an effect."""
        return due > max(self.claimed, self.delivering)

    def place(self, writer: CommitLogWriter, due: int) -> int:
        """The due time of a message that is appended in this turn of the loop: the given one, or as soon as
        possible. RemotingError 14 while a voter does not know timers, 1 if too many messages wait."""
        writer.check_versions(TIMER)
        most = self._settings.now.max_timer_messages
        if self.waiting >= most:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {most} (maxTimerMessages)",
            )
        rows = writer.pending[TIMERS].rows
        if not rows or (self.claimed - due > SKEW_MS and len(rows) < MAX_TIMER_ROWS):
            slot = writer.slot(TIMER_TOPIC)
            assert slot is not None  # every broker has it
            # Without a row nothing was delivered yet: all that an import brought waits.
            writer.append_op(TimerProgress(slot.next[0] if rows else 0).op())
            self.claimed = 0
        if due <= self.claimed:
            due = rounded_up(self.claimed + 1, self._settings.now.timer_precision_ms)
        return due
