"""Looks up single entries of a log by index or position, without a scan. It is used for what other files say
about the log: files that are read while the node runs may be newer than the scan of a segment.
"""

from __future__ import annotations

import struct

from dledger.audit.store_directory import Replica
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAX_ENTRY_SIZE,
    EntryHeader,
    known_magic,
    unpack_header,
)
from dledger.formats.store_files import INDEX_DIR
from dledger.runtime import Files


class LogProbe:
    """The entries of one replica. Blocking; OSError of the disk is raised."""

    def __init__(self, files: Files, replica: Replica) -> None:
        self._files = files
        self._replica = replica

    def at(self, position: int) -> EntryHeader | None:
        """The header of the entry that begins at a log offset; None if no entry begins there."""
        header, _ = self._read(position, HEADER_SIZE)
        return header

    def entry(self, index: int) -> tuple[EntryHeader, bytes] | None:
        """Header and body of an entry; None if it cannot be found by its index unit."""
        units = UnitFiles(self._files, f"{self._replica.directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
        try:
            if not units.first <= index < units.end():
                return None
            _, position, size, said, _ = INDEX_UNIT.unpack(units.read(index, 1))
        finally:
            units.close()
        if said != index or not HEADER_SIZE <= size <= MAX_ENTRY_SIZE:
            return None
        header, data = self._read(position, size)
        if header is None or header.index != index or len(data) < header.size:
            return None
        return header, data[HEADER_SIZE : header.size]

    def _read(self, position: int, size: int) -> tuple[EntryHeader | None, bytes]:
        segment_size = self._replica.segment_size
        if position < 0 or segment_size <= 0:
            return None, b""
        start = position - position % segment_size
        try:
            file = self._files.open_read(self._replica.places.path_of(start))
        except FileNotFoundError:
            return None, b""
        try:
            data = file.pread(size, position - start)
        finally:
            file.close()
        try:
            header = unpack_header(data)
        except struct.error:
            return None, b""
        fits = known_magic(header) and header.pos == position
        return (header if fits and header.size == HEADER_SIZE + header.body_size else None), data
