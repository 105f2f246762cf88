"""Rows as bytes, for sending from a broker to an auditor: pages of MessagePack arrays `[kind, field, ...]`.

A field that an older sender does not know gets its default at the receiver. A kind of row that the receiver
does not know is an error, because an audit must not leave out what it cannot read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgpack
import numpy as np

from dledger.audit.entries import Columns, Entry
from dledger.audit.findings import ROW_KINDS, Row
from dledger.audit.scan import EntryRow
from dledger.audit.segment_stamp import SegmentStamp
from dledger.audit.store_directory import SegmentTask

PAGE_BYTES = 1024 * 1024
"""Size, in bytes, at which a page ends. The row that reaches this size is its last."""
_ROW_ENTRIES = 8192
"""Largest number of entries in one `EntriesRow` (576 KiB)."""


class UnknownRow(Exception):
    """Raised when the bytes are not rows, or rows of a newer version."""


class TaskRow(NamedTuple):
    """The parts of a `SegmentTask` that are sent to others. `next_first` is -1 if there is none."""

    start: int
    size: int
    segment_size: int
    committed: int
    next_first: int
    index_end: int
    first_index: int


class EntriesRow(NamedTuple):
    """Several entries with all fields of their headers. The fields of `audit.entries.Entry` follow one
    another, each as `count` signed 64-bit numbers, little endian."""

    replica: str
    count: int  # type: ignore[assignment]  # tuple.count is not used
    data: bytes


class UnitsRow(NamedTuple):
    """Units of the index files from number `first` on, unchanged."""

    replica: str
    first: int
    data: bytes


class MemberRow(NamedTuple):
    """Tells an auditor about one member of a broker's group: its node id (`node`), and its address for
    clients as host:port, which is empty if the broker does not know it."""

    node: str
    address: str


AnyRow = Row | EntryRow | EntriesRow | UnitsRow | TaskRow | MemberRow | SegmentStamp

KINDS: dict[str, type[Any]] = {
    **ROW_KINDS,
    "entry": EntryRow,
    "entries": EntriesRow,
    "units": UnitsRow,
    "task": TaskRow,
    "member": MemberRow,
    "stamp": SegmentStamp,
}
NAMES = {kind: name for name, kind in KINDS.items()}


def encode_pages(rows: Iterable[AnyRow], page_bytes: int = PAGE_BYTES) -> Iterator[bytes]:
    """Pack rows into pages. There is at least one page, which may be empty."""
    pack = msgpack.Packer(use_bin_type=True).pack
    pending: list[bytes] = []
    size = 0
    for row in rows:
        packed: bytes = pack((NAMES[type(row)], *row))
        pending.append(packed)
        size += len(packed)
        if size >= page_bytes:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join(pending)


def decode_page(page: bytes) -> Iterator[AnyRow]:
    """Return the rows of one page. Raises UnknownRow."""
    unpacker = msgpack.Unpacker(use_list=False, raw=False, max_buffer_size=len(page) or 1)
    unpacker.feed(page)
    try:
        for fields in unpacker:
            yield _row(fields)
    except (ValueError, msgpack.UnpackException) as error:
        raise UnknownRow(f"a page that cannot be read: {error}") from error


def _row(fields: object) -> AnyRow:
    if not isinstance(fields, tuple) or not fields or fields[0] not in KINDS:
        kind = fields[0] if isinstance(fields, tuple) and fields else fields
        raise UnknownRow(f"a row of kind {kind!r}: the broker is newer than this auditor")
    try:
        row: AnyRow = KINDS[fields[0]](*fields[1:])
    except TypeError as error:
        raise UnknownRow(f"a row of kind {fields[0]!r} with {len(fields) - 1} fields: {error}") from error
    return row


def as_entries_rows(replica: str, columns: Columns) -> Iterator[EntriesRow]:
    """Yield rows with many entries each, but so few that a row is smaller than a page."""
    for first in range(0, len(columns), _ROW_ENTRIES):
        some = columns[first : first + _ROW_ENTRIES]
        data = np.array([getattr(some, name) for name in Entry._fields], "<i8").tobytes()
        yield EntriesRow(replica, len(some), data)


def as_columns(row: EntriesRow) -> Columns:
    """Return the entries of a row; the inverse of `as_entries_rows`. Raises UnknownRow if the size does not
    match the number of entries."""
    if len(row.data) != 8 * len(Entry._fields) * row.count:
        raise UnknownRow(f"{len(row.data)} bytes are not {row.count} entries")
    return Columns(*np.frombuffer(row.data, "<i8").reshape(len(Entry._fields), row.count))


def as_task_row(task: SegmentTask) -> TaskRow:
    """Make the row for a task, without the parts that are useful only on its own machine."""
    next_first = -1 if task.next_first is None else task.next_first
    return TaskRow(
        task.start,
        task.size,
        task.segment_size,
        task.committed,
        next_first,
        task.index_end,
        task.first_index,
    )


def as_task(row: TaskRow, replica: str) -> SegmentTask:
    """Make a task for an engine from its row. The segment of this task cannot be read from files."""
    return SegmentTask(
        replica=replica,
        directory="",
        queue_root="",
        start=row.start,
        size=row.size,
        segment_size=row.segment_size,
        committed=row.committed,
        next_first=None if row.next_first < 0 else row.next_first,
        index_end=row.index_end,
        first_index=row.first_index,
    )
