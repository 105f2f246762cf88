"""Segment files: fixed-size pieces of the log, named by the offset of their first byte."""

from __future__ import annotations

from formats.store_files import DATA_DIR, parse_segment_name, segment_name
from runtime import Env, File, Lane


class SegmentError(Exception):
    """The data directory is not a log; the text says what is wrong and what to do."""


class Segments:
    """The directory `data`. Opened files are kept; the mapped view of the newest ones serves hot reads."""

    def __init__(self, env: Env, node_dir: str, segment_size: int, hot_segments: int) -> None:
        self._env = env
        self.directory = f"{node_dir}/{DATA_DIR}"
        self.size = segment_size
        self._hot = hot_segments
        self._files: dict[int, File] = {}
        self._retired: list[tuple[int, File]] = []

    def open(self) -> None:
        """Open all segments (blocking); SegmentError for a hole or a file of another size."""
        files = self._env.files
        files.mkdir(self.directory)
        expected: int | None = None
        for name in files.listdir(self.directory):
            start = parse_segment_name(name)
            if start is None:
                continue
            path = f"{self.directory}/{name}"
            size = files.size(path)
            if size != self.size:
                raise SegmentError(
                    f"{path} has {size} bytes, segments of this store have {self.size}: "
                    "was mapedFileSizeCommitLog changed? It is fixed when a store is made"
                )
            if expected is not None and start != expected:
                raise SegmentError(
                    f"segment {segment_name(expected)} is missing before {name}: "
                    "replace this node's store (delete it and restart) to refill it from its peers"
                )
            expected = start + self.size
            self._files[start] = files.open(path)

    @property
    def starts(self) -> list[int]:
        """Offsets of the first bytes, ascending."""
        return sorted(self._files)

    def start_of(self, pos: int) -> int:
        """Offset of the first byte of the segment that holds `pos`."""
        return pos - pos % self.size

    def has(self, start: int) -> bool:
        """Whether the segment is there."""
        return start in self._files

    def file(self, start: int) -> File:
        """The open file of a segment."""
        return self._files[start]

    def path(self, start: int) -> str:
        """File name of a segment."""
        return f"{self.directory}/{segment_name(start)}"

    async def add(self, start: int) -> None:
        """A file was moved to `path(start)`: open it."""
        self._files[start] = await self._env.workers.run(Lane.DISK, self._env.files.open, self.path(start))

    def is_hot(self, pos: int, end_pos: int) -> bool:
        """Whether `pos` lies in the newest segments, whose pages are expected in memory."""
        return pos >= self.start_of(max(end_pos - 1, 0)) - (self._hot - 1) * self.size

    def view(self, pos: int, size: int) -> memoryview | None:
        """A slice of one segment's map; None when the log does not hold it. Blocks on cold pages."""
        start = self.start_of(pos)
        file = self._files.get(start)
        if file is None or pos - start + size > self.size:
            return None
        return file.view()[pos - start : pos - start + size]

    def pread(self, pos: int, size: int) -> bytes:
        """The same bytes by a read (blocking); ValueError when the log does not hold them."""
        start = self.start_of(pos)
        file = self._files.get(start)
        if file is None or pos - start + size > self.size:
            raise ValueError(f"no segment holds {size} bytes at {pos}")
        data = file.pread(size, pos - start)
        if len(data) != size:
            raise ValueError(f"{file.path}: {len(data)} of {size} bytes at {pos - start}")
        return data

    def remove(self, start: int) -> str | None:
        """Close a segment and name its file for recycling; None while a reader holds a view of it (S6)."""
        file = self._files[start]
        try:
            file.close()
        except BufferError:
            return None
        del self._files[start]
        return self.path(start)

    def close(self) -> None:
        """Close all files; those that a reader still views stay open until the process ends."""
        for file in self._files.values():
            try:
                file.close()
            except BufferError:
                self._env.log.debug("segment still viewed at close", path=file.path)
        self._files.clear()
