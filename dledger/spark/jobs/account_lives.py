"""Lives of topics for the accounting: which topics were deleted, and which messages are of present ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dledger.audit.store_directory import StoreError
from dledger.runtime.remote_files import files_for
from dledger.spark.jobs.archive_files import ArchiveFiles, topic_of
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import LogSource, best_replicas, group_name
from dledger.spark.log_lives import LogTopics, log_topics
from dledger.spark.topic_segments import held_state

Place = tuple[str, str]
"""Broker group and topic."""


@dataclass(frozen=True)
class AccountLives:
    """What a source says about the lives of its topics. `present`: the present life of each topic. `ended`:
    topics that were deleted, of which the source may lack messages."""

    present: Mapping[Place, str | None] = field(default_factory=dict)
    ended: frozenset[Place] = frozenset()
    logs: Mapping[str, LogTopics] | None = None
    """Maps a broker group to what its log says; None if the source is not a store."""

    def present_topics(self, topics: Iterable[str]) -> list[str]:
        """Return those topics that exist, as far as that is known."""
        return [topic for topic in topics if self._is_there(topic, deleted=False)]

    def stored_topics(self, topics: Iterable[str]) -> list[str]:
        """Return those topics of which the logs may have messages, also messages of deleted topics."""
        return [topic for topic in topics if self._is_there(topic, deleted=True)]

    def readable(self, source: LogSource) -> LogSource:
        """Return the source with those topics of the option `subscribe` that it can read."""
        named = source.named_topics
        there = self.stored_topics(named)
        if not named or not there:
            return source
        return replace(source, options={**source.options, "subscribe": ",".join(there)})

    def present_rows(self, topics: Iterable[str]) -> list[tuple[str, str, str | None, bool]]:
        """Return the present lives of these topics as rows (broker group, topic, life, whether it is in
        `ended`)."""
        wanted = set(topics)
        return [
            (*place, life, place in self.ended) for place, life in self.present.items() if place[1] in wanted
        ]

    def maybe_retired(self, topics: Iterable[str]) -> set[Place]:
        """Return those of these topics that are in `ended`."""
        wanted = set(topics)
        return {place for place in self.ended if place[1] in wanted}

    def _is_there(self, topic: str, *, deleted: bool) -> bool:
        if self.logs is None:
            return True
        return any(
            one.names is None or topic in one.names or (deleted and one.lives.begin(topic) > 0)
            for one in self.logs.values()
        )


def lives_of(source: LogSource) -> AccountLives:
    """Return the lives of the topics of a source. Live brokers show only messages of topics that exist.
    Blocking. Raises JobError."""
    if source.archive:
        return _of_archive(source.archive)
    if not source.stores:
        return AccountLives()
    present: dict[Place, str | None] = {}
    ended: set[Place] = set()
    logs: dict[str, LogTopics] = {}
    for replica in best_replicas(source.stores):
        group = group_name(replica)
        try:
            found = logs[group] = log_topics(replica, held_state(replica), replica.committed)
        except (StoreError, OSError) as error:
            raise JobError(str(error)) from error
        present |= {(group, topic): found.lives.life(topic) for topic in found.names or ()}
        if replica.segments and replica.segments[0].start > 0:
            ended |= {(group, topic) for topic in found.lives.of if found.lives.begin(topic)}
    return AccountLives(present, frozenset(ended), logs)


def _of_archive(root: str) -> AccountLives:
    """An archive may lack the messages that a topic got between the last run and its deletion."""
    archive = ArchiveFiles(files_for(root), root)
    present: dict[Place, str | None] = {}
    ended: set[Place] = set()
    for number in archive.numbers():
        batch = archive.read(number)
        ended |= {(batch.group, topic) for topic in batch.renewed}
        for group, queues in batch.queues.items():
            lives = batch.lives.get(group, {})
            present |= {(group, topic): lives.get(topic) for topic in map(topic_of, queues)}
    return AccountLives(present, frozenset(ended))
