"""Rebalance by the broker, as a feature of the broker."""

from __future__ import annotations

from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.loadbalance.assignment_processor import AssignmentProcessor
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.remoting.client import RemotingClient


class LoadBalanceFeature(Feature):
    """Lets the broker decide which consumer reads which queue."""

    def __init__(
        self, core: Core, client: RemotingClient, creation: TopicCreation, name_servers: NameServers
    ) -> None:
        self.processors = (AssignmentProcessor(core, creation, client, name_servers),)
