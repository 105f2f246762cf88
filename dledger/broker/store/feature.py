"""Data derived from the log, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.broker.core import Core
from dledger.broker.feature import Feature, Task
from dledger.broker.figures import Figure
from dledger.broker.registration.registrar import Registrar
from dledger.broker.store.config_export import ConfigExport
from dledger.broker.store.index_service import IndexService
from dledger.broker.topic.topic_table import TopicTable


class StoreFeature(Feature):
    """Runs the store of queues and state, the index by key, and the exports of tables to RocketMQ's files."""

    def __init__(self, core: Core, index: IndexService, table: TopicTable, registrar: Registrar) -> None:
        self._store = core.store
        self._index = index
        settings = core.settings
        self.exports: ConfigExport = ConfigExport(
            core.env,
            settings.now.store_root,
            core.store,
            table,
            registrar.data_version,
            lambda: settings.now.config_export_s,
        )

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {"store": self._store.run, "index": self._index.run, "exports": self.exports.run}

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        store = self._store
        yield Figure(
            lambda: store.applied_index,
            "Index of the last entry applied to queues and state",
            "applied_index",
        )
        yield Figure(
            lambda: store.snapshot_index, "Index of the last entry in the snapshot", "snapshot_index"
        )
        yield Figure(lambda: len(store.state.topics), "Topics in the replicated state", "topics")
        yield Figure(lambda: store.queues.count, "Queues with messages", "queues")
        yield Figure(
            lambda: store.dispatcher.messages,
            "Messages applied to queues",
            "messages_dispatched",
            "dispatchedMessages",
            counts=True,
        )
        yield Figure(
            lambda: store.dispatcher.malformed, "Entries that were skipped", "entries_malformed", counts=True
        )
        yield Figure(
            lambda: store.state.skipped, "Operations that were skipped", "operations_skipped", counts=True
        )
