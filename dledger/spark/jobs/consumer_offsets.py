"""The committed offsets of consumer groups: from the state of stores, or asked from brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dledger.spark.jobs.accounting import ConsumerOffsets
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.lag_report import Lag
from dledger.spark.jobs.log_source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def offsets_of_stores(spark: SparkSession, source: LogSource, consumers: tuple[str, ...]) -> ConsumerOffsets:
    """Return the committed offsets of these consumer groups, from the replicated state. In each broker
    group the replica with the highest committed index is read. Blocking. Raises JobError for an unknown
    consumer group."""
    if not source.stores:
        raise JobError("an archive holds no offsets of consumers: give the store directories")
    state = LogSource(stores=source.best().stores).read(spark, view="state").where("kind = 'offset'")
    found: dict[str, dict[tuple[str, str, int], int]] = {consumer: {} for consumer in consumers}
    rows = state.where(F.col("name").isin(list(consumers))).select(
        "name", "group", "topic", "partition", "offset"
    )
    for consumer, broker, topic, queue, offset in rows.collect():
        found[consumer][broker, topic, queue] = offset
    unknown = [consumer for consumer, offsets in found.items() if not offsets]
    if unknown:
        known = sorted(row[0] for row in state.select("name").distinct().collect())
        there = ", ".join(known) or "none"
        raise JobError(
            f"consumer group {', '.join(unknown)} has committed no offsets; groups with offsets: {there}"
        )
    return found


def offsets_of_lag(lag: Lag) -> ConsumerOffsets:
    """Return the committed offsets of consumer groups, from the answers of brokers (result of `lag_live`)."""
    found: dict[str, dict[tuple[str, str, int], int]] = {}
    for one in lag.now:
        found.setdefault(one.consumer, {})[one.broker, one.topic, one.queue] = one.consumed
    return found
