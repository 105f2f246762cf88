"""Files of acknowledgements: one line or row for each message that was acknowledged to a producer.

JSON lines (also compressed: `.gz`), or Parquet; a file or a directory of files:

    {"id": "7F00...", "topic": "orders", "brokerName": "broker-a", "queueId": 3, "queueOffset": 1712}

`id` is the unique id (`SendResult.message_id`, Java's `msgId`). The queue and the offset may be left out.
In this case the job checks only that the message is stored. `brokerName` is needed if several broker
groups have the topic. Files of consumed messages have `id` and, if several consumer groups wrote them,
`consumer`. Other spellings that clients use are understood (`NAMES`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dledger.spark.jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAMES: dict[str, tuple[str, ...]] = {
    "id": ("id", "uniqueid", "msgid", "messageid", "message_id", "uniq_key"),
    "topic": ("topic",),
    "broker": ("brokername", "broker", "group"),
    "partition": ("queueid", "queue_id", "partition", "queue"),
    "offset": ("queueoffset", "queue_offset", "offset"),
    "consumer": ("consumer", "consumergroup", "consumer_group"),
}
"""Maps our name of a field to the accepted spellings, which may be in upper or lower case."""
_TYPES = {"partition": "int", "offset": "bigint"}
_CORRUPT = "_corrupt_record"


def read_acknowledgements(spark: SparkSession, path: str) -> tuple[DataFrame, int]:
    """Return a table (id, broker, topic, partition, offset) with one row per acknowledged message, and the
    number of lines.

    Raises JobError if the file is not readable, has a line that is no acknowledgement, or lacks ids or
    topics.
    """
    rows = _read(spark, path, ("id", "topic", "broker", "partition", "offset"), ("id", "topic"))
    known = rows.select("id", F.coalesce("broker", F.lit("")).alias("broker"), "topic", "partition", "offset")
    return known.dropDuplicates(), rows.count()


def read_consumed(spark: SparkSession, path: str) -> DataFrame:
    """Return a table (id, consumer) with one row for each time that a message was processed."""
    rows = _read(spark, path, ("id", "consumer"), ("id",))
    return rows.select("id", F.coalesce("consumer", F.lit("")).alias("consumer"))


def _read(spark: SparkSession, path: str, wanted: tuple[str, ...], needed: tuple[str, ...]) -> DataFrame:
    try:
        parquet = path.rstrip("/").endswith(".parquet")
        frame = spark.read.parquet(path) if parquet else _json(spark, path)
        columns = {column.lower(): column for column in frame.columns}
        for name in needed:
            if not any(spelling in columns for spelling in NAMES[name]):
                there = ", ".join(frame.columns) or "none"
                raise JobError(
                    f"{path}: there is no column {' or '.join(NAMES[name])}; the columns are {there}"
                )
        rows = frame.select(*(_pick(columns, name).alias(name) for name in wanted))
        for name in needed:
            if rows.where(f"{name} is null or {name} = ''").limit(1).count():
                raise JobError(f"{path}: a line without {name} ({', '.join(NAMES[name])})")
    except PySparkException as error:
        raise JobError(f"{path}: {str(error).partition(chr(10))[0]}") from error
    return rows


def _json(spark: SparkSession, path: str) -> DataFrame:
    """Read JSON lines; all values become texts. Raises JobError for a line that is not JSON."""
    frame = (
        spark.read.option("primitivesAsString", True).option("columnNameOfCorruptRecord", _CORRUPT).json(path)
    )
    if _CORRUPT not in frame.columns:
        return frame
    lines = spark.read.text(path).where("trim(value) <> ''")
    first = lines.where(F.get_json_object("value", "$").isNull()).limit(1).collect()
    said = first[0][0][:80] if first else "a line that is not an object"
    raise JobError(f"{path}: not JSON: {said!r}; perhaps the producer was stopped in the middle of a line")


def _pick(columns: dict[str, str], name: str) -> Column:
    """Return the value of the first spelling of the field `name` that is set."""
    there = [F.col(f"`{columns[spelling]}`") for spelling in NAMES[name] if spelling in columns]
    return F.coalesce(*there, F.lit(None)).cast(_TYPES.get(name, "string"))
