"""Reading of the log: indexes and terms from memory, entries from the tail or the mapped segments.

Written bytes of the newest segments ("hot") are read through the map; older ones ("cold") by a worker
(safety.md S8). Index units are read where they are in memory; a call that needs another unit raises
`ColdUnit` (index_units.py). Entries for a peer or the state machine are checked when they were read from the
disk. Corrupt ones become `faulty` (and `on_damage` is called); they are never passed on (S4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from itertools import chain

from dledger.errors import OUT_OF_MEANS
from dledger.formats.entry import HEADER_SIZE, CorruptEntry, check_entry, unpack_header
from dledger.log.base import ORIGIN, LogBase
from dledger.log.faulty import FaultyEntries
from dledger.log.hot_tail import Batch, cut_batch
from dledger.log.index_files import IndexFiles
from dledger.log.index_units import ColdUnit, UnitsAtHand, settled
from dledger.log.reading import BATCH_BROKEN, CHAIN_BROKEN, Rotten, check_stored
from dledger.log.segments import Segments
from dledger.log.terms import TermTable
from dledger.runtime import Env, Lane

HOT_SEGMENTS = 4
"""The newest segments, this many, are read on the event loop through their memory map. A worker reads older
segments."""
SAY_AGAIN_S = 1.0
"""Seconds between two log lines which say that reads are delayed."""


class ReadableLog:
    """State of the log in memory, and all reading of the log. Implements `LogView`, `LogReader` and
    `LogTip`."""

    def __init__(self, env: Env, node_dir: str, segment_size: int, index_units_per_file: int) -> None:
        self._env = env
        self._segments = Segments(env, node_dir, segment_size, HOT_SEGMENTS)
        self._index = IndexFiles(env.files, node_dir, index_units_per_file)
        self._units = UnitsAtHand(env, self._index)
        self.cuts = 0
        """Number of removals of entries: each truncation counts twice, when it begins and when it ends, and
        each reset once."""
        self._terms = TermTable()
        self._base = ORIGIN
        # Plain attributes for speed: they are read some fifty times per message. Others must not set them.
        self.first_index: int = 0
        self.last_index: int = -1
        self.last_term: int = -1
        self.end_pos: int = 0
        self._written_pos = 0
        self.durable_mark: int = -1
        """Index up to which everything was made durable, even if it is corrupt by now."""
        self.durable_pos: int = 0
        """Offset behind the last durable entry."""
        self.last_chain: int | None = 0
        """Chain value of the last entry; None while that entry is corrupt."""
        self.newest_ms: int = -1
        """Highest store time among all records that were the last one of this log at some time (S15); -1
        before the first."""
        self.covered: bool = False
        """Whether the last entry, now or at an earlier time of this process, had a CRC that covers its
        channel."""
        self.faulty: FaultyEntries = FaultyEntries()
        self.suspects: FaultyEntries = FaultyEntries()
        """Faulty entries that may be whole, because a read only raised a doubt. This node examines them
        before it asks a peer for a copy."""
        self.on_damage: Callable[[], None] = lambda: None
        """Callback for further entries of the log that were found to be faulty."""
        self._put_off_said_at = -SAY_AGAIN_S
        self._unwritten: deque[Batch] = deque()
        """The tail: batches that are sealed and not yet in the file."""
        self._unindexed: deque[Batch] = deque()
        """Batches that are written, but whose index units are not written yet."""

    @property
    def base(self) -> LogBase:
        """The entry before the first one, and the position where the log begins."""
        return self._base

    @property
    def durable_index(self) -> int:
        """Index up to which every entry is durable and whole. A corrupt entry moves this index back until it
        is repaired."""
        if self.faulty.ranges:
            bad = self.faulty.within(self.first_index, self.durable_mark)
            return self.durable_mark if bad is None else bad - 1
        return self.durable_mark

    @property
    def indexed_mark(self) -> int:
        """Index up to which entries are durable and have their index units, which are written after the
        fsync."""
        return min(self.durable_mark, self._last_indexed())

    @property
    def begin_pos(self) -> int:
        return self._base.pos

    @property
    def segment_size(self) -> int:
        """Size of a segment in bytes."""
        return self._segments.size

    def term_of(self, index: int) -> int | None:
        """Term of an entry, or of the entry before the first; -1 for index -1. None if the term is not
        known."""
        if index == self.first_index - 1:
            return self._base.term if self._base.known else None
        if not self.first_index <= index <= self.last_index:
            return None
        return self._terms.term_of(index)

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= index whose term is <= `term`, the entry before the first included; -1 if there is no
        such entry."""
        found = self._terms.last_of_term_at_most(term, index)
        if found >= self.first_index:
            return found
        base = self._base
        return base.index if base.known and base.index <= index and base.term <= term else -1

    def locate(self, index: int) -> tuple[int, int]:
        """Return (pos, size) of an entry. Raises KeyError if the log does not hold it or its index unit is
        lost, and ColdUnit if the unit must be loaded."""
        batch = self._tail_batch(index)
        if batch is not None:
            offset = index - batch.first
            return batch.pos + sum(batch.sizes[:offset]), batch.sizes[offset]
        unit = self._units.get(index) if index >= self.first_index else None
        if unit is None:
            raise KeyError(index)
        return unit.pos, unit.size

    async def find(self, index: int) -> tuple[int, int]:
        """Like `locate`, but waits for index units that are not in memory."""
        return await settled(lambda: self.locate(index))

    def end_of(self, index: int) -> int:
        """Offset behind entry `index`. For entries before the first one it is the start of the log. Raises
        ColdUnit."""
        if index < self.first_index:
            return self._base.pos
        if index == self.last_index and self.end_pos % self._segments.size:
            return self.end_pos  # else the log may continue in the next segment, behind a blank tail
        batch = self._tail_batch(index)
        if batch is not None and batch.last == index:
            return batch.end_pos
        try:
            pos, size = self.locate(index)
        except KeyError:
            self.note_damage(index, index)
            return self._end_before(index)
        return pos + size

    def _end_before(self, index: int) -> int:
        """End of the nearest earlier entry that can be located, for an entry `index` that cannot. This end is
        not behind the beginning of `index`."""
        while index > self.first_index:
            index -= 1
            unit = self._units.get(index)
            if unit is not None:
                return unit.pos + unit.size
        return self._base.pos

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        """Return (last index, bytes) of consecutive entries from `first` on; see `LogView.range_end`.

        A range of cold entries may end within a client batch; its reader (`read_range`) then adds the rest of
        the batch. The range ends before index units that have to be loaded. If the unit of `first` has to be
        loaded, the range is this one entry, and its size is None.
        """
        batch = self._tail_batch(first)
        if batch is not None:
            return cut_batch(batch, first, max_bytes)
        try:
            unit = self._units.get(first)
        except ColdUnit:
            return first, None
        if unit is None:
            self.note_damage(first, first)
            return first, HEADER_SIZE
        begin, end = unit.pos, unit.pos + unit.size
        segment_end = self._segments.start_of(begin) + self._segments.size
        limit = min(begin + max_bytes, segment_end)
        low = first
        high = min(self._last_indexed(), first + max_bytes // HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            probe = self._units.at_hand(middle)
            if probe is not None and begin < probe.pos and probe.pos + probe.size <= limit:
                low, end = middle, probe.pos + probe.size
            else:
                high = middle - 1
        if self._segments.is_hot(begin, self.end_pos):
            low, end = self._batch_end(low, end)
        return low, end - begin

    def _batch_end(self, last: int, end: int) -> tuple[int, int]:
        unit = self._units.at_hand(last)
        if unit is None:
            return last, end
        view = self._segments.view(unit.pos, HEADER_SIZE)
        if view is None:
            return last, end
        if unpack_header(view).index != last:
            self.note_damage(last, last)
            return last, end
        remaining = unpack_header(view).batch_remaining
        behind = self._units.at_hand(last + remaining) if remaining else None
        return (last, end) if behind is None else (behind.index, behind.pos + behind.size)

    def range_bytes(self, first: int, last: int) -> bytes | memoryview | None:
        """Checked bytes of entries `first..last`, which are in one segment. None if `read_range` must read
        them."""
        batch = self._tail_batch(first)
        if batch is not None and last <= batch.last:
            if first == batch.first and last == batch.last:
                return batch.data
            start = sum(batch.sizes[: first - batch.first])
            size = sum(batch.sizes[first - batch.first : last - batch.first + 1])
            return memoryview(batch.data)[start : start + size]
        if self.faulty and self.faulty.within(first, last) is not None:
            return None
        try:
            unit = self._units.get(first)
            if unit is None or not self._segments.is_hot(unit.pos, self.end_pos):
                return None
            view = self.view(unit.pos, self.end_of(last) - unit.pos)
            before = self._header_before(first)
            if view is None or before is None:
                return None
            header = check_stored(view, first, last, unit.pos, self._chain_in(first, before))
        except (ColdUnit, CorruptEntry):
            return None  # `read_range` waits, or finds out what is wrong
        return None if header.batch_remaining else view

    async def read_range(self, first: int, last: int) -> tuple[bytes, int]:
        """Like `range_bytes`, but a worker reads, and the range is extended to the end of a client batch.
        Return (bytes, last index).

        Raises Rotten if entries cannot be trusted. Raises OSError (OUT_OF_MEANS) if the error says nothing
        about the entries: see `put_off`.
        """
        fresh = self.range_bytes(first, last)
        if fresh is not None:
            return bytes(fresh), last
        if self.faulty and (bad := self.faulty.within(first, last)) is not None:
            raise Rotten(bad, bad, "known")
        cuts = self.cuts
        try:
            pos, end = await settled(lambda: self._place(first, last))
            data = await self._read_unchecked(first, pos, end - pos)
            chain = await self._read_chain_before(first)
            header = check_stored(data, first, last, pos, chain)
            rest = last + header.batch_remaining
            if rest > last:
                if rest > self.last_index:
                    raise CorruptEntry(BATCH_BROKEN, last, end)
                rest_end = await settled(lambda: self.end_of(rest))
                if rest_end > self._segments.start_of(pos) + self._segments.size:
                    raise CorruptEntry(BATCH_BROKEN, last, end)
                data += await self._read_unchecked(last + 1, end, rest_end - end)
                check_stored(data, first, rest, pos, chain)
                last = rest
        except CorruptEntry as error:
            if self.cuts != cuts or first < self.first_index:
                raise Rotten(first, last, "cut or retired while it was read") from error
            broken = error.reason == BATCH_BROKEN
            first, last = error.index, error.index + broken
            if error.reason == CHAIN_BROKEN and first > self.first_index:
                first -= 1  # both are examined before a repair: one of the two is not damaged
            self.note_damage(first, last, certain=broken)
            raise Rotten(first, last, str(error)) from error
        except OSError as error:
            if error.errno in OUT_OF_MEANS:
                raise
            self.note_damage(first, last)
            raise Rotten(first, last, str(error)) from error
        return data, last

    def _place(self, first: int, last: int) -> tuple[int, int]:
        """Return begin and end of these entries in the log, both taken at the same moment. Raises
        CorruptEntry and ColdUnit."""
        unit = self._units.get(first)
        if unit is None or first < self.first_index:
            raise CorruptEntry("the index unit is lost", first, -1)
        return unit.pos, self.end_of(last)

    def _header_before(self, first: int) -> memoryview | None:
        """Header of entry `first - 1`; empty if no entry confirms the chain of `first`; None if the header is
        cold. Raises ColdUnit."""
        if first == self.first_index or (self.faulty and first - 1 in self.faulty):
            return memoryview(b"")
        unit = self._units.get(first - 1)
        return memoryview(b"") if unit is None else self.view(unit.pos, HEADER_SIZE)

    def _chain_in(self, first: int, header: memoryview | bytes) -> int | None:
        if not header:
            return self._base.chain if first == self.first_index else None
        return unpack_header(header).chain_crc

    async def _read_chain_before(self, first: int) -> int | None:
        """Chain value of entry `first - 1` as it is stored. None if no entry confirms the chain of
        `first`."""
        header: memoryview | bytes | None = await settled(lambda: self._header_before(first))
        if header is None:
            unit = await settled(lambda: self._units.get(first - 1))
            if unit is None:
                return None
            header = await self._read_unchecked(first - 1, unit.pos, HEADER_SIZE)
        return self._chain_in(first, header)

    async def _read_unchecked(self, first: int, pos: int, size: int) -> bytes:
        if size <= 0:
            raise CorruptEntry("index units do not continue", first, pos)
        try:
            return await self.read(pos, size)
        except ValueError as error:
            raise CorruptEntry(str(error), first, pos) from error

    def note_damage(self, first: int, last: int, *, certain: bool = False) -> None:
        """Mark entries as faulty, because what was read is not, or may not be, what was written. Unless that
        is `certain`, they are examined before they are repaired."""
        last = min(last, self._last_indexed())  # the rest is still in memory
        first = max(first, self.first_index)
        if first <= last and not certain:
            self.suspects.add(first, last)
        if self.faulty.add(first, last):
            self._env.log.warning("entries of the log are damaged", first=first, last=last)
            self.on_damage()

    def put_off(self, error: OSError, first: int, last: int) -> None:
        """Note that these entries could not be read now; the caller tries again later. Any error that does
        not justify a retry is raised."""
        if error.errno not in OUT_OF_MEANS:
            raise error
        now = asyncio.get_running_loop().time()
        if now - self._put_off_said_at >= SAY_AGAIN_S:
            self._put_off_said_at = now
            self._env.log.warning("reading of the log is postponed", first=first, last=last, error=error)

    def vouched_chain(self, index: int) -> int | None:
        """Chain value of an entry if it can be trusted; None if it is not available."""
        if index == self.last_index:
            return self.last_chain
        batch = self._tail_batch(index)
        if batch is not None:
            return batch.chain if batch.last == index else None
        if index in self.faulty:
            return None
        try:
            unit, before = self._units.get(index), self._header_before(index)
            view = None if unit is None else self.view(unit.pos, unit.size)
            chain = None if before is None else self._chain_in(index, before)
            if unit is None or view is None or chain is None:
                return None
            return check_entry(view, 0, index, unit.pos, -1, chain).chain_crc
        except (ColdUnit, CorruptEntry):
            return None

    def view(self, pos: int, size: int) -> memoryview | None:
        """Bytes at `pos` if they are hot; None if they are cold.

        Entries appended a moment ago are still in memory; reading them there avoids page faults.
        """
        data = self._from_tail(pos, size)
        if data is not None:
            return data
        if pos + size > self._written_pos or not self._segments.is_hot(pos, self.end_pos):
            return None
        try:
            if self.faulty and self._is_rotten(pos, size):
                return None
        except ColdUnit:
            return None
        return self._segments.view(pos, size)

    def is_hot(self, pos: int) -> bool:
        """Whether `pos` lies in the newest part of the log, which is expected in memory."""
        return self._base.pos <= pos and self._segments.is_hot(pos, self.end_pos)

    async def read(self, pos: int, size: int) -> bytes:
        """Bytes at `pos`. Raises ValueError if the log does not hold them, and Rotten if they cannot be
        trusted.

        Raises OSError (OUT_OF_MEANS) if they cannot be read now.
        """
        if pos + size > self._written_pos:
            data = self._from_tail(pos, size)
            if data is None:
                raise ValueError(f"the log ends at {self.end_pos}, not {pos + size}")
            return bytes(data)
        if self.faulty:
            first, last = await self._indexes_at(pos, size)
            if self.faulty.within(first, last) is not None:
                raise Rotten(first, last, "known")
        try:
            return await self.read_later(pos, size)
        except OSError as error:
            if error.errno in OUT_OF_MEANS:
                raise
            first, last = await self._indexes_at(pos, size)
            self.note_damage(first, last)
            raise Rotten(first, last, str(error)) from error

    def _is_rotten(self, pos: int, size: int) -> bool:
        """Whether these bytes may overlap a faulty entry. Raises ColdUnit."""
        touched = _touched(pos, size, self.first_index, self.last_index, self._place_of)
        return self.faulty.within(*touched) is not None

    async def _indexes_at(self, pos: int, size: int) -> tuple[int, int]:
        """First and last entry that these bytes may overlap."""
        while True:
            cuts, first = self.cuts, self.first_index
            # If memory is short, the units of a whole search may never be in memory at the same time.
            place_of = cache(self._place_of)
            touched = await settled(partial(_touched, pos, size, first, self.last_index, place_of))
            if cuts == self.cuts and first == self.first_index:
                return touched

    def _place_of(self, index: int) -> tuple[int, int] | None:
        """(pos, size) of an entry, None when its index unit is lost. Raises ColdUnit."""
        try:
            return self.locate(index)
        except KeyError:
            return None

    def read_later(self, pos: int, size: int) -> asyncio.Future[bytes]:
        """Let a worker read written bytes. The future may raise ValueError or OSError."""
        return self._env.workers.run(Lane.DISK, self._segments.pread, pos, size)

    def _from_tail(self, pos: int, size: int) -> memoryview | None:
        end = pos + size
        for batches in (self._unindexed, self._unwritten):
            if batches and batches[0].pos <= pos and end <= batches[-1].end_pos:
                for batch in reversed(batches):
                    if batch.pos <= pos:
                        if end <= batch.end_pos:
                            return memoryview(batch.data)[pos - batch.pos : end - batch.pos]
                        break
        return None

    def _tail_batch(self, index: int) -> Batch | None:
        for batches in (self._unwritten, self._unindexed):
            if batches and batches[0].first <= index <= batches[-1].last:
                for batch in reversed(batches):
                    if batch.first <= index:
                        return batch
        return None

    def _last_indexed(self) -> int:
        if self._unindexed:
            return self._unindexed[0].first - 1
        return self._unwritten[0].first - 1 if self._unwritten else self.last_index

    def _written_index(self) -> int:
        """Index of the last entry that is in the file."""
        return self._unwritten[0].first - 1 if self._unwritten else self.last_index


def _touched(
    pos: int, size: int, first: int, last: int, place_of: Callable[[int], tuple[int, int] | None]
) -> tuple[int, int]:
    """First and last of entries `first..last` that these bytes may overlap."""
    return _may_hold(pos, first, last, place_of)[0], _may_hold(pos + size - 1, first, last, place_of)[1]


def _may_hold(
    pos: int, first: int, last: int, place_of: Callable[[int], tuple[int, int] | None]
) -> tuple[int, int]:
    """First and last of entries `first..last` that may hold the byte at `pos`. They are the same entry unless
    index units are lost."""
    while first < last:
        middle = (first + last + 1) // 2
        for at in chain(range(middle, first, -1), range(middle + 1, last + 1)):
            if (place := place_of(at)) is not None:
                break
        else:  # at most the first entry has a unit
            place = place_of(first)
            return first, first if place is not None and pos < sum(place) else last
        if place[0] <= pos:
            first = at
        else:
            last = at - 1
    return first, first
