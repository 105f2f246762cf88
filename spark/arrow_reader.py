"""`dledger.read`: the views of the data source as Arrow batches, in this process, without Spark and Java."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from dledger.spark.all_views import view_of
from dledger.spark.columns import arrow_schema
from dledger.spark.options import parse

Value = str | int | bool | Sequence[object] | dict[str, object]


def read(
    path: str | Sequence[str] | None = None, *, servers: str | None = None, **options: Value
) -> pa.RecordBatchReader:
    """Committed messages, or another view, of store directories or of the brokers behind NameServers.

    `path`: one or more `storePathRootDir`s or URLs, of running nodes too; or `servers`: `host:port`, several
    with `,`. `options`: those of a batch of the source (docs/reference/spark-source.md) under their names,
    as `view="queues"`, `subscribe="orders"`, `startingTimestamp=1700000000000`, `includeValue=False`; lists
    and maps for those that take JSON. Rows of one queue come in their order.

    The reader is lazy: one task's batches are in memory at a time (some 64 MiB of log), and pandas
    (`read_pandas`), polars (`from_arrow`) and DuckDB take it as it is. Use it once.

    spark.option_values.BadOption (a ValueError) for options, audit.layout.StoreError for a place that cannot
    be read. While reading: spark.messages.CorruptMessage for damage, unless `corruptRecords` says otherwise.
    """
    given = {name: _text(value) for name, value in options.items()}
    if path is not None:
        given["path"] = path if isinstance(path, str) else json.dumps(list(path))
    if servers is not None:
        given["servers"] = servers
    view = view_of(parse(given, "batch"))
    schema = arrow_schema(view.columns)
    parts = view.plan()

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            for batch in view.read(part):
                yield batch if batch.schema.equals(schema) else batch.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _text(value: Value) -> str:
    """As an option of Spark is written."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else json.dumps(value)
