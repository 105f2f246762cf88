"""Identifies the files that a segment's rows were made from, so that a change of any of them is detected.

The segment itself is identified by data of its file system, without reading it. Data derived from it is in
files that other segments share and that a live node continues to write. So the derived units of this segment
are read, about 5 % of its bytes; this also detects rot in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dledger.audit.findings import QueueRow, Row
from dledger.audit.key_index import units_crc
from dledger.audit.state_check import load_boundary
from dledger.audit.store_directory import SegmentTask
from dledger.audit.unit_files import UnitFiles
from dledger.formats.checksum import crc32
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.entry import INDEX_UNIT_SIZE
from dledger.formats.store_files import INDEX_DIR
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

_CHUNK_UNITS = 1 << 16


class SegmentStamp(NamedTuple):
    """Identifies the files that a segment's rows are made from.

    * `file`: `Files.stamp` of the segment.
    * `changed_ms`: when the segment last changed.
    * `now_ms`: clock of the machine that has the segment, 0 if the caller uses the same clock.
    * `derived`: a line for each other thing that a scan of a full segment reads, empty if not asked for.
    """

    file: str
    changed_ms: int
    now_ms: int = 0
    derived: str = ""

    @property
    def text(self) -> str:
        """The stamp as text, which is kept with the rows and compared by `still_holds`."""
        return f"file {self.file}\n{self.derived}"


def stamp(
    files: Files, task: SegmentTask, rows: Iterable[Row] | None = None, now_ms: int = 0
) -> SegmentStamp | None:
    """Return the stamp of a segment and of what its `rows` were made from; without rows, of its file alone.
    None if a file cannot be identified. Raises OSError."""
    derived = "" if rows is None else "\n".join(_derived(files, task, rows))
    found = files.stamp(task.path)  # read last: a caller with an earlier stamp sees what changed meanwhile
    return None if found is None else SegmentStamp(found.text, found.changed_ms, now_ms, derived)


def _derived(files: Files, task: SegmentTask, rows: Iterable[Row]) -> Iterator[str]:
    queues = [row for row in rows if isinstance(row, QueueRow)]
    yield f"index {_index(files, task)}"
    yield f"queues {task.queue_root} {_queues(files, task, queues)}"
    yield f"keys {task.key_root} {units_crc(files, task.key_root, task.start, _end(task))}"
    yield from _pointing_here(files, task, queues)
    for pos in (task.start, _end(task)):
        if (boundary := load_boundary(files, task.directory, pos)) is not None:
            yield f"snapshot {pos} {boundary.manifest.index} {boundary.manifest.digest}"
    if task.state_file:
        yield f"state {task.state_file} {crc32(read_file(files, task.state_file) or b'')}"


def still_holds(now: str, then: str) -> bool:
    """Whether rows with the stamp `then` are equal to those of a scan now.

    If a snapshot or state file no longer exists, there is only one thing less to check, so the rows are still
    good.
    """
    return set(now.split("\n")) <= set(then.split("\n"))


def _end(task: SegmentTask) -> int:
    return task.start + task.segment_size


def _index(files: Files, task: SegmentTask) -> int:
    units = UnitFiles(files, f"{task.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
    try:
        return _crc(units, task.first_index, task.next_first or task.first_index, 0)
    finally:
        units.close()


def _queues(files: Files, task: SegmentTask, rows: Iterable[QueueRow]) -> int:
    crc = 0
    for row in rows if task.queue_root else ():
        units = _queue_files(files, task, row)
        try:
            crc = _crc(units, row.first_offset, row.last_offset + 1, crc)
        finally:
            units.close()
    return crc


def _crc(units: UnitFiles, first: int, end: int, crc: int) -> int:
    for number in range(first, end, _CHUNK_UNITS):
        crc = crc32(units.read(number, min(_CHUNK_UNITS, end - number)), crc)
    return crc


def _pointing_here(files: Files, task: SegmentTask, rows: Iterable[QueueRow]) -> Iterator[str]:
    """Yield a line for units just outside the range of this segment that point into it. A clean store has
    none."""
    for row in rows if task.queue_root else ():
        units = _queue_files(files, task, row)
        try:
            for offset in (row.first_offset - 1, row.last_offset + 1):
                if units.first <= offset < units.end():
                    unit = unpack_unit(units.read(offset, 1))
                    if unit.size > 0 and task.start <= unit.physical_offset < _end(task):
                        yield f"dangling {row.topic} {row.queue_id} {offset}"
        finally:
            units.close()


def _queue_files(files: Files, task: SegmentTask, row: QueueRow) -> UnitFiles:
    return UnitFiles(files, f"{task.queue_root}/{row.topic}/{row.queue_id}", UNIT_SIZE)
