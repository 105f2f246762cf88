"""Reads the content of a simulated disk. It does not use the store code of the product, because the judge
must not depend on that code.

`durable=True` reads only what survives every power cut: durable names and durable content.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from dledger.chaos.invariants import Entry
from dledger.chaos.machine.disk import Directory, Disk
from dledger.chaos.machine.inode import Inode
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    EntryHeader,
    IndexUnit,
    chain_crc,
    crc_begin,
    unpack_header,
)
from dledger.formats.snapshot import MANIFEST_FILE, Manifest, check_parts, decode_manifest
from dledger.formats.store_files import (
    DATA_DIR,
    HARD_STATE_FILE,
    INDEX_DIR,
    SNAPSHOTS_DIR,
    CorruptFile,
    HardState,
    decode_hard_state,
    parse_segment_name,
    segment_name,
)


def find_file(disk: Disk, path: str) -> bytes:
    """Content of a file as programs see it. Empty if there is no such file."""
    place: Inode | Directory | None = disk.root
    for part in path.strip("/").split("/"):
        place = place.names.get(part) if isinstance(place, Directory) else None
    return bytes(place.content) if isinstance(place, Inode) else b""


class StoreOnDisk:
    """One node's store directory on its disk."""

    def __init__(self, disk: Disk, node_dir: str, segment_size: int) -> None:
        self._disk = disk
        self._segment_size = segment_size
        self._parts = [part for part in node_dir.split("/") if part]

    def find(self, *path: str, durable: bool) -> Inode | Directory | None:
        """A file or directory below the store. If `durable` is set, only durable names are followed."""
        place: Inode | Directory | None = self._disk.root
        for part in (*self._parts, *path):
            if not isinstance(place, Directory):
                return None
            place = (place.durable if durable else place.names).get(part)
        return place

    def hard_state(self) -> HardState | None:
        """The term and vote that would survive a power cut."""
        file = self.find(HARD_STATE_FILE, durable=True)
        found = decode_hard_state(bytes(file.durable)) if isinstance(file, Inode) else None
        return None if found is None else found[1]

    def segments(self, durable: bool) -> list[tuple[int, bytearray]]:
        """The segments as (start, content), sorted by start."""
        place = self.find(DATA_DIR, durable=durable)
        if not isinstance(place, Directory):
            return []
        found = []
        for name, thing in sorted((place.durable if durable else place.names).items()):
            start = parse_segment_name(name)
            if start is not None and isinstance(thing, Inode):
                found.append((start, thing.durable if durable else thing.content))
        return found

    def snapshots(self) -> list[int]:
        """Positions of the snapshots that would survive a power cut, sorted."""
        place = self.find(SNAPSHOTS_DIR, durable=True)
        names = place.durable if isinstance(place, Directory) else {}
        return sorted(pos for name in names if (pos := parse_segment_name(name)) is not None)

    def snapshot(self, pos: int, durable: bool) -> tuple[Manifest, dict[str, bytes]] | None:
        """The boundary snapshot at position `pos`, which is the state where a segment begins. None if it does
        not exist or is not complete."""
        place = self.find(SNAPSHOTS_DIR, segment_name(pos), durable=durable)
        if not isinstance(place, Directory):
            return None
        files = {
            name: bytes(file.durable if durable else file.content)
            for name, file in sorted((place.durable if durable else place.names).items())
            if isinstance(file, Inode)
        }
        try:
            manifest = decode_manifest(files.pop(MANIFEST_FILE, b""))
            check_parts(manifest, files)
        except CorruptFile:
            return None
        return manifest, files

    def durable_units(self, first: int, last: int) -> Iterator[IndexUnit]:
        """Yield the index units that entries `first` to `last` would still have after a power cut, up to the
        first gap."""
        place = self.find(INDEX_DIR, durable=True)
        if not isinstance(place, Directory):
            return
        files = {
            parse_segment_name(name): thing.durable
            for name, thing in sorted(place.durable.items())
            if isinstance(thing, Inode)
        }
        size = max((len(content) for content in files.values()), default=0)
        for index in range(first, last + 1):
            at = index * INDEX_UNIT_SIZE
            content = files.get(at - at % size) if size else None
            data = b"" if content is None else bytes(content[at % size : at % size + INDEX_UNIT_SIZE])
            unit = IndexUnit(*INDEX_UNIT.unpack(data)) if len(data) == INDEX_UNIT_SIZE else None
            if unit is None or unit.index != index or unit.magic != MAGIC:
                return
            yield unit

    def durable_mark(self, first: int, last: int) -> int:
        """The largest index, up to `last`, for which the index units from `first` to it are all durable
        (S4)."""
        return max((unit.index for unit in self.durable_units(first, last)), default=first - 1)

    def has_unit(self, unit: IndexUnit) -> bool:
        """Whether the index holds exactly this unit, both on the device and in the page cache."""
        place = self.find(INDEX_DIR, durable=True)
        for name, file in place.durable.items() if isinstance(place, Directory) else ():
            at = unit.index * INDEX_UNIT_SIZE - (parse_segment_name(name) or 0)
            if isinstance(file, Inode) and 0 <= at < len(file.durable):
                found = (content[at : at + INDEX_UNIT_SIZE] for content in (file.durable, file.content))
                return all(data == INDEX_UNIT.pack(*unit) for data in found)
        return False

    def read(self, pos: int, size: int, durable: bool) -> bytes:
        """Bytes of the log. The result is short or empty if the log does not have them."""
        start = pos - pos % self._segment_size
        file = self.find(DATA_DIR, f"{start:020d}", durable=durable)
        if not isinstance(file, Inode):
            return b""
        content = file.durable if durable else file.content
        with memoryview(content) as view:
            return bytes(view[pos - start : pos - start + size])

    def walk(self, durable: bool, begin: int = 0, behind: int = -1) -> Iterator[tuple[EntryHeader, bytes]]:
        """Yield (header, body) of the entries after entry `behind`, from position `begin` on. Stops where an
        entry does not continue the one before it, or its CRC does not fit."""
        expected: int | None = None
        before: EntryHeader | None = None
        for start, content in self.segments(durable):
            if start < begin:
                continue  # a rest: retention or an install was interrupted
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
                    whole = crc32(body, crc_begin(header.channel)) == header.body_crc
                    if not whole or header.index != behind + 1 or not _continues(before, header):
                        return
                    behind = header.index
                    before = header
                    yield header, body
                    offset += header.size
                blank = len(view) - offset >= BLANK.size and BLANK.unpack_from(view, offset)[0] == BLANK_MAGIC
            if not blank and offset < len(content) - BLANK.size + 1:
                return


def _continues(before: EntryHeader | None, header: EntryHeader) -> bool:
    """Whether `header` continues `before`. If `before` is None, `header` is the first entry of the log. If
    that entry does not have index 0, it always fits, because a snapshot stands for the earlier entries."""
    if before is None:
        chain = chain_crc(0, 0, header.term, header.body_crc)
        return header.index > 0 or chain == header.chain_crc
    chain = chain_crc(before.chain_crc, header.index, header.term, header.body_crc)
    return chain == header.chain_crc


def entry_of(header: EntryHeader) -> Entry:
    """The entry in the form in which the invariants compare entries."""
    return Entry(header.term, header.chain_crc, header.pos, header.size, header.channel)


class DurableMark:
    """How far a store's disk durably holds a log. It reads each entry once, and continues where it stopped.

    `fsynced=False` is for ASYNC_FLUSH. In that mode written data counts as well, because it survives the end
    of a process.
    """

    def __init__(self, store: StoreOnDisk, *, fsynced: bool = True) -> None:
        self._store = store
        self._fsynced = fsynced
        self.index: int = -1

    def holds(
        self, log: dict[int, Entry], first: int, index: int, rotten: dict[int, Entry] | None = None
    ) -> bool:
        """Whether every entry from `first` up to `index` of this log is durable. Entries in `rotten` count as
        durable."""
        self.index = max(self.index, first - 1)
        while self.index < index:
            wanted = self.index + 1
            entry = log.get(wanted)
            rots = rotten is not None and entry is not None and rotten.get(wanted) == entry
            if entry is None or not (rots or self.is_there(wanted, entry, durable=self._fsynced)):
                return False
            self.index = wanted
        return True

    def cut(self, index: int) -> None:
        """Note that the entries from `index` on were removed or have to be read again."""
        self.index = min(self.index, index - 1)

    def is_whole(self, index: int, entry: Entry) -> bool:
        """Whether the disk holds exactly this entry both on the device and in the page cache."""
        return self.is_there(index, entry) and self.is_there(index, entry, durable=False)

    def is_there(self, index: int, entry: Entry, *, durable: bool = True) -> bool:
        """Whether the disk holds exactly this entry and all of it. With `durable` the device is read,
        otherwise the page cache."""
        data = self._store.read(entry.pos, entry.size, durable)
        if len(data) < HEADER_SIZE:
            return False
        header = unpack_header(data)
        return (
            header.magic == MAGIC
            and header.index == index
            and entry_of(header) == entry
            and crc32(memoryview(data)[HEADER_SIZE:], crc_begin(header.channel)) == header.body_crc
        )
