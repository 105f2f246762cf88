"""Writes the tail of a log to disk in groups, each with one positional write and one fdatasync (architecture
rule 4).

The tail is what is sealed and not yet in the file. Index units are written after the fsync (S4), those of
many groups at once. Room is reserved before it is needed: segments in the pool and blocks of the index files.
When there is no room, the tail waits (`short_of_space`), nothing is lost, and `can_seal` / `can_store` refuse
new entries. A failed *write*, however, is final (S3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import msgspec

from dledger.errors import (
    DEVICE_FAILED,
    EXIT_START,
    EXIT_STORE,
    NO_ACCESS,
    OUT_OF_MEANS,
    PASSING,
    NodeFailed,
)
from dledger.formats.entry import CHANNEL_OFFSET, INDEX_UNIT, MAGIC, MIN_BLANK_SIZE
from dledger.formats.store_files import POISONED_FILE
from dledger.log.hot_tail import Batch
from dledger.log.poison import leave_marker
from dledger.log.pool import SegmentPool
from dledger.log.reading import store_time_of
from dledger.log.repair_writer import MendableLog, NoRoom
from dledger.log.store_clock import StoreClock
from dledger.log.writes import NotingWorkers
from dledger.runtime import DiskUsage, Env, File, Lane

FLUSH_BYTES = 8 * 1024 * 1024
"""Size, in bytes, after which a group write takes no further batch, so that acknowledgements are not
delayed."""
ASYNC_SYNC_INTERVAL_S = 0.05
"""With ASYNC_FLUSH: seconds between two fsyncs of written entries while writes continue."""
INDEX_GROUPS = 64
"""Number of batches without index units at which these units are written, in the job of the next group."""
INDEX_DELAY_S = 0.05
"""Seconds after which index units are written in any case. Until then entries are found in memory. With
ASYNC_FLUSH it is also how long the last part of the tail waits for its fsync."""
ROOM_RETRY_S = 0.25
"""Seconds until a tail for which there was no room is tried again."""
MAX_SKEW_MS = 1000
"""Limit, in ms, for how far the wall clock may be behind the newest record. If it is further behind, one
warning is logged (safety.md S15). The next warning comes only after the clock was right again."""
BUSY_S = 0.2
"""Seconds after a group write for which the log counts as in use."""
UNITS_AHEAD = 4096
"""On a full disk, entries are sealed only if this many further index units have their blocks."""


class FlushStats(msgspec.Struct, frozen=True):
    """Figures of one group write, for metrics."""

    entries: int
    size: int
    seconds: float


class FlushedLog(MendableLog):
    """A log that writes its tail to disk; see the module."""

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
        self._writes = NotingWorkers(env.workers)
        env = replace(env, workers=self._writes)
        super().__init__(env, node_dir, segment_size, index_units_per_file)
        self._dir = node_dir
        self._sync_flush = sync_flush
        self.pool: SegmentPool = SegmentPool(env, node_dir, segment_size, pool_segments, self._is_busy)
        self._flushed_at = float("-inf")
        self._synced_index = -1
        self._last_sync = 0.0
        self._marked = False
        self._skew_told = False
        self.clock: StoreClock = StoreClock()
        self.resets = 0
        """How often the log was replaced."""
        self._wake = asyncio.Event()
        self._index_timer: asyncio.TimerHandle | None = None
        self._index_due = False
        """Whether index units should be written now: they waited long enough, or there are enough of them."""
        self._runs = False
        self._idle = False
        """Whether the flusher is running and waits to be woken."""
        self._failure: BaseException | None = None
        """Error of a group write for which no caller waited."""
        self.short_of_space: bool = False
        """Whether the disk has no room for another segment."""
        self.note_written: Callable[[int], None] = lambda index: None
        """Callback, blocking, which records that all entries up to this index are written. It is called
        before another node or a client is notified of these entries, and before a cut."""
        self.on_durable: Callable[[], None] = lambda: None
        self.on_flush: Callable[[FlushStats], None] = lambda stats: None
        self.before_roll: Callable[[], Awaitable[None]] | None = None
        """Callback before the log continues in the next segment. It records what a later start could not find
        in this segment. It raises OSError if there is no room for that."""

    # Appending

    def append(self, batch: Batch) -> None:
        """Add sealed entries to the tail and start writing them. The caller guarantees that they continue the
        log."""
        self.join(batch)
        self.flush()

    def join(self, batch: Batch) -> None:
        """Add sealed entries to the tail without writing them; `flush` must follow in this turn of the
        loop."""
        if batch.first != self.last_index + 1 or batch.pos < self.end_pos:
            raise ValueError(f"batch {batch.first}..{batch.last} at {batch.pos} does not continue the log")
        self._terms.add(batch.first, batch.term)
        self._unwritten.append(batch)
        self.last_index: int = batch.last
        self.last_term: int = batch.term
        self.end_pos: int = batch.end_pos
        self.last_chain: int | None = batch.chain
        last = len(batch.data) - batch.sizes[-1]
        self.newest_ms: int = max(self.newest_ms, store_time_of(batch.data, last))
        if not self.covered:
            self.covered: bool = batch.data[last + CHANNEL_OFFSET] >= 0x80

    def flush(self) -> None:
        """Start writing the tail. If one job of the worker is enough, it is started at once; otherwise the
        flusher does it."""
        if self._unwritten and not self._begin():
            self._wake.set()

    def store_time_now(self) -> int:
        """Store time for the next record, in ms. It is the clock's time, but never before that of the newest
        record (S15)."""
        wall = self.look_at_clock()
        behind = self.newest_ms - wall
        if behind > MAX_SKEW_MS and not self._skew_told:
            self._env.log.warning("the clock is behind the newest record", by_ms=behind)
        self._skew_told = behind > MAX_SKEW_MS
        return max(wall, self.newest_ms)

    def look_at_clock(self) -> int:
        """The current time in ms. This is also called when nothing is appended, so that every leap of the
        clock is noticed."""
        before = self.clock.ahead_ms
        now = self.clock.look(self._env.wall.now_ms(), asyncio.get_running_loop().time() * 1000)
        ahead = self.clock.ahead_ms
        if bool(ahead) != bool(before):
            self._env.log.warning("the clock jumped ahead" if ahead else "the clock is right", by_ms=ahead)
        return now

    async def run_flusher(self) -> None:
        """Write the tail until cancelled. Raises NodeFailed after a failed write or fsync, which is final
        (S3)."""
        self._runs = True
        try:
            while True:
                self._idle = True
                await self._wake.wait()
                self._idle = False
                self._wake.clear()
                if self._failure is not None:
                    await self._fail(self._failure)
                while self._due():
                    try:
                        async with self._io:
                            try:
                                if self._due():
                                    await self._flush_once()
                            except OSError as error:
                                await self.poison(error)
                    except NoRoom as error:
                        self._say_short(str(error))
                        await asyncio.sleep(ROOM_RETRY_S)
        finally:
            self._runs = self._idle = False
            if self._failure is not None:
                self._io.release()  # see `_flushed`

    def _due(self) -> bool:
        return bool(self._unwritten or (self._index_due and self._unindexed))

    async def _fail(self, error: BaseException) -> NoReturn:
        if isinstance(error, OSError):
            await self.poison(error)
        raise error

    def _begin(self) -> bool:
        """Start a group write at once. The flusher would start it one turn of the loop later, and would see
        its end another turn later. Returns False if that is not possible, or more than one write is
        needed."""
        if not self._idle or self._wake.is_set() or self._io.locked():
            return False
        group = self._next_group()
        file = self._segments.opened(self._segments.start_of(group[0].pos))
        if file is None:
            return False
        units = self._pack_units() if self._index_due else None
        if units is not None and self._index.lacks(units[0], len(units[1]) // INDEX_UNIT.size):
            return False
        if not self._io.take():
            return False
        self._env.workers.start(
            Lane.FLUSH,
            self._job(units, file, group),
            partial(self._flushed, group, units, asyncio.get_running_loop().time()),
        )
        return True

    def _flushed(
        self,
        group: list[Batch],
        units: tuple[int, bytes] | None,
        began: float,
        _: None,
        error: BaseException | None,
    ) -> None:
        """Handle the end of the group write that `_begin` started."""
        if error is None:
            try:
                self._written(group, units, began)
            except BaseException as failure:  # a loop callback has no caller: the flusher raises it
                error = failure
        if error is not None and self._runs:
            # The lock stays taken: nobody may write after a failed write, until the node has ended.
            self._failure = error
            self._wake.set()
            return
        if error is not None:  # the flusher has ended: nothing else would report it
            self._env.log.error("a group write failed, and no request waited for it", error=repr(error))
        self._io.release()
        self.flush()

    async def _flush_once(self) -> None:
        if not self._unwritten:
            await self._sync_written()
            await self._write_units()
            self._index_due = False
            return
        loop = asyncio.get_running_loop()
        group = self._next_group()
        start = self._segments.start_of(group[0].pos)
        if not self._segments.has(start):
            await self._roll(start)
        units = self._pack_units() if self._index_due else None
        if units is not None:
            await self._make_index_files(units[0], len(units[1]) // INDEX_UNIT.size)
        began = loop.time()
        await self._env.workers.run(Lane.FLUSH, self._job(units, await self._segments.file(start), group))
        self._written(group, units, began)
        if not self._sync_flush and loop.time() - self._last_sync > ASYNC_SYNC_INTERVAL_S:
            await self._sync_written()

    def _written(self, group: list[Batch], units: tuple[int, bytes] | None, began: float) -> None:
        """Note that a group is in its file, and notify those that wait for that."""
        for batch in group:
            self._unwritten.popleft()
            self._unindexed.append(batch)
        last = group[-1]
        self._written_pos = last.end_pos
        self.durable_mark: int = last.last
        self.durable_pos: int = last.end_pos
        if self._sync_flush:
            self._synced_index = last.last
        self._drop_indexed(units)
        loop = asyncio.get_running_loop()
        self._index_later(loop)
        size = last.end_pos - group[0].pos
        self._flushed_at = now = loop.time()
        self.on_flush(FlushStats(last.last - group[0].first + 1, size, now - began))
        if self._runs:  # else the node is about to end
            self.on_durable()

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

    def _job(self, units: tuple[int, bytes] | None, file: File, group: list[Batch]) -> Callable[[], None]:
        parts = [batch.data for batch in group]
        at = group[0].pos - self._segments.start_of(group[0].pos)
        last = group[-1].last

        def write() -> None:
            if units is not None:
                self._index.write(*units)
            if self._sync_flush:
                file.pwritev_synced(parts, at)
            else:
                file.pwritev(parts, at)
            self.note_written(last)

        return write

    async def _sync_written(self) -> None:
        """With ASYNC_FLUSH: fsync what was written, so that the index units of these entries may follow."""
        if self._synced_index < self.durable_mark:
            target = self.durable_mark
            for start in sorted({self._segments.start_of(batch.pos) for batch in self._unindexed}):
                await self._env.workers.run(Lane.FLUSH, (await self._segments.file(start)).fdatasync)
            self._synced_index = target
            self._last_sync = asyncio.get_running_loop().time()

    def _index_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._unindexed) >= INDEX_GROUPS:
            self._index_due = True
        if self._index_timer is None:
            self._index_timer = loop.call_later(INDEX_DELAY_S, self._index_now)

    def _index_now(self) -> None:
        self._index_timer = None
        self._index_due = True
        self._wake.set()

    def _pack_units(self) -> tuple[int, bytes] | None:
        """Pack the index units of batches that are fsynced and not yet in the index files: (first index,
        bytes). None if there are none."""
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
            self._index_due = False

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
        if await run(Lane.FLUSH, self._reserve_units, first, count):
            await run(Lane.FLUSH, self._sync_index_names)

    def _reserve_units(self, first: int, count: int) -> bool:
        """Job of a worker: reserve room for index units. It raises NoRoom, because an OSError would count as
        a failed write."""
        try:
            return self._index.create(first, count)
        except OSError as error:
            raise _not_prepared(error, f"cannot make an index file in {self._dir}") from error

    def _sync_index_names(self) -> None:
        """Job of a worker: make the names of index files durable. If the directory cannot be opened, no fsync
        was tried, and NoRoom or NodeFailed is raised. An fsync that failed is final."""
        try:
            self._index.sync_names()
        except OSError as error:
            if error.errno in NO_ACCESS:
                raise _not_prepared(error, f"cannot open {self._dir}") from error
            if error.errno not in OUT_OF_MEANS:
                raise
            raise NoRoom(f"cannot sync the names of index files in {self._dir}: {error}") from error

    async def sync_index(self) -> None:
        """Make the index units written so far durable. After an OSError the node must end (S3), as in
        `keep_index`."""
        for start in self._index.dirty():
            await self._env.workers.run(Lane.FLUSH, self._index.sync, start)

    async def keep_index(self) -> None:
        """Call `sync_index`, and end the node if it fails. This is called at intervals, so that the durable
        mark is never far behind."""
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
            await self._segments.add(start)
        except OSError as error:
            raise _not_prepared(
                error, f"cannot prepare a segment of {self._segments.size} bytes in {self._dir}"
            ) from error
        self.short_of_space = self.short_of_space and warm

    # Room

    def can_seal(self, pos: int, index: int, entry_bytes: int) -> bool:
        """Whether there is room to seal an entry (or batch) of up to `entry_bytes` at `pos`."""
        if not self.short_of_space:
            return True
        start = self._segments.start_of(pos)
        size = self._segments.size
        if self._index.lacks(index, UNITS_AHEAD):
            return False
        kept = min(64 * 1024, size // 16)  # for entries that open terms and for configurations
        fits = pos - start + entry_bytes + MIN_BLANK_SIZE + kept <= size
        return start + (size if fits else 2 * size) <= self._prepared_end()

    def can_store(self, pos: int) -> bool:
        """Whether a segment exists, or can be prepared, for an entry at `pos`."""
        return not self.short_of_space or self._segments.start_of(pos) < self._prepared_end()

    def _prepared_end(self) -> int:
        starts = self._segments.starts
        end = starts[-1] + self._segments.size if starts else self._segments.start_of(self.end_pos)
        return end + self.pool.ready * self._segments.size

    async def measure(self) -> DiskUsage:
        """Measure the disk and note whether it is short of space. Raises OSError if the system gives no
        answer."""
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

    # Preparing

    async def run_pool(self) -> None:
        """Keep prepared segments and blocks of the index ready, until cancelled."""
        while True:
            worked = False
            try:
                worked = await self._fill_pool()
                await self._make_index_files(max(self.last_index, 0), UNITS_AHEAD)
            except NoRoom as error:
                # Preparing ahead may fail: entries that need the room are refused, or wait.
                self._env.log.warning("cannot prepare a segment or index file", error=error)
            except OSError as error:
                await self.poison(error)
            await asyncio.sleep(0.01 if worked else 2.0)

    def _is_busy(self) -> bool:
        return asyncio.get_running_loop().time() - self._flushed_at < BUSY_S

    async def _fill_pool(self) -> bool:
        try:
            return await self.pool.fill_one()
        except OSError as error:
            raise _not_prepared(error, f"cannot prepare a segment in {self._dir}") from error

    # Failing

    async def poison(self, error: OSError) -> NoReturn:
        """Leave a marker if the disk still allows it, then raise NodeFailed, which ends the node. An fsync is
        never retried (S3)."""
        self._writes.note(error)
        await self._leave_marker(error)
        raise NodeFailed(
            f"a write or fsync of the log failed: {error}. The disk under {self._dir} needs "
            f"attention. Its file {POISONED_FILE} marks the store: at the next start this node "
            "discards entries that may not be on the disk, and it does not vote until a leader has "
            "refilled it",
            EXIT_STORE,
        ) from error

    async def _leave_marker(self, error: OSError) -> None:
        if not self._marked:
            await leave_marker(self._env, self._dir, _failed(error))
            self._marked = True  # only now: whoever poisons may be cancelled, and `close` does it then


def _failed(error: OSError) -> str:
    return f"a write or fsync of the log failed: {error}"


def _not_prepared(error: OSError, text: str) -> Exception:
    """Turn an error from preparing a file into the error to raise. No entry was being written at the time.

    If the disk is full, or too many files are open, that is NoRoom, and the caller tries again later. A
    refusal by the system (rights, a limit on sizes, a read-only mount) ends the node; its store is intact. A
    device error counts like that of a write (S3).
    """
    if error.errno in PASSING:
        return NoRoom(f"{text}: {error}")
    if error.errno in DEVICE_FAILED:
        return error
    return NodeFailed(
        f"{text}: {error}. No entry was being written, so the store is intact. Correct that and start "
        "the node again",
        EXIT_START,
    )
