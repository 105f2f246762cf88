"""A feature: one folder of the broker, with the parts that it adds.

    class PopFeature(Feature):
        def __init__(self, core: Core, topic: TopicFeature) -> None:
            self.ledger = PopLedger(core.store, core.settings)
            self.pops = PopProcessor(core, topic.creation, self.ledger)
            self.processors = (self.pops,)
            self.services = (self.ledger, self.pops)

        def arrived(self, queues: list[ConsumeQueue]) -> None:
            self.pops.arrived(queues)

`dledger.broker.features` makes one object of each feature class. A feature overrides the methods that it
needs; the other methods do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from dledger.broker.figures import Figure
from dledger.broker.intake.send_checks import SendCheck
from dledger.broker.requests import Processor
from dledger.broker.services import LeaderService
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.host import Role

Task = Callable[[], Coroutine[Any, Any, None]]


class Feature:
    """The parts that a folder adds to the broker. All methods are called on the event loop and must be
    short."""

    processors: Sequence[Processor] = ()
    """Objects whose methods answer requests."""
    services: Sequence[LeaderService] = ()
    """Services that live as long as one leadership. They begin in this order, and end in the opposite
    order."""
    send_checks: Sequence[SendCheck] = ()
    """Checks that may refuse a send."""

    def tasks(self) -> Mapping[str, Task]:
        """Return tasks that run as long as the broker, by name."""
        return {}

    def figures(self) -> Iterable[Figure]:
        """Return the figures (numbers for /metrics and runtime info) that the feature shows."""
        return ()

    def applied(self, index: int) -> None:
        """Called when queues and state contain everything up to this entry."""

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """Called when messages were added to these queues."""

    def operations_applied(self, names: list[str]) -> None:
        """Called when operations with these names were applied."""

    def topics_deleted(self, topics: list[str]) -> None:
        """Called when the deletion of these topics was applied."""

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """Called when the role, the term or the leader changed. The gate is already up to date."""

    def connection_lost(self, address: str) -> None:
        """Called when a connection that this broker had made has ended."""
