"""Pop consumers, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.pop.ack_processor import AckProcessor
from dledger.broker.pop.pop_ledger import PopLedger
from dledger.broker.pop.pop_processor import PopProcessor
from dledger.broker.pop.revive_service import PopReviveService
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.topic.feature import TopicFeature


class PopFeature(Feature):
    """Pop consumption, as a feature: consumers take messages one by one, and a message is delivered again
    unless it is acknowledged."""

    def __init__(self, core: Core, topic: TopicFeature, offsets: PendingOffsets, rates: RateLimits) -> None:
        self.ledger: PopLedger = PopLedger(core.store, core.settings)
        topic.deletions.listeners.append(self.ledger.forget)
        self.pops: PopProcessor = PopProcessor(core, topic.creation, offsets, self.ledger, rates)
        self.revives: PopReviveService = PopReviveService(core, topic.creation, self.ledger)
        self.processors = (self.pops, AckProcessor(core, offsets, self.ledger))
        self.services = (self.ledger, self.pops, self.revives)

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """See `Feature`."""
        self.pops.arrived(queues)

    def topics_deleted(self, topics: list[str]) -> None:
        """See `Feature`."""
        for topic in topics:
            self.pops.deleted(topic)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(lambda: self.pops.held.count, "Pops that wait for messages", "held_pops", "heldPops")
        yield Figure(
            lambda: self.ledger.messages,
            "On the leader: popped messages that are not acknowledged",
            "pop_inflight_messages",
            "popInflightMessages",
        )
        yield Figure(
            lambda: self.revives.revived,
            "Popped messages that were not acknowledged in time and became available again",
            "pop_revived",
            "popRevivedMessages",
            counts=True,
        )
