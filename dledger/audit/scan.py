"""Scans one segment, or the files beside the segments of one replica (the side scan), and gives rows.
Blocking; no state is kept between calls.

Every engine runs this code: in a loop (`local`), in Spark tasks, in brokers for auditors and for shipping.
The log's own scrub has its own walk (`dledger.log.scrub`), because the log must not import the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from dledger.audit.digests import BLOCK_ENTRIES, BlockDigests
from dledger.audit.entries import BODY_DAMAGED, UNREADABLE, Columns, Entry
from dledger.audit.findings import Finding, KeyFileRow, QueueFilesRow, Row, SegmentRow, SnapshotRow, finding
from dledger.audit.index_units import IndexCheck, IndexUnits
from dledger.audit.key_index import KeyCheck, check_file, open_key_files
from dledger.audit.queue_check import QueueCheck
from dledger.audit.record_check import RecordCheck, is_sound
from dledger.audit.records import QueueNames, has_record
from dledger.audit.state_check import StateCheck
from dledger.audit.store_directory import Replica, SegmentTask, log_start, peek_first_index
from dledger.audit.unit_files import UnitFiles
from dledger.audit.walk import Fault, SegmentWalker, Stop, collapse
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.entry import (
    APACHE_MAGICS,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    unpack_header,
)
from dledger.formats.snapshot import Manifest, check_parts
from dledger.formats.store_files import (
    HARD_STATE_FILE,
    INDEX_DIR,
    POISONED_FILE,
    REFILL_FILE,
    SNAPSHOTS_DIR,
    CorruptFile,
    decode_hard_state,
    segment_name,
)
from dledger.runtime import File, Files
from dledger.runtime.atomic_file import read_file

WINDOW = 4 * 1024 * 1024
"""Number of bytes that are read at a time. It is doubled while one entry does not fit."""
T = TypeVar("T")
_HOLE_UNITS = 4096
_MANY = 1 << 40


@dataclass(frozen=True)
class Window:
    """Several complete entries and the bytes that contain them. `base` is the log offset of `data[0]`."""

    data: bytes
    base: int
    columns: Columns

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries as a list."""
        return self.columns.entries()


class EntryRow(NamedTuple):
    """One entry of one replica, to be compared with that of other replicas (see `walk.Entry`)."""

    replica: str
    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    term: int
    size: int
    channel: int
    crc: int
    damage: int


def make_walker(files: Files, task: SegmentTask, offset: int = 0, index: int | None = None) -> SegmentWalker:
    """Make a walker. It knows which entries this segment must hold, and checks the file again before it
    reports damage."""
    must_reach = task.committed if task.next_first is None else task.next_first - 1

    def recheck() -> int | None:
        try:
            if _head(files, task.path) != head:
                return None
        except FileNotFoundError:
            return None
        if task.next_first is None:
            return task.committed
        following = task.start + task.segment_size if task.next_start < 0 else task.next_start
        try:
            first = peek_first_index(files, task.path_of(following), following)
        except FileNotFoundError:
            first = None
        return task.committed if first != task.next_first else task.next_first - 1

    head = _head(files, task.path)
    return SegmentWalker(
        task.start,
        task.size,
        must_reach,
        has_next=task.next_first is not None,
        recheck=recheck,
        offset=offset,
        index=index,
    )


def _head(files: Files, path: str) -> bytes:
    file = files.open_read(path)
    try:
        return file.pread(HEADER_SIZE, 0)
    finally:
        file.close()


def windows(files: Files, path: str, walker: SegmentWalker) -> Iterator[Window]:
    """Read a segment and walk it. Raises OSError if it cannot be read."""
    file = files.open_read(path)
    try:
        yield from _windows(file, walker)
    finally:
        file.close()


def _windows(file: File, walker: SegmentWalker) -> Iterator[Window]:
    size = file.size()
    window = WINDOW
    retried = -1
    while not walker.stop:
        offset = walker.offset
        data = file.pread(min(window, size - offset), offset)
        last = offset + len(data) >= size or len(data) < min(window, size - offset)
        columns = walker.feed(data, last)
        if len(columns):
            yield Window(data, walker.start + offset, columns)
        del data  # the next window is read into the same memory
        if walker.stop is Stop.TORN and retried != walker.offset:
            retried = walker.offset
            walker.retry()
        elif walker.offset > offset:
            window = WINDOW
        elif not walker.stop:
            if last:
                raise RuntimeError(f"{file.path}: the scan makes no progress at offset {offset}")
            window *= 2


class _Beside:
    """Reads files beside a segment. If a file cannot be read, the error is kept in `errors` by the kind of
    file, and files of that kind are not read again. So the segment itself is scanned to its end."""

    def __init__(self) -> None:
        self.errors: dict[str, OSError] = {}

    def look(self, what: str, step: Callable[[], T], instead: T) -> T:
        """Return the result of `step`. Return `instead` if the files cannot be read, or an earlier step could
        not read files of this kind."""
        if what in self.errors:
            return instead
        try:
            return step()
        except OSError as error:
            self.errors[what] = error
            return instead


def _state_check(files: Files, task: SegmentTask, names: QueueNames) -> StateCheck:
    end = task.start + task.segment_size
    return StateCheck(
        files, task.directory, task.start, end, task.first_index, task.state_file, task.committed, names
    )


def scan_segment(
    files: Files, task: SegmentTask, block_entries: int = BLOCK_ENTRIES, *, deep: bool = False
) -> Iterator[Row]:
    """Yield findings, block digests, queue ranges and, last, the coverage of one segment. Never raises
    OSError.

    A derived file that cannot be read is reported and not compared any longer; the segment is read to its
    end. `deep` is explained at `record_check.DEEP_EVERY`; it takes about a sixth more time.
    """
    beside = _Beside()
    digests = BlockDigests(task.replica, block_entries)
    units = IndexUnits(files, task.directory, task.index_end)
    index_check = IndexCheck(units, task.committed, task.index_end)
    no_units = np.empty(0, np.int64)
    queues = QueueCheck(files, task.queue_root, task.replica, task.start, task.applied, dict(task.deleted))
    records = RecordCheck(task.committed, queues, deep=deep)
    first: Entry | None = None
    last: Entry | None = None
    committed_end = task.start
    settled_term = -1
    count = holes = 0
    walker: SegmentWalker | None = None
    error: OSError | None = None
    queue_rows: list[Row] = []
    key_check = partial(KeyCheck, files, task.key_root, task.committed)
    keys: KeyCheck | None = beside.look("IndexFile", key_check, None)
    check_state = partial(_state_check, files, task, records.names)
    state: StateCheck | None = beside.look("snapshot or state file", check_state, None)
    try:
        walker = make_walker(files, task)
        walker.told = lambda first, below: beside.look(
            "index file", lambda: units.positions(first, below), no_units
        )
        for window in windows(files, task.path, walker):
            columns = window.columns
            digests.add(columns)
            beside.look("index file", partial(index_check.add, columns), None)
            queues.add_opaque(_lost(walker.holes[holes:]))
            holes = len(walker.holes)
            found = records.add(window.data, window.base, columns)
            if keys is not None:
                keys.whole = not queues.opaque
                texts = (found.records, found.texts) if found else None
                beside.look("IndexFile", partial(keys.add, window.data, window.base, columns, texts), None)
            if state is not None:
                state.check_place(columns)
            if state is not None and found is not None and not queues.opaque:
                state.add(window.data, columns, found.records, found.queued, found.which)
            elif state is not None:
                state.give_up()
            first = first or columns.entry(0)
            last = columns.entry(-1)
            count += len(columns)
            del window  # see `_windows`
            settled = columns.index <= task.committed
            if settled.any():
                committed_end = int((columns.pos + columns.size)[settled].max())
                settled_term = int(columns.term[settled][-1])
        if not walker.holes:
            queue_rows = list(queues.finish(task.start, committed_end))
            if state is not None and last is not None and walker.stop in (Stop.BLANK, Stop.FULL):
                state.finish(last.index)
        if keys is not None:
            beside.look("IndexFile", partial(keys.finish, committed_end), None)
    except FileNotFoundError as caught:
        if files.exists(task.path):  # else it was retired since it was listed: below
            error = caught
    except OSError as caught:
        error = caught
    finally:
        units.close()
        queues.close()
    faults = [*(walker.faults if walker else []), *records.faults]
    derived = [*index_check.faults, *queues.faults]
    derived += [*(keys.faults if keys else []), *(state.faults if state else [])]
    if queues.error is not None:
        beside.errors["ConsumeQueue"] = queues.error
    if (derived or beside.errors) and not _is_retired(files, task):
        faults += derived
        for what, reason in beside.errors.items():
            yield finding("UNREADABLE", task.replica, f"{what}: {reason}", segment=task.start)
    yield from (_as_finding(task, fault) for fault in collapse_each(faults))
    stop = str(walker.stop) if walker else Stop.RETIRED
    if error is not None:
        stop = "unreadable"
        yield finding("UNREADABLE", task.replica, f"{task.path}: {error}", segment=task.start)
    elif stop == Stop.RUNNING or stop == Stop.RETIRED:
        stop = Stop.RETIRED
        yield finding("RETIRED", task.replica, "the file is no longer this segment", segment=task.start)
    elif stop == Stop.TORN and walker is not None:
        text = f"an unfinished entry at pos {task.start + walker.offset}"
        torn_at = walker.next_index or 0
        yield finding("TORN_TAIL", task.replica, text, first=torn_at, segment=task.start)
    yield from digests.rows()
    yield from queue_rows
    yield SegmentRow(
        replica=task.replica,
        segment=task.start,
        first_index=first.index if first else -1,
        last_index=last.index if last else -1,
        first_term=first.term if first else -1,
        last_term=last.term if last else -1,
        entries=count,
        bytes=walker.bytes if walker else 0,
        end_pos=last.pos + last.size if last else task.start,
        stop=str(stop),
        first_crc=first.stored_crc if first else 0,
        first_chain=first.chain if first else 0,
        last_chain=last.chain if last else 0,
        opaque=queues.opaque,
        holes=tuple(walker.holes) if walker else (),
        lacking=index_check.lacking + queues.lacking + (keys.lacking if keys else 0),
        settled_term=settled_term,
    )


def _is_retired(files: Files, task: SegmentTask) -> bool:
    """Whether retention has removed the segment, or has recorded that it will. Then data derived from the
    segment is removed, too."""
    try:
        return log_start(files, task) > task.start or not files.exists(task.path)
    except OSError:
        return False  # the side scan tells


def _lost(holes: list[tuple[int, int]]) -> int:
    """How many entries the holes may have held. The size of a hole at a segment's start is not known."""
    return sum(last - first + 1 if first >= 0 else _MANY for first, last in holes)


def collapse_each(faults: list[Fault]) -> list[Fault]:
    """Join adjacent faults with the same code, and sort all by index."""
    return sorted(collapse(sorted(faults)), key=lambda fault: (fault.first, fault.code))


def _as_finding(task: SegmentTask, fault: Fault) -> Finding:
    text = fault.detail
    if fault.last > fault.first >= 0:
        text += f" (and the same in the {fault.last - fault.first} after it)"
    return finding(fault.code, task.replica, text, first=fault.first, last=fault.last, segment=task.start)


def scan_side(files: Files, replica: Replica) -> Iterator[Row]:
    """Yield the rows that belong to a replica and to no segment of it: its own row, and rows about small
    files, missing segments, and extents of queues."""
    beside = _Beside()

    def look(what: str, step: Callable[[], Iterator[Row]]) -> list[Row]:
        return beside.look(what, lambda: list(step()), [])

    extents = look("ConsumeQueue", partial(_queue_extents, files, replica))
    # read last: whatever retention removed from the queues is before it
    start = beside.look("log directory", lambda: log_start(files, replica), 0)
    rows = look("poisoned", partial(_poisoned, files, replica))
    rows += look("refill", partial(_refill, files, replica))
    rows += look("hardstate", partial(_hard_state, files, replica))
    hard_term = beside.look("hardstate", partial(_hard_term, files, replica), -1)
    for manifest in replica.snapshots:
        rows += look(f"snapshot at {manifest.pos}", partial(_snapshot, files, replica, manifest))
    rows += look("index file", partial(_index_of_holes, files, replica))
    rows += extents
    rows += look("IndexFile", partial(_key_files, files, replica))
    own = replica.row()._replace(log_start=start, hard_term=hard_term)
    # Files that could not be read are not behind those of other replicas.
    yield own._replace(queues=0) if {"ConsumeQueue", "IndexFile"} & beside.errors.keys() else own
    yield from replica.problems
    for what, reason in beside.errors.items():
        yield finding("UNREADABLE", replica.name, f"{what}: {reason}")
    yield from rows


def _poisoned(files: Files, replica: Replica) -> Iterator[Row]:
    reason = read_file(files, f"{replica.directory}/{POISONED_FILE}")
    if reason is not None:
        text = reason.decode("utf-8", "replace").strip()
        yield finding("POISONED", replica.name, f"the node stopped after a failure: {text}")


def _refill(files: Files, replica: Replica) -> Iterator[Row]:
    reason = read_file(files, f"{replica.directory}/{REFILL_FILE}")
    if reason is not None:
        text = reason.decode("utf-8", "replace").strip()
        yield finding("REFILL", replica.name, f"entries may be lost here, as the node reports: {text}")


def _hard_term(files: Files, replica: Replica) -> int:
    data = read_file(files, f"{replica.directory}/{HARD_STATE_FILE}")
    known = None if data is None else decode_hard_state(data)
    return -1 if known is None else known[1].term


def _hard_state(files: Files, replica: Replica) -> Iterator[Row]:
    """Findings about the hard state. Stores of Apache RocketMQ have none. Our nodes write it before their
    first entry."""
    data = read_file(files, f"{replica.directory}/{HARD_STATE_FILE}")
    if data is not None and any(data):
        if decode_hard_state(data) is None:
            yield finding("HARD_STATE", replica.name, "both slots of the hardstate file are damaged")
    elif replica.identity is not None and any(one.first_index is not None for one in replica.segments):
        what = "not there" if data is None else "empty"
        text = f"the hardstate file is {what}, though the log has entries: the node has forgotten its votes"
        yield finding("HARD_STATE", replica.name, text)


def _snapshot(files: Files, replica: Replica, manifest: Manifest) -> Iterator[Row]:
    path = f"{replica.directory}/{SNAPSHOTS_DIR}/{segment_name(manifest.pos)}"
    try:
        parts = {name: read_file(files, f"{path}/{name}") for name in manifest.parts}
        check_parts(manifest, {name: data for name, data in parts.items() if data is not None})
    except CorruptFile as error:
        if not files.exists(path):
            return  # a live node has removed it meanwhile
        text = f"{path}: {error}"
        yield finding("SNAPSHOT_DAMAGED", replica.name, text, first=manifest.index, segment=manifest.pos)
    except FileNotFoundError:
        return  # removed between two looks
    said = (manifest.digest, manifest.term, manifest.chain)
    yield SnapshotRow(replica.name, manifest.pos, manifest.index, *said)


def _index_of_holes(files: Files, replica: Replica) -> Iterator[Row]:
    """Check that the index units of entries in missing segments agree with each other."""
    index = UnitFiles(files, f"{replica.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
    try:
        for before, after in pairwise(replica.segments):
            hole = before.start + replica.segment_size
            if hole < after.start and after.first_index is not None and after.first_index <= index.end():
                yield from _walk_units_down(index, replica, after.first_index, after.start, hole)
    finally:
        index.close()


def _walk_units_down(
    index: UnitFiles, replica: Replica, number: int, next_pos: int, hole: int
) -> Iterator[Row]:
    """Check the index units from `number - 1` down to the one that points before the hole."""
    while number > 0:
        count = min(_HOLE_UNITS, number)
        units = list(INDEX_UNIT.iter_unpack(index.read(number - count, count)))
        for magic, pos, size, said, _ in reversed(units):
            number -= 1
            rolled = next_pos % replica.segment_size == 0 and pos + size <= next_pos
            known = magic == MAGIC if replica.identity else magic in APACHE_MAGICS
            if known and said == number and (pos + size == next_pos or rolled):
                if pos < hole:
                    return
                next_pos = pos
            else:
                yield finding(
                    "INDEX_FILE", replica.name, "the unit does not continue those behind it", first=number
                )
                return  # units below cannot be checked without the log


def _queue_extents(files: Files, replica: Replica) -> Iterator[Row]:
    for topic in files.listdir(replica.queue_root) if replica.queue_root else ():
        for queue_id in files.listdir(f"{replica.queue_root}/{topic}"):
            if not queue_id.isdigit():
                continue
            units = UnitFiles(files, f"{replica.queue_root}/{topic}/{queue_id}", UNIT_SIZE)
            try:
                end = units.end()
                position = unpack_unit(units.read(end - 1, 1)).physical_offset if end > units.first else -1
            finally:
                units.close()
            yield QueueFilesRow(replica.name, topic, int(queue_id), units.first, end, position)


def _key_files(files: Files, replica: Replica) -> Iterator[Row]:
    if not replica.key_root:
        return
    key_files, problems = open_key_files(files, replica.key_root)
    for problem in problems:
        yield finding("KEY_INDEX", replica.name, problem)
    for key_file in key_files:
        header, name = key_file.header, key_file.path.rpartition("/")[2]
        positions = (header.begin_position, header.end_position)
        yield KeyFileRow(replica.name, name, *positions, key_file.units)
        yield from check_file(files, replica.name, key_file)


def read_entries(
    files: Files, task: SegmentTask, segment_first: int, ranges: Iterable[tuple[int, int]]
) -> Iterator[Window]:
    """Yield the entries of the given index ranges (inclusive, ascending) that are in this segment.

    They are found with the index file if it is correct, otherwise by a walk from the start. `segment_first`
    is the index of the segment's first entry, or -1. Raises OSError if the segment cannot be read; a retired
    segment gives nothing.
    """
    for low, high in ranges:
        try:
            offset, at = _seek(files, task, segment_first, low)
            walker = make_walker(files, task, offset, at)
            for window in windows(files, task.path, walker):
                index = window.columns.index
                chosen = window.columns[(low <= index) & (index <= high)]
                if len(chosen):
                    yield Window(window.data, window.base, chosen)
                if index[-1] >= high:
                    break
        except FileNotFoundError:
            return


def _seek(files: Files, task: SegmentTask, segment_first: int, low: int) -> tuple[int, int | None]:
    """Return (offset in the file, index) at which to start. It is one entry before `low`, so that the chain
    is known at `low`."""
    number = low - 1
    if segment_first < 0 or number <= segment_first or number >= task.index_end:
        return 0, None
    index = UnitFiles(files, f"{task.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
    try:
        magic, pos, size, said, _ = INDEX_UNIT.unpack(index.read(number, 1))
    finally:
        index.close()
    offset = pos - task.start
    if magic != MAGIC or said != number or not 0 <= offset <= task.size - HEADER_SIZE:
        return 0, None
    file = files.open_read(task.path)
    try:
        header = unpack_header(file.pread(HEADER_SIZE, offset))
    finally:
        file.close()
    fits = header.magic == MAGIC and header.index == number and header.pos == pos and header.size == size
    return (offset, number) if fits else (0, None)


def drill_segment(
    files: Files, task: SegmentTask, segment_first: int, ranges: Iterable[tuple[int, int]]
) -> Iterator[EntryRow]:
    """Yield `read_entries` as rows. A segment that cannot be read gives one row that says so, and no OSError
    is raised."""
    try:
        for window in read_entries(files, task, segment_first, ranges):
            yield from entry_rows(task.replica, Window(window.data, window.base, doubt(window)))
    except OSError:
        yield EntryRow(task.replica, -1, -1, 0, 0, 0, UNREADABLE)


def doubt(window: Window) -> Columns:
    """Return the window's entries. If only the CRC inside a message shows damage, the entry is marked as
    damaged, too (Apache's entries have no other CRC)."""
    columns = window.columns
    doubtful = np.flatnonzero((columns.stored_crc == 0) & (columns.chain == 0) & has_record(columns))
    damage = columns.damage.copy()
    for number in doubtful.tolist():
        if not is_sound(window.data, window.base, columns.entry(number)):
            damage[number] |= BODY_DAMAGED
    return replace(columns, damage=damage)


def entry_rows(replica: str, window: Window) -> Iterator[EntryRow]:
    """Yield the window's entries, with only the fields that are compared."""
    for entry in window.entries:
        yield EntryRow(replica, entry.index, entry.term, entry.size, entry.channel, entry.crc, entry.damage)
