"""`dledger.read`: the views of the data source as Arrow batches, in this process, without Spark and Java.

pyarrow is imported only when `read` is called, so `from dledger import *` works without it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING

from dledger.spark.option_values import BadOption, did_you_mean, names

if TYPE_CHECKING:
    import pyarrow as pa

    from dledger.spark.views import View

Value = str | int | bool | datetime | Iterable[object] | Mapping[str, object] | None
Path = str | PurePath

_ON_DEMAND = {
    "value": ("includeValue", "true"),
    "headers": ("includeHeaders", "true"),
    "group": ("includeGroup", "true"),
    "life": ("includeLife", "true"),
    "id": ("includeId", "true"),
}
"""Columns of `messages` that exist only when an option asks for them."""


def read(
    path: Path | Sequence[Path] | None = None,
    *,
    servers: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    **options: Value,
) -> pa.RecordBatchReader:
    """Do what `dledger.read` does without a table (`lake.history.read`), which describes the arguments.

    Raises spark.option_values.BadOption, audit.store_directory.StoreError, ModuleNotFoundError, and while
    rows are read spark.messages.CorruptMessage.
    """
    try:
        import pyarrow as pa

        import dledger.spark.all_views  # noqa: F401  all that the views need
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dledger"):
            raise
        text = f"dledger.read needs {error.name}: pip install 'dledger[arrow]'"
        raise ModuleNotFoundError(text, name=error.name) from error

    given = {name: as_option(name, value) for name, value in options.items() if value is not None}
    if path is not None:
        given["path"] = _paths(path)
    if servers is not None:
        given["servers"] = servers if isinstance(servers, str) else ";".join(_all_texts("servers", servers))
    view, schema = view_and_schema(given, names(columns) if isinstance(columns, str) else columns)
    parts = view.plan()

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            for batch in view.read(part):
                some = batch.select(schema.names)
                yield some if some.schema.equals(schema) else some.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def view_and_schema(given: Mapping[str, str], columns: Sequence[str] | None) -> tuple[View, pa.Schema]:
    """Return the view that these options ask for, with what it needs for these columns, and the schema of
    its rows. Raises BadOption."""
    import pyarrow as pa

    from dledger.spark.all_views import view_of
    from dledger.spark.columns import arrow_schema
    from dledger.spark.options import parse

    parsed = parse(given, "batch")
    if columns is not None and parsed.view == "messages":
        parsed = parse({**given, **dict(_asked_for(columns, parsed.given))}, "batch")
    view = view_of(parsed)
    whole = arrow_schema(view.columns)
    wanted = whole.names if columns is None else list(columns)
    for name in wanted:
        if name not in whole.names:
            known = dict.fromkeys((*whole.names, *(_ON_DEMAND if parsed.view == "messages" else ())))
            raise BadOption(f"view {parsed.view} has no column {name!r}{did_you_mean(name, list(known))}")
    return view, pa.schema([whole.field(name) for name in wanted])


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


def _paths(path: Path | Sequence[Path]) -> str:
    if isinstance(path, str):
        return path
    if not isinstance(path, PurePath | Iterable):
        raise BadOption(f"option path: {path!r} is neither a path nor a list of paths")
    paths = [path] if isinstance(path, PurePath) else path
    return json.dumps(_all_texts("path", (str(one) if isinstance(one, PurePath) else one for one in paths)))


def _all_texts(name: str, values: Iterable[object]) -> list[str]:
    found = list(values)
    if not all(isinstance(one, str) for one in found):
        raise BadOption(f"option {name}: {found!r} is not a list of texts")
    return [str(one) for one in found]


def as_option(name: str, value: Value) -> str:
    """Return a value as the text that Spark would pass for this option. Raises BadOption for a value that no
    option takes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadOption(
                f"option {name}: {value!r} has no time zone: give one, as datetime(2026, 11, 21, tzinfo=UTC)"
            )
        return value.isoformat()
    if isinstance(value, float):
        raise BadOption(f"option {name}: {value!r} has a decimal point: give a whole number")
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        pass  # not a whole number
    if not isinstance(value, Mapping):
        # Sets, arrays and columns of a frame are lists here.
        value = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else value
    try:
        return json.dumps(value)
    except TypeError as error:
        raise BadOption(f"option {name}: {value!r} is {type(value).__name__}: {error}") from None
