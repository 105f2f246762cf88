"""Fast refusal of sends and the search for slow consumers, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.latency.fast_failure import FastFailure
from dledger.broker.latency.slow_consumers import SlowConsumers


class LatencyFeature(Feature):
    """Refuses sends while the log is stalled, and disables slow consumer groups."""

    def __init__(self, core: Core) -> None:
        self.fast_failure: FastFailure = FastFailure(core.committed, core.settings)
        self.slow_consumers: SlowConsumers = SlowConsumers(core.env, core.settings, core.store)
        self.services = (self.fast_failure, self.slow_consumers)
        self.send_checks = (self.fast_failure,)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        busy = self.fast_failure
        yield Figure(lambda: round(busy.waited_s() * 1000), key="sendThreadPoolQueueHeadWaitTimeMills")
        yield Figure(
            lambda: busy.refused,
            "Sends refused because the log made no progress",
            "sends_refused_busy",
            "sendsRefusedAsBusy",
            counts=True,
        )
