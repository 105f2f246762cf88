"""Statistics, as a feature of the broker."""

from __future__ import annotations

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.offset.feature import OffsetFeature
from dledger.broker.registration.registrar import Registrar
from dledger.broker.stats.stats_processor import StatsProcessor


class StatsFeature(Feature):
    """The statistics of the broker, and the requests that show them and the offsets of topics and groups."""

    def __init__(self, core: Core, offset: OffsetFeature, registrar: Registrar) -> None:
        self.processors = (StatsProcessor(core, offset.offsets, offset.pull_offsets, registrar),)
