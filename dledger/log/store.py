"""The log of one node: opened, appended to in memory, read back, cut, replaced and closed (architecture rules
3 and 4).

An append only adds to the *tail*: batches that are sealed but not yet on disk. The flusher (`flushing`) takes
as much of the tail as fits one segment, and writes it in a worker with one positional write and one
fdatasync. Batches that are appended in the meantime are the next group. Readers find entries in the tail or
in the mapped segments. `last_index` is the last entry appended, `durable_index` the last one fsynced (in
ASYNC_FLUSH: written).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from dledger.errors import EXIT_STORE, OUT_OF_MEANS, NodeFailed, refused_by_system
from dledger.formats.entry import (
    COVERED,
    HEADER_SIZE,
    INDEX_UNIT,
    MAX_ENTRY_SIZE,
    CorruptEntry,
    EntryHeader,
    check_entry,
    unpack_header,
)
from dledger.formats.store_files import DATA_DIR, INDEX_DIR
from dledger.log.base import ORIGIN, LogBase
from dledger.log.flushing import ROOM_RETRY_S, FlushedLog
from dledger.log.hot_tail import first_part
from dledger.log.index_units import settled
from dledger.log.reading import Rotten, store_time_of
from dledger.log.recovery import REFILL_ADVICE, Recovered, choose_base, missing_segments, recover
from dledger.log.repair_writer import NoRoom
from dledger.log.terms import TermTable
from dledger.runtime import File, Lane

AGAIN_BYTES = 1024 * 1024
"""Number of bytes for each job when existing entries are written again."""
_BLOCK = 4096
CLOSE_LIMIT_S = 5.0
"""Limit, in seconds, of the wait in `close` for a disk that does not answer."""


class LogStore(FlushedLog):
    """The log of one node; see the module."""

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
        killed: bool = True,
        written: int | None = None,
    ) -> Recovered:
        """Recover, make durable what was accepted (S2), and remove the rest.

        * `on_doubt`: called before anything is cut, if more than a torn tail may be lost.
        * `bases`: the store's snapshots by pos.
        * `begins`: position at which the store says that its log begins, None if it says nothing.
        * `replace`: whether an install was interrupted after its point of no return; then the log is emptied.
        * `killed`: whether the last run did not end in good order.
        * `written`: index up to which the last run may have notified others of its entries, None if that is
          not known (decision 16).
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
        self.newest_ms = base.store_time_ms
        mark = mark if mark is not None and mark.index > base.index else None  # else left over
        for start in await run(Lane.DISK, missing_segments, self._segments, self._index, mark, base):
            self._env.log.error(
                "segment file is missing: its entries will be repaired from peers", start=start
            )
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
            written=written,
        )
        doubt = found.doubt
        if written is not None and found.last_index < written and not (replace or discard_above_mark):
            doubt = doubt or f"the log ends at entry {found.last_index}, but entry {written} was written"
        if doubt and on_doubt is not None:
            await on_doubt(doubt)
        self.first_index = found.first_index
        if not base.known:
            self._base = LogBase(found.first_index - 1, -1, base.pos, None)
        self.last_index = found.last_index
        self.last_term = found.last_term
        self.end_pos = self._written_pos = found.end_pos
        self.last_chain = found.last_chain
        self._terms = found.terms
        for first, last in found.faulty:
            self.faulty.add(first, last)
        for file in await run(Lane.FLUSH, self._index.clear_from, found.last_index + 1):
            await run(Lane.FLUSH, file.fdatasync)
        await self._erase_header(found.end_pos)
        for pos in found.missing_blanks:
            await self.write_blank(pos)
        if killed and not power_lost:
            begin = base.pos if mark is None else mark.pos + mark.size
            if begin > found.end_pos:
                begin = min(found.scanned, default=found.end_pos)  # the unit lies
            await self._write_again(begin, found.end_pos)
        for start in found.scanned:
            if self._segments.has(start):
                await run(Lane.FLUSH, (await self._segments.file(start)).fdatasync)
        if self._segments.starts:
            await run(Lane.FLUSH, self._env.files.sync_dir, self._segments.directory)
        for first, units in found.missing_units:
            await self._make_index_files(first, len(units) // INDEX_UNIT.size)
            await run(Lane.FLUSH, self._index.write, first, units)
        self._index.distrust(found.scanned_from, found.last_index)
        await self.sync_index()
        for start in reversed(found.stale_segments):
            await self._retire(start)
        await self._segments.open_hot()
        self.durable_mark = self._synced_index = self.last_index
        self.durable_pos = self.end_pos
        header = await self._header_at_end()
        self.covered: bool = header is not None and bool(header.channel & COVERED)
        if not base.known and self.last_index < self.first_index:
            if on_doubt is not None:
                await on_doubt("the log holds no entry, and the snapshot before its beginning is lost")
            await self._reset(ORIGIN)  # any leader can fill it: with entries, or by an install
        return found

    async def _erase_header(self, pos: int) -> None:
        """Erase the header behind the end of the log, so that no entry that could be accepted stays there
        (S1)."""
        run = self._env.workers.run
        start = self._segments.start_of(pos)
        if not self._segments.has(start) or pos - start + HEADER_SIZE > self._segments.size:
            return
        # Even if there are zeros: those of an interrupted cut may be only in the page cache (S2).
        await run(
            Lane.FLUSH,
            (await self._segments.file(start)).pwritev_synced,
            [bytes(HEADER_SIZE)],
            pos - start,
        )

    async def _write_again(self, pos: int, end: int) -> None:
        """Write entries again that no index unit marks as durable, so that the next fsync really writes them.

        The last run may have been killed between a failed fsync and its marker (S3). The kernel then shows
        data that the disk does not have, and does not write it again by itself.
        """
        run = self._env.workers.run
        while pos < end:
            start = self._segments.start_of(pos)
            size = min(AGAIN_BYTES, end - pos, start + self._segments.size - pos)
            if self._segments.has(start):
                await run(Lane.FLUSH, _write_same, await self._segments.file(start), pos - start, size)
            pos += size

    async def _retire(self, start: int) -> None:
        await self._segments.close_viewed()
        path, free = self._segments.abandon(start)
        if free:
            await self.pool.give_back(path)
            return
        # A connection may hold a view of it until the bytes are sent: they stay, under no name.
        run, files = self._env.workers.run, self._env.files
        await run(Lane.DISK, files.unlink, path)
        await run(Lane.DISK, files.sync_dir, self._segments.directory)

    # Cutting

    async def truncate(self, index: int, resets: int | None = None) -> bool:
        """Remove entries from `index` on, durably. Behind the cut nothing stays that recovery could accept
        (S1).

        Returns False if a `reset` came first; then there is nothing left to cut. `resets` is the number of
        resets when the cut was decided (default: now). While the position of the cut is not known, the call
        waits for a repair from a peer.
        """
        resets = self.resets if resets is None else resets
        for near in (index - 1, index):
            if self.first_index <= near <= self._written_index() and await self._is_lost(near):
                await self.examine(near, near)  # a whole entry gets its index unit back
        while True:
            try:
                async with self._io:
                    if resets != self.resets:
                        return False
                    if await settled(lambda: self._knows_end_before(index)):
                        try:
                            await self._truncate(index)
                            return True
                        except OSError as error:
                            await self.poison(error)
            except NoRoom as error:
                self._say_short(str(error))
            await asyncio.sleep(ROOM_RETRY_S)  # without the lock: retention may make room, peers repair

    async def _is_lost(self, index: int) -> bool:
        """Whether the index unit of an entry is lost."""
        return await settled(lambda: self._place_of(index)) is None

    def _knows_end_before(self, index: int) -> bool:
        """Whether entry `index`, or the end of the one before it, can be located."""
        if index <= self.first_index or index > self.last_index:
            return True
        place = self._place_of(index)
        if place is not None and place[0] > self._segments.start_of(place[0]):
            return True
        if self._place_of(index - 1) is not None:
            return True
        self.note_damage(index - 1, index - 1)
        return False

    async def _truncate(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise ValueError(f"cannot cut at {index}: the log holds {self.first_index}..{self.last_index}")
        run = self._env.workers.run
        await self._sync_written()
        await self._write_units()
        before = await settled(lambda: self.end_of(index - 1))
        try:
            pos, _ = await self.find(index)
        except KeyError:
            pos = before
        if index == self.first_index or pos > self._segments.start_of(pos):
            before = pos  # it begins right behind the entry before, even if nothing is known about that one
        self.cuts += 1
        while self._unwritten and self._unwritten[-1].first >= index:
            self._unwritten.pop()
        if self._unwritten and self._unwritten[-1].last >= index:
            self._unwritten.append(first_part(self._unwritten.pop(), index - 1))
        if pos < self._written_pos:
            # Else a kill in the middle would look like a loss of acknowledged entries.
            await run(Lane.FLUSH, self.note_written, index - 1)
            # Units first: a crash in between only brings back entries that the leader cuts again.
            for file in await run(Lane.FLUSH, self._index.clear_from, index):
                await run(Lane.FLUSH, file.fdatasync)
            await self._erase_header(pos)
            # The last segment first: a crash in between must not leave a hole.
            for start in reversed(self._segments.starts):
                if start > pos or (start == pos and start != before):
                    await self._retire(start)
            await self._segments.open_hot()
            self._written_pos = before
        self._terms.truncate(index)
        self.faulty.truncate(index)
        self.suspects.truncate(index)
        self.last_index = index - 1
        self.last_term = self._terms.term_of(index - 1) if index > self.first_index else self._base.term  # type: ignore[assignment]
        self.end_pos = before
        self.durable_mark = min(self.durable_mark, index - 1)
        self._synced_index = min(self._synced_index, index - 1)
        self.durable_pos = min(self.durable_pos, before)
        self.last_chain = await self._chain_at_end()
        self.cuts += 1
        if index == self.first_index and not self._base.known:
            raise NodeFailed(
                f"{self._dir} holds no entries, and the snapshot before the beginning of its log is "
                f"lost: {REFILL_ADVICE}",
                EXIT_STORE,
            )

    async def _chain_at_end(self) -> int | None:
        if self.last_index < self.first_index:
            return self._base.chain
        if self._unwritten:
            return self._unwritten[-1].chain
        header = await self._header_at_end()
        return None if header is None else header.chain_crc

    async def _header_at_end(self) -> EntryHeader | None:
        """Header of the last entry, which is in a file. None for an empty log, or when that entry is corrupt.

        Also updates `newest_ms` with the store time of the entry.
        """
        if self.last_index < self.first_index or self.last_index in self.faulty:
            return None
        try:
            pos, _ = await self.find(self.last_index)
            header = unpack_header(await self.read(pos, HEADER_SIZE))
            # The whole entry is checked: a corrupt store time could never be undone, for the whole group.
            data = await self.read(pos, min(max(header.size, HEADER_SIZE), MAX_ENTRY_SIZE))
            header = check_entry(data, 0, self.last_index, pos, -1, None)
            self.newest_ms = max(self.newest_ms, store_time_of(data))
            return header
        except (KeyError, ValueError, CorruptEntry, Rotten, OSError) as error:
            if isinstance(error, OSError):
                self.put_off(error, self.last_index, self.last_index)
            # Examined before anybody is asked: only then its chain value is known.
            self.note_damage(self.last_index, self.last_index)
            return None

    # Beginning later

    async def drop_before(self, base: LogBase) -> bool:
        """Free the segments before `base.pos`, the oldest first. Returns False if the caller must try again,
        because some are still read, or nothing lies behind `base` now (a cut came in between).

        `base` is a durable snapshot of this store (S20), and a later segment must begin there. The store has
        recorded durably that its log begins there. Do not call it while a `reset` runs.
        """
        async with self._io:  # a repair or an examination must not lose its files
            if base.pos > self._base.pos:
                if base.index == self.durable_mark:
                    return False
                if not self._segments.has(base.pos) or base.index > self.durable_mark:
                    raise ValueError(f"the log cannot begin at {base.pos}: it ends at {self.end_pos}")
                self._base = base
                self.newest_ms = max(self.newest_ms, base.store_time_ms)
                self.first_index = base.index + 1
                self._terms.forget_before(self.first_index)
                self.faulty.remove(0, base.index)
                self.suspects.remove(0, base.index)
        try:
            while True:
                async with self._io:  # segment by segment: the flusher gets its turn in between
                    freed = await self._free_segment()
                    if freed is not None:
                        return freed and await self._free_units()
        except NoRoom as error:
            self._env.log.warning("the new beginning of the log is not durable yet", error=error)
            return False
        except OSError as error:
            if error.errno in OUT_OF_MEANS:
                self._env.log.warning("segments not removed now, trying again", error=error)
                return False
            raise refused_by_system(f"cannot free a segment in {self._dir}", error) from error

    async def close_viewed(self) -> None:
        """Close files that a cut or an install removed while a reader used them, if the reader has
        finished."""
        await self._segments.close_viewed()

    async def _free_segment(self) -> bool | None:
        """Free the first segment. Returns None if one was freed, True if all are freed, and False if the
        first one is still read."""
        start = self._segments.first_start
        if not self._segments.has(start) or start >= self._base.pos:
            return True
        path = self._segments.remove(start)
        if path is None:
            return False
        await self.pool.give_back(path)
        return None

    async def _free_units(self) -> bool:
        if await self._env.workers.run(Lane.FLUSH, self._index.drop_before, self.first_index):
            await self._env.workers.run(Lane.FLUSH, self._sync_index_names)
        return True

    async def reset(self, base: LogBase) -> None:
        """Remove the whole log and begin an empty one behind `base`, the last entry of an installed snapshot.
        After a crash in the middle the caller can repeat it (`open(replace=True)`)."""
        async with self._io:
            try:
                await self._reset(base)
            except OSError as error:
                await self.poison(error)

    async def _reset(self, base: LogBase) -> None:
        # Memory first: reads during the disk work must not look for entries that are being removed.
        written = min(self.durable_mark, base.index)
        self.resets += 1
        self._unwritten.clear()
        self._unindexed.clear()
        self._base = base
        self._terms = TermTable()
        self.faulty.truncate(0)
        self.suspects.truncate(0)
        self.cuts += 1
        self.first_index: int = base.index + 1
        self.last_index: int = base.index
        self.durable_mark: int = base.index
        self._synced_index = base.index
        self.last_term: int = base.term
        self.end_pos: int = base.pos
        self.durable_pos: int = base.pos
        self._written_pos = base.pos
        self.last_chain = base.chain
        self.newest_ms: int = base.store_time_ms
        run, files = self._env.workers.run, self._env.files
        await run(Lane.FLUSH, self.note_written, written)
        for start in reversed(self._segments.starts):
            await self._retire(start)
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

    async def close(self) -> bool:
        """Write the rest of the index and close the files. Return whether everything written is fsynced.

        Raises TimeoutError if the disk does not answer. If a write failed for which no caller waited, the
        marker is left here.
        """
        if self._index_timer is not None:
            self._index_timer.cancel()
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S), self._io:
                # The flusher was cancelled, but its job may still run.
                await self._env.workers.run(Lane.FLUSH, lambda: None)
                if self._writes.failure is None:  # else an fsync that "works" would certify what is lost (S3)
                    await self._sync_written()
                    try:
                        await self._write_units()
                    except NoRoom as error:
                        self._say_short(str(error))
                    await self.sync_index()
                await self._segments.close_viewed()
        finally:
            if self._writes.failure is not None and not self._marked:
                self._env.log.error("log not closed cleanly", error=repr(self._writes.failure))
                await self._leave_marker(self._writes.failure)
        self._segments.close()
        self._index.close()
        return self._writes.failure is None


def _write_same(file: File, at: int, size: int) -> None:
    """Read bytes and write them back; blocking. A block that cannot be read stays as it is; recovery has
    noted that it is corrupt."""
    try:
        data = file.pread(size, at)
    except OSError:
        if size > _BLOCK:
            half = size // 2
            _write_same(file, at, half)
            _write_same(file, at + half, size - half)
        return
    file.pwritev([data], at)
