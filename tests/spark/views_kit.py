"""Views read in this process, as tasks read them, and what they must show by dledger/formats/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.record import TRANSACTION_PREPARED, Record, decode_record
from tests.audit.store_builder import Log


def view(path: Path | str, **options: str) -> Any:
    """The view over a store that the data source would make."""
    from dledger.spark.options import parse
    from dledger.spark.views import directory_view

    return directory_view(parse({"path": str(path), **options}, "batch"))


def rows_of(view: Any) -> list[dict[str, Any]]:
    """All rows of a view, task by task."""
    return [row for part in view.plan() for batch in view.read(part) for row in batch.to_pylist()]


def planned(view: Any) -> list[Any]:
    """The pieces that the tasks of a view read."""
    return [piece for pack in view.plan() for piece in pack.pieces]


def record_of(log: Log, entry: EntryHeader) -> Record:
    start = entry.pos - entry.pos % log.segment_size
    return decode_record(log.segments[start], entry.pos - start + HEADER_SIZE)


def messages_of(log: Log, committed: int | None = None) -> Iterator[tuple[EntryHeader, Record]]:
    """Messages that have a place in a queue, in order of the log."""
    for entry in log.entries:
        if entry.kind == Kind.MESSAGE and (committed is None or entry.index <= committed):
            record = record_of(log, entry)
            if record.sys_flag != TRANSACTION_PREPARED:
                yield entry, record


def place(row: Any) -> tuple[str, int, int, int]:
    """What tells a message from all others."""
    return row["topic"], row["partition"], row["offset"], row["logIndex"]


def places_of(log: Log, committed: int | None = None) -> list[tuple[str, int, int, int]]:
    return [
        (record.topic, record.queue_id, record.queue_offset, entry.index)
        for entry, record in messages_of(log, committed)
    ]
