"""Writes several equal stores together, in such a way that an interrupted run can resume. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    CHAIN,
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
    crc_begin,
    pack_channel,
)
from dledger.formats.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from dledger.formats.store_files import DATA_DIR, INDEX_DIR, segment_name
from dledger.runtime import File, Files

INDEX_FILE_SIZE = 5 * 1024 * 1024 * INDEX_UNIT_SIZE
"""Size of an index file in bytes; it is the same in this project's stores and in Apache's."""
BUFFER_BYTES = 4 << 20
TERM = 1
"""Term of all imported entries."""


class EqualFiles:
    """Writes the same files in several directories."""

    def __init__(self, files: Files, directories: Sequence[str], segment_size: int) -> None:
        self._files = files
        self._directories = list(directories)
        self._segment_size = segment_size
        self._open: dict[tuple[str, str], tuple[str, File]] = {}
        for directory in directories:
            for name in (DATA_DIR, INDEX_DIR):
                files.mkdir(f"{directory}/{name}")

    def write(self, kind: str, at: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes of `data/` or `index/` at this offset in all directories. The bytes must lie within
        one file."""
        size = self._segment_size if kind == DATA_DIR else INDEX_FILE_SIZE
        name = segment_name(at - at % size)
        for directory in self._directories:
            self._file(directory, kind, name, size).pwritev([data], at % size)

    def _file(self, directory: str, kind: str, name: str, size: int) -> File:
        known = self._open.get((directory, kind))
        if known is not None and known[0] == name:
            return known[1]
        if known is not None:
            known[1].fdatasync()
            known[1].close()
        path = f"{directory}/{kind}/{name}"
        file = self._files.open(path, create=True)
        self._open[directory, kind] = (name, file)
        if kind == DATA_DIR:
            file.allocate(size)  # a node that goes on in this segment must not meet a full disk there
        else:
            file.truncate(size)
        return file

    def sync(self) -> None:
        """Make everything that was written durable."""
        for _, file in self._open.values():
            file.fdatasync()
        for directory in self._directories:
            for name in (DATA_DIR, INDEX_DIR):
                self._files.sync_dir(f"{directory}/{name}")

    def close(self) -> None:
        """Close the files without a sync."""
        for _, file in self._open.values():
            file.close()
        self._open = {}


@dataclass
class LogEnd:
    """Where the log continues: index and position of the next entry, and the value of the checksum chain
    before it."""

    index: int
    pos: int
    chain: int


class LogWriter:
    """Appends entries with this project's checksums, as a leader would append them."""

    def __init__(self, out: EqualFiles, segment_size: int, end: LogEnd) -> None:
        self._out = out
        self._size = segment_size
        self.end = end
        self._parts: list[bytes] = []
        self._units: list[bytes] = []
        self._waiting = 0
        self._data_at = end.pos
        self._index_at = end.index * INDEX_UNIT_SIZE

    def place(self, record_size: int) -> int:
        """Return the physical offset that a record of this size will get. If the record does not fit into
        the segment, a new segment is begun."""
        end, size = self.end, HEADER_SIZE + record_size
        room = self._size - end.pos % self._size
        if size + MIN_BLANK_SIZE > room:
            self._parts.append(BLANK.pack(BLANK_MAGIC, room))
            self.flush()
            end.pos += room
            self._data_at = end.pos
        return end.pos + HEADER_SIZE

    def add(self, raw: bytes, kind: int, queue_offset: int | None = None) -> None:
        """Append a record at the offset that `place` returned for its size. The record gets this physical
        offset, and the queue offset `queue_offset` if one is given."""
        end = self.end
        position = (end.pos + HEADER_SIZE).to_bytes(8, "big")
        before = raw[:PHYSICAL_OFFSET_AT]
        if queue_offset is not None:
            before = raw[:QUEUE_OFFSET_AT] + queue_offset.to_bytes(8, "big")
        body = b"".join((before, position, memoryview(raw)[PHYSICAL_OFFSET_AT + 8 :]))
        channel = pack_channel(kind, covered=True)
        body_crc = crc32(body, crc_begin(channel))
        end.chain = crc32(CHAIN.pack(end.index, TERM, body_crc), end.chain)
        size = HEADER_SIZE + len(body)
        header = HEADER.pack(MAGIC, size, end.index, TERM, end.pos, channel, end.chain, body_crc, len(body))
        self._parts += (header, body)
        self._units.append(INDEX_UNIT.pack(MAGIC, end.pos, size, end.index, TERM))
        end.index += 1
        end.pos += size
        self._waiting += size
        if self._waiting >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write collected entries; they are not durable yet."""
        data = b"".join(self._parts)
        if data:
            self._out.write(DATA_DIR, self._data_at, data)
        self._data_at = self.end.pos
        units = memoryview(b"".join(self._units))
        while units:
            room = INDEX_FILE_SIZE - self._index_at % INDEX_FILE_SIZE
            self._out.write(INDEX_DIR, self._index_at, units[:room])
            self._index_at += len(units[:room])
            units = units[room:]
        self._parts, self._units, self._waiting = [], [], 0

    def sync(self) -> None:
        """Make everything that was added durable."""
        self.flush()
        self._out.sync()
