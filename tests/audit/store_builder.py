"""Deterministic stores for tests: the same log in any number of directories, and ways to damage one.

Built from dledger/formats/ alone, so that these tests judge the writer's stores by the specification.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgpack

from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    COVERED,
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
    EntryHeader,
    Kind,
    chain_crc,
    encode_entry,
    unpack_header,
)
from dledger.formats.message_ids import tags_code
from dledger.formats.record import (
    CRC_MASK,
    FIXED_SIZE,
    TRANSACTION_PREPARED,
    encode_record,
    record_size,
    system_record,
    system_record_size,
)
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

SEGMENT_SIZE = 64 * 1024
QUEUES = 4


@dataclass
class Log:
    """A log in memory: bytes by position, one header per entry, queue units by (topic, queue id)."""

    segment_size: int = SEGMENT_SIZE
    segments: dict[int, bytearray] = field(default_factory=dict)
    entries: list[EntryHeader] = field(default_factory=list)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    pos: int = 0
    chain: int = 0
    term: int = 1
    skip: int = 0
    """Indexes that the next entry leaves out: a writer gone wrong."""
    covered: bool = True
    """Whether CRCs cover the channel, as programs of peer protocol 3 write them."""
    stale: bytes = b""
    """What a new segment holds before it is written: a recycled file."""

    def _reserve(self, size: int) -> None:
        offset = self.pos % self.segment_size
        if offset and offset + size + MIN_BLANK_SIZE > self.segment_size:
            start = self.pos - offset
            rest = self.segment_size - offset
            self.segments[start][offset : offset + MIN_BLANK_SIZE] = BLANK.pack(BLANK_MAGIC, rest)
            self.pos = start + self.segment_size
        start = self.pos - self.pos % self.segment_size
        if start not in self.segments:
            self.segments[start] = bytearray(self.stale.ljust(self.segment_size, b"\0"))

    def add(self, body: bytes, kind: Kind, remaining: int = 0) -> int:
        """One entry at `pos`, which `_reserve` made room for; its index."""
        index = self.entries[-1].index + 1 + self.skip if self.entries else 0
        self.skip = 0
        data = encode_entry(
            index, self.term, self.pos, body, self.chain, kind, remaining, covered=self.covered
        )
        header = unpack_header(data)
        offset = self.pos % self.segment_size
        self.segments[self.pos - offset][offset : offset + len(data)] = data
        self.entries.append(header)
        self.chain = header.chain_crc
        self.pos += len(data)
        return index

    def system(self, value: object, kind: Kind = Kind.SYSTEM, at_ms: int = 1_700_000_000_000) -> int:
        """A system entry."""
        body = msgpack.packb(value, use_bin_type=True)
        self._reserve(HEADER_SIZE + system_record_size(len(body)))
        return self.add(system_record(body, self.pos + HEADER_SIZE, at_ms), kind)

    def open_term(self, term: int) -> int:
        """The first entry of a leadership."""
        self.term = term
        return self.system({"op": "open"}, Kind.TERM_OPENING)

    def batch(self, messages: list[dict[str, object]]) -> list[int]:
        """Messages as one client batch: keyword arguments of `encode_record`."""
        sizes = [
            HEADER_SIZE
            + record_size(
                len(m["body"]),  # type: ignore[arg-type]
                len(str(m["topic"]).encode()),
                len(str(m.get("properties", "")).encode()),
            )
            for m in messages
        ]
        self._reserve(sum(sizes))
        indexes = []
        for number, message in enumerate(messages):
            key = (str(message["topic"]), int(str(message.get("queue_id", 0))))
            prepared = message.get("sys_flag") == TRANSACTION_PREPARED
            units = self.queues.setdefault(key, [])
            fields: dict[str, object] = {
                "physical_offset": self.pos + HEADER_SIZE,
                "queue_offset": len(units),
                "store_timestamp": 1_700_000_000_000 + len(self.entries),
                "born_timestamp": 1_700_000_000_000 + len(self.entries) - 5,
                **message,
            }
            record = encode_record(**fields)  # type: ignore[arg-type]
            if not prepared:
                _, _, tags = str(message.get("properties", "")).partition("TAGS\x01")
                code = tags_code(tags.split("\x02")[0])
                units.append(UNIT.pack(self.pos + HEADER_SIZE, len(record), code))
            indexes.append(self.add(record, Kind.MESSAGE, len(messages) - 1 - number))
        return indexes

    def message(self, topic: str, body: bytes, **fields: object) -> int:
        """One message."""
        return self.batch([{"topic": topic, "body": body, **fields}])[0]

    def copy(self) -> Log:
        """An independent log with the same content."""
        return Log(
            self.segment_size,
            {start: bytearray(data) for start, data in self.segments.items()},
            list(self.entries),
            {key: list(units) for key, units in self.queues.items()},
            self.pos,
            self.chain,
            self.term,
            self.skip,
            self.stale,
        )


def sample_log(messages: int = 2500, segment_size: int = SEGMENT_SIZE, stale: bytes = b"") -> Log:
    """Terms, batches, tags, system entries, a half message, two topics: some of everything."""
    log = Log(segment_size=segment_size, stale=stale)
    log.open_term(1)
    log.system({"op": "topic", "name": "orders", "queues": QUEUES})
    number = 0
    while number < messages:
        if number % 97 == 50:
            size = 5
            batch: list[dict[str, object]] = [
                {"topic": "orders", "queue_id": number % QUEUES, "body": b"batch %d" % (number + i)}
                for i in range(size)
            ]
            log.batch(batch)
            number += size
            continue
        body = b"order %06d " % number + bytes([number % 251]) * (number * 37 % 120)
        properties = f"KEYS\x01k{number}\x02TAGS\x01{'ABC'[number % 3]}\x02" if number % 4 else ""
        topic = "orders" if number % 5 else "payments"
        log.message(topic, body, queue_id=number % QUEUES, properties=properties)
        if number % 500 == 250:
            log.system({"op": "offsets", "group": "g", "at": number})
        if number == messages // 2:
            log.open_term(3)
        if number % 600 == 300:
            log.message("orders", b"half", queue_id=0, sys_flag=TRANSACTION_PREPARED)
        number += 1
    return log


def vote_for(candidate: str, node: str) -> str:
    """A vote as `node` saves it: the bare id for itself, otherwise with the candidate's incarnation."""
    return candidate if candidate == node else f"{candidate}/incarnation-{candidate}"


def write_store(
    log: Log,
    root: Path,
    node: str = "n0",
    *,
    committed: int | None = None,
    claimed_end: int | None = None,
    group: str = "g0",
    cluster: str = "c0",
    identity: bool = True,
    queue_file_size: int = 0,
    members: tuple[str, ...] = ("n0", "n1", "n2"),
) -> Path:
    """Write a store (storePathRootDir) as a stopped node leaves it; the path.

    `queue_file_size`: bytes that ConsumeQueue files are preallocated to, 0 for as long as their content.
    """
    directory = root / f"dledger-{node}"
    (directory / "data").mkdir(parents=True)
    (directory / "index").mkdir()
    (directory / "pool").mkdir()
    for start, data in log.segments.items():
        (directory / "data" / segment_name(start)).write_bytes(data)
    last = log.entries[-1].index
    units = bytearray((last + 1) * INDEX_UNIT_SIZE)
    for entry in log.entries:
        unit = INDEX_UNIT.pack(MAGIC, entry.pos, entry.size, entry.index, entry.term)
        units[entry.index * INDEX_UNIT_SIZE : (entry.index + 1) * INDEX_UNIT_SIZE] = unit
    half = (len(units) // 2) // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE
    (directory / "index" / segment_name(0)).write_bytes(units[:half])
    (directory / "index" / segment_name(half)).write_bytes(units[half:] + bytes(4096))
    checkpoint = Checkpoint(
        last if claimed_end is None else claimed_end, last if committed is None else committed
    )
    (directory / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    if identity:
        named = {name: f"incarnation-{name}" for name in members}
        who = Identity(group, node, f"incarnation-{node}", log.segment_size, cluster, named)
        (directory / "identity").write_bytes(encode_json(who))
        slots = encode_slot(2, HardState(max(entry.term for entry in log.entries), vote_for("n1", node)))
        slots += encode_slot(1, HardState(1, node))
        (directory / "hardstate").write_bytes(slots.ljust(MIRROR_OFFSET, b"\0") + slots)
    else:
        (directory / "currterm").write_text(f"currTerm={max(entry.term for entry in log.entries)}\n")
    for (topic, queue_id), queue in log.queues.items():
        if queue:
            path = root / "consumequeue" / topic / str(queue_id)
            path.mkdir(parents=True)
            (path / segment_name(0)).write_bytes(b"".join(queue).ljust(queue_file_size, b"\0"))
    return root


def write_group(log: Log, root: Path, nodes: int = 3) -> list[Path]:
    """Write a log as `nodes` equal stores."""
    return [write_store(log, root / f"n{number}", f"n{number}") for number in range(nodes)]


def segment_path(store: Path, start: int) -> Path:
    """File of a segment."""
    return next(store.glob("dledger-*")) / "data" / segment_name(start)


def patch(store: Path, pos: int, data: bytes, segment_size: int = SEGMENT_SIZE) -> None:
    """Overwrite bytes of the log."""
    start = pos - pos % segment_size
    with segment_path(store, start).open("r+b") as file:
        file.seek(pos - start)
        file.write(data)


def read_entry(store: Path, entry: EntryHeader, segment_size: int = SEGMENT_SIZE) -> bytes:
    """Bytes of an entry on disk."""
    start = entry.pos - entry.pos % segment_size
    return segment_path(store, start).read_bytes()[entry.pos - start :][: entry.size]


def flip(store: Path, entry: EntryHeader, offset: int, mask: int = 0x10) -> None:
    """Flip bits of one byte, `offset` bytes into the entry."""
    patch(store, entry.pos + offset, bytes([read_entry(store, entry)[offset] ^ mask]))


def rewrite(store: Path, log: Log, index: int, *, chain: bool = True) -> None:
    """Replace a message by another one with valid CRCs of its own; `chain`: its chain value fits, too."""
    entry = log.entries[index]
    record = bytearray(read_entry(store, entry)[HEADER_SIZE:])
    size = int.from_bytes(record[FIXED_SIZE - 4 : FIXED_SIZE], "big")
    record[FIXED_SIZE] ^= 0xFF
    body_crc = crc32(record[FIXED_SIZE : FIXED_SIZE + size]) & CRC_MASK
    record[8:12] = body_crc.to_bytes(4, "big")
    before = log.entries[index - 1].chain_crc if index else 0
    patch(store, entry.pos, _sealed(entry, bytes(record), before, keep_chain=not chain))


def rebuild_chain(store: Path, log: Log, index: int) -> None:
    """Make the chain fit what entry `index` and those behind it are now, as if nothing had been replaced."""
    chain = log.entries[index - 1].chain_crc if index else 0
    for entry in log.entries[index:]:
        header = unpack_header(read_entry(store, entry)[:HEADER_SIZE])
        chain = chain_crc(chain, header.index, header.term, header.body_crc)
        patch(store, entry.pos, HEADER.pack(*header._replace(chain_crc=chain)))


def _sealed(entry: EntryHeader, body: bytes, before: int, *, keep_chain: bool) -> bytes:
    fresh = unpack_header(
        encode_entry(
            entry.index,
            entry.term,
            entry.pos,
            body,
            before,
            entry.kind,
            entry.batch_remaining,
            covered=bool(entry.channel & COVERED),
        )
    )
    chain = entry.chain_crc if keep_chain else chain_crc(before, entry.index, entry.term, fresh.body_crc)
    return HEADER.pack(*fresh._replace(chain_crc=chain)) + body


def cut_after(store: Path, log: Log, index: int, *, committed: int | None = None) -> None:
    """Make this a replica that never got the entries above `index`: a clean, lagging one."""
    kept = log.copy()
    del kept.entries[index + 1 :]
    end = log.entries[index].pos + log.entries[index].size
    for start in sorted(kept.segments):
        if start >= end:
            del kept.segments[start]
        elif start + kept.segment_size > end:
            kept.segments[start][end - start :] = bytes(start + kept.segment_size - end)
    kept.queues = {
        key: [unit for unit in units if UNIT.unpack(unit)[0] < end] for key, units in kept.queues.items()
    }
    node = next(store.glob("dledger-*")).name.removeprefix("dledger-")
    shutil.rmtree(store)
    write_store(kept, store, node, committed=committed)
