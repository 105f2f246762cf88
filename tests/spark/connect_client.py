"""What a program does over Spark Connect; in a process of its own, as it cannot have sessions of both kinds.

`python -m tests.spark.connect_client sc://HOST:PORT WHAT ARGUMENT...` prints one JSON value. `spark.session`
is used as a program would; all else is what any client may do, DataFrames.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from dledger.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _read(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("dledger").option("path", path).load()


def batch(spark: SparkSession, path: str, first: str) -> dict[str, Any]:
    """All messages of a store whose beginning is rotten, and those from an index on."""
    try:
        every = str(_read(spark, path).count())
    except PySparkException as error:
        every = str(error)
    rows = _read(spark, path).where(f"logIndex >= {first}").select("topic", "partition", "offset").collect()
    return {"every": every, "later": sorted([row.topic, row.partition, row.offset] for row in rows)}


def stream(spark: SparkSession, path: str, checkpoint: str) -> dict[str, Any]:
    """A stream over a store, in batches of 900."""
    frame = spark.readStream.format("dledger").options(
        path=path, startingOffsets="earliest", maxOffsetsPerTrigger="900"
    )
    writer = frame.load().writeStream.format("memory").queryName("streamed")
    writer = writer.option("checkpointLocation", checkpoint)
    try:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except PySparkException as error:
        return {"error": str(error)}
    rows = spark.table("streamed").select("topic", "partition", "offset").collect()
    return {"rows": sorted([row.topic, row.partition, row.offset] for row in rows)}


def write(spark: SparkSession, namesrv: str, topic: str, checkpoint: str) -> dict[str, Any]:
    """Ten messages by a batch, then what a stream of the topic copies into another one; bodies read back."""
    options = {"servers": namesrv, "topic": topic}
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    frame.write.format("dledger").options(**options).mode("append").save()
    source = spark.readStream.format("dledger").options(**options, startingOffsets="earliest").load()
    writer = source.select("value").writeStream.format("dledger").options(servers=namesrv, topic=f"{topic}2")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    bodies = {}
    for name in (topic, f"{topic}2"):
        there = spark.read.format("dledger").options(servers=namesrv, topic=name).load()
        bodies[name] = sorted(bytes(row.value).decode() for row in there.collect())
    return bodies


WHAT: dict[str, Callable[..., dict[str, Any]]] = {"batch": batch, "stream": stream, "write": write}


def main(server: str, what: str, *arguments: str) -> None:
    """Print what was found."""
    spark = session("client", server)
    try:
        print(json.dumps(WHAT[what](spark, *arguments)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
