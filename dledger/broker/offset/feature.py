"""Consumer offsets, as a feature of the broker."""

from __future__ import annotations

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.offset.offset_processor import OffsetProcessor
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.offset.reset_processor import ResetProcessor
from dledger.broker.topic.feature import TopicFeature


class OffsetFeature(Feature):
    """Records how far consumer groups have consumed, and how far they have pulled."""

    def __init__(self, core: Core, topic: TopicFeature) -> None:
        interval_s = core.settings.now.offset_flush_s
        self.offsets: PendingOffsets = PendingOffsets(core.store, core.committed, core.gate, interval_s)
        self.pull_offsets: PullOffsets = PullOffsets()
        self.offsets.reset_listeners.append(self.pull_offsets.reset)
        topic.deletions.listeners += [self.offsets.forget, self.pull_offsets.forget]
        self.processors = (
            OffsetProcessor(core, topic.creation, self.offsets),
            ResetProcessor(core, self.offsets, topic.creation),
        )
        self.services = (self.offsets, self.pull_offsets)

    def applied(self, index: int) -> None:
        """See `Feature`."""
        self.offsets.applied(index)
