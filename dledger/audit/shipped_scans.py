"""Rows of scans as Parquet files: for incremental audits, and for brokers that ship what they scanned.

```
<root>/group=<G>/replica=<R>/segment=<20 digits>/rows.parquet     rows of one segment
<root>/group=<G>/replica=<R>/segment=side/rows.parquet            rows of the side scan
```

Values in names are escaped as Hive and Spark do it. A file holds `findings.FlatRow`s (`SCHEMA`). The first
row has the kind `bound`, and gives the range for which the other rows are valid (`findings.BoundRow`). A file
is published by one rename, or by one PUT if `root` is a URL (`runtime.remote_files`), so that a reader sees a
whole file or none. Spark reads a tree with `option("recursiveFileLookup", True)`, because the columns
`replica` and `segment` are in the files as well. pyarrow reads it with `partitioning=None`.

* **Write** (`write_scan`): the rows of each scanned segment, and *after* all segments those of the side scan,
  which name their segments. So a reader that finds the side scan finds its segments.
* **Use again** (`reusable`): rows of a segment are `final` if the segment is full, committed, clean and was
  completely compared with its derived files. While the store (`origin`), the size and the adjacent segments
  are the same, the segment need not be scanned again. The rows of a segment with a finding are never final,
  because the segment may be repaired.
* **Audit without the stores** (`find_replicas`, `collect`): the rows of every replica, with a finding for
  what is missing or cannot be compared. `compare.analyse` makes the report from them.

All functions block. They raise ShippedRowsError for a file that is not of this form, and OSError of the disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import (
    BoundRow,
    Finding,
    FlatRow,
    ReplicaRow,
    Row,
    SegmentRow,
    finding,
    flatten,
    unflatten,
    unread_segment,
)
from dledger.audit.store_directory import SegmentTask
from dledger.formats.store_files import parse_segment_name, segment_name
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file, replace_file

SIDE = -1
"""Value in place of a segment's start, for the rows of the side scan."""
ROWS_FILE = "rows.parquet"
SCAN_VERSION = 6
"""Version of rows and checks. It is raised together with `audit.digests.DIGEST_VERSION`, and when a scan can
find something new."""

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("replica", pa.string()),
        ("segment", pa.int64()),
        ("first_index", pa.int64()),
        ("last_index", pa.int64()),
        ("entries", pa.int64()),
        ("mix_a", pa.int64()),
        ("mix_b", pa.int64()),
        ("code", pa.string()),
        ("severity", pa.int32()),
        ("data", pa.string()),
    ]
)
"""Columns of `findings.FlatRow`, in its order."""

_SIDE_NAME = "side"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")


class ShippedRowsError(Exception):
    """Raised for a file that does not hold the rows of a scan."""


class Scan(NamedTuple):
    """Rows of one segment or side scan, and the range for which they are valid (`bound`). `rows` does not
    include the bound."""

    bound: BoundRow
    rows: list[Row]


@dataclass(frozen=True, order=True)
class Place:
    """Where the rows of one scan are kept. `segment` is the log offset of the segment's first byte, or
    `SIDE`."""

    group: str
    replica: str
    segment: int

    def directory(self, root: str) -> str:
        """The directory of the file with these rows."""
        name = _SIDE_NAME if self.segment == SIDE else segment_name(self.segment)
        return f"{root}/group={_escape(self.group)}/replica={_escape(self.replica)}/segment={name}"

    def path(self, root: str) -> str:
        """The path of the file with these rows."""
        return f"{self.directory(root)}/{ROWS_FILE}"


# --- bytes ------------------------------------------------------------------------------------------


def encode_rows(rows: Iterable[FlatRow]) -> bytes:
    """Make a Parquet file (zstd) of these rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(values, type=field.type) for field, values in zip(SCHEMA, columns, strict=True)]
    sink = BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def decode_rows(data: bytes, name: str) -> list[FlatRow]:
    """Inverse of `encode_rows`. Raises ShippedRowsError, which names `name`, for anything else."""
    try:
        table = pq.read_table(BytesIO(data), partitioning=None).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ShippedRowsError(f"{name}: no rows of a scan: {error}") from error
    return [FlatRow(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def encode_scan(bound: BoundRow, rows: Iterable[Row]) -> bytes:
    """Make the file of one scan."""
    return encode_rows(flatten(row) for row in (bound, *rows))


def decode_scan(data: bytes, name: str) -> Scan:
    """Inverse of `encode_scan`. Raises ShippedRowsError."""
    try:
        bound, *rows = (unflatten(row) for row in decode_rows(data, name))
    except (ValueError, TypeError, LookupError) as error:
        raise ShippedRowsError(f"{name}: no rows of a scan: {error!r}") from error
    if not isinstance(bound, BoundRow):
        raise ShippedRowsError(f"{name}: the first row does not say how far the others hold")
    return Scan(bound, rows)


# --- files ------------------------------------------------------------------------------------------


def write_scan(files: Files, root: str, bound: BoundRow, rows: Iterable[Row]) -> str:
    """Publish the rows of one scan in place of older ones, and return the path. They are durable when the
    call returns."""
    place = Place(bound.group, bound.replica, bound.segment)
    replace_file(files, place.path(root), encode_scan(bound, rows))
    return place.path(root)


def read_scan(files: Files, root: str, place: Place) -> Scan | None:
    """Read the rows of one scan; None if there are none. Raises ShippedRowsError if the file is invalid."""
    path = place.path(root)
    data = read_file(files, path)
    return None if data is None else decode_scan(data, path)


def find_replicas(files: Files, root: str) -> list[tuple[str, str]]:
    """Return group and replica of everything that may be under `root`, sorted. Other names are ignored.

    There is one listing for each group and replica, which is one request in an object store.
    """
    return sorted(
        (unescape(group), unescape(replica))
        for group in _values(files, root, "group")
        for replica in _values(files, f"{root}/group={group}", "replica")
        if _starts(files, root, unescape(group), unescape(replica))
    )


def find_scans(files: Files, root: str) -> list[Place]:
    """Return all scans under `root`, sorted. Other names are ignored."""
    places = (
        Place(group, replica, start)
        for group, replica in find_replicas(files, root)
        for start in _starts(files, root, group, replica)
    )
    return [place for place in places if files.exists(place.path(root))]


def forget_scans(files: Files, root: str, group: str, replica: str, keep: Iterable[int]) -> int:
    """Remove the rows of segments that the replica no longer has, and return their number."""
    kept = {SIDE, *keep}
    gone = [start for start in _starts(files, root, group, replica) if start not in kept]
    for start in gone:
        files.rmtree(Place(group, replica, start).directory(root))
    return len(gone)


# --- how far rows hold ------------------------------------------------------------------------------


def segment_bound(
    replica: ReplicaRow,
    task: SegmentTask,
    rows: Iterable[Row],
    now_ms: int,
    block_entries: int = BLOCK_ENTRIES,
) -> BoundRow:
    """Make the bound of a segment's rows. `replica` is the replica's own row; `now_ms` is the wall clock
    before the scan."""
    return BoundRow(
        replica=replica.replica,
        segment=task.start,
        group=replica.group,
        origin=_origin(replica),
        committed=task.committed,
        size=task.size,
        first_index=task.first_index,
        next_first=_or_unknown(task.next_first),
        scanned_ms=now_ms,
        final=int(_is_final(task, rows)),
        version=SCAN_VERSION,
        block_entries=block_entries,
    )


def side_bound(
    replica: ReplicaRow, tasks: Iterable[SegmentTask], now_ms: int, block_entries: int = BLOCK_ENTRIES
) -> BoundRow:
    """Make the bound of a replica's side scan. `tasks` are those of all its segments."""
    return BoundRow(
        replica=replica.replica,
        segment=SIDE,
        group=replica.group,
        origin=_origin(replica),
        committed=replica.committed,
        size=0,
        first_index=-1,
        next_first=-1,
        scanned_ms=now_ms,
        final=0,
        version=SCAN_VERSION,
        block_entries=block_entries,
        segments=tuple(task.start for task in tasks),
    )


def reusable(
    bound: BoundRow,
    replica: ReplicaRow,
    task: SegmentTask,
    *,
    not_before_ms: int = 0,
    block_entries: int = BLOCK_ENTRIES,
) -> bool:
    """Whether a segment's rows are still equal to those of a new scan. Rows older than `not_before_ms` are
    not used, because disks decay with time."""
    then = (bound.origin, bound.size, bound.first_index, bound.next_first)
    now = (_origin(replica), task.size, task.first_index, _or_unknown(task.next_first))
    return (
        bound.final == 1
        and then == now
        and (bound.version, bound.block_entries) == (SCAN_VERSION, block_entries)
        and bound.scanned_ms >= not_before_ms
    )


def _origin(replica: ReplicaRow) -> str:
    """Text that distinguishes this store from another one at the same place."""
    return replica.incarnation or replica.store


def _is_final(task: SegmentTask, rows: Iterable[Row]) -> bool:
    known = list(rows)
    segments = [row for row in known if isinstance(row, SegmentRow)]
    if len(segments) != 1 or any(isinstance(row, Finding) for row in known) or task.next_first is None:
        return False
    row = segments[0]
    whole = row.stop in ("blank", "full") and not row.lacking and not row.holes
    return whole and row.last_index == task.next_first - 1 <= task.committed


def _or_unknown(index: int | None) -> int:
    return -1 if index is None else index


# --- an audit from files alone ----------------------------------------------------------------------


def collect(files: Files, root: str, group: str) -> list[Row]:
    """Return the rows of all replicas of a group, for `compare.analyse`. Missing or unusable rows become
    findings.

    Segments that a replica's side scan does not name are left out, because they were retired.
    """
    rows: list[Row] = []
    for owner, replica in find_replicas(files, root):
        if owner == group:
            rows += _collect_replica(files, root, Place(group, replica, SIDE))
    return rows


def _collect_replica(files: Files, root: str, side_place: Place) -> Iterator[Row]:
    name = side_place.replica
    side, problem = usable_scan(files, root, side_place, None)
    if side is None:
        yield finding("UNREADABLE", name, problem)
        return
    yield from side.rows
    for start in side.bound.segments:
        scan, problem = usable_scan(files, root, Place(side_place.group, name, start), side.bound)
        if scan is None:
            yield finding("UNREADABLE", name, problem, segment=start)
            yield unread_segment(name, start)
        else:
            yield from scan.rows


def usable_scan(files: Files, root: str, place: Place, side: BoundRow | None) -> tuple[Scan | None, str]:
    """Return the kept scan and an empty text, or None with the reason why it cannot be used together with
    `side`. `side` is None if it is the side scan itself."""
    path = place.path(root)
    try:
        scan = read_scan(files, root, place)
    except (ShippedRowsError, OSError) as error:
        return None, str(error)
    if scan is None:
        return None, f"{path} is not there"
    bound = scan.bound
    if (bound.version, bound.block_entries) != (SCAN_VERSION, BLOCK_ENTRIES):
        text = f"version {bound.version}, blocks of {bound.block_entries}"
        return None, f"{path} comes from another version of the scanner ({text})"
    if side is not None and bound.origin != side.origin:
        return None, f"{path} belongs to another incarnation of this replica"
    if side is not None and bound.committed < side.committed and not bound.final:
        return None, f"{path} is older than the replica's side rows and the segment was not full then"
    return scan, ""


# --- names ------------------------------------------------------------------------------------------


def _escape(value: str) -> str:
    """Return a value in the form in which Hive and Spark write it into the name of a partition's
    directory."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", value) or _NO_VALUE


def unescape(name: str) -> str:
    """The value in the name of a partition's directory; inverse of `_escape`."""
    return "" if name == _NO_VALUE else _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def _starts(files: Files, root: str, group: str, replica: str) -> list[int]:
    """Return the segments that may have rows, sorted; `SIDE` may be among them."""
    directory = f"{root}/group={_escape(group)}/replica={_escape(replica)}"
    starts = (
        SIDE if name == _SIDE_NAME else parse_segment_name(name)
        for name in _values(files, directory, "segment")
    )
    return sorted(start for start in starts if start is not None)


def _values(files: Files, directory: str, column: str) -> list[str]:
    prefix = f"{column}="
    return [name.removeprefix(prefix) for name in files.listdir(directory) if name.startswith(prefix)]
