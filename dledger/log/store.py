"""The log of one node: appended in memory, written and fsynced in groups, read back (rules 3 and 4).

An append only joins the *tail*: batches that are sealed but not yet on disk. The flusher takes all of the
tail that fits one segment, writes it with one positional write and one fdatasync in a worker, and reports;
whatever was appended meanwhile is the next group. Index units follow behind the fsync (S4). Readers find a
range in the tail or in the mapped segments.

Room is found before it is needed: segments in the pool and blocks of the index files. When there is none,
the tail waits (`short_of_space`), nothing is lost, and `can_seal` / `can_store` refuse what is new. A
failed *write* is another matter and final (S3).

`last_index` is what was appended, `durable_index` what is fsynced (in ASYNC_FLUSH: written).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from dledger.errors import DISK_IS_FULL, EXIT_STORE, NodeFailed
from dledger.log.base import LogBase
from dledger.log.mending import MendableLog, NoRoom, write_synced
from dledger.log.poison import leave_marker
from dledger.log.pool import SegmentPool
from dledger.log.reading import Rotten
from dledger.log.recovery import Recovered, choose_base, missing_segments, recover
from dledger.log.tail import Batch, first_part
from dledger.log.terms import TermTable
from formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    MIN_BLANK_SIZE,
    unpack_header,
)
from formats.store_files import DATA_DIR, INDEX_DIR
from runtime import DiskUsage, Env, File, Lane

FLUSH_BYTES = 8 * 1024 * 1024
"""Most of the tail that one write takes, so that acknowledgements keep flowing."""
ASYNC_SYNC_INTERVAL_S = 0.05
"""ASYNC_FLUSH: how often what was written is fsynced while writes go on."""
ROOM_RETRY_S = 0.25
"""How often a tail that found no room tries again."""
UNITS_AHEAD = 4096
"""Index units that must have their blocks before entries for them are sealed on a full disk."""
CLOSE_LIMIT_S = 5.0
"""How long a close waits for a disk that does not answer."""


@dataclass(frozen=True)
class FlushStats:
    """Of one group write, for metrics."""

    entries: int
    size: int
    seconds: float


class LogStore(MendableLog):
    """See the module."""

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
        super().__init__(env, node_dir, segment_size, index_units_per_file)
        self._dir = node_dir
        self._sync_flush = sync_flush
        self.pool = SegmentPool(env, node_dir, segment_size, pool_segments)
        self._synced_index = -1
        self._last_sync = 0.0
        self._failed = False
        self._wake = asyncio.Event()
        self.short_of_space = False
        """The disk has no room for another segment."""
        self.on_durable: Callable[[], None] = lambda: None
        self.on_flush: Callable[[FlushStats], None] = lambda stats: None
        self.before_roll: Callable[[], Awaitable[None]] | None = None
        """Notes what a start could not find in a segment that is not the last (OSError: no room to)."""

    # Opening

    async def open(
        self,
        *,
        power_lost: bool,
        discard_above_mark: bool,
        on_doubt: Callable[[str], Awaitable[None]] | None = None,
        bases: Mapping[int, LogBase] | None = None,
        begins: int | None = None,
        replace: bool = False,
    ) -> Recovered:
        """Recover, make what was believed durable (S2), and clear away what was not.

        `on_doubt` is called, before anything is cut, when more may be gone than a torn tail. `bases`: the
        store's snapshots by pos; `begins`: pos at which the store says that its log begins, None when it
        says nothing. `replace`: an install was cut short after its point of no return: the log is emptied.
        """
        run = self._env.workers.run
        if replace:
            await self._erase_files()
        await run(Lane.DISK, self._segments.open)
        await run(Lane.DISK, self._index.open)
        await run(Lane.FLUSH, self._index.sync_names)
        await run(Lane.DISK, self.pool.open)
        for start in self._segments.starts:
            if begins is not None and start < begins:
                await self._retire(start)  # retention was cut short
        mark = await run(Lane.DISK, self._index.last_unit)
        base = self._base = await run(
            Lane.DISK, choose_base, self._segments, self._index, mark, bases or {}, begins
        )
        mark = mark if mark is not None and mark.index > base.index else None  # else left over
        for start in await run(Lane.DISK, missing_segments, self._segments, self._index, mark, base):
            self._env.log.error("segment file is missing: its entries are faulty", start=start)
            await self.pool.take(self._segments.path(start), fresh=True)
            await self._segments.add(start)
        found: Recovered = await run(
            Lane.DISK,
            recover,
            self._segments,
            self._index,
            mark,
            power_lost=power_lost,
            discard_above_mark=discard_above_mark,
            base=base,
        )
        if found.doubt and on_doubt is not None:
            await on_doubt(found.doubt)
        self._first_index = found.first_index
        if not base.known:
            self._base = LogBase(found.first_index - 1, -1, base.pos, None)
        self._last_index = found.last_index
        self._last_term = found.last_term
        self._end_pos = self._written_pos = found.end_pos
        self.last_chain = found.last_chain
        self._terms = found.terms
        for first, last in found.faulty:
            self.faulty.add(first, last)
        for file in await run(Lane.FLUSH, self._index.clear_from, found.last_index + 1):
            await run(Lane.FLUSH, file.fdatasync)
        await self._erase_header(found.end_pos)
        for pos in found.missing_blanks:
            await self.write_blank(pos)
        for start in found.scanned:
            if self._segments.has(start):
                await run(Lane.FLUSH, self._segments.file(start).fdatasync)
        if self._segments.starts:
            await run(Lane.FLUSH, self._env.files.sync_dir, self._segments.directory)
        for first, units in found.missing_units:
            await self._make_index_files(first, len(units) // INDEX_UNIT.size)
            await run(Lane.FLUSH, self._index.write, first, units)
        self._index.distrust(found.scanned_from, found.last_index)
        await self.sync_index()
        for start in reversed(found.stale_segments):
            await self._retire(start)
        self._durable_index = self._synced_index = self._last_index
        self._durable_pos = self._end_pos
        return found

    async def _erase_header(self, pos: int) -> None:
        """No believable entry stays behind the end (S1)."""
        run = self._env.workers.run
        start = self._segments.start_of(pos)
        if not self._segments.has(start) or pos - start + HEADER_SIZE > self._segments.size:
            return
        file = self._segments.file(start)
        if any(await run(Lane.DISK, self._segments.pread_around_errors, start, HEADER_SIZE, pos - start)):
            await run(Lane.FLUSH, write_synced, file, [bytes(HEADER_SIZE)], pos - start)
        else:
            await run(Lane.FLUSH, file.fdatasync)  # zeros of a cut that was killed before its fsync (S2)

    async def _retire(self, start: int) -> None:
        path = self._segments.remove(start)
        if path is None:
            raise NodeFailed(f"segment at {start} is to be cut while somebody reads it", EXIT_STORE)
        await self.pool.give_back(path)

    # Appending

    def append(self, batch: Batch) -> None:
        """Join sealed entries to the tail and wake the flusher; continuity is the caller's proof."""
        if batch.first != self._last_index + 1 or batch.pos < self._end_pos:
            raise ValueError(f"batch {batch.first}..{batch.last} at {batch.pos} does not continue the log")
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
                try:
                    async with self._io:
                        try:
                            await self._flush_once()
                        except OSError as error:
                            await self.poison(error)
                except NoRoom as error:
                    self._say_short(str(error))
                    await asyncio.sleep(ROOM_RETRY_S)

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
        if units is not None:
            await self._make_index_files(units[0], len(units[1]) // INDEX_UNIT.size)
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
            await self._make_index_files(units[0], len(units[1]) // INDEX_UNIT.size)
            await self._env.workers.run(Lane.FLUSH, self._index.write, *units)
            self._drop_indexed(units)

    async def _make_index_files(self, first: int, count: int) -> None:
        if not self._index.lacks(first, count):
            return
        run = self._env.workers.run
        try:
            new = await run(Lane.FLUSH, self._index.create, first, count)
        except OSError as error:
            raise _no_room(error, f"cannot make an index file in {self._dir}") from error
        if new:
            await run(Lane.FLUSH, self._index.sync_names)

    async def sync_index(self) -> None:
        """Make the index units written so far durable. OSError is final (S3): see `keep_index`."""
        for start in self._index.dirty():
            await self._env.workers.run(Lane.FLUSH, self._index.sync, start)

    async def keep_index(self) -> None:
        """`sync_index` at intervals, so that the durable mark never lags far."""
        try:
            await self.sync_index()
        except OSError as error:
            await self.poison(error)

    async def _roll(self, start: int) -> None:
        """Close the current segment with a blank tail and take the next one (S5, S6)."""
        previous = start - self._segments.size
        if self._segments.has(previous):
            await self._sync_written()
            if self._segments.start_of(self._written_pos) == previous:
                await self.write_blank(self._written_pos)
            await self._write_units()
            await self.sync_index()
        try:
            if self.before_roll is not None:
                await self.before_roll()
            warm = await self.pool.take(self._segments.path(start))
        except OSError as error:
            raise _no_room(
                error, f"cannot prepare a segment of {self._segments.size} bytes in {self._dir}"
            ) from error
        await self._segments.add(start)
        self.short_of_space = self.short_of_space and warm

    # Room

    def can_seal(self, pos: int, index: int, entry_bytes: int) -> bool:
        """Whether an entry (or batch) of up to `entry_bytes` may be sealed at `pos`: there is room for it."""
        if not self.short_of_space:
            return True
        start = self._segments.start_of(pos)
        size = self._segments.size
        if self._index.lacks(index, UNITS_AHEAD):
            return False
        kept = min(64 * 1024, size // 16)  # for entries that open terms and tell the members
        fits = pos - start + entry_bytes + MIN_BLANK_SIZE + kept <= size
        return start + (size if fits else 2 * size) <= self._prepared_end()

    def can_store(self, pos: int) -> bool:
        """Whether there is a segment, or one ready, for an entry at `pos`."""
        return not self.short_of_space or self._segments.start_of(pos) < self._prepared_end()

    def _prepared_end(self) -> int:
        starts = self._segments.starts
        end = starts[-1] + self._segments.size if starts else self._segments.start_of(self._end_pos)
        return end + self.pool.ready * self._segments.size

    async def measure(self) -> DiskUsage:
        """Look at the disk; says whether it is short of space. OSError when it cannot be asked."""
        usage = await self._env.workers.run(Lane.DISK, self._env.files.usage, self._dir)
        if usage.free < self.pool.least_free:
            self._say_short(f"{usage.free} bytes are free in {self._dir}")
        elif not self._unwritten or self._segments.has(self._segments.start_of(self._unwritten[0].pos)):
            self.short_of_space = False
        return usage

    def _say_short(self, reason: str) -> None:
        if not self.short_of_space:
            self.short_of_space = True
            self._env.log.warning("no room for the next segment", reason=reason)

    # Cutting

    async def truncate(self, index: int) -> None:
        """Remove entries from `index` on, durably: no believable tail stays behind (S1)."""
        for near in (index - 1, index):
            if self._first_index <= near <= self._written_index() and self._pos_of(near) is None:
                await self.examine(near, near)  # where to cut: what is whole gets its index unit back
        while True:
            try:
                async with self._io:
                    try:
                        await self._truncate(index)
                        return
                    except OSError as error:
                        await self.poison(error)
            except NoRoom as error:
                self._say_short(str(error))
                await asyncio.sleep(ROOM_RETRY_S)  # without the lock: retention may make room

    async def _truncate(self, index: int) -> None:
        if not self._first_index <= index <= self._last_index:
            raise ValueError(f"cannot cut at {index}: the log holds {self._first_index}..{self._last_index}")
        run = self._env.workers.run
        await self._sync_written()
        await self._write_units()
        before = self.end_of(index - 1)
        try:
            pos, _ = self.locate(index)
        except KeyError:
            pos = before
        if index == self._first_index or pos > self._segments.start_of(pos):
            before = pos  # it lies right behind the entry before, whatever is known of that one
        self.cuts += 1
        while self._unwritten and self._unwritten[-1].first >= index:
            self._unwritten.pop()
        if self._unwritten and self._unwritten[-1].last >= index:
            self._unwritten.append(first_part(self._unwritten.pop(), index - 1))
        if pos < self._written_pos:
            # Units first: a crash in between only brings back entries that the leader cuts again.
            for file in await run(Lane.FLUSH, self._index.clear_from, index):
                await run(Lane.FLUSH, file.fdatasync)
            await self._erase_header(pos)
            # The last first: a crash in between must not leave a hole.
            for start in reversed(self._segments.starts):
                if start > pos or (start == pos and start != before):
                    await self._retire(start)
            self._written_pos = before
        self._terms.truncate(index)
        self.faulty.truncate(index)
        self.suspects.truncate(index)
        self._last_index = index - 1
        self._last_term = self._terms.term_of(index - 1) if index > self._first_index else self._base.term  # type: ignore[assignment]
        self._end_pos = before
        self._durable_index = min(self._durable_index, index - 1)
        self._synced_index = min(self._synced_index, index - 1)
        self._durable_pos = min(self._durable_pos, before)
        self.last_chain = await self._chain_at_end()
        self.cuts += 1

    async def _chain_at_end(self) -> int | None:
        if self._last_index < self._first_index:
            return self._base.chain
        if self._unwritten:
            return self._unwritten[-1].chain
        if self._last_index in self.faulty:
            return None
        try:
            pos, _ = self.locate(self._last_index)
            return unpack_header(await self.read(pos, HEADER_SIZE)).chain_crc
        except (KeyError, Rotten):
            self.note_damage(self._last_index, self._last_index)
            return None

    # Beginning later

    async def drop_before(self, base: LogBase) -> bool:
        """Free the segments before `base.pos`, the oldest first. False: try again, some are still read, or
        nothing lies behind `base` now (a cut came in between).

        `base` is a snapshot of this store that is durable (S20); a later segment must begin there. The store
        says durably that its log begins there. Not to be called while a `reset` runs.
        """
        async with self._io:  # whoever mends or examines must not lose its files
            if base.pos > self._base.pos:
                if base.index == self._durable_index:
                    return False
                if not self._segments.has(base.pos) or base.index > self._durable_index:
                    raise ValueError(f"the log cannot begin at {base.pos}: it ends at {self._end_pos}")
                self._base = base
                self._first_index = base.index + 1
                self._terms.forget_before(self._first_index)
                self.faulty.remove(0, base.index)
                self.suspects.remove(0, base.index)
            try:
                return await self._free_segments()
            except OSError as error:
                raise NodeFailed(f"cannot free a segment in {self._dir}: {error}", EXIT_STORE) from error

    async def _free_segments(self) -> bool:
        for start in self._segments.starts:
            if start >= self._base.pos:
                break
            path = self._segments.remove(start)
            if path is None:
                return False
            await self.pool.give_back(path)
        if await self._env.workers.run(Lane.FLUSH, self._index.drop_before, self._first_index):
            await self._env.workers.run(Lane.FLUSH, self._index.sync_names)
        return True

    async def reset(self, base: LogBase) -> None:
        """Replace everything by a log that begins behind `base`, empty. The caller can do it again after a
        crash in the middle (`open(replace=True)`)."""
        async with self._io:
            try:
                await self._reset(base)
            except OSError as error:
                await self.poison(error)

    async def _reset(self, base: LogBase) -> None:
        # Memory first: whoever reads while the disk works must not look for what is going.
        self._unwritten.clear()
        self._unindexed.clear()
        self._base = base
        self._terms = TermTable()
        self.faulty.truncate(0)
        self.suspects.truncate(0)
        self.cuts += 1
        self._first_index = base.index + 1
        self._last_index = self._durable_index = self._synced_index = base.index
        self._last_term = base.term
        self._end_pos = self._written_pos = self._durable_pos = base.pos
        self.last_chain = base.chain
        run, files = self._env.workers.run, self._env.files
        for start in reversed(self._segments.starts):
            path, free = self._segments.abandon(start)
            if free:
                await self.pool.give_back(path)
            else:
                await run(Lane.DISK, files.unlink, path)
        await run(Lane.FLUSH, self._index.remove_all)
        await run(Lane.FLUSH, self._index.sync_names)
        await run(Lane.DISK, files.sync_dir, self._segments.directory)

    async def _erase_files(self) -> None:
        """Remove all files of the log, whatever they hold."""
        run, files = self._env.workers.run, self._env.files
        for name in (DATA_DIR, INDEX_DIR):
            directory = f"{self._dir}/{name}"
            await run(Lane.DISK, files.mkdir, directory)
            for file in await run(Lane.DISK, files.listdir, directory):
                await run(Lane.DISK, files.unlink, f"{directory}/{file}")
            await run(Lane.DISK, files.sync_dir, directory)

    # Ending

    async def poison(self, error: OSError) -> NoReturn:
        """Leave a marker as well as the disk allows, then end the node: never retry an fsync (S3)."""
        self._failed = True
        reason = f"a write or fsync of the log failed: {error}"
        await leave_marker(self._env, self._dir, reason)
        raise NodeFailed(f"{reason}; the disk under {self._dir} needs attention", EXIT_STORE) from error

    async def run_pool(self) -> None:
        """Keep prepared segments and blocks of the index ready, until cancelled."""
        while True:
            worked = False
            try:
                worked = await self._fill_pool()
                await self._make_index_files(max(self._last_index, 0), UNITS_AHEAD)
            except NoRoom as error:
                # Preparing ahead may fail: whoever needs the room is refused, or waits.
                self._env.log.warning("cannot prepare a segment or index file", error=error)
            except OSError as error:
                await self.poison(error)
            await asyncio.sleep(0.01 if worked else 2.0)

    async def _fill_pool(self) -> bool:
        try:
            return await self.pool.fill_one()
        except OSError as error:
            raise _no_room(error, f"cannot prepare a segment in {self._dir}") from error

    async def close(self) -> bool:
        """Write what is left of the index, close files; whether everything written is fsynced.

        TimeoutError when the disk does not answer.
        """
        async with asyncio.timeout(CLOSE_LIMIT_S), self._io:
            await self._env.workers.run(Lane.FLUSH, lambda: None)  # a cancelled flusher's job may still run
            if not self._failed:  # else an fsync that "works" now would certify what is lost (S3)
                await self._sync_written()
                try:
                    await self._write_units()
                except NoRoom as error:
                    self._say_short(str(error))
                await self.sync_index()
        self._segments.close()
        self._index.close()
        return not self._failed


def _no_room(error: OSError, text: str) -> Exception:
    """A full disk is waited for; any other error while a file is prepared is one of the disk."""
    return NoRoom(f"{text}: {error}") if error.errno in DISK_IS_FULL else error
