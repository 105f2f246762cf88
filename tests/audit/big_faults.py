"""Faults in large stores: many at a time where they do not meet, undone afterwards instead of copied anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from dledger.audit.report import Report
from dledger.bench.big_store import INDEX_FILE_UNITS, TIME_MS, BigLog
from dledger.formats.consume_queue import UNIT, UNIT_SIZE
from dledger.formats.entry import (
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    EntryHeader,
    Kind,
    chain_crc,
    crc_begin,
    encode_entry,
    unpack_header,
)
from dledger.formats.index_file import UNIT_SIZE as KEY_UNIT_SIZE
from dledger.formats.index_file import unit_offset, unpack_index_header
from dledger.formats.record import CRC_MASK, FIXED_SIZE, system_record
from dledger.formats.state import pack_op
from dledger.formats.store_files import (
    IDENTITY_FILE,
    Checkpoint,
    decode_identity,
    encode_checkpoint,
    encode_json,
    segment_name,
)
from tests.audit.engine import audit

Said = tuple[str, str, int, int]
"""Code, replica, first and last index of a finding."""


class BigGroup:
    """Stores that are damaged and mended again; `undo` brings back what was there."""

    def __init__(self, root: Path, stores: list[Path], log: BigLog, keys: Path) -> None:
        self.engine: Callable[[list[Path]], Report] = audit
        """What audits."""
        self.stores = stores
        self.log = log
        self.keys = keys
        """The only IndexFile, of n1."""
        self._hidden = root / "hidden"
        self._hidden.mkdir()
        self._undo: list[Callable[[], object]] = []
        self._number = 0

    def audit(self, stores: list[Path] | None = None) -> Report:
        """What the engine reports of these stores."""
        return self.engine(stores or self.stores)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def node(self, replica: int) -> Path:
        return next(self.stores[replica].glob("dledger-*"))

    def segment(self, replica: int, number: int) -> Path:
        return self.node(replica) / "data" / segment_name(number * self.log.segment_size)

    @property
    def segments(self) -> int:
        return self.log.headers[-1].pos // self.log.segment_size + 1

    # --- places ---------------------------------------------------------------------------------------

    def at(self, pos: float) -> int:
        """Index of the first entry that begins at or after that log offset."""
        return bisect_left(self.log.headers, pos, key=lambda header: header.pos)

    def lone(self, segment: int, share: float = 0.5) -> EntryHeader:
        """A message of no batch, nor its neighbours, this far into a segment."""
        index = self.at((segment + share) * self.log.segment_size)
        while True:
            around = self.log.headers[index - 1 : index + 2]
            if all(entry.kind == Kind.MESSAGE and not entry.batch_remaining for entry in around):
                return self.log.headers[index]
            index += 1

    def span(self, segment: int) -> tuple[int, int]:
        """First and last index in a segment."""
        size = self.log.segment_size
        return self.at(segment * size), self.at((segment + 1) * size) - 1

    # --- changes --------------------------------------------------------------------------------------

    def write(self, path: Path, offset: int, data: bytes) -> None:
        """Overwrite bytes, or append."""
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(offset)
            old = file.read(len(data))
            file.seek(offset)
            file.write(data)
        self._undo.append(lambda: self._restore(path, offset, old, size))

    @staticmethod
    def _restore(path: Path, offset: int, old: bytes, size: int) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(old)
            file.truncate(size)

    def flip(self, path: Path, offset: int, mask: int = 0x10) -> None:
        with path.open("rb") as file:
            file.seek(offset)
            (octet,) = file.read(1)
        self.write(path, offset, bytes([octet ^ mask]))

    def flip_entry(self, replica: int, entry: EntryHeader, offset: int, mask: int = 0x10) -> None:
        path, start = self.place(replica, entry.pos)
        self.flip(path, start + offset, mask)

    def place(self, replica: int, pos: int) -> tuple[Path, int]:
        """File and offset of a log offset."""
        number, offset = divmod(pos, self.log.segment_size)
        return self.segment(replica, number), offset

    def hide(self, path: Path) -> None:
        self._number += 1
        self.move(path, self._hidden / str(self._number))

    def move(self, path: Path, to: Path) -> None:
        path.rename(to)
        self._undo.append(lambda: to.rename(path))

    def later(self, call: Callable[[], object]) -> None:
        """Part of `undo`."""
        self._undo.append(call)

    def unreadable(self, path: Path) -> None:
        """A directory in the file's place."""
        self.hide(path)
        path.mkdir()
        self._undo.append(path.rmdir)

    def content(self, path: Path, data: bytes) -> None:
        """The whole of a small file."""
        old = path.read_bytes()
        path.write_bytes(data)
        self._undo.append(lambda: path.write_bytes(old))

    def shorten(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.seek(size)
            rest = file.read()
            file.truncate(size)
        self._undo.append(lambda: self._restore(path, size, rest, size + len(rest)))

    def index_unit(self, replica: int, index: int) -> tuple[Path, int]:
        number, unit = divmod(index, INDEX_FILE_UNITS)
        name = segment_name(number * INDEX_FILE_UNITS * INDEX_UNIT_SIZE)
        return self.node(replica) / "index" / name, unit * INDEX_UNIT_SIZE

    def queue_unit(self, replica: int, entry: EntryHeader) -> tuple[Path, int]:
        """File and offset of the ConsumeQueue unit of a message."""
        for (topic, queue_id), units in self.log.queues.items():
            at = bytes(units).find(UNIT.pack(entry.pos + HEADER_SIZE, entry.body_size, 0)[:12])
            if at >= 0 and at % UNIT_SIZE == 0:
                path = self.stores[replica] / "consumequeue" / topic / str(queue_id) / segment_name(0)
                return path, at
        raise AssertionError(f"no unit of {entry}")

    def key_unit(self, entry: EntryHeader) -> int:
        """Offset of the first unit of a message in the IndexFile."""
        position = entry.pos + HEADER_SIZE
        number = bisect_left(self.log.keys, position, key=lambda key: key[1]) + 1
        slots = (self.keys.stat().st_size - 40) // (4 + 4 * KEY_UNIT_SIZE)
        assert unpack_index_header(self.keys.read_bytes()[:40]).count == len(self.log.keys) + 1
        return unit_offset(slots, number)

    def commit(self, replica: int, end: int, committed: int) -> None:
        self.content(self.node(replica) / "checkpoint", encode_checkpoint(Checkpoint(end, committed)))

    def rewrite(self, replica: int, entry: EntryHeader) -> None:
        """Another body of the same size, with valid CRCs and a chain that fits the entry before."""
        path, offset = self.place(replica, entry.pos)
        with path.open("rb") as file:
            file.seek(offset + HEADER_SIZE)
            record = bytearray(file.read(entry.body_size))
        size = int.from_bytes(record[FIXED_SIZE - 4 : FIXED_SIZE], "big")
        record[FIXED_SIZE] ^= 0xFF
        record[8:12] = (crc32(record[FIXED_SIZE : FIXED_SIZE + size]) & CRC_MASK).to_bytes(4, "big")
        body_crc = crc32(record, crc_begin(entry.channel))
        before = self.log.headers[entry.index - 1].chain_crc
        chain = chain_crc(before, entry.index, entry.term, body_crc)
        header = HEADER.pack(*entry._replace(chain_crc=chain, body_crc=body_crc))
        self.write(path, offset, header + bytes(record))

    def cut(self, replica: int, end: int, derived_end: int | None = None) -> None:
        """Remove all entries above index `end`, and what was derived from those above `derived_end`."""
        last = self.log.headers[end]
        after = last.pos + last.size
        number, offset = divmod(after, self.log.segment_size)
        for later in range(number + 1, self.segments):
            self.hide(self.segment(replica, later))
        path = self.segment(replica, number)
        self.write(path, offset, bytes(path.stat().st_size - offset))
        self.cut_index(replica, end)
        self.cut_derived(replica, end if derived_end is None else derived_end)
        for snapshot in sorted((self.node(replica) / "snapshots").iterdir()):
            if int(snapshot.name) > after:
                self.hide(snapshot)

    def cut_index(self, replica: int, end: int) -> None:
        """Remove index units above `end`."""
        path, offset = self.index_unit(replica, end + 1)
        for file in sorted(path.parent.iterdir()):
            if file.name > path.name:
                self.hide(file)
        if path.exists():
            self.shorten(path, offset)

    def cut_derived(self, replica: int, end: int) -> None:
        """Remove ConsumeQueue units of messages above `end`, and the broker's state file."""
        position = self.log.headers[end].pos + HEADER_SIZE
        for (topic, queue_id), units in self.log.queues.items():
            count = bisect_left(
                range(len(units) // UNIT_SIZE),
                position + 1,
                key=lambda number, units=units: UNIT.unpack_from(units, number * UNIT_SIZE)[0],
            )
            path = self.stores[replica] / "consumequeue" / topic / str(queue_id) / segment_name(0)
            self.shorten(path, count * UNIT_SIZE)
        self.hide(self.stores[replica] / "state")

    def append(self, replica: int, after: EntryHeader, term: int, count: int = 1) -> list[EntryHeader]:
        """Entries of that term behind this one, chain and all; their headers."""
        written = []
        for _ in range(count):
            pos = after.pos + after.size
            record = system_record(pack_op({"op": "topic"}), pos + HEADER_SIZE, TIME_MS + 10**9)
            data = encode_entry(after.index + 1, term, pos, record, after.chain_crc, Kind.SYSTEM, 0)
            path, offset = self.place(replica, pos)
            assert offset + len(data) + 8 <= self.log.segment_size
            self.write(path, offset, data)
            after = unpack_header(data)
            written.append(after)
            path, offset = self.index_unit(replica, after.index)
            self.write(path, offset, INDEX_UNIT.pack(MAGIC, pos, after.size, after.index, term))
        return written

    def regroup(self, replica: int, group: str) -> None:
        """Make it the store of another group's node."""
        path = self.node(replica) / IDENTITY_FILE
        who = decode_identity(path.read_bytes())
        incarnation = f"incarnation-{group}-{who.node}"
        members = {**who.members, who.node: incarnation}
        self.content(path, encode_json(replace(who, group=group, incarnation=incarnation, members=members)))


def said(report: Report) -> list[Said]:
    """All findings, of whatever severity."""
    return sorted((f.code, f.replica, f.first_index, f.last_index) for f in report.findings)
