"""The log of one node: appended in memory, written and fsynced in groups, read back (rules 3 and 4).

An append only joins the *tail*: batches that are sealed but not yet on disk. The flusher takes all of the
tail that fits one segment, writes it with one positional write and one fdatasync in a worker, and reports;
whatever was appended meanwhile is the next group. Index units follow behind the fsync (S4). Readers find a
range in the tail or in the mapped segments.

`last_index` is what was appended, `durable_index` what is fsynced (in ASYNC_FLUSH: written).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dledger.errors import EXIT_STORE, NodeFailed
from dledger.log.base import LogBase
from dledger.log.pool import SegmentPool
from dledger.log.reader import ReadableLog
from dledger.log.recovery import Recovered, choose_base, recover
from dledger.log.tail import Batch, first_part
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
from formats.store_files import DATA_DIR, INDEX_DIR, POISONED_FILE
from runtime import Env, File, Lane

FLUSH_BYTES = 8 * 1024 * 1024
"""Most of the tail that one write takes, so that acknowledgements keep flowing."""
ASYNC_SYNC_INTERVAL_S = 0.05
"""ASYNC_FLUSH: how often what was written is fsynced while writes go on."""


@dataclass(frozen=True)
class FlushStats:
    """Of one group write, for metrics."""

    entries: int
    size: int
    seconds: float


class LogStore(ReadableLog):
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
        self._io = asyncio.Lock()
        self.on_durable: Callable[[], None] = lambda: None
        self.on_flush: Callable[[FlushStats], None] = lambda stats: None

    # Opening

    async def open(
        self,
        *,
        power_lost: bool,
        discard_above_mark: bool,
        bases: Mapping[int, LogBase] | None = None,
        replace: LogBase | None = None,
    ) -> Recovered:
        """Recover, make what was believed durable (S2), and clear away what was not.

        `bases`: the store's snapshots by pos: the log may begin at one. `replace`: an install was cut short
        after its point of no return; whatever the log holds goes, and it begins there.
        """
        run = self._env.workers.run
        if replace is not None:
            await self._erase_files()
        await run(Lane.DISK, self._segments.open)
        if replace is None:
            self._base = await run(Lane.DISK, choose_base, self._segments, bases or {})
        else:
            self._base = replace
        base = self._base
        self._index.begin_at(base.index + 1)
        await run(Lane.DISK, self._index.open)
        await run(Lane.DISK, self.pool.open)
        found: Recovered = await run(
            Lane.DISK,
            recover,
            self._segments,
            self._index,
            power_lost=power_lost,
            discard_above_mark=discard_above_mark,
            base=base,
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
        for missing in found.missing_units:
            await self._make_index_files(missing)
            await run(Lane.FLUSH, self._index.write, *missing)
        self._index.distrust(found.scanned_from)
        await self._sync_index()
        for start in reversed(found.stale_segments):
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
        if units is not None:
            await self._make_index_files(units)
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
            await self._make_index_files(units)
            await self._env.workers.run(Lane.FLUSH, self._index.write, *units)
            self._drop_indexed(units)

    async def _make_index_files(self, units: tuple[int, bytes]) -> None:
        count = len(units[1]) // INDEX_UNIT.size
        if self._index.lacks(units[0], count):
            try:
                await self._env.workers.run(Lane.FLUSH, self._index.create, units[0], count)
                await self._env.workers.run(Lane.FLUSH, self._index.sync_names)
            except OSError as error:
                raise NodeFailed(f"cannot make an index file in {self._dir}: {error}", EXIT_STORE) from error

    async def sync_index(self) -> None:
        """Make the index units written so far durable."""
        async with self._io:  # a file must not be closed under its fsync
            await self._sync_index()

    async def _sync_index(self) -> None:
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
            await self._sync_index()
        try:
            await self.pool.take(self._segments.path(start))
            await self._segments.add(start)
        except OSError as error:
            raise NodeFailed(
                f"cannot prepare a segment of {self._segments.size} bytes in {self._dir}: {error}", EXIT_STORE
            ) from error

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
            self._unwritten.append(first_part(self._unwritten.pop(), index - 1))
        # Memory first: whoever reads while the disk works must not look for what is going.
        written = self._written_pos
        self._written_pos = min(written, before)
        self._terms.truncate(index)
        self._last_index = index - 1
        self._last_term = self._terms.term_of(index - 1) if index > self._first_index else self._base.term  # type: ignore[assignment]
        self._end_pos = before
        self._durable_index = min(self._durable_index, index - 1)
        self._synced_index = min(self._synced_index, index - 1)
        self._durable_pos = min(self._durable_pos, before)
        self.last_chain = self._chain_at_end()
        if pos < written:
            # Units first: a crash in between only brings back entries that the leader cuts again.
            for file in await run(Lane.FLUSH, self._index.clear_from, index):
                await run(Lane.FLUSH, file.fdatasync)
            await self._erase_header(pos)
            # The last first: a crash in between must not leave a hole.
            for start in reversed(self._segments.starts):
                if start > pos or (start == pos and start != before):
                    await self._retire(start)

    def _chain_at_end(self) -> int:
        if self._last_index < self._first_index:
            return self._base.chain or 0
        if self._unwritten:
            return self._unwritten[-1].chain
        pos, _ = self.locate(self._last_index)
        return unpack_header(self._bytes(pos, HEADER_SIZE)).chain_crc

    # Beginning later

    async def drop_before(self, base: LogBase) -> bool:
        """Free the segments before `base.pos`, the oldest first. False: some are still read, try again.

        `base` is a snapshot of this store that is durable (S20); a later segment must begin there. Not to be
        called while a `reset` runs.
        """
        if base.pos > self._base.pos:
            if not self._segments.has(base.pos) or base.index >= self._durable_index:
                raise ValueError(f"the log cannot begin at {base.pos}: it ends at {self._end_pos}")
            self._base = base
            self._first_index = base.index + 1
            self._terms.forget_before(self._first_index)
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
        async with self._io:
            if await self._env.workers.run(Lane.DISK, self._index.drop_before, self._first_index):
                await self._env.workers.run(Lane.DISK, self._index.sync_names)
        return True

    async def reset(self, base: LogBase) -> None:
        """Replace everything by a log that begins behind `base`, empty. The caller can do it again after a
        crash in the middle (`open(replace=...)`)."""
        async with self._io:
            try:
                await self._reset(base)
            except OSError as error:
                await self._poison(error)

    async def _reset(self, base: LogBase) -> None:
        # Memory first, as for a cut.
        self._unwritten.clear()
        self._unindexed.clear()
        self._base = base
        self._terms = TermTable()
        self._first_index = base.index + 1
        self._last_index = self._durable_index = self._synced_index = base.index
        self._last_term = base.term
        self._end_pos = self._written_pos = self._durable_pos = base.pos
        self.last_chain = base.chain or 0
        for start in reversed(self._segments.starts):
            path, free = self._segments.abandon(start)
            if free:
                await self.pool.give_back(path)
            else:
                await self._env.workers.run(Lane.DISK, self._env.files.unlink, path)
        await self._env.workers.run(Lane.DISK, self._index.remove_all, base.index + 1)
        await self._env.workers.run(Lane.DISK, self._index.sync_names)
        await self._env.workers.run(Lane.DISK, self._env.files.sync_dir, self._segments.directory)

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

    async def _poison(self, error: OSError) -> None:
        """Leave a marker as well as the disk allows, then end the node: never retry an fsync (S3)."""
        self._failed = True
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
            if not self._failed:  # else an fsync that "works" now would certify what is lost (S3)
                await self._sync_written()
                await self._write_units()
                await self._sync_index()
        self._segments.close()
        self._index.close()


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
