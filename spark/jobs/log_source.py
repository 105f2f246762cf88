"""Where a job reads messages from: store directories, live brokers, or an archive made of either."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from audit.layout import Replica, StoreError, open_store
from runtime.remote_files import files_for
from spark.columns import MESSAGES, ddl
from spark.jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE_SCHEMA = f"{ddl([column for column in MESSAGES if column[0] != '_corrupt'])}, `day` date"
"""Given when reading, as Spark would take the topic `2024` for a number."""


@dataclass(frozen=True)
class LogSource:
    """One of `stores`, `servers` and `archive`. `options`: further ones of the data source, by its names."""

    stores: tuple[str, ...] = ()
    servers: str = ""
    archive: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.stores, self.servers, self.archive))) != 1:
            raise JobError("give one of: store directories, NameServers (--namesrv), an archive (--archive)")

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        """A view of the data source over stores or brokers; `self.options` may name one store of several."""
        where = {"servers": self.servers} if self.servers else {"path": json.dumps(self.stores)}
        return spark.read.format("dledger").options(**{**where, **self.options, **options}).load()

    def messages(self, spark: SparkSession, *, value: bool, headers: bool) -> DataFrame:
        """Messages: columns of the view `messages` with `group`; bodies and properties where asked for."""
        if self.archive:
            frame = spark.read.schema(ARCHIVE_SCHEMA).parquet(f"file://{self.archive}")
            for name, wanted in (("value", value), ("headers", headers)):
                frame = frame if wanted else frame.drop(name)
            topics = [topic.strip() for topic in self.options.get("subscribe", "").split(",")]
            return frame.where(F.col("topic").isin(topics)) if any(topics) else frame
        chosen = {"includeValue": value, "includeHeaders": headers, "includeGroup": True}
        return self.read(spark, **{name: str(wanted).lower() for name, wanted in chosen.items()})


def best_replicas(stores: tuple[str, ...]) -> Iterator[Replica]:
    """Of each group the replica that knows the highest committed index. Blocking; JobError."""
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
        yield best[name]


def group_name(replica: Replica) -> str:
    """Name of the broker group; stores of Apache's do not tell it and count as one group without a name."""
    return replica.identity.group if replica.identity else ""
