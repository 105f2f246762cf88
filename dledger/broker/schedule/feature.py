"""Delay levels, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core, Members
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.schedule.delay_service import DelayService
from dledger.broker.schedule.kept_messages import KeptMessages
from dledger.broker.store.consume_queue import ConsumeQueue


class ScheduleFeature(Feature):
    """Delivers messages after a delay, and finds the part of the log that must be kept for waiting
    messages."""

    def __init__(self, core: Core, members: Members) -> None:
        self.kept: KeptMessages = KeptMessages(core.store, core.reader)
        self.delays: DelayService = DelayService(core, members)
        self.services = (self.delays,)

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """See `Feature`."""
        self.delays.arrived(queues)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: self.delays.delivered,
            "Messages with a delay level that were delivered",
            "delayed_delivered",
            counts=True,
        )
        yield Figure(
            lambda: self.delays.dropped,
            "Messages with a delay level that were dropped",
            "delayed_dropped",
            counts=True,
        )
