"""Rate limits, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.ratelimit.rate_limits import RateLimits


class RateLimitFeature(Feature):
    """Limits the number of messages per second that are sent and read, by topic and by group."""

    def __init__(self, core: Core) -> None:
        self.rates: RateLimits = RateLimits(core.settings)
        self.send_checks = (self.rates.send_check,)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: self.rates.sending.refused,
            "Sends refused by the rate limit of a topic or a producer group",
            "sends_refused_rate",
            "sendsRefusedByRate",
            counts=True,
        )
        yield Figure(
            lambda: self.rates.reading.refused,
            "Pulls and pops refused by the rate limit of a topic or a consumer group",
            "pulls_refused_rate",
            "pullsRefusedByRate",
            counts=True,
        )
