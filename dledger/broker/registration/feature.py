"""The NameServers, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.core import Core
from dledger.broker.feature import Feature, Task
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.registration.registrar import Registrar
from dledger.broker.topic.topic_table import TopicTable
from dledger.formats.state import TOPIC_DELETE
from dledger.host import Role
from dledger.remoting.client import RemotingClient


class RegistrationFeature(Feature):
    """Finds the NameServers, and registers this broker with them."""

    def __init__(self, core: Core, client: RemotingClient, table: TopicTable) -> None:
        self._node = core.node
        self.name_servers: NameServers = NameServers(core.env, core.settings)
        self.registrar: Registrar = Registrar(
            core.env, core.settings, core.node, table, client, self.name_servers
        )
        self.services = (self.registrar,)

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {"name-servers": self.name_servers.run, "registration": self.registrar.keep_informed}

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        """See `Feature`."""
        if leader_id is not None:
            self.registrar.leader_known(term)
            self.registrar.changed()
        elif self._node.removed:
            self.registrar.changed()

    def operations_applied(self, names: list[str]) -> None:
        """See `Feature`."""
        if "topic" in names or TOPIC_DELETE in names:
            self.registrar.changed()

    def connection_lost(self, address: str) -> None:
        """See `Feature`."""
        self.registrar.lost(address)
