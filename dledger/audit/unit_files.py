"""Files of fixed-size units: index files (32 bytes) and ConsumeQueue files (20 bytes).

A directory holds a sequence of files, named by the offset of their first byte. Units that were never written
read as zeros, whether the file was created in full size or grew; a written unit is never all zeros.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress

from dledger.formats.store_files import parse_segment_name, segment_name
from dledger.runtime import File, Files

_CHUNK = 64 * 1024
_PROBE = 256


class UnitFiles:
    """View of a directory of such files, as it was when the view was made, although the files grow. A file
    that was removed since then reads as zeros.

    Blocking. Raises OSError for bad media, and if a name is not a file. Directories have thousands of files,
    and a view is made for each scanned segment, so only the files that are read are opened. Only the last
    file grows.
    """

    def __init__(self, files: Files, directory: str, unit_size: int) -> None:
        self._files = files
        self._directory = directory
        self._unit = unit_size
        starts = map(parse_segment_name, files.listdir(directory))
        self._starts = sorted(start for start in starts if start is not None)
        self._sizes: dict[int, int] = {}
        if self._starts:
            with suppress(OSError):  # the caller that reads it gets the error
                self._size(self._starts[-1])
        self._open: tuple[int, File] | None = None
        self._end: int | None = None

    @property
    def first(self) -> int:
        """Number of the first unit that the files could hold; 0 if there is no file."""
        return next((start for start in self._starts if self._size(start) >= 0), 0) // self._unit

    def end(self) -> int:
        """Number after the last unit written; `first` if there is none. Reads from the end, once.

        A file may end within a unit that is being written; such a unit does not count.
        """
        if self._end is None:
            self._end = next(
                (
                    min((start + written + self._unit - 1), start + self._size(start)) // self._unit
                    for start in reversed(self._starts)
                    if (written := self._written(start))
                ),
                self.first,
            )
        return self._end

    def read(self, first: int, count: int) -> bytes:
        """Return exactly `count` units from number `first` on. Units for which no file has bytes are
        zeros."""
        parts = []
        at = first * self._unit
        stop = at + count * self._unit
        for number in range(max(0, bisect_right(self._starts, at) - 1), len(self._starts)):
            start = self._starts[number]
            if start >= stop:
                break
            end = start + self._size(start)
            if end <= at:
                continue
            if start > at:
                parts.append(bytes(start - at))
                at = start
            data = self._pread(start, min(end, stop) - at, at - start)
            parts.append(data)
            at += len(data)
        if at < stop:
            parts.append(bytes(stop - at))
        return b"".join(parts)

    def close(self) -> None:
        """Close the file that was read last."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _size(self, start: int) -> int:
        """Size of a file in bytes; -1 for a file that retention has just removed."""
        size = self._sizes.get(start)
        if size is None:
            try:
                size = self._files.size(f"{self._directory}/{segment_name(start)}")
            except FileNotFoundError:
                size = -1
            self._sizes[start] = size
        return size

    def _pread(self, start: int, size: int, offset: int) -> bytes:
        """Return bytes of one file; empty if the file no longer exists."""
        if self._open is None or self._open[0] != start:
            self.close()
            try:
                self._open = (start, self._files.open_read(f"{self._directory}/{segment_name(start)}"))
            except FileNotFoundError:
                return b""
        return self._open[1].pread(size, offset)

    def _written(self, start: int) -> int:
        """Size, in bytes, of a file up to its last byte that is not zero.

        Files may be created in full size (160 MB of holes) and are written from the front. So the head of
        each chunk is checked, beginning at the end, until one has data.
        """
        size = self._size(start)
        for at in range((size - 1) // _CHUNK * _CHUNK if size > 0 else -1, -1, -_CHUNK):
            length = min(_CHUNK, size - at)  # without what was added since the view was made
            if at == 0 or self._pread(start, min(_PROBE, length), at).strip(b"\0"):
                written = len(self._pread(start, length, at).rstrip(b"\0"))
                if written:
                    return at + written
        return 0
