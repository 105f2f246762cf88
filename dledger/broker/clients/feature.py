"""Connected clients, as a feature of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from dledger.broker.clients.client_calls import Reaching
from dledger.broker.clients.client_processor import ClientProcessor
from dledger.broker.clients.connection_processor import ConnectionProcessor
from dledger.broker.clients.consumer_calls import ConsumerCalls
from dledger.broker.clients.membership_relay import ClientTelling
from dledger.broker.clients.queue_locks import QueueLocks
from dledger.broker.clients.reply_processor import ReplyProcessor
from dledger.broker.clients.takeover_notices import TakeoverNotices
from dledger.broker.core import Core, Members
from dledger.broker.feature import Feature, Task
from dledger.broker.figures import Figure
from dledger.broker.forwarding import Origins
from dledger.broker.topic.feature import TopicFeature
from dledger.host import Role
from dledger.remoting.client import RemotingClient


class ClientsFeature(Feature):
    """The connected producers and consumers, and the requests that the broker passes on to them, as a
    feature."""

    def __init__(
        self, core: Core, client: RemotingClient, members: Members, origins: Origins, topic: TopicFeature
    ) -> None:
        self._core = core
        reaching = Reaching(core, client, members)
        client_processor = ClientProcessor(core, topic.creation)
        self.relay: ClientTelling = ClientTelling(core, client, origins)
        self.queue_locks: QueueLocks = QueueLocks(core, topic.creation, topic.deletions)
        self.processors = (
            client_processor,
            self.relay,
            ConnectionProcessor(core),
            ConsumerCalls(core, reaching),
            ReplyProcessor(core, origins, reaching),
            self.queue_locks,
        )
        self.services = (client_processor, self.relay, self.queue_locks, TakeoverNotices(core))

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {"telling": self.relay.run_following, "client-sweep": self._sweep}

    async def _sweep(self) -> None:
        """Forget clients that have sent no heartbeat for a while. Runs at intervals, until cancelled."""
        loop, settings = asyncio.get_running_loop(), self._core.settings
        while True:
            await asyncio.sleep(settings.now.client_sweep_s)
            self._core.clients.expire(loop.time() - settings.now.client_expiry_s)

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """See `Feature`."""
        self.relay.leads(self._core.gate.leader_address)

    def connection_lost(self, address: str) -> None:
        """See `Feature`."""
        self.relay.lost(address)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(
            lambda: len(self._core.clients.consumers),
            "Consumer groups with members that are connected",
            "consumer_groups_connected",
            "consumerGroups",
        )
