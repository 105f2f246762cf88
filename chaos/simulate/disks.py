"""What lies on a simulated disk, read without the product's store code: the judge brings an own reader.

`durable=True` reads what a power cut would leave at least: durable names and durable content.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from chaos.invariants import Entry
from chaos.sim.disk import Directory, Disk
from chaos.sim.inode import Inode
from formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    EntryHeader,
    chain_crc,
    unpack_header,
)
from formats.store_files import (
    DATA_DIR,
    HARD_STATE_FILE,
    INDEX_DIR,
    HardState,
    decode_hard_state,
    parse_segment_name,
)


class StoreOnDisk:
    """One node's store directory as its disk holds it."""

    def __init__(self, disk: Disk, node_dir: str) -> None:
        self._disk = disk
        self._parts = [part for part in node_dir.split("/") if part]

    def find(self, *path: str, durable: bool) -> Inode | Directory | None:
        """A file or directory below the store, through durable names only if asked so."""
        place: Inode | Directory | None = self._disk.root
        for part in (*self._parts, *path):
            if not isinstance(place, Directory):
                return None
            place = (place.durable if durable else place.names).get(part)
        return place

    def hard_state(self) -> HardState | None:
        """Term and vote that would survive a power cut."""
        file = self.find(HARD_STATE_FILE, durable=True)
        found = decode_hard_state(bytes(file.durable)) if isinstance(file, Inode) else None
        return None if found is None else found[1]

    def segments(self, durable: bool) -> list[tuple[int, bytearray]]:
        """(start, content) of the segments, ascending."""
        place = self.find(DATA_DIR, durable=durable)
        if not isinstance(place, Directory):
            return []
        found = []
        for name, thing in sorted((place.durable if durable else place.names).items()):
            start = parse_segment_name(name)
            if start is not None and isinstance(thing, Inode):
                found.append((start, thing.durable if durable else thing.content))
        return found

    def durable_mark(self, first: int, last: int) -> int:
        """Last index up to `last` whose index unit, and that of all from `first` on, is durable (S4)."""
        place = self.find(INDEX_DIR, durable=True)
        if not isinstance(place, Directory):
            return -1
        files = {
            parse_segment_name(name): thing.durable
            for name, thing in sorted(place.durable.items())
            if isinstance(thing, Inode)
        }
        size = max((len(content) for content in files.values()), default=0)
        for index in range(first, last + 1):
            at = index * INDEX_UNIT_SIZE
            content = files.get(at - at % size) if size else None
            unit = None if content is None else bytes(content[at % size : at % size + INDEX_UNIT_SIZE])
            if unit is None or len(unit) < INDEX_UNIT_SIZE or INDEX_UNIT.unpack(unit)[3] != index:
                return index - 1
            if INDEX_UNIT.unpack(unit)[0] != MAGIC:
                return index - 1
        return last

    def read(self, pos: int, size: int, segment_size: int, durable: bool) -> bytes:
        """Bytes of the log; short or empty when they are not there."""
        start = pos - pos % segment_size
        file = self.find(DATA_DIR, f"{start:020d}", durable=durable)
        if not isinstance(file, Inode):
            return b""
        content = file.durable if durable else file.content
        with memoryview(content) as view:
            return bytes(view[pos - start : pos - start + size])

    def walk(self, durable: bool) -> Iterator[tuple[EntryHeader, bytes]]:
        """(header, body) of the entries from the first on, as long as they continue and their CRCs fit."""
        expected: int | None = None
        before: EntryHeader | None = None
        for start, content in self.segments(durable):
            if expected is not None and start != expected:
                return
            expected = start + len(content)
            offset = 0
            with memoryview(content) as view:
                while len(view) - offset >= HEADER_SIZE:
                    header = unpack_header(view, offset)
                    if header.magic != MAGIC or header.pos != start + offset or header.size < HEADER_SIZE:
                        break
                    body = bytes(view[offset + HEADER_SIZE : offset + header.size])
                    if crc32(body) != header.body_crc or (before and not _continues(before, header)):
                        return
                    before = header
                    yield header, body
                    offset += header.size
                blank = len(view) - offset >= BLANK.size and BLANK.unpack_from(view, offset)[0] == BLANK_MAGIC
            if not blank and offset < len(content) - BLANK.size + 1:
                return


def _continues(before: EntryHeader, header: EntryHeader) -> bool:
    chain = chain_crc(before.chain_crc, header.index, header.term, header.body_crc)
    return header.index == before.index + 1 and chain == header.chain_crc


def entry_of(header: EntryHeader) -> Entry:
    """As the invariants compare it."""
    return Entry(header.term, header.chain_crc, header.pos, header.size)


class DurableMark:
    """How far a store's disk durably holds a log, found out step by step: each entry is read once."""

    def __init__(self, store: StoreOnDisk, segment_size: int) -> None:
        self._store = store
        self._segment_size = segment_size
        self.index = -1

    def holds(self, log: dict[int, Entry], first: int, index: int) -> bool:
        """Whether everything from `first` up to `index` of this log is durable."""
        self.index = max(self.index, first - 1)
        while self.index < index:
            entry = log.get(self.index + 1)
            if entry is None or not self._is_there(self.index + 1, entry):
                return False
            self.index += 1
        return True

    def cut(self, index: int) -> None:
        """Entries from `index` on are gone, or are to be read anew."""
        self.index = min(self.index, index - 1)

    def _is_there(self, index: int, entry: Entry) -> bool:
        data = self._store.read(entry.pos, entry.size, self._segment_size, durable=True)
        if len(data) < HEADER_SIZE:
            return False
        header = unpack_header(data)
        return (
            header.magic == MAGIC
            and header.index == index
            and entry_of(header) == entry
            and crc32(memoryview(data)[HEADER_SIZE:]) == header.body_crc
        )
