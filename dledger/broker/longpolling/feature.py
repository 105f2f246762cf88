"""Pulls, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.core import Core, Members
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.forwarding import Origins
from dledger.broker.latency.slow_consumers import SlowConsumers
from dledger.broker.longpolling.pull_processor import PullProcessor
from dledger.broker.longpolling.stranded_pulls import StrandedPulls
from dledger.broker.offset.feature import OffsetFeature
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.host import Role
from dledger.remoting.client import RemotingClient


class LongPollingFeature(Feature):
    """Pulls of consumers, also pulls that wait at a leader that was lost."""

    def __init__(
        self,
        core: Core,
        client: RemotingClient,
        members: Members,
        origins: Origins,
        creation: TopicCreation,
        offset: OffsetFeature,
        rates: RateLimits,
        slow_consumers: SlowConsumers,
    ) -> None:
        self.pulls: PullProcessor = PullProcessor(
            core, creation, offset.offsets, offset.pull_offsets, rates, slow_consumers, members
        )
        self.stranded: StrandedPulls = StrandedPulls(core, client, members, origins)
        self.pulls.held.on_hold = self.stranded.waits
        self.processors = (self.pulls, self.stranded)
        self.services = (self.pulls, self.stranded)

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """See `Feature`."""
        self.pulls.arrived(queues)

    def topics_deleted(self, topics: list[str]) -> None:
        """See `Feature`."""
        for topic in topics:
            self.pulls.deleted(topic)

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """See `Feature`."""
        if leader_id is not None and role is not Role.LEADER:
            self.stranded.leads(term)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: self.pulls.held.count, "Long polls that wait for messages", "held_pulls", "heldPulls"
        )
        yield Figure(
            lambda: self.pulls.messages,
            "Messages delivered to consumers",
            "messages_out",
            "msgGetTotalTodayNow",
            counts=True,
        )
