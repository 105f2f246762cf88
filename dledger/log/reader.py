"""What is read of the log: indexes and terms from memory, entries from the tail or the mapped segments.

Written bytes of the newest segments ("hot") are read through the map; older ones by a worker (safety.md S8).
"""

from __future__ import annotations

import asyncio
from collections import deque

from dledger.log.base import ORIGIN, LogBase
from dledger.log.index_files import IndexFiles
from dledger.log.segments import Segments
from dledger.log.tail import Batch, cut_batch
from dledger.log.terms import TermTable
from formats.entry import HEADER_SIZE, unpack_header
from runtime import Env, Lane

HOT_SEGMENTS = 4
"""Newest segments whose pages are read through the map on the loop; older ones by a worker."""


class ReadableLog:
    """State of the log and all reading of it. Implements `LogView`, `LogReader` and `LogTip`."""

    def __init__(self, env: Env, node_dir: str, segment_size: int, index_units_per_file: int) -> None:
        self._env = env
        self._segments = Segments(env, node_dir, segment_size, HOT_SEGMENTS)
        self._index = IndexFiles(env.files, node_dir, index_units_per_file)
        self._terms = TermTable()
        self._base = ORIGIN
        self._first_index = 0
        self._last_index = -1
        self._last_term = -1
        self._end_pos = 0
        self._written_pos = 0
        self._durable_index = -1
        self._durable_pos = 0
        self.last_chain = 0
        """Chain value of the last entry."""
        self._unwritten: deque[Batch] = deque()
        """The tail: sealed and not yet in the file."""
        self._unindexed: deque[Batch] = deque()
        """Written, but their index units are not."""

    @property
    def base(self) -> LogBase:
        """What lies before the first entry."""
        return self._base

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
    def begin_pos(self) -> int:
        return self._base.pos

    @property
    def end_pos(self) -> int:
        return self._end_pos

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._segments.size

    def term_of(self, index: int) -> int | None:
        """Term of an entry, also of the one before the first; -1 for index -1; None when it is not known."""
        if index == self._base.index:
            return self._base.term if self._base.known else None
        if not self._first_index <= index <= self._last_index:
            return None
        return self._terms.term_of(index)

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= index whose term is <= `term`, the entry before the first included; -1 when there is
        none."""
        found = self._terms.last_of_term_at_most(term, index)
        if found >= self._first_index:
            return found
        base = self._base
        return base.index if base.known and base.index <= index and base.term <= term else -1

    def locate(self, index: int) -> tuple[int, int]:
        """(pos, size) of an entry; KeyError when the log does not hold it."""
        batch = self._tail_batch(index)
        if batch is not None:
            offset = index - batch.first
            return batch.pos + sum(batch.sizes[:offset]), batch.sizes[offset]
        unit = self._index.unit(index) if index >= self._first_index else None
        if unit is None:
            raise KeyError(index)
        return unit.pos, unit.size

    def end_of(self, index: int) -> int:
        """Offset behind entry `index`; the start of the log for those before it."""
        if index == self._last_index:
            return self._end_pos
        if index < self._first_index:
            return self._base.pos
        batch = self._tail_batch(index)
        if batch is not None and batch.last == index:
            return batch.end_pos
        pos, size = self.locate(index)
        return pos + size

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        """(last index, bytes) of a run from `first`; see `LogView.range_end`."""
        batch = self._tail_batch(first)
        if batch is not None:
            return cut_batch(batch, first, max_bytes)
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
        """Bytes of the hot window; None when they are cold.

        What was appended a moment ago is still in memory: reading it there spares the page faults.
        """
        data = self._from_tail(pos, size)
        if data is not None:
            return data
        if pos + size > self._written_pos or not self._segments.is_hot(pos, self._end_pos):
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
        return self._unwritten[0].first - 1 if self._unwritten else self._last_index
