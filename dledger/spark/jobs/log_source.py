"""The source from which a job reads messages: store directories, live brokers, or an archive of one of
these."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dledger.audit.shipped_scans import unescape
from dledger.audit.store_directory import Replica, StoreError, open_store
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeOptions
from dledger.runtime.remote_files import files_for
from dledger.spark.access import OPTIONS as ACCESS
from dledger.spark.columns import MESSAGES, ddl
from dledger.spark.jobs.archive_files import RECORDS_DIR
from dledger.spark.jobs.errors import JobError
from dledger.spark.log_lives import LogTopics, log_topics, unknown_topic
from dledger.spark.option_values import BadOption, flag, topics
from dledger.spark.options import DEFAULT_GROUP, OPTIONS, canonical
from dledger.spark.selection import is_system_topic
from dledger.spark.stores import best_of_each_group, known_committed, open_replicas
from dledger.spark.topic_segments import held_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE_SCHEMA = f"{ddl([column for column in MESSAGES if column[0] not in ('id', '_corrupt')])}, `day` date"
"""Schema that is passed to Spark when it reads an archive. Without it Spark would read a topic name such
as `2024` as a number."""
TOPIC_CHOICE = ("subscribe", "subscribePattern", "assign", "includeSystemTopics")
"""Options that choose topics."""
CHOICE = (
    *TOPIC_CHOICE,
    "group",
    "tags",
    "keys",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "indexRanges",
    "isolation",
    "corruptRecords",
    "includeDeleted",
)
"""Options that choose messages."""
_HOW = ("minPartitions", "pushdown", "readFrom", "consumerGroup", "pullBatchSize", "pullTimeoutMs", *ACCESS)
"""Options that say how messages are read, not which messages. Every job accepts them."""
_SAID_OTHERWISE = {
    "path": "give the store directories themselves (STORE ...)",
    "servers": "give the NameServers with --namesrv",
    "view": "only `read` reads other views, with --view",
}


@dataclass(frozen=True)
class LogSource:
    """The source of a job: exactly one of `stores`, `servers` and `archive`. `options`: further options of
    the data source. They may be given in any accepted spelling; the object holds them under their standard
    names.

    Raises JobError for unknown options, and for options that have no effect on this source.
    """

    stores: tuple[str, ...] = ()
    servers: str = ""
    archive: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.stores, self.servers, self.archive))) != 1:
            raise JobError(
                "give one of: store directories, NameServers (--namesrv or NAMESRV_ADDR), "
                "an archive (--archive)"
            )
        try:
            options = canonical(self.options)
        except BadOption as error:
            raise JobError(str(error)) from error
        for name in options:
            if name in _SAID_OTHERWISE:
                raise JobError(f"option {name} has no effect here: {_SAID_OTHERWISE[name]}")
            if self.archive and name != "subscribe":
                raise JobError(
                    f"option {name} has no effect on an archive: only topics can be selected from it"
                )
        object.__setattr__(self, "options", options)
        if "subscribe" in options and not self.named_topics:
            raise JobError("option subscribe (--topics) names no topic: remove it to read all topics")

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that the option `subscribe` names; empty without the option. Raises JobError for a text
        that is no name of a topic."""
        try:
            return topics("subscribe", self.options.get("subscribe", ""))
        except BadOption as error:
            raise JobError(str(error)) from error

    def check_options(self, job: str, applied: Collection[str]) -> None:
        """Raises JobError for an option that this job does not apply, as ignoring it silently would
        mislead the user."""
        for name in self.options:
            if name not in applied and name not in _HOW:
                raise JobError(f"option {name} has no effect on {job}, only {', '.join(applied)}")

    def check_topics(self) -> None:
        """Raises JobError for a topic that the stores or the archive do not have, as it would look like an
        empty topic. Brokers report unknown topics themselves. Blocking."""
        wanted = self.named_topics
        if self.servers or not wanted:
            return
        known = self.topics()
        for topic in wanted:
            if known is not None and topic not in known and not is_system_topic(topic):
                raise JobError(unknown_topic(topic, known))

    def topics(self) -> set[str] | None:
        """Return the topics that exist, or those of the archive. None if the stores do not show which topics
        they have. Blocking. Raises ClientError if no NameServer answers."""
        if self.archive:
            return _archived_topics(self.archive)
        if self.servers:
            with RangePuller(self.servers, RangeOptions(DEFAULT_GROUP)) as puller:
                return set(puller.topics())
        return _stored_topics(self.stores, deleted=self._with_deleted)

    @property
    def _with_deleted(self) -> bool:
        """Whether messages of deleted topics are wanted, too."""
        try:
            return flag("includeDeleted", self.options.get("includeDeleted", "false"))
        except BadOption as error:
            raise JobError(str(error)) from error

    def best(self) -> LogSource:
        """Return this source with only those stores that the view `messages` reads: in each broker group,
        the replica with the highest committed index. So other views show the same state as the messages.
        Blocking. Raises JobError."""
        if len(self.stores) < 2:
            return self
        try:
            replicas = {path: open_replicas([path]) for path in self.stores}
        except (StoreError, OSError) as error:
            raise JobError(str(error)) from error
        best = best_of_each_group(replica for found in replicas.values() for replica in found)
        chosen = [replica.directory for replica in best]
        stores = [path for path, found in replicas.items() if any(one.directory in chosen for one in found)]
        return replace(self, stores=tuple(stores))

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return a view of the data source over stores or brokers. `options` take precedence over the
        options of this source. The option `path` may name one of several stores."""
        where = {"servers": self.servers} if self.servers else {"path": json.dumps(self.stores)}
        return spark.read.format("dledger").options(**{**where, **self.options, **options}).load()

    def queues(self, spark: SparkSession, **more: str) -> DataFrame:
        """Return the view `queues` of stores or brokers, with those of the options that affect it, and with
        `more` options."""
        options = {name: value for name, value in self.options.items() if "queues" in OPTIONS[name].views}
        return replace(self, options=options).read(spark, view="queues", **more)

    def messages(self, spark: SparkSession, *, value: bool, headers: bool) -> DataFrame:
        """Return messages: the columns of the view `messages` with `group`, and with bodies and properties
        if asked for.

        Raises JobError if the options ask for damage as rows, because a job would take these rows for
        messages.
        """
        if self.archive:
            if not files_for(self.archive).is_dir(f"{self.archive}/{RECORDS_DIR}"):
                raise JobError(
                    f"{self.archive} is no archive: it has no directory {RECORDS_DIR}; give the directory "
                    "that `dledger spark archive --to` wrote"
                )
            frame = spark.read.schema(ARCHIVE_SCHEMA).parquet(f"file://{self.archive}")
            for name, wanted in (("value", value), ("headers", headers)):
                frame = frame if wanted else frame.drop(name)
            topics_wanted = self.named_topics
            return frame.where(F.col("topic").isin(*topics_wanted)) if topics_wanted else frame
        if self.options.get("corruptRecords", "").lower() == "include":
            raise JobError(
                "option corruptRecords: include is only for `read`, which shows the rows: use skip"
            )
        chosen = {"includeValue": value, "includeHeaders": headers, "includeGroup": True}
        if self._with_deleted:
            chosen["includeLife"] = True
        return self.read(spark, **{name: str(wanted).lower() for name, wanted in chosen.items()})


def _archived_topics(root: str) -> set[str]:
    prefix = "topic="
    found = files_for(root).listdir(root)
    return {unescape(name.removeprefix(prefix)) for name in found if name.startswith(prefix)}


def log_topics_of(stores: Collection[str]) -> dict[str, LogTopics]:
    """Return what the log of each broker group says about its topics, by the replica with the highest
    committed index. Blocking. Raises StoreError or OSError."""
    replicas = [replica for path in stores for replica in open_store(files_for(path), path)]
    return {
        group_name(replica): log_topics(replica, held_state(replica), replica.committed)
        for replica in best_of_each_group(replicas)
    }


def _stored_topics(stores: tuple[str, ...], *, deleted: bool) -> set[str] | None:
    """Return the topics that exist, and with `deleted` those that were deleted. None if the stores do not
    show which topics they have."""
    try:
        found = list(log_topics_of(stores).values())
    except (StoreError, OSError):
        return None  # what reads the messages says why
    if any(one.names is None for one in found):
        return None
    there = {name for one in found for name in one.names or ()}
    gone = {name for one in found for name in one.lives.of if one.lives.begin(name)} if deleted else set()
    return there | gone


def stores_of_group(replica: Replica, stores: tuple[str, ...]) -> list[str]:
    """Return those of the stores that hold replicas of the same broker group, that of `replica` first. Where
    one is damaged, the others are read. Blocking."""
    found = {replica.store: None}
    for path in stores:
        with suppress(StoreError, OSError):
            if any(group_name(one) == group_name(replica) for one in open_store(files_for(path), path)):
                found.setdefault(path.rstrip("/") or "/")
    return list(found)


def best_replicas(stores: tuple[str, ...]) -> Iterator[Replica]:
    """Return the replica with the highest committed index of each broker group. Blocking. Raises JobError."""
    best: dict[str, Replica] = {}
    for path in stores:
        try:
            replicas = open_store(files_for(path), path)
        except (StoreError, OSError) as error:
            raise JobError(str(error)) from error
        for replica in replicas:
            name = group_name(replica)
            if name not in best or replica.committed > best[name].committed:
                best[name] = replica
    for name in sorted(best):
        try:
            known_committed(best[name])
        except StoreError as error:
            raise JobError(str(error)) from error
        yield best[name]


def group_name(replica: Replica) -> str:
    """Return the name of the broker group. Stores of Apache RocketMQ do not contain it; they count as one
    group with an empty name."""
    return replica.identity.group if replica.identity else ""
