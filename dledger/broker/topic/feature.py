"""Topics, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.broker.config import BrokerConfig
from dledger.broker.core import Core
from dledger.broker.feature import Feature
from dledger.broker.figures import Figure
from dledger.broker.registration.registrar import Registrar
from dledger.broker.topic.announcements import TopicAnnouncements
from dledger.broker.topic.deletion import Deletions
from dledger.broker.topic.deletion_service import DeletionService
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import system_topics
from dledger.broker.topic.topic_processor import TopicProcessor
from dledger.broker.topic.topic_table import TopicTable


class TopicFeature(Feature):
    """Creation and deletion of topics and consumer groups."""

    def __init__(self, core: Core, table: TopicTable, registrar: Registrar) -> None:
        self.table: TopicTable = table
        self._registrar = registrar
        self.creation: TopicCreation = TopicCreation(core.settings)
        self.announcements: TopicAnnouncements = TopicAnnouncements(registrar, core.applied)
        self.deletions: Deletions = Deletions(core.store, core.clients)
        self.deletions.listeners.append(core.stats.forget)
        self.deletion_service: DeletionService = DeletionService(core)
        self.processors = (TopicProcessor(core, self.creation, table, registrar, self.deletions),)
        self.services = (self.deletion_service,)
        core.settings.listen(self._settings_changed)

    def figures(self) -> Iterable[Figure]:
        """See `Feature`."""
        yield Figure(lambda: self.table.size_told, "Bytes of topics in a registration", "topic_table_bytes")

    def topics_deleted(self, topics: list[str]) -> None:
        """See `Feature`."""
        self.table.deleted(topics)

    def _settings_changed(self, config: BrokerConfig) -> None:
        for topic in system_topics(config).values():
            if self.table.system_topics.get(topic.name) != topic:
                self.table.put_system(topic)
                self._registrar.changed()
