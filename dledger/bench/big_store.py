"""Makes large stores quickly, to test the speed and the results of the audit with 0.3 to 2 GB.

An entry takes about 5 microseconds: its fields are packed by hand, and its body is a part of one block of
random bytes. The stores hold messages of several topics and tags, batches, consumer offsets and a change
of term. ConsumeQueue and index files, boundary snapshots and the broker's state file are as a broker
leaves them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from dledger.audit.records import java_hashes
from dledger.formats.checksum import crc32
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    MIN_BLANK_SIZE,
    EntryHeader,
    Kind,
)
from dledger.formats.index_file import MAX_SECONDS, IndexFileWriter, file_size
from dledger.formats.message_ids import tags_code
from dledger.formats.record import CRC_MASK, FIXED, FIXED_SIZE, MAGIC_V1, system_record
from dledger.formats.snapshot import MANIFEST_FILE, encode_manifest, make_manifest
from dledger.formats.state import GroupConfig, ReplicatedState, TopicConfig, offsets_op, pack_op, pack_parts
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot
from dledger.formats.store_files import (
    MIRROR_OFFSET,
    Checkpoint,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
    segment_name,
)

MIB = 1 << 20
TIME_MS = 1_700_000_000_000
TOPICS = 4
QUEUES = 8
TAGS = ("", "A", "B", "created")
INDEX_FILE_UNITS = 5_000_000 // 32


FORMAT = "entries of decision 14"
"""Text that is written into a store that is kept for later measurements. It must change whenever the
format of stores changes."""


def made_once(place: Path, make: Callable[[], object]) -> None:
    """Call `make` to fill a directory, unless that was done before. Raises SystemExit if another release
    filled the directory, because the figures would be those of that release."""
    mark = place / "made"
    if not place.is_dir() or not any(place.iterdir()):
        make()
        mark.write_text(FORMAT)
    elif not mark.exists() or mark.read_text() != FORMAT:
        raise SystemExit(f"bench: {place} is not of this release: delete it, or give another place")


@dataclass
class BigLog:
    """The content of a written log: the headers of its entries, and all data that is derived from them."""

    segment_size: int
    headers: list[EntryHeader] = field(default_factory=list)
    """The header of every entry."""
    queues: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    index: bytearray = field(default_factory=bytearray)
    end: int = 0
    keys: list[tuple[bytes, int, int]] = field(default_factory=list)
    """For each message: its topic and key as bytes that are hashed, its position, and its store time."""

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return len(self.headers) - 1

    def near(self, share: float) -> EntryHeader:
        """Return the header of a message at about this share of the log. Neither the message nor its
        neighbours are in a batch, and all three are in the same segment."""
        at = int(len(self.headers) * share)
        while True:
            around = self.headers[at - 1 : at + 2]
            alone = all(entry.kind == Kind.MESSAGE and not entry.batch_remaining for entry in around)
            together = len({entry.pos // self.segment_size for entry in around}) == 1
            if alone and together and len(around) == 3:
                return self.headers[at]
            at += 1


class _Writer:
    def __init__(self, store: Path, log: BigLog) -> None:
        self.log = log
        self.directory = store / "dledger-n0"
        self.pos = 0
        self.chain = 0
        self.term = 1
        self.state = ReplicatedState()
        self.store_ms = TIME_MS
        self._parts: list[bytes] = []
        self._file: IO[bytes] | None = None
        (self.directory / "data").mkdir(parents=True)
        (self.directory / "index").mkdir()
        self._open()

    def _open(self) -> None:
        self._file = (self.directory / "data" / segment_name(self.pos)).open("wb")

    def reserve(self, size: int) -> None:
        """Make room for this many bytes of entries; if they do not fit into the segment, begin the next
        one."""
        offset = self.pos % self.log.segment_size
        if offset + size + MIN_BLANK_SIZE <= self.log.segment_size:
            return
        rest = self.log.segment_size - offset
        self._parts.append(BLANK.pack(BLANK_MAGIC, rest))
        self.close_segment()
        self.pos += rest
        self._open()
        self._snapshot()

    def close_segment(self) -> None:
        """Write the bytes that are still in memory, and give the file its full size."""
        assert self._file is not None
        self._file.write(b"".join(self._parts))
        self._parts.clear()
        self._file.truncate(self.log.segment_size)
        self._file.close()

    def add(self, body: bytes, kind: Kind = Kind.MESSAGE, remaining: int = 0) -> None:
        """Add one entry at the position `pos`."""
        log = self.log
        index = len(log.headers)
        channel = COVERED | kind << 24 | remaining
        body_crc = crc32(body, channel)
        self.chain = crc32(CHAIN.pack(index, self.term, body_crc), self.chain)
        header = EntryHeader(
            MAGIC,
            HEADER_SIZE + len(body),
            index,
            self.term,
            self.pos,
            channel,
            self.chain,
            body_crc,
            len(body),
        )
        log.headers.append(header)
        log.index += INDEX_UNIT.pack(MAGIC, self.pos, header.size, index, self.term)
        self._parts += (HEADER.pack(*header), body)
        self.pos += header.size
        if len(self._parts) > 2048:
            assert self._file is not None
            self._file.write(b"".join(self._parts))
            self._parts.clear()

    def system(self, op: dict[str, object]) -> None:
        """Add an operation on the replicated state."""
        packed = pack_op(op)
        self.reserve(HEADER_SIZE + len(packed) + 200)
        self.add(system_record(packed, self.pos + HEADER_SIZE, self.store_ms), Kind.SYSTEM)
        self.state.apply(packed)

    def open_term(self, term: int) -> None:
        """Add the first entry of a leader's term."""
        self.term = term
        self.reserve(300)
        self.add(
            system_record(pack_op({"op": "open"}), self.pos + HEADER_SIZE, self.store_ms), Kind.TERM_OPENING
        )

    def _snapshot(self) -> None:
        last = self.log.headers[-1]
        parts = pack_parts(self.state)
        manifest = make_manifest(last.index, last.term, self.pos, last.chain_crc, self.store_ms, b"", parts)
        directory = self.directory / "snapshots" / segment_name(self.pos)
        directory.mkdir(parents=True)
        for name, data in parts.items():
            (directory / name).write_bytes(data)
        (directory / MANIFEST_FILE).write_bytes(encode_manifest(manifest))


def write_big_group(
    root: Path,
    total_bytes: int,
    *,
    nodes: int = 3,
    segment_size: int = 64 * MIB,
    body: int = 900,
    seed: int = 1,
) -> tuple[list[Path], BigLog]:
    """Write stores n0, n1, ... with the same content. All stores together have about `total_bytes` of
    entries."""
    log = BigLog(segment_size)
    store = root / "n0"
    _fill(_Writer(store, log), total_bytes // nodes, body, random.Random(seed))
    _finish(store, log)
    stores = [store]
    for number in range(1, nodes):
        copy = root / f"n{number}"
        shutil.copytree(store, copy)
        (copy / "dledger-n0").rename(copy / f"dledger-n{number}")
        stores.append(copy)
    for number, path in enumerate(stores):
        _sign(path, f"n{number}", log)
    return stores, log


def _fill(writer: _Writer, size: int, body: int, chance: random.Random) -> None:
    pool = chance.randbytes(1 << 17)
    writer.open_term(1)
    topics = [f"topic-{number}" for number in range(TOPICS)]
    for topic in topics:
        writer.system(TopicConfig(topic, QUEUES, QUEUES, 6).op())
    writer.system(GroupConfig("readers").op())
    number = 0
    while writer.pos < size:
        number += 1
        count = 4 if number % 500 == 0 else 1
        _messages(
            writer, topics[number % TOPICS], number // TOPICS % QUEUES, number, count, body, pool, chance
        )
        if number % 2000 == 0:
            topic = topics[number // 2000 % TOPICS]
            rows = [(topic, queue, writer.state.next_offset(topic, queue)) for queue in range(QUEUES)]
            writer.system(offsets_op("readers", rows))
        if writer.term == 1 and writer.pos > size // 2:
            writer.open_term(2)
    writer.close_segment()
    writer.log.end = writer.pos
    path = writer.directory.parent / "state"
    path.mkdir()
    (path / SNAPSHOT_FILE).write_bytes(pack_snapshot(writer.log.last, writer.pos, writer.state))


def _messages(
    writer: _Writer,
    topic: str,
    queue_id: int,
    number: int,
    count: int,
    body: int,
    pool: bytes,
    chance: random.Random,
) -> None:
    tags = TAGS[number % len(TAGS)]
    key, unique = b"order-%d" % number, b"7F0000010BAD18B4AAC2%08X%04X" % (number, count)
    properties = b"KEYS\x01%s\x02UNIQ_KEY\x01%s\x02WAIT\x01true\x02" % (key, unique)
    if tags:
        properties += f"TAGS\x01{tags}\x02".encode()
    raw = topic.encode()
    keys = (b"%s#%s" % (raw, unique), b"%s#%s" % (raw, key))
    tail = bytes([len(raw)]) + raw + len(properties).to_bytes(2, "big") + properties
    code = tags_code(tags)
    bounds = writer.state.bounds(topic, queue_id)
    units = writer.log.queues.setdefault((topic, queue_id), bytearray())
    sizes = [int(body * (0.5 + chance.random())) for _ in range(count)]
    writer.reserve(sum(sizes) + count * (HEADER_SIZE + FIXED_SIZE + len(tail)))
    writer.store_ms += number % 3 == 0
    writer.state.last_store_time_ms = writer.store_ms
    host = b"\x7f\0\0\1\0\0\x2a\x9f"
    for place, size in enumerate(sizes):
        start = chance.randrange(len(pool) - size)
        text = pool[start : start + size]
        physical = writer.pos + HEADER_SIZE
        total = FIXED_SIZE + size + len(tail)
        fixed = FIXED.pack(
            total,
            MAGIC_V1,
            crc32(text) & CRC_MASK,
            queue_id,
            0,
            bounds.next,
            physical,
            0,
            writer.store_ms - 3,
            host,
            writer.store_ms,
            host,
            0,
            0,
            size,
        )
        writer.add(fixed + text + tail, Kind.MESSAGE, count - 1 - place)
        writer.log.keys += ((each, physical, writer.store_ms) for each in keys)
        units += UNIT.pack(physical, total, code)
        if bounds.next == 0:
            bounds.first_position = physical
        bounds.next += 1


def _finish(store: Path, log: BigLog) -> None:
    size = INDEX_FILE_UNITS * 32
    for start in range(0, len(log.index), size):
        piece = log.index[start : start + size]
        (store / "dledger-n0" / "index" / segment_name(start)).write_bytes(piece)
    for (topic, queue_id), units in log.queues.items():
        path = store / "consumequeue" / topic / str(queue_id)
        path.mkdir(parents=True)
        (path / segment_name(0)).write_bytes(units)


def add_key_file(store: Path, log: BigLog) -> Path:
    """Write the IndexFile of all messages, as a broker writes it. Returns its path."""
    texts = np.frombuffer(b"".join(text for text, _, _ in log.keys), np.uint8)
    ends = np.cumsum([len(text) for text, _, _ in log.keys])
    hashes = np.abs(java_hashes(texts, np.concatenate(([0], ends[:-1])), ends)) & MAX_SECONDS
    slots = len(log.keys) // 4 + 1
    image = bytearray(file_size(slots, 4 * slots))

    def write(at: int, data: bytes) -> None:
        image[at : at + len(data)] = data

    writer = IndexFileWriter(write, slots, 4 * slots)
    for hashed, (_, position, store_ms) in zip(hashes.tolist(), log.keys, strict=True):
        writer.put(hashed, position, store_ms)
    path = store / "index" / "20231114221320000"
    path.parent.mkdir()
    path.write_bytes(image)
    return path


def _sign(store: Path, node: str, log: BigLog, group: str = "g0") -> None:
    directory = store / f"dledger-{node}"
    members = {name: f"incarnation-{name}" for name in ("n0", "n1", "n2")}
    who = Identity(group, node, members[node], log.segment_size, "c0", members)
    (directory / "identity").write_bytes(encode_json(who))
    vote = "n1" if node == "n1" else f"n1/{members['n1']}"  # a node votes for itself by its id alone
    slots = encode_slot(2, HardState(2, vote)) + encode_slot(1, HardState(1, node))
    (directory / "hardstate").write_bytes(slots.ljust(MIRROR_OFFSET, b"\0") + slots)
    (directory / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(log.last, log.last)))
