"""Segment files: fixed-size pieces of the log, named by the offset of their first byte."""

from __future__ import annotations

from bisect import bisect_left, insort

from dledger.formats.store_files import DATA_DIR, parse_segment_name, segment_name
from dledger.log.reading import read_around_errors
from dledger.runtime import Env, File, Lane


class SegmentError(Exception):
    """Raised when the data directory is not a log. The text says what is wrong."""


MAX_OPEN = 16
"""Largest number of segments that are open (and mapped) at a time. Beyond that the oldest are closed, and
opened again on demand."""


class Segments:
    """The directory `data`. Reads of hot bytes use the mapped view of the newest segments."""

    def __init__(self, env: Env, node_dir: str, segment_size: int, hot_segments: int) -> None:
        self._env = env
        self.directory: str = f"{node_dir}/{DATA_DIR}"
        self.size = segment_size
        self._hot = hot_segments
        self._starts: list[int] = []
        self._files: dict[int, File] = {}
        self._viewed: list[File] = []
        """Files that were removed while a reader had a view of them; see `close_viewed`."""

    def open(self) -> None:
        """Find all segments (blocking). Raises SegmentError for a file of another size."""
        files = self._env.files
        files.mkdir(self.directory)
        for name in files.listdir(self.directory):
            start = parse_segment_name(name)
            if start is None:
                continue
            path = f"{self.directory}/{name}"
            size = files.size(path)
            if size != self.size:
                raise SegmentError(
                    f"{path} has {size} bytes instead of {self.size}: it is damaged, or "
                    "mapedFileSizeCommitLog was changed (then set it back)"
                )
            self._starts.append(start)

    async def open_hot(self) -> None:
        """Open the newest segments for `view`, after a change of which ones are the newest. If one cannot be
        opened, workers read it."""
        for start in self._starts[-self._hot :]:
            try:
                await self.file(start)
            except OSError as error:
                self._env.log.warning("segment not opened", path=self.path(start), error=error)

    @property
    def starts(self) -> list[int]:
        """Offsets of the segments' first bytes, ascending."""
        return list(self._starts)

    @property
    def first_start(self) -> int:
        """Offset of the first byte that the log holds; 0 when there is no segment."""
        return self._starts[0] if self._starts else 0

    def start_of(self, pos: int) -> int:
        """Offset of the first byte of the segment that holds `pos`."""
        return pos - pos % self.size

    def has(self, start: int) -> bool:
        """Whether the segment exists."""
        place = bisect_left(self._starts, start)
        return place < len(self._starts) and self._starts[place] == start

    def opened(self, start: int) -> File | None:
        """The file of a segment, if it exists and is open."""
        return self._files.get(start) if self.has(start) else None

    async def file(self, start: int) -> File:
        """The file of an existing segment; a worker opens it if needed. Raises OSError if that fails."""
        file = self._files.get(start)
        if file is None:
            opened = await self._env.workers.run(Lane.DISK, self._env.files.open, self.path(start))
            file = self._files.get(start)
            if file is not None:  # opened by another task in between
                opened.close()
            else:
                self._close_old()
                file = self._files[start] = opened
        return file

    def _close_old(self) -> None:
        newest = self._starts[-self._hot :]
        for start in sorted(self._files):
            if len(self._files) < MAX_OPEN:
                return
            if start not in newest:
                self._close_one(start)

    def _close_one(self, start: int) -> bool:
        if not _closes(self._files[start]):
            return False
        del self._files[start]
        return True

    def path(self, start: int) -> str:
        """Path of a segment's file."""
        return f"{self.directory}/{segment_name(start)}"

    async def add(self, start: int) -> None:
        """Add a segment whose file was moved to `path(start)`, and open it."""
        self._close_old()
        self._files[start] = await self._env.workers.run(Lane.DISK, self._env.files.open, self.path(start))
        insort(self._starts, start)

    def is_hot(self, pos: int, end_pos: int) -> bool:
        """Whether `pos` lies in the newest segments, whose pages are expected in memory."""
        return pos >= self.start_of(max(end_pos - 1, 0)) - (self._hot - 1) * self.size

    def view(self, pos: int, size: int) -> memoryview | None:
        """A slice of one segment's map. None if the log does not hold it, or the segment is not open. Blocks
        on cold pages."""
        start = self.start_of(pos)
        file = self._files.get(start)
        if pos - start + size > self.size or file is None:
            return None
        return file.view()[pos - start : pos - start + size]

    def pread(self, pos: int, size: int) -> bytes:
        """Bytes of one segment, read from the file (blocking). Raises ValueError if the log does not hold
        them."""
        start = self.start_of(pos)
        if pos - start + size > self.size or not self.has(start):
            raise ValueError(f"no segment holds {size} bytes at {pos}")
        # A handle of its own: the loop may close the shared one meanwhile.
        try:
            file = self._env.files.open(self.path(start))
            try:
                data = file.pread(size, pos - start)
            finally:
                file.close()
        except FileNotFoundError as error:
            raise ValueError(f"no segment holds {size} bytes at {pos}: it was removed meanwhile") from error
        if not self.has(start):  # retired while it was read: the file may hold other entries by now
            raise ValueError(f"no segment holds {size} bytes at {pos}: it was removed meanwhile")
        if len(data) != size:
            raise ValueError(f"{file.path}: {len(data)} of {size} bytes at {pos - start}")
        return data

    def pread_around_errors(self, start: int, size: int, offset: int) -> bytes:
        """Bytes of one segment (blocking), zeros where they cannot be read; empty if the segment does not
        exist. Raises OSError if the segment cannot be opened."""
        if not self.has(start):
            return b""
        # A handle of its own: the loop may close the shared one meanwhile.
        try:
            file = self._env.files.open(self.path(start))
        except FileNotFoundError:  # renamed a moment ago: retention, a cut or an install
            return b""
        try:
            data = read_around_errors(file, size, offset)
        finally:
            file.close()
        return data if self.has(start) else b""  # the file is in the pool now, and may hold other entries

    def remove(self, start: int) -> str | None:
        """Close a segment and return its file name for recycling; None while a reader holds a view of it
        (S6)."""
        if start in self._files and not self._close_one(start):
            return None
        self._starts.remove(start)
        return self.path(start)

    def abandon(self, start: int) -> tuple[str, bool]:
        """Remove a segment even if it is being read. Return its file name, and whether it may be recycled. A
        file of which a reader has a view may only be unlinked, because its content has to stay."""
        path = self.path(start)
        free = start not in self._files or self._close_one(start)
        if not free:
            self._viewed.append(self._files.pop(start))
        self._starts.remove(start)
        return path, free

    async def close_viewed(self) -> None:
        """Close removed files that are not read any more. A worker does it, because closing frees their
        space."""
        if self._viewed:
            viewed, self._viewed = self._viewed, []
            left = await self._env.workers.run(Lane.DISK, _close_unviewed, viewed)
            self._viewed += left  # files that were added meanwhile stay, too

    def close(self) -> None:
        """Close all files. Those that a reader still views stay open until the process ends."""
        for start in sorted(self._files):
            if not self._close_one(start):
                self._env.log.debug("segment is still in use at close", path=self.path(start))


def _close_unviewed(files: list[File]) -> list[File]:
    """Close files; blocking. Return those that are still viewed."""
    return [file for file in files if not _closes(file)]


def _closes(file: File) -> bool:
    try:
        file.close()
    except BufferError:  # it is still read: later
        return False
    return True
