"""Schemas of the data source's views, for Spark and for Arrow, and the batches that fill them.

Spark demands that the schema of the first batch equals the declared one exactly, so both schemas are made
from one list of columns here.
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
"""The columns of `audit.findings.FlatRow`."""

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
"""Columns of the view `entries`: header of the log entry, computed CRC of the body, `damage` as in
`audit.walk`."""

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
    ("life", "string"),
    ("id", "string"),
    ("_corrupt", "string"),
)
"""Columns of the view `messages`: first the columns of Spark's Kafka source, under the same names, then
RocketMQ's own.

Keys and headers are texts in RocketMQ. `logIndex` and `logTerm` are null for messages from live brokers,
as the RocketMQ protocol does not carry them.

`life` names the life of the topic (`formats.life`): the time between its creation and its deletion. `id` is
`<topic>:<partition>:<life>:<offset>`, which no other message ever has. Both are null where the life is not
known, as for messages of Apache's brokers.
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
"""Columns of the view `queues`, which has one row per queue: its committed messages [minOffset,
maxOffset), and the store times of the first and the last message.

The times are null for an empty queue, and for live brokers, which cannot determine them cheaply. `replica`
is null for live brokers, too. The option `includeLife` adds the column `life`, as in `messages`.
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
"""Columns of the view `index`, which has one row per unit (record of fixed size) of the index files: the
unit's `number` and its content."""

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
"""Columns of the view `state`: the replicated state after entry `appliedIndex` (null if leaders were
asked). Each row describes one of these things, named by `kind`:

* `topic`: `name` is the topic, `data` its configuration as JSON
* `group`: `name` is a consumer group, `data` its configuration
* `offset`: the offset at which consumer group `name` resumes in the queue `topic`, `partition`
* `queue`: the offset that the next message of the queue `topic`, `partition` gets
"""

Columns = Sequence[tuple[str, str]]


def message_columns(
    *, value: bool, headers: bool, group: bool, life: bool, ident: bool, corrupt: bool
) -> Columns:
    """Return the columns of the view `messages` with these options. Columns that no option asks for are
    left out here, as a Python data source has no other way to avoid reading them."""
    left_out = {
        "value": not value,
        "headers": not headers,
        "group": not group,
        "life": not life,
        "id": not ident,
        "_corrupt": not corrupt,
    }
    return tuple(column for column in MESSAGES if not left_out.get(column[0], False))


def queue_columns(*, life: bool) -> Columns:
    """Return the columns of the view `queues` with these options."""
    return (*QUEUES, ("life", "string")) if life else QUEUES


def ddl(columns: Columns) -> str:
    """The columns as a schema for Spark."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def arrow_schema(columns: Columns) -> pa.Schema:
    """The columns as a schema for Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


def batches(columns: Columns, rows: Iterable[Sequence[object]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, whose values are in the order of `columns`, in batches of at most BATCH_ROWS."""
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
