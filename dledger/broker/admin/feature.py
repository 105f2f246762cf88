"""Settings and figures for operators, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.admin.admin_processor import AdminProcessor
from dledger.broker.admin.query_processor import QueryProcessor
from dledger.broker.admin.refusal_processor import RefusalProcessor
from dledger.broker.admin.replication_processor import ReplicationProcessor
from dledger.broker.admin.tables_processor import TablesProcessor
from dledger.broker.core import Core, Figures, HealthReport, Members
from dledger.broker.feature import Feature, Task
from dledger.broker.registration.registrar import Registrar
from dledger.broker.store.index_service import IndexService
from dledger.remoting.settings_requests import SettingsRequests


class AdminFeature(Feature):
    """The requests by which operators read and change a broker, as a feature."""

    def __init__(
        self,
        core: Core,
        index: IndexService,
        members: Members,
        registrar: Registrar,
        figures: Figures,
        health: HealthReport,
    ) -> None:
        self.settings_requests: SettingsRequests = SettingsRequests(
            core.settings, core.env.log.child("settings")
        )
        self.processors = (
            AdminProcessor(core, self.settings_requests, figures, health, members),
            QueryProcessor(core, index),
            RefusalProcessor(),
            ReplicationProcessor(core, members),
            TablesProcessor(core, registrar),
        )

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {"settings": self.settings_requests.run}
