"""The time up to which timer messages are being delivered. A new message must be due later.

Before a leader delivers the messages that are due up to a time, it claims that time. Every message that it
appends after the claim is due later. So all messages that it has to deliver are in the queue as soon as the
entries from before the claim are applied.
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
"""Largest difference, in ms, by which the clock of the previous leader may have been ahead. A message that is
due before the claimed time, by at most this difference, is delivered as soon as possible. For a larger
difference, a row of the table `timers` records that the clock went back."""


class TimerClaims(LeaderService):
    """The claims of one leadership. `claimed`: the claimed time in ms. It applies to messages from the queue
    offset on at which the last row of the table `timers` begins."""

    def __init__(self, settings: LiveSettings[BrokerConfig]) -> None:
        self._settings = settings
        self.claimed: int = 0
        self.delivering: int = 0
        """Time in ms: messages due up to this time are being delivered. It is 0 while no delivery is in
        progress."""
        self.waiting: int = 0
        """Approximate number of messages that wait."""

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        rows = in_order(writer.pending[TIMERS].rows.values())
        self.claimed = rows[-1].time if rows else 0
        self.delivering = 0

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self.waiting = 0

    def claim(self, time_ms: int) -> None:
        """Claim a time in ms: messages due up to this time are about to be delivered."""
        self.claimed = max(self.claimed, time_ms)
        self.delivering = time_ms

    def may_recall(self, due: int) -> bool:
        """Whether the recall of a message with this due time would still have an effect."""
        return due > max(self.claimed, self.delivering)

    def place(self, writer: CommitLogWriter, due: int) -> int:
        """Return the due time of a message that is appended in this turn of the loop: `due`, or the earliest
        possible time if `due` is too early. Raises RemotingError with code 14 SERVICE_NOT_AVAILABLE while a
        voter runs a program that does not know timers, and with code 1 SYSTEM_ERROR if too many messages
        wait."""
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
            # Without a row nothing was delivered yet, so all imported messages wait.
            writer.append_op(TimerProgress(slot.next[0] if rows else 0).op())
            self.claimed = 0
        if due <= self.claimed:
            due = rounded_up(self.claimed + 1, self._settings.now.timer_precision_ms)
        return due
