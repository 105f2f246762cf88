"""The log of one node: appended in memory, written and fsynced in groups, read back (rules 3 and 4).

An append only joins the *tail*: batches that are sealed but not yet on disk. The flusher takes all of the
tail that fits one segment, writes it with one positional write and one fdatasync in a worker, and reports;
whatever was appended meanwhile is the next group. Index units follow behind the fsync (S4). Readers find a
range in the tail or in the mapped segments.

`last_index` is what was appended, `durable_index` what is fsynced (in ASYNC_FLUSH: written).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dledger.errors import EXIT_STORE, NodeFailed
from dledger.log.index_files import IndexFiles
from dledger.log.pool import SegmentPool
from dledger.log.recovery import Recovered, recover
from dledger.log.segments import Segments
from dledger.log.terms import TermTable
from formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    MIN_BLANK_SIZE,
    unpack_header,
)
from formats.store_files import POISONED_FILE
from runtime import Env, File, Lane

HOT_SEGMENTS = 4
"""Newest segments whose pages are read through the map on the loop; older ones by a worker."""
FLUSH_BYTES = 8 * 1024 * 1024
"""Most of the tail that one write takes, so that acknowledgements keep flowing."""
ASYNC_SYNC_INTERVAL_S = 0.05
"""ASYNC_FLUSH: how often what was written is fsynced while writes go on."""


class Batch(NamedTuple):
    """Sealed entries `first..last` of one term, back to back, in one segment."""

    first: int
    last: int
    term: int
    pos: int
    end_pos: int
    data: bytes | memoryview
    sizes: list[int]
    remaining: list[int] | None
    """`batch_remaining` of each entry; None when all are 0."""
    chain: int
    """Chain value of the last entry."""


@dataclass(frozen=True)
class FlushStats:
    """Of one group write, for metrics."""

    entries: int
    size: int
    seconds: float


class LogStore:
    """See the module. Implements `LogView`, `LogReader` and `LogTip`."""

    def __init__(
        self,
        env: Env,
        node_dir: str,
        *,
        segment_size: int,
        index_units_per_file: int,
        pool_segments: int,
        sync_flush: bool,
    ) -> None:
        self._env = env
        self._dir = node_dir
        self._sync_flush = sync_flush
        self._segments = Segments(env, node_dir, segment_size, HOT_SEGMENTS)
        self._index = IndexFiles(env.files, node_dir, index_units_per_file)
        self.pool = SegmentPool(env, node_dir, segment_size, pool_segments)
        self._terms = TermTable()
        self._first_index = 0
        self._last_index = -1
        self._last_term = -1
        self._end_pos = 0
        self._written_pos = 0
        self._durable_index = -1
        self._durable_pos = 0
        self.last_chain = 0
        self._unwritten: deque[Batch] = deque()
        self._unindexed: deque[Batch] = deque()
        self._synced_index = -1
        self._last_sync = 0.0
        self._wake = asyncio.Event()
        self._io = asyncio.Lock()
        self.on_durable: Callable[[], None] = lambda: None
        self.on_flush: Callable[[FlushStats], None] = lambda stats: None
        self.on_roll: Callable[[], None] = lambda: None

    # Opening

    async def open(self, *, power_lost: bool, discard_above_mark: bool) -> Recovered:
        """Recover, make what was believed durable (S2), and clear away what was not."""
        run = self._env.workers.run
        await run(Lane.DISK, self._segments.open)
        await run(Lane.DISK, self._index.open)
        await run(Lane.DISK, self.pool.open)
        found: Recovered = await run(
            Lane.DISK,
            recover,
            self._segments,
            self._index,
            power_lost=power_lost,
            discard_above_mark=discard_above_mark,
        )
        self._first_index = found.first_index
        self._last_index = found.last_index
        self._last_term = found.last_term
        self._end_pos = self._written_pos = found.end_pos
        self.last_chain = found.last_chain
        self._terms = found.terms
        for file in await run(Lane.FLUSH, self._index.clear_from, found.last_index + 1):
            await run(Lane.FLUSH, file.fdatasync)
        await self._erase_header(found.end_pos)
        for start in found.scanned:
            await run(Lane.FLUSH, self._segments.file(start).fdatasync)
        if self._segments.starts:
            await run(Lane.FLUSH, self._env.files.sync_dir, self._segments.directory)
        for first, units in found.missing_units:
            await run(Lane.FLUSH, self._index.write, first, units)
        await self.sync_index()
        for start in found.stale_segments:
            await self._retire(start)
        self._durable_index = self._synced_index = self._last_index
        self._durable_pos = self._end_pos
        return found

    async def _erase_header(self, pos: int) -> None:
        """No believable entry stays behind the end (S1)."""
        start = self._segments.start_of(pos)
        if not self._segments.has(start) or pos - start + HEADER_SIZE > self._segments.size:
            return
        file = self._segments.file(start)
        if any(file.view()[pos - start : pos - start + HEADER_SIZE]):
            await self._env.workers.run(Lane.FLUSH, _write_synced, file, [bytes(HEADER_SIZE)], pos - start)

    async def _retire(self, start: int) -> None:
        path = self._segments.remove(start)
        if path is None:
            raise NodeFailed(f"segment at {start} is to be cut while somebody reads it", EXIT_STORE)
        await self.pool.give_back(path)

    # LogView, LogTip, LogReader

    @property
    def first_index(self) -> int:
        return self._first_index

    @property
    def last_index(self) -> int:
        return self._last_index

    @property
    def last_term(self) -> int:
        return self._last_term

    @property
    def durable_index(self) -> int:
        return self._durable_index

    @property
    def durable_pos(self) -> int:
        """Offset behind the last durable entry."""
        return self._durable_pos

    @property
    def end_pos(self) -> int:
        return self._end_pos

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._segments.size

    def term_of(self, index: int) -> int | None:
        """Term of an entry; -1 for index -1; None when the log does not hold it."""
        if index == -1:
            return -1
        if not self._first_index <= index <= self._last_index:
            return None
        return self._terms.term_of(index)

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= index whose term is <= `term`; -1 when there is none."""
        return self._terms.last_of_term_at_most(term, index)

    def term_starts(self) -> list[tuple[int, int]]:
        """(first index, term) of each term."""
        return self._terms.starts()

    def locate(self, index: int) -> tuple[int, int]:
        """(pos, size) of an entry; KeyError when the log does not hold it."""
        batch = self._tail_batch(index)
        if batch is not None:
            offset = index - batch.first
            return batch.pos + sum(batch.sizes[:offset]), batch.sizes[offset]
        unit = self._index.unit(index)
        if unit is None:
            raise KeyError(index)
        return unit.pos, unit.size

    def end_of(self, index: int) -> int:
        """Offset behind entry `index`; the start of the log for -1."""
        if index == self._last_index:
            return self._end_pos
        if index < self._first_index:
            return self._segments.starts[0] if self._segments.starts else 0
        batch = self._tail_batch(index)
        if batch is not None and batch.last == index:
            return batch.end_pos
        pos, size = self.locate(index)
        return pos + size

    def start_of_next(self, index: int) -> int:
        """Offset of the entry after `index`, which the log holds: behind a blank tail if it lies there."""
        return self.locate(index + 1)[0]

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        """(last index, bytes) of a run from `first`; see `LogView.range_end`."""
        batch = self._tail_batch(first)
        if batch is not None:
            return _cut_batch(batch, first, max_bytes)
        begin, size = self.locate(first)
        segment_end = self._segments.start_of(begin) + self._segments.size
        limit = min(begin + max_bytes, segment_end)
        low = first
        high = min(self._last_indexed(), first + max_bytes // HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            pos, size = self.locate(middle)
            if pos + size <= limit:
                low = middle
            else:
                high = middle - 1
        pos, size = self.locate(low)
        remaining = unpack_header(self._bytes(pos, HEADER_SIZE)).batch_remaining
        if remaining:
            low += remaining
            pos, size = self.locate(low)
        return low, pos + size - begin

    def range_bytes(self, first: int, last: int) -> bytes | memoryview | None:
        """Bytes of entries `first..last` of one segment; None when they are cold (then `read_range`)."""
        batch = self._tail_batch(first)
        if batch is not None and last <= batch.last:
            if first == batch.first and last == batch.last:
                return batch.data
            start = sum(batch.sizes[: first - batch.first])
            size = sum(batch.sizes[first - batch.first : last - batch.first + 1])
            return memoryview(batch.data)[start : start + size]
        pos, size = self.locate(first)
        end = self.end_of(last)
        if not self._segments.is_hot(pos, self._end_pos):
            return None
        return self.view(pos, end - pos)

    async def read_range(self, first: int, last: int) -> bytes:
        """The same, by a worker."""
        pos, _ = self.locate(first)
        return await self.read(pos, self.end_of(last) - pos)

    def view(self, pos: int, size: int) -> memoryview | None:
        """Bytes of the hot window of what is written; None when they are cold."""
        if pos + size > self._written_pos:
            data = self._from_tail(pos, size)
            return None if data is None else memoryview(data)
        if not self._segments.is_hot(pos, self._end_pos):
            return None
        return self._segments.view(pos, size)

    async def read(self, pos: int, size: int) -> bytes:
        """Bytes at `pos`; ValueError when the log does not hold them."""
        if pos + size > self._written_pos:
            data = self._from_tail(pos, size)
            if data is None:
                raise ValueError(f"the log ends at {self._end_pos}, not {pos + size}")
            return bytes(data)
        return await self.read_later(pos, size)

    def read_later(self, pos: int, size: int) -> asyncio.Future[bytes]:
        """Start reading written bytes by a worker; the future may carry ValueError or OSError."""
        return self._env.workers.run(Lane.DISK, self._segments.pread, pos, size)

    def _bytes(self, pos: int, size: int) -> memoryview | bytes:
        view = self._segments.view(pos, size)
        if view is None:
            raise KeyError(pos)
        return view

    def _from_tail(self, pos: int, size: int) -> memoryview | None:
        for batch in self._unwritten:
            if batch.pos <= pos and pos + size <= batch.end_pos:
                return memoryview(batch.data)[pos - batch.pos : pos - batch.pos + size]
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
        return self._unwritten[0].first - 1 if self._unwritten else self._last_index

    # Appending

    def fits(self, size: int) -> bool:
        """Whether `size` bytes of entries fit the current segment beside the blank tail."""
        offset = self._end_pos - self._segments.start_of(self._end_pos)
        return offset + size + MIN_BLANK_SIZE <= self._segments.size

    def next_segment_start(self) -> int:
        """Where the log goes on after a roll."""
        return self._segments.start_of(self._end_pos) + self._segments.size

    def append(self, batch: Batch) -> None:
        """Join sealed entries to the tail and wake the flusher; continuity is the caller's proof."""
        if batch.first != self._last_index + 1 or batch.pos < self._end_pos:
            raise ValueError(f"batch {batch.first}..{batch.last} at {batch.pos} does not continue the log")
        if self._last_index < 0:
            self._first_index = batch.first
        self._terms.add(batch.first, batch.term)
        self._unwritten.append(batch)
        self._last_index = batch.last
        self._last_term = batch.term
        self._end_pos = batch.end_pos
        self.last_chain = batch.chain
        self._wake.set()

    async def run_flusher(self) -> None:
        """Write the tail until cancelled. A failed write or fsync is final: NodeFailed (S3)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unwritten or self._unindexed:
                async with self._io:
                    try:
                        await self._flush_once()
                    except OSError as error:
                        await self._poison(error)

    async def _flush_once(self) -> None:
        run = self._env.workers.run
        if not self._unwritten:
            await self._sync_written()
            await self._write_units()
            return
        loop = asyncio.get_running_loop()
        group = self._next_group()
        start = self._segments.start_of(group[0].pos)
        if not self._segments.has(start):
            await self._roll(start)
        units = self._pack_units()
        began = loop.time()
        await run(
            Lane.FLUSH,
            self._write_job,
            units,
            self._segments.file(start),
            [batch.data for batch in group],
            group[0].pos - start,
        )
        for batch in group:
            self._unwritten.popleft()
            self._unindexed.append(batch)
        last = group[-1]
        self._written_pos = last.end_pos
        self._durable_index = last.last
        self._durable_pos = last.end_pos
        if self._sync_flush:
            self._synced_index = last.last
        self._drop_indexed(units)
        size = last.end_pos - group[0].pos
        self.on_flush(FlushStats(last.last - group[0].first + 1, size, loop.time() - began))
        self.on_durable()
        if not self._sync_flush and loop.time() - self._last_sync > ASYNC_SYNC_INTERVAL_S:
            await self._sync_written()

    def _next_group(self) -> list[Batch]:
        group: list[Batch] = []
        size = 0
        start = self._segments.start_of(self._unwritten[0].pos)
        for batch in self._unwritten:
            if group and (size > FLUSH_BYTES or self._segments.start_of(batch.pos) != start):
                break
            group.append(batch)
            size += batch.end_pos - batch.pos
        return group

    def _write_job(
        self, units: tuple[int, bytes] | None, file: File, parts: list[bytes | memoryview], at: int
    ) -> None:
        if units is not None:
            self._index.write(*units)
        file.pwritev(parts, at)
        if self._sync_flush:
            file.fdatasync()

    async def _sync_written(self) -> None:
        """ASYNC_FLUSH: fsync what was written, so that its index units may follow."""
        if self._synced_index < self._durable_index:
            target = self._durable_index
            for start in sorted({self._segments.start_of(batch.pos) for batch in self._unindexed}):
                await self._env.workers.run(Lane.FLUSH, self._segments.file(start).fdatasync)
            self._synced_index = target
            self._last_sync = asyncio.get_running_loop().time()

    def _pack_units(self) -> tuple[int, bytes] | None:
        """Index units of the batches that are fsynced and not yet in the index files."""
        pack = INDEX_UNIT.pack
        parts = []
        first = -1
        for batch in self._unindexed:
            if batch.last > self._synced_index:
                break
            if first < 0:
                first = batch.first
            pos = batch.pos
            term = batch.term
            for index, size in enumerate(batch.sizes, batch.first):
                parts.append(pack(MAGIC, pos, size, index, term))
                pos += size
        return (first, b"".join(parts)) if parts else None

    def _drop_indexed(self, units: tuple[int, bytes] | None) -> None:
        if units is not None:
            last = units[0] + len(units[1]) // INDEX_UNIT.size - 1
            while self._unindexed and self._unindexed[0].last <= last:
                self._unindexed.popleft()

    async def _write_units(self) -> None:
        units = self._pack_units()
        if units is not None:
            await self._env.workers.run(Lane.FLUSH, self._index.write, *units)
            self._drop_indexed(units)

    async def sync_index(self) -> None:
        """Make the index units written so far durable."""
        for file in self._index.take_dirty():
            await self._env.workers.run(Lane.FLUSH, file.fdatasync)

    async def _roll(self, start: int) -> None:
        """Close the current segment with a blank tail and take the next one (S5, S6)."""
        previous = start - self._segments.size
        if self._segments.has(previous):
            await self._sync_written()
            rest = self._segments.size - (self._written_pos - previous)
            if rest >= MIN_BLANK_SIZE:
                blank = BLANK.pack(BLANK_MAGIC, rest)
                await self._env.workers.run(
                    Lane.FLUSH,
                    _write_synced,
                    self._segments.file(previous),
                    [blank],
                    self._written_pos - previous,
                )
            await self._write_units()
            await self.sync_index()
        try:
            await self.pool.take(self._segments.path(start))
        except OSError as error:
            raise NodeFailed(
                f"cannot prepare a segment of {self._segments.size} bytes in {self._dir}: {error}", EXIT_STORE
            ) from error
        await self._segments.add(start)
        self.on_roll()

    # Cutting

    async def truncate(self, index: int) -> None:
        """Remove entries from `index` on, durably: no believable tail stays behind (S1)."""
        async with self._io:
            try:
                await self._truncate(index)
            except OSError as error:
                await self._poison(error)

    async def _truncate(self, index: int) -> None:
        if not self._first_index <= index <= self._last_index:
            raise ValueError(f"cannot cut at {index}: the log holds {self._first_index}..{self._last_index}")
        run = self._env.workers.run
        await self._sync_written()
        await self._write_units()
        pos, _ = self.locate(index)
        before = self.end_of(index - 1) if index > self._first_index else pos
        while self._unwritten and self._unwritten[-1].first >= index:
            self._unwritten.pop()
        if self._unwritten and self._unwritten[-1].last >= index:
            self._unwritten.append(_first_part(self._unwritten.pop(), index - 1))
        if pos < self._written_pos:
            # Units first: a crash in between only brings back entries that the leader cuts again.
            for file in await run(Lane.FLUSH, self._index.clear_from, index):
                await run(Lane.FLUSH, file.fdatasync)
            await self._erase_header(pos)
            for start in self._segments.starts:
                if start > pos or (start == pos and start != before):
                    await self._retire(start)
            self._written_pos = before
        self._terms.truncate(index)
        self._last_index = index - 1
        self._last_term = self._terms.term_of(index - 1) if index > self._first_index else -1  # type: ignore[assignment]
        self._end_pos = before
        self._durable_index = min(self._durable_index, index - 1)
        self._synced_index = min(self._synced_index, index - 1)
        self._durable_pos = min(self._durable_pos, before)
        self.last_chain = self._chain_at_end()

    def _chain_at_end(self) -> int:
        if self._last_index < self._first_index:
            return 0
        if self._unwritten:
            return self._unwritten[-1].chain
        pos, _ = self.locate(self._last_index)
        return unpack_header(self._bytes(pos, HEADER_SIZE)).chain_crc

    # Ending

    async def _poison(self, error: OSError) -> None:
        """Leave a marker as well as the disk allows, then end the node: never retry an fsync (S3)."""
        reason = f"a write or fsync of the log failed: {error}"
        path = f"{self._dir}/{POISONED_FILE}"
        try:
            await self._env.workers.run(Lane.DISK, _leave_marker, self._env, path, reason)
        except OSError as second:
            self._env.log.error("could not leave the poisoned marker", path=path, error=second)
        raise NodeFailed(f"{reason}; the disk under {self._dir} needs attention", EXIT_STORE) from error

    async def run_pool(self) -> None:
        """Keep prepared segments ready, until cancelled."""
        while True:
            try:
                worked = await self.pool.fill_one()
            except OSError as error:
                # Preparing ahead is a convenience: a roll will say it if the disk is really full.
                self._env.log.warning("cannot prepare a segment", error=error)
                worked = False
            await asyncio.sleep(0.01 if worked else 2.0)

    async def close(self) -> None:
        """Write what is left of the index, close files."""
        async with self._io:
            await self._env.workers.run(Lane.FLUSH, lambda: None)  # a cancelled flusher's job may still run
            await self._sync_written()
            await self._write_units()
            await self.sync_index()
        self._segments.close()
        self._index.close()


def _cut_batch(batch: Batch, first: int, max_bytes: int) -> tuple[int, int]:
    if first == batch.first and batch.end_pos - batch.pos <= max_bytes:
        return batch.last, batch.end_pos - batch.pos
    size = 0
    last = first
    for offset in range(first - batch.first, len(batch.sizes)):
        inside = offset > 0 and batch.remaining is not None and batch.remaining[offset - 1] > 0
        if size and size + batch.sizes[offset] > max_bytes and not inside:
            break
        size += batch.sizes[offset]
        last = batch.first + offset
    return last, size


def _first_part(batch: Batch, last: int) -> Batch:
    """The entries of a batch up to `last`, which ends a client batch."""
    count = last - batch.first + 1
    size = sum(batch.sizes[:count])
    data = memoryview(batch.data)[:size]
    chain = unpack_header(data, size - batch.sizes[count - 1]).chain_crc
    remaining = None if batch.remaining is None else batch.remaining[:count]
    return Batch(
        batch.first,
        last,
        batch.term,
        batch.pos,
        batch.pos + size,
        data,
        batch.sizes[:count],
        remaining,
        chain,
    )


def _write_synced(file: File, parts: list[bytes], at: int) -> None:
    file.pwritev(parts, at)
    file.fdatasync()


def _leave_marker(env: Env, path: str, reason: str) -> None:
    file = env.files.open(path, create=True)
    try:
        file.pwritev([reason.encode()], 0)
        file.fdatasync()
    finally:
        file.close()
