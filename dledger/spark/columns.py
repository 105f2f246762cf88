"""Schemas of the data source's views, for Spark and for Arrow, and the batches that fill them.

Spark demands that the first batch's schema equals its own exactly; the two are made from one list here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

BATCH_ROWS = 8192

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

SCAN = (
    ("kind", "string"),
    ("replica", "string"),
    ("segment", "bigint"),
    ("first_index", "bigint"),
    ("last_index", "bigint"),
    ("entries", "bigint"),
    ("mix_a", "bigint"),
    ("mix_b", "bigint"),
    ("code", "string"),
    ("severity", "int"),
    ("data", "string"),
)
"""`audit.findings.FlatRow`."""

ENTRIES = (
    ("replica", "string"),
    ("index", "bigint"),
    ("term", "bigint"),
    ("pos", "bigint"),
    ("size", "int"),
    ("kind", "int"),
    ("channel", "bigint"),
    ("crc", "bigint"),
    ("stored_crc", "bigint"),
    ("chain_crc", "bigint"),
    ("damage", "int"),
)
"""One log entry: header, computed CRC of the body, `damage` as in `audit.walk`."""

MESSAGES = (
    ("key", "string"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("storeTimestamp", "timestamp"),
    ("tags", "string"),
    ("flag", "int"),
    ("headers", "map<string,string>"),
    ("logIndex", "bigint"),
    ("logTerm", "bigint"),
    ("group", "string"),
    ("_corrupt", "string"),
)
"""Named as Spark's Kafka source names them, RocketMQ's own after. Keys and headers are texts in RocketMQ.

`logIndex` and `logTerm` are null where brokers were asked: their protocol does not tell.
"""

QUEUES = (
    ("group", "string"),
    ("replica", "string"),
    ("topic", "string"),
    ("partition", "int"),
    ("minOffset", "bigint"),
    ("maxOffset", "bigint"),
    ("minTimestamp", "timestamp"),
    ("maxTimestamp", "timestamp"),
)
"""Messages [minOffset, maxOffset) of one queue that are there and committed; store times of first and last.

Brokers do not tell times cheaply: null there, as for an empty queue. `replica` is null there, too.
"""

INDEX = (
    ("replica", "string"),
    ("number", "bigint"),
    ("index", "bigint"),
    ("term", "bigint"),
    ("pos", "bigint"),
    ("size", "int"),
    ("magic", "int"),
)
"""Unit `number` of the index files, and what it says."""

STATE = (
    ("group", "string"),
    ("replica", "string"),
    ("appliedIndex", "bigint"),
    ("kind", "string"),
    ("name", "string"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("data", "string"),
)
"""Replicated state after entry `appliedIndex` (null where leaders were asked), one row per thing. `kind`:

* `topic`   `name` is the topic, `data` its configuration as JSON
* `group`   `name` is a consumer group, `data` its configuration
* `offset`  where consumer group `name` goes on in `topic`, `partition`
* `queue`   the offset that the next message of `topic`, `partition` gets
"""

Columns = Sequence[tuple[str, str]]


def message_columns(*, value: bool, headers: bool, group: bool, corrupt: bool) -> Columns:
    """Columns of the view `messages`: leaving out is the only pruning that a Python data source has."""
    left_out = {"value": not value, "headers": not headers, "group": not group, "_corrupt": not corrupt}
    return tuple(column for column in MESSAGES if not left_out.get(column[0], False))


def ddl(columns: Columns) -> str:
    """Schema for Spark."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def arrow_schema(columns: Columns) -> pa.Schema:
    """Schema for Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


def batches(columns: Columns, rows: Iterable[Sequence[object]]) -> Iterator[pa.RecordBatch]:
    """Rows in the order of `columns`, in batches of at most BATCH_ROWS."""
    schema = arrow_schema(columns)
    pending: list[Sequence[object]] = []
    for row in rows:
        pending.append(row)
        if len(pending) >= BATCH_ROWS:
            yield _batch(schema, pending)
            pending = []
    if pending:
        yield _batch(schema, pending)


def _batch(schema: pa.Schema, rows: list[Sequence[object]]) -> pa.RecordBatch:
    arrays = [
        pa.array(values, type=field.type)
        for field, values in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
