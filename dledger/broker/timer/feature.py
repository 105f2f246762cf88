"""Timer messages, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.timer.recall_processor import RecallProcessor
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.broker.timer.timer_service import TimerService


class TimerFeature(Feature):
    """Messages that are delivered at a given time, and their recall."""

    def __init__(self, core: Core) -> None:
        self.claims: TimerClaims = TimerClaims(core.settings)
        self.service: TimerService = TimerService(core, self.claims)
        self.processors = (RecallProcessor(core, self.claims),)
        self.services = (self.claims, self.service)

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """See `Feature`."""
        self.service.arrived(queues)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: self.claims.waiting,
            "On the leader: timer messages that are not due yet (an estimate)",
            "timers_waiting",
            "timerMessagesWaiting",
        )
        yield Figure(
            lambda: self.service.delivered,
            "Timer messages that were delivered",
            "timers_delivered",
            "timerMessagesDelivered",
            counts=True,
        )
        yield Figure(
            lambda: self.service.recalled,
            "Timer messages that were recalled before they were due",
            "timers_recalled",
            "timerMessagesRecalled",
            counts=True,
        )
        yield Figure(
            lambda: self.service.rolled,
            "Timer messages and recalls that were written to the log again",
            "timers_rolled",
            counts=True,
        )
        yield Figure(
            lambda: self.service.dropped,
            "Timer messages that were due and were dropped",
            "timers_dropped",
            counts=True,
        )
