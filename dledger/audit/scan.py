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
from dledger.audit.findings import Finding, KeyFileRow, QueueFilesRow, Row, SegmentRow, finding
from dledger.audit.index_units import IndexCheck, IndexUnits
from dledger.audit.key_files_check import PROGRESS_FILE, check_listed, check_sequence, read_listed
from dledger.audit.key_index import KeyCheck, check_file, open_key_files
from dledger.audit.log_probe import LogProbe
from dledger.audit.queue_check import QueueCheck
from dledger.audit.record_check import RecordCheck, is_sound
from dledger.audit.records import TIMED_TOPICS, QueueNames, Records, has_record
from dledger.audit.segment_places import peek_first_index
from dledger.audit.side_checks import (
    check_beginning,
    check_hard_state,
    check_lock,
    check_markers,
    check_members,
    check_own_checkpoint,
    check_snapshot,
    hard_term,
)
from dledger.audit.small_files import read_written
from dledger.audit.state_check import StateCheck
from dledger.audit.store_directory import Replica, SegmentTask, log_start
from dledger.audit.unit_files import UnitFiles
from dledger.audit.walk import Fault, SegmentWalker, Stop, collapse
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.entry import (
    APACHE_MAGICS,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    Kind,
    unpack_header,
)
from dledger.formats.store_files import INDEX_DIR, CorruptFile
from dledger.runtime import File, Files

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
        files,
        task.directory,
        task.start,
        end,
        task.first_index,
        task.state_file,
        task.committed,
        names,
        task.queue_root,
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
    queues = QueueCheck(
        files,
        task.queue_root,
        task.replica,
        task.start,
        task.applied,
        dict(task.deleted),
        without_codes=() if task.ours else TIMED_TOPICS,
    )
    records = RecordCheck(task.committed, queues, deep=deep)
    first: Entry | None = None
    last: Entry | None = None
    committed_end = task.start
    settled_term = -1
    unnamed: list[Fault] = []
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
            if found is not None:
                unnamed += _unnamed_configurations(task, found.records)
            if state is not None:
                state.check_place(columns)
                if found is not None:
                    state.note_times(found.records)
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
            if state is not None and last is not None:
                full = walker.stop in (Stop.BLANK, Stop.FULL)
                sense = partial(state.check_sense, last.index, full=full)
                beside.look("snapshot or state file", sense, None)
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
    faults = [*(walker.faults if walker else []), *records.faults, *unnamed]
    faults += _short_file(task, walker) if count else []
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


def _unnamed_configurations(task: SegmentTask, records: Records) -> list[Fault]:
    """Return a fault for each configuration entry that the file `members` should name. A node writes that
    file before the log continues in another segment."""
    if task.configs is None or task.next_first is None:
        return []
    found = records.index[(records.kind == Kind.CONFIG) & (records.index <= task.committed)]
    text = "members file: it does not name this configuration entry"
    return [Fault("IDENTITY", index, index, text) for index in found.tolist() if index not in task.configs]


def _short_file(task: SegmentTask, walker: SegmentWalker | None) -> list[Fault]:
    """Return a fault if the segment's file is shorter than a segment, and nothing else is wrong at its
    end."""
    ends = (Stop.END, Stop.TORN, Stop.ZEROS)
    if not task.ours or walker is None or walker.stop not in ends or task.size >= task.segment_size:
        return []
    return [Fault("BLANK_TAIL", -1, -1, f"the file has {task.size} bytes; a segment has {task.segment_size}")]


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

    log = LogProbe(files, replica)
    extents = look("ConsumeQueue", partial(_queue_extents, files, replica))
    key_files = look("IndexFile", partial(_key_files, files, replica))
    # read last: whatever retention removed from the queues is before it
    start = beside.look("log directory", lambda: log_start(files, replica), 0)
    rows = look("markers", partial(check_markers, files, replica))
    rows += look("begins", partial(check_beginning, files, replica))
    rows += look("checkpoint", partial(check_own_checkpoint, files, replica))
    rows += look("members", partial(check_members, files, replica, log))
    rows += look("lock", partial(check_lock, files, replica))
    rows += look("hardstate", partial(check_hard_state, files, replica))
    term = beside.look("hardstate", partial(hard_term, files, replica), -1)
    for manifest in replica.snapshots:
        rows += look(f"snapshot at {manifest.pos}", partial(check_snapshot, files, replica, manifest))
    rows += look("index file", partial(_index_of_holes, files, replica))
    rows += extents
    rows += key_files
    own = replica.row()._replace(log_start=start, hard_term=term)
    own = own._replace(written=min(own.written, read_written(files, replica.directory)))
    own = own._replace(beyond=beside.look("log", lambda: _beyond(log, [*extents, *key_files]), -1))
    # Files that could not be read are not behind those of other replicas.
    yield own._replace(queues=0) if {"ConsumeQueue", "IndexFile"} & beside.errors.keys() else own
    yield from replica.problems
    for what, reason in beside.errors.items():
        yield finding("UNREADABLE", replica.name, f"{what}: {reason}")
    yield from rows


def _beyond(log: LogProbe, rows: list[Row]) -> int:
    """Compute `ReplicaRow.beyond`. An entry is written before derived files name it. So the log, which is
    read after them, holds it now."""
    named = [row.last_position for row in rows if isinstance(row, QueueFilesRow)]
    named += [row.end_position for row in rows if isinstance(row, KeyFileRow)]
    newest = max(named, default=-1)
    return newest if newest >= 0 and log.at(newest - HEADER_SIZE) is None else -1


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
    """Check the IndexFiles, and yield a row for each of them."""
    try:
        listed = read_listed(files, replica.state_dir)  # before the files, which hold at least that
    except CorruptFile as error:
        yield finding("KEY_INDEX", replica.name, f"{replica.state_dir}/{PROGRESS_FILE}: {error}")
        listed = []
    if not replica.key_root:
        if replica.queue_root and listed:
            start = log_start(files, replica)
            for problem in check_listed(listed, [], [], start):
                yield finding("KEY_INDEX", replica.name, problem)
        return
    names = files.listdir(replica.key_root)
    key_files, problems = open_key_files(files, replica.key_root)
    ours = replica.identity is not None
    problems += check_sequence(files, replica.key_root, key_files, ours=ours)
    if ours:
        told = "".join(problems)
        missing = check_listed(listed, names, key_files, log_start(files, replica))
        problems += [problem for problem in missing if problem.partition(" ")[0] not in told]
    for problem in problems:
        yield finding("KEY_INDEX", replica.name, problem)
    for key_file in key_files:
        header, name = key_file.header, key_file.path.rpartition("/")[2]
        positions = (header.begin_position, header.end_position)
        yield KeyFileRow(replica.name, name, *positions, key_file.units)
        yield from check_file(files, replica.name, key_file, ours=ours)


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
