"""The first rows of a view, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING

from dledger.audit.text_table import text_table
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_CELL = 60
"""Largest number of characters of a cell in a table; a longer value is cut. JSON shows the whole value."""


@dataclass(frozen=True)
class Rows:
    """The first rows of a view, as `dledger spark read` prints them. `more`: whether the view has further
    rows."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]] = field(repr=False)
    more: bool = False
    exit_code: int = 0

    def as_json(self) -> dict[str, object]:
        """Return one JSON object. Bytes become texts if they are UTF-8, else {"hex": ...}."""
        rows = [dict(zip(self.columns, map(plain, row), strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "rows": rows, "more": self.more}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        cells = [tuple(_cell(value) for value in row) for row in self.rows]
        yield from text_table([self.columns, *cells])
        yield f"{len(self.rows)} rows" + (", and there are more (--limit)" if self.more else "")


def read_rows(
    spark: SparkSession,
    source: LogSource,
    view: str = "messages",
    *,
    where: str = "",
    order_by: str = "",
    limit: int = 20,
) -> Rows:
    """Return the first rows of a view. Blocking. Raises JobError, and PySparkException for a wrong option
    or condition.

    `where`: a condition in SQL; `order_by`: the column by which rows are sorted.
    """
    source.check_topics()
    if source.archive:
        if view != "messages":
            raise JobError(f"an archive holds only messages: the view {view} needs store directories")
        frame = source.messages(spark, value=True, headers=True)
    else:
        frame = source.read(spark, view=view)
    if where:
        frame = frame.where(where)
    if order_by:
        frame = frame.orderBy(order_by)
    found = frame.limit(limit + 1).collect()
    return Rows(tuple(frame.columns), [tuple(row) for row in found[:limit]], len(found) > limit)


def plain(value: object) -> object:
    """Convert a value to one that JSON can hold."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"hex": bytes(value).hex()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return value


def _cell(value: object) -> str:
    shown = plain(value)
    text = "-" if shown is None else shown if isinstance(shown, str) else json.dumps(shown)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
