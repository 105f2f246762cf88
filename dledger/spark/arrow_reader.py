"""`dledger.read`: the views of the data source as Arrow batches, in this process, without Spark and Java.

pyarrow is imported only when `read` is called, so `from dledger import *` works without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dledger.spark.option_values import BadOption, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | bool | Sequence[object] | dict[str, object]

_ON_DEMAND = {
    "value": ("includeValue", "true"),
    "headers": ("includeHeaders", "true"),
    "group": ("includeGroup", "true"),
    "life": ("includeLife", "true"),
    "id": ("includeId", "true"),
}
"""Columns of `messages` that exist only when an option asks for them."""


def read(
    path: str | Sequence[str] | None = None,
    *,
    servers: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Value,
) -> pa.RecordBatchReader:
    """Return committed messages, or rows of another view, of store directories or of the brokers behind
    NameServers.

    `path`: one or more store directories (`storePathRootDir`) or URLs; their nodes may be running. Instead
    of it, `servers`: NameServers as `host:port`, separated by `,`. `columns`: return only these columns,
    in this order; by default all that the options ask for. `options`: options of a batch query of the data
    source (docs/reference/spark-source.md) under their names, as `view="queues"`, `subscribe="orders"`,
    `keys=["order-17"]`, `startingTimestamp=1700000000000`. Lists and maps are accepted where the option
    takes JSON.

    Rows of one queue come in their order. The reader is lazy: only the batches of one task (some 64 MiB of
    log) are in memory at a time. Pandas (`read_pandas`), polars (`from_arrow`) and DuckDB accept the
    reader directly. It can be used once.

    Raises spark.option_values.BadOption (a ValueError) for wrong options and columns,
    audit.layout.StoreError if a store or a broker cannot be read, and ModuleNotFoundError, which says what
    to install. While rows are read, raises spark.messages.CorruptMessage for damage, unless
    `corruptRecords` says otherwise.
    """
    try:
        import pyarrow as pa

        from dledger.spark.all_views import view_of
        from dledger.spark.columns import arrow_schema
        from dledger.spark.options import parse
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dledger"):
            raise
        text = f"dledger.read needs {error.name}: pip install 'dledger[arrow]'"
        raise ModuleNotFoundError(text, name=error.name) from error

    given = {name: as_option(value) for name, value in options.items()}
    if path is not None:
        given["path"] = path if isinstance(path, str) else json.dumps(list(path))
    if servers is not None:
        given["servers"] = servers
    parsed = parse(given, "batch")
    if columns is not None and parsed.view == "messages":
        given.update(_asked_for(columns, parsed.given))
        parsed = parse(given, "batch")
    view = view_of(parsed)
    whole = arrow_schema(view.columns)
    wanted = whole.names if columns is None else list(columns)
    for name in wanted:
        if name not in whole.names:
            raise BadOption(f"view {parsed.view} has no column {name!r}{did_you_mean(name, whole.names)}")
    schema = pa.schema([whole.field(name) for name in wanted])
    parts = view.plan()

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            for batch in view.read(part):
                some = batch.select(wanted)
                yield some if some.schema.equals(schema) else some.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _asked_for(columns: Sequence[str], given: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Return the options that the named columns imply. Raises BadOption if one of these options is given
    as well."""
    for column, (option, value) in _ON_DEMAND.items():
        if option in given:
            raise BadOption(f"columns and the option {option} exclude each other: give only columns")
        if column in columns:
            yield option, value
        elif column == "value":
            yield option, "false"


def as_option(value: Value) -> str:
    """Return a value as the text that Spark would pass for this option."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else json.dumps(value)
