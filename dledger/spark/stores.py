"""Store directories, as the driver uses them: which replicas to read, and into which pieces to cut their
logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dledger.audit.replicas import StoreReplica, StoreSource, look_at
from dledger.audit.store_directory import Replica, SegmentTask, StoreError, segment_tasks
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC
from dledger.formats.store_files import INDEX_DIR
from dledger.runtime import Files
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import NO_END, Piece
from dledger.spark.parts import PACK_BYTES, task_bytes

_LEAST_BYTES = 256 * 1024

Ranges = Sequence[tuple[int, int]]


def open_replicas(paths: Sequence[str], groups: Sequence[str] = ()) -> list[Replica]:
    """Return the replicas in these directories that belong to these broker groups, or all replicas.

    Raises StoreError, also if only one directory cannot be read, as its replica may be the one with the
    highest committed index.
    """
    look = look_at([StoreSource.at(path) for path in paths])
    for found in look.findings:
        raise StoreError(found.detail)
    replicas = [view.replica for view in look.replicas if isinstance(view, StoreReplica)]
    chosen = [replica for replica in replicas if not groups or replica.group in groups]
    if not chosen:
        there = ", ".join(sorted({replica.group or "(no name)" for replica in replicas}))
        raise StoreError(f"there is no store of group {', '.join(groups)}; the groups are {there}")
    return chosen


def best_of_each_group(replicas: Iterable[Replica]) -> list[Replica]:
    """Return, of each group, the replica with the highest committed index. Stores without an identity
    count as one group."""
    best: dict[tuple[str, str], Replica] = {}
    for replica in replicas:
        identity = replica.identity
        key = (identity.cluster, identity.group) if identity else ("", "")
        if key not in best or replica.committed > best[key].committed:
            best[key] = replica
    return [best[key] for key in sorted(best)]


def known_committed(replica: Replica) -> int:
    """Return the highest index that the replica knows to be committed.

    Raises StoreError if the store has entries and does not say which are committed. Raises it also if the
    store should have entries and has none, as this would look like an empty log.
    """
    if replica.checkpoint is None and any(one.first_index is not None for one in replica.segments):
        why = next((found.detail for found in replica.problems if found.code == "NO_COMMITTED_INDEX"), "")
        raise StoreError(
            f"{replica.store}: {why}, so it is not known which entries are committed: give another "
            "replica, or read all with isolation=all"
        )
    if not replica.segments and replica.committed > replica.base_index:
        raise StoreError(
            f"{replica.store}: entries up to {replica.committed} are committed, but there is no "
            "segment: run the audit, or give another replica"
        )
    return replica.committed


class IndexUnits:
    """Places of entries, from the index files of a replica. They are hints, which the reader of an entry
    checks."""

    def __init__(self, files: Files, replica: Replica) -> None:
        self._units = UnitFiles(files, f"{replica.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
        self.end: int = replica.index_end
        """The first index for which the files have no unit."""

    def position(self, index: int) -> int | None:
        """Return the log offset of an entry; None if the files do not contain it."""
        unit = self._unit(index)
        return None if unit is None else unit[0]

    def end_position(self, index: int) -> int | None:
        """Return the log offset just after an entry; None if the files do not contain it."""
        unit = self._unit(index)
        return None if unit is None else unit[0] + unit[1]

    def at_position(self, low: int, high: int, position: int) -> int | None:
        """Return the first entry of [low, high] at or after a log offset; None if the files do not contain
        it."""
        while low < high:
            middle = (low + high) // 2
            found = self.position(middle)
            if found is None:
                return None
            if found < position:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        """Close the files."""
        self._units.close()

    def _unit(self, index: int) -> tuple[int, int] | None:
        if not 0 <= index < self.end:
            return None
        magic, pos, size, said, _ = INDEX_UNIT.unpack(self._units.read(index, 1))
        return (pos, size) if magic == MAGIC and said == index else None


def pieces(
    replica: Replica,
    highest: int | None,
    ranges: Ranges | None,
    target: int | None = PACK_BYTES,
    most: int | None = None,
) -> Iterator[Piece]:
    """Yield pieces of a replica's log, ascending: its entries up to `highest` (None: to the end of the
    log) that are in `ranges`.

    A piece has about `target` bytes, if the index files say where to cut. With `target` None, segments are
    not cut. `most`: largest number of entries in a piece. Raises StoreError if `highest` is given and the
    replica does not know which entries are committed.
    """
    if highest is not None:
        known_committed(replica)
    units = IndexUnits(files_for(replica.directory), replica)
    try:
        for task, first, last in _spans(replica, units, highest):
            for low, high in _clipped(first, last, ranges):
                if task.first_index < 0:
                    yield Piece(task, -1, 0, low, high, task.size)
                else:
                    for piece in _cut(units, task, low, high, target):
                        yield from _at_most(units, piece, most)
    finally:
        units.close()


def _spans(
    replica: Replica, units: IndexUnits, highest: int | None
) -> Iterator[tuple[SegmentTask, int, int]]:
    """Yield each segment with its first index (-1: not known) and the last wanted index (-1: up to the end
    of the log)."""
    firsts = _first_indexes(replica, units)
    end = None if highest is None else units.end_position(highest)
    following = [*firsts[1:], -1] if firsts else []
    for task, first, next_first in zip(segment_tasks(replica), firsts, following, strict=True):
        if highest is not None and first > highest:
            continue
        if first < 0 and next_first < 0 and end is not None and task.start >= end:
            continue  # prepared for entries to come
        last = -1 if next_first < 0 else next_first - 1
        if highest is not None:
            last = highest if last < 0 else min(last, highest)
        yield task, first, last


def _first_indexes(replica: Replica, units: IndexUnits) -> list[int]:
    """Return the first index of each segment. If a segment's first header is damaged, the index is looked
    up in the index files."""
    firsts = [-1 if segment.first_index is None else segment.first_index for segment in replica.segments]
    for number, segment in enumerate(replica.segments):
        if firsts[number] >= 0:
            continue
        high = next((first for first in firsts[number + 1 :] if first >= 0), units.end)
        found = units.at_position(max([0, *firsts[:number]]), high, segment.start)
        if found is not None and units.position(found) == segment.start:
            firsts[number] = found
    return firsts


def _clipped(first: int, last: int, ranges: Ranges | None) -> Iterator[tuple[int, int]]:
    low = max(first, 0)
    high = NO_END if last < 0 else last
    for start, end in ranges if ranges is not None else [(0, NO_END)]:
        if start <= high and end >= low:
            found = min(end, high)
            yield max(start, low), -1 if found == NO_END else found


def _cut(units: IndexUnits, task: SegmentTask, low: int, high: int, target: int | None) -> Iterator[Piece]:
    """Cut entries `low` to `high` of a segment into pieces. The first header of the segment must be
    readable."""
    begin, start = task.first_index, task.start
    found = units.position(low)
    if found is not None and task.start <= found < task.start + task.size:
        begin, start = low, found
    known = high if high >= 0 else units.end - 1
    end = units.end_position(known) or task.start + task.size
    parts = 1 if target is None else max(1, -(-(end - start) // target))
    for part in range(1, parts):
        cut = units.at_position(low, known, start + (end - start) // (parts - part + 1))
        place = None if cut is None else units.position(cut)
        if cut is None or place is None or cut <= low or not start < place < end:
            break
        yield Piece(task, begin, start - task.start, low, cut - 1, place - start)
        begin, start, low = cut, place, cut
    yield Piece(task, begin, start - task.start, low, high, max(end - start, 0))


def _at_most(units: IndexUnits, piece: Piece, most: int | None) -> Iterator[Piece]:
    """Cut a piece into pieces of at most `most` entries. A piece that reaches to the end of the log is cut as
    far as the index files know the log."""
    last = piece.last if piece.last >= 0 else units.end - 1
    while most is not None and last - piece.first >= most:
        cut = piece.first + most
        start = piece.task.start + piece.offset
        place = units.position(cut)
        yield replace(piece, last=cut - 1, bytes=piece.bytes if place is None else place - start)
        piece = replace(piece, first=cut)
        if place is not None:
            left = max(0, piece.bytes - (place - start))
            piece = replace(piece, begin=cut, offset=place - piece.task.start, bytes=left)
    yield piece


def _entries(piece: Piece) -> int:
    """Return how many entries a piece has at most; NO_END if it reaches to the end of the log."""
    return piece.last - piece.first + 1 if piece.last >= 0 else NO_END


def packed(
    parts: Iterable[Piece],
    min_partitions: int | None = None,
    partition_bytes: int | None = None,
    most: int | None = None,
) -> list[tuple[Piece, ...]]:
    """Pack neighbouring pieces into tasks of up to `partition_bytes` (None: `parts.task_bytes`) and up to
    `most` entries. Tasks are smaller if `min_partitions` asks for more of them."""
    known = list(parts)
    total = sum(piece.bytes for piece in known)
    limit = task_bytes(total) if partition_bytes is None else partition_bytes
    if min_partitions is not None:
        limit = min(limit, max(1, total // min_partitions))
    packs: list[tuple[Piece, ...]] = []
    pending: list[Piece] = []
    size = entries = 0
    for piece in known:
        too_many = most is not None and entries + _entries(piece) > most
        if pending and (too_many or size + piece.bytes > limit):
            packs.append(tuple(pending))
            pending, size, entries = [], 0, 0
        pending.append(piece)
        size += piece.bytes
        entries += _entries(piece)
    if pending:
        packs.append(tuple(pending))
    return packs


def target_bytes(
    replicas: Iterable[Replica], min_partitions: int | None, partition_bytes: int | None = None
) -> int:
    """Return the size, in bytes, of a piece of these logs. It is small enough that `min_partitions` tasks
    have work."""
    total = sum(segment.size for replica in replicas for segment in replica.segments)
    return share_bytes(total, min_partitions, partition_bytes)


def share_bytes(total: int, min_partitions: int | None, partition_bytes: int | None = None) -> int:
    """Return the size, in bytes, of a piece of a log of `total` bytes. It is small enough that
    `min_partitions` tasks have work, but not below `_LEAST_BYTES`."""
    most = task_bytes(total) if partition_bytes is None else partition_bytes
    if min_partitions is None:
        return most
    return max(_LEAST_BYTES, min(most, total // min_partitions))
