"""Examining suspected entries again, and writing good copies over corrupt ones (safety.md S4).

`examine` separates what is whole (a lost index unit is made anew from its entry) from what is not. `mend`
takes a peer's copy of corrupt entries. It accepts the copy only if it fits everything that is left here: the
terms, the index units, the entries on both sides and the chain through them.
"""

from __future__ import annotations

import asyncio
import errno
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from dledger.errors import EXIT_START, EXIT_STORE, OUT_OF_MEANS, NodeFailed
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    MIN_BLANK_SIZE,
    CorruptEntry,
    EntryHeader,
    Kind,
    chain_crc,
    unpack_header,
)
from dledger.log.index_files import IndexFiles
from dledger.log.index_units import settled
from dledger.log.io_lock import IoLock
from dledger.log.reader import ReadableLog
from dledger.log.reading import check_stored, store_time_of
from dledger.log.recovery_scan import (
    End,
    Place,
    Rot,
    Walker,
    chain_and_time,
    chain_of,
    header_of,
    place_before,
)
from dledger.log.segments import Segments
from dledger.runtime import Env, File, Lane

_EVERYTHING = 1 << 62
T = TypeVar("T")


class NoRoom(Exception):
    """Raised when a segment or index file cannot be prepared or opened now. The call can be repeated without
    harm."""


class Unfitting(Exception):
    """Raised when a copy does not fit the entries and index units that are left on this node. The text says
    what differs."""


@dataclass
class Examined:
    """Result of an examination: corrupt entries, index units to be written (first index, bytes), and
    configurations."""

    rotten: list[tuple[int, int]] = field(default_factory=list)
    units: list[tuple[int, bytes]] = field(default_factory=list)
    configs: list[int] = field(default_factory=list)


def examine_range(
    segments: Segments, index: IndexFiles, origin: Place, mark: int, first: int, last: int
) -> Examined:
    """Walk over entries `first..last`, all of which were durable once. Blocking. `origin` is the place before
    the log."""
    result = Examined()

    def misfit(header: EntryHeader) -> None:
        unit = INDEX_UNIT.pack(MAGIC, header.pos, header.size, header.index, header.term)
        result.units.append((header.index, unit))

    def note(header: EntryHeader) -> None:
        if header.kind == Kind.CONFIG and first <= header.index:
            result.configs.append(header.index)

    walker = Walker(segments, index, mark, power_lost=False)
    at = place_before(segments, index, first, origin)
    while at.index < last:
        at = walker.run(at, last, _EVERYTHING, note, misfit)
        if at.index >= last:
            break
        met = walker.obstacle(at)
        if isinstance(met, End):
            result.rotten.append((at.index + 1, last))
            break
        if isinstance(met, Rot):
            result.rotten.append((at.index + 1, min(met.place.index, last)))
        at = met.place
    return result


class MendableLog(ReadableLog):
    """A log whose corrupt entries can be repaired; see the module."""

    def __init__(self, env: Env, node_dir: str, segment_size: int, index_units_per_file: int) -> None:
        super().__init__(env, node_dir, segment_size, index_units_per_file)
        self._io = IoLock()
        """Lock that is held while the files of the log change."""

    @abstractmethod
    async def poison(self, error: OSError) -> NoReturn:
        """Raise NodeFailed, which ends the node, because a write or fsync failed (S3)."""

    @abstractmethod
    async def _make_index_files(self, first: int, count: int) -> None:
        """Make room for these index units. Raises NoRoom if that is not possible now."""

    @abstractmethod
    async def sync_index(self) -> None:
        """Make the index units written so far durable."""

    def first_place(self) -> Place:
        """The place before the first entry."""
        base = self._base
        return Place(self.first_index - 1, base.term, base.pos, base.chain)

    def look(
        self, job: Callable[[Segments, IndexFiles, Place, int], T], place: Place, mark: int
    ) -> asyncio.Future[T]:
        """Start a worker's job that reads the files."""
        return self._env.workers.run(Lane.DISK, job, self._segments, self._index, place, mark)

    async def examine(self, first: int, last: int) -> None:
        """Decide again which of these entries are faulty. Entries that cannot be read now stay suspects."""
        try:
            await self._examine(first, last)
        except OSError as error:
            self.put_off(error, first, last)

    async def _examine(self, first: int, last: int) -> None:
        async with self._io:
            wanted, last = last, min(last, self._written_index(), self.durable_mark)
            self.suspects.remove(max(first, last + 1), wanted)
            self.faulty.remove(max(first, last + 1), wanted)  # in memory: nothing was read of the disk
            first = max(first, self.first_index)  # retention may have taken the rest meanwhile
            if last < first:
                return
            run = self._env.workers.run
            found = await self._walk_over(first, last)
            try:
                for index, unit in found.units:
                    await self._make_index_files(index, 1)  # its file may have been lost
                    await run(Lane.FLUSH, self._index.write, index, unit)
                await self.sync_index()
            except NoRoom as error:
                self._env.log.warning(
                    "repair of corrupt entries waits for disk space", first=first, last=last, error=error
                )
                return
            except OSError as error:
                await self.poison(error)
            self._index.look_again(first, last)
            # Done first, because a node whose log has no faulty entries may become leader at once.
            at_end = self.last_index
            chain, time_ms = await self._chain_and_time(at_end) if at_end <= last else (None, -1)
            self.suspects.remove(first, last)
            self.faulty.remove(first, last)
            for begin, end in found.rotten:
                self.faulty.add(begin, end)
            if at_end not in self.faulty:
                self.newest_ms = max(self.newest_ms, time_ms)
                if self.last_chain is None and self.last_index == at_end:  # nothing was appended meanwhile
                    self.last_chain = chain

    async def configs_among(self, first: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Find which of these entries, all of them durable, are configurations, and which are corrupt (those
        are noted).

        Raises OSError if they cannot be read now.
        """
        async with self._io:
            found = await self._walk_over(first, last)
            for begin, end in found.rotten:
                self.note_damage(begin, end, certain=True)
            return found.configs, found.rotten

    def _walk_over(self, first: int, last: int) -> asyncio.Future[Examined]:
        """Start `examine_range` by a worker. Call it with the lock held."""
        place, mark = self.first_place(), self.durable_mark
        return self._env.workers.run(
            Lane.DISK, examine_range, self._segments, self._index, place, mark, first, last
        )

    async def _chain_of(self, index: int) -> int | None:
        """Chain value of a written entry; None unless the entry before confirms it."""
        place = self.first_place()
        return await self._env.workers.run(
            Lane.DISK, chain_of, self._segments, self._index, index, self.first_index, place.chain
        )

    async def _chain_and_time(self, index: int) -> tuple[int | None, int]:
        """Chain value of a written entry (see `_chain_of`), and its store time, which is -1 if it has no
        record."""
        place = self.first_place()
        return await self._env.workers.run(
            Lane.DISK, chain_and_time, self._segments, self._index, index, self.first_index, place.chain
        )

    async def mend(self, first: int, last: int, data: bytes) -> None:
        """Write a peer's copy over faulty entries, durably. Raises Unfitting if the copy does not fit or
        cannot be written now; then the entries stay faulty."""
        try:
            await self._mend(first, last, data)
        except NoRoom as error:
            raise Unfitting(str(error)) from error
        except OSError as error:
            self.put_off(error, first, last)
            raise Unfitting(f"its neighbours cannot be read now: {error}") from error

    async def _mend(self, first: int, last: int, data: bytes) -> None:
        async with self._io:
            headers = self._fit(first, last, data)
            pos = headers[0].pos
            await self._check_neighbours(headers)
            run = self._env.workers.run
            start = self._segments.start_of(pos)
            units = b"".join(INDEX_UNIT.pack(MAGIC, h.pos, h.size, h.index, h.term) for h in headers)
            try:
                await self._make_index_files(first, len(headers))  # they may have been lost
                await run(Lane.FLUSH, (await self._file(start)).pwritev_synced, [data], pos - start)
                if await self._read_back(pos, len(data)) != data:
                    raise OSError(
                        errno.EIO, "what was written reads back differently", self._segments.path(start)
                    )
                await run(Lane.FLUSH, self._index.write, first, units)
                await self.sync_index()
            except OSError as error:
                await self.poison(error)
            self.faulty.remove(first, last)
            if last == self.last_index:
                self.last_chain = headers[-1].chain_crc
                self.newest_ms: int = max(self.newest_ms, store_time_of(data, headers[-1].pos - pos))

    async def _file(self, start: int) -> File:
        """Open a segment for writing. Raises NoRoom if it cannot be opened now."""
        try:
            return await self._segments.file(start)
        except OSError as error:
            raise _not_opened(error) from error

    async def _read_back(self, pos: int, size: int) -> bytes:
        """Read back what was written. Raises NoRoom if the segment cannot be opened now."""
        try:
            return await self._env.workers.run(Lane.DISK, self._segments.pread, pos, size)
        except OSError as error:
            raise _not_opened(error) from error
        except ValueError as error:  # the log still has it: nobody retires or cuts meanwhile
            path = self._segments.path(self._segments.start_of(pos))
            if await self._env.workers.run(Lane.DISK, self._env.files.exists, path):
                raise NodeFailed(f"{path} was truncated while this node ran: {error}", EXIT_STORE) from error
            raise NodeFailed(
                f"{path} was removed while this node ran, so newer entries went to a deleted file: "
                "restart the node, and it fetches the missing entries from its peers",
                EXIT_START,
            ) from error

    async def mend_blank(self, index: int, pos: int, cuts: int) -> None:
        """Write the blank tail of a segment again. It says that the log continues in the next segment (S5).

        It was found damaged behind entry `index`, at `pos`, when `self.cuts` was `cuts`. After a later cut
        something else may lie there. The index units must confirm the place; if there is doubt, nothing is
        written.
        """
        async with self._io:
            following = self._segments.start_of(pos) + self._segments.size
            if self.cuts != cuts or index < self.first_index or index >= self._last_indexed():
                return
            try:
                last, behind = await self._env.workers.run(Lane.DISK, self._index.units, index, 2)
            except OSError as error:
                self.put_off(error, index, index + 1)
                return  # the next pass of the scrub finds it again
            if last is None or last.pos + last.size != pos or behind is None or behind.pos != following:
                return
            try:
                await self.write_blank(pos)
            except NoRoom as error:
                self._env.log.warning("blank tail not repaired now", behind=index, error=error)
            except OSError as error:
                await self.poison(error)

    async def write_blank(self, pos: int) -> None:
        """Write the blank tail that closes a segment, at `pos`, durably. Raises NoRoom if the segment cannot
        be opened now."""
        start = self._segments.start_of(pos)
        rest = start + self._segments.size - pos
        if rest >= MIN_BLANK_SIZE:
            blank = BLANK.pack(BLANK_MAGIC, rest)
            await self._env.workers.run(
                Lane.FLUSH, (await self._file(start)).pwritev_synced, [blank], pos - start
            )

    def _fit(self, first: int, last: int, data: bytes) -> list[EntryHeader]:
        """Return the headers of a copy, after a check that it is whole in itself and has the terms that these
        entries have here."""
        if not self.first_index <= first <= last <= self._written_index() or len(data) < HEADER_SIZE:
            raise Unfitting(f"entries {first}..{last} are not in this log")
        pos = unpack_header(data).pos
        try:
            check_stored(data, first, last, pos, None)
        except CorruptEntry as error:
            raise Unfitting(str(error)) from error
        start = self._segments.start_of(pos)
        if not self._segments.has(start) or pos + len(data) > start + self._segments.size:
            raise Unfitting(f"no segment holds {len(data)} bytes at {pos}")
        headers = []
        offset = 0
        while offset < len(data):
            header = unpack_header(data, offset)
            offset += header.size
            if header.index not in self.faulty:
                raise Unfitting(f"entry {header.index} is not faulty")
            if header.term != self.term_of(header.index):
                raise Unfitting(f"entry {header.index} is of term {header.term} there, not here")
            headers.append(header)
        return headers

    async def _check_neighbours(self, headers: list[EntryHeader]) -> None:
        """Check that the copy continues the entry before it, and the entry behind it continues the copy, as
        far as these entries can be trusted."""
        run = self._env.workers.run
        before, behind = headers[0].index - 1, headers[-1].index + 1
        vouched = False
        if before >= self.first_index and before not in self.faulty:
            end = await settled(lambda: self.end_of(before))
            following = self._segments.start_of(max(end - 1, 0)) + self._segments.size
            if headers[0].pos not in (end, following):
                raise Unfitting(f"entry {before} ends at {end}, the copy begins at {headers[0].pos}")
            chain = await self._chain_of(before)
            vouched = chain is not None
            if chain is not None and not _continues(chain, headers[0]):
                raise Unfitting(f"the chain of entry {before} does not continue in the copy")
        elif before < self.first_index and self._base.chain is not None:
            vouched = headers[0].pos == self._base.pos and _continues(self._base.chain, headers[0])
            if not vouched:
                raise Unfitting(f"the copy of entry {headers[0].index} does not continue the log's snapshot")
        end = headers[-1].pos + headers[-1].size
        if behind > self.last_index:
            if end != self.end_pos:
                raise Unfitting(f"the log ends at {self.end_pos}, the copy at {end}")
        elif behind not in self.faulty and (
            (unit := await run(Lane.DISK, self._index.unit, behind)) is not None
        ):
            header = await run(Lane.DISK, header_of, self._segments, unit)
            if header is None:
                return
            following = self._segments.start_of(end - 1) + self._segments.size
            if header.pos not in (end, following):
                raise Unfitting(f"entry {behind} begins at {header.pos}, the copy ends at {end}")
            if not _continues(headers[-1].chain_crc, header):
                # The copy or the entry behind it is wrong. If the entries before the copy confirm it, the
                # entry behind is wrong.
                self.note_damage(behind, behind, certain=vouched)
                if not vouched:
                    raise Unfitting(f"the chain of the copy does not continue in entry {behind}")


def _not_opened(error: OSError) -> OSError | NoRoom:
    """The error to raise because opening failed. It is NoRoom if the failure says nothing about the disk."""
    return NoRoom(str(error)) if error.errno in OUT_OF_MEANS else error


def _continues(chain: int, header: EntryHeader) -> bool:
    """Whether an entry continues a chain. An entry written by Apache has no chain, and always does."""
    if header.chain_crc == 0 and header.body_crc == 0:
        return True
    return chain_crc(chain, header.index, header.term, header.body_crc) == header.chain_crc
