"""Stores as Apache's DLedger brokers leave them, after the specification: no identity, no CRCs, channel 0.

Layouts: segments in `dledger-n0/data`, or (RocketMQ 4.9, storePathCommitLog) in `commitlog` beside
`dledger-n0`; a log that begins at a position above 0 behind an old CommitLog; NOOP entries of newer versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger.formats.consume_queue import FILE_SIZE
from dledger.formats.entry import HEADER, HEADER_SIZE, INDEX_UNIT, MAGIC, Kind, unpack_header
from dledger.formats.index_file import IndexFileWriter, file_size, is_indexed, key_hash, message_keys
from dledger.formats.properties import find_property
from dledger.formats.record import decode_record, encode_record
from dledger.formats.store_files import segment_name
from tests.audit.store_builder import SEGMENT_SIZE, Log

NOOP = 2
CHECKPOINT = "#Tue Mar 05 10:11:12 CST 2024\ncommittedIndex={committed}\nendIndex={end}\n"


@dataclass
class ApacheLog(Log):
    """A log with the messages as Apache's broker writes them."""

    def add(self, body: bytes, kind: Kind, remaining: int = 0) -> int:
        return self._add(body, MAGIC)

    def noop(self) -> int:
        """What opens a term in newer versions: an empty entry."""
        self._reserve(HEADER_SIZE)
        return self._add(b"", NOOP)

    def _add(self, body: bytes, magic: int) -> int:
        index = len(self.entries)
        size = HEADER_SIZE + len(body)
        data = HEADER.pack(magic, size, index, self.term, self.pos, 0, 0, 0, len(body)) + body
        offset = self.pos % self.segment_size
        self.segments[self.pos - offset][offset : offset + size] = data
        self.entries.append(unpack_header(data))
        self.pos += size
        return index


def apache_log(messages: int = 1500, begin: int = 0, *, noops: bool = True) -> ApacheLog:
    """Three terms, keys, tags, half messages, delayed messages."""
    log = ApacheLog(pos=begin)
    for number in range(messages):
        if number % 500 == 0:
            log.term = 1 + number // 500
            if noops:
                log.noop()
        topic = ("orders", "payments", "SCHEDULE_TOPIC_XXXX")[number % 3]
        body = b"message %06d " % number + bytes([number % 251]) * (number * 37 % 150)
        properties = f"KEYS\x01k{number} shared{number % 7}\x02UNIQ_KEY\x01AC11{number:08X}\x02"
        if number % 4:
            properties += f"TAGS\x01tag{number % 3}\x02"
        if number % 11 == 0:
            properties = ""
        log.message(topic, body, queue_id=number % 4, properties=properties)
        if number % 200 == 150:
            log.message("RMQ_SYS_TRANS_HALF_TOPIC", b"half", properties=f"UNIQ_KEY\x01half{number}\x02")
            log.message("orders", b"rolled back", sys_flag=0xC, properties="KEYS\x01never\x02")
            log.queues["orders", 0].pop()
    return log


def key_files(log: Log, slots: int = 500, units: int = 2000, *, tags: bool = False) -> list[bytes]:
    """IndexFiles of all messages, as IndexService builds them; `tags`: as in 5.4, which indexes them too."""
    images: list[bytearray] = []
    writer: IndexFileWriter | None = None
    for entry in log.entries:
        data = bytes(log.segments[entry.pos - entry.pos % log.segment_size])
        start = entry.pos % log.segment_size
        if entry.body_size == 0:
            continue
        record = decode_record(data[start + HEADER_SIZE : start + entry.size])
        if not is_indexed(record.sys_flag):
            continue
        properties = record.properties.encode()
        keys = list(message_keys(properties))
        if tags and (tag := find_property(properties, b"TAGS")):
            keys.append("T#" + tag.decode())
        for key in keys:
            hashed = key_hash(record.topic, key)
            if writer is None or writer.full:
                image = bytearray(file_size(slots, units))
                images.append(image)
                before = writer.header if writer else None
                writer = IndexFileWriter(_writing(image), slots, units, before)
            writer.put(hashed, record.physical_offset, record.store_timestamp)
    return [bytes(image) for image in images]


def _writing(image: bytearray):  # type: ignore[no-untyped-def]
    def write(at: int, data: bytes) -> None:
        image[at : at + len(data)] = data

    return write


def write_apache_store(
    log: Log,
    root: Path,
    node: str = "n0",
    *,
    beside: bool = False,
    committed: int | None = None,
    keys: list[bytes] | None = None,
) -> Path:
    """Write a store; `beside`: segments in `commitlog`."""
    directory = root / f"dledger-{node}"
    data = root / "commitlog" if beside else directory / "data"
    data.mkdir(parents=True)
    (directory / "index").mkdir(parents=True)
    for start, content in log.segments.items():
        (data / segment_name(start)).write_bytes(content)
    last = log.entries[-1].index
    units = b"".join(
        INDEX_UNIT.pack(entry.magic, entry.pos, entry.size, entry.index, entry.term) for entry in log.entries
    )
    (directory / "index" / segment_name(0)).write_bytes(units.ljust(len(units) + 100_000, b"\0"))
    text = CHECKPOINT.format(committed=last if committed is None else committed, end=last)
    (directory / "checkpoint").write_text(text)
    (directory / "currterm").write_text(f"voteLeader={node}\ncurrTerm={log.entries[-1].term}\n")
    for (topic, queue_id), queue in log.queues.items():
        if queue:
            path = root / "consumequeue" / topic / str(queue_id)
            path.mkdir(parents=True)
            with (path / segment_name(0)).open("wb") as file:
                file.write(_delivery_times(topic, queue))
                file.truncate(FILE_SIZE)
    for number, image in enumerate(key_files(log) if keys is None else keys):
        path = root / "index" / f"20240305101112{number:03d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image)
    for name in ("config", "abort"):
        (root / name).mkdir()
    return root


def _delivery_times(topic: str, queue: list[bytes]) -> bytes:
    if topic != "SCHEDULE_TOPIC_XXXX":
        return b"".join(queue)
    return b"".join(unit[:12] + (1_700_000_000_000 + n).to_bytes(8, "big") for n, unit in enumerate(queue))


def write_apache_group(log: Log, root: Path, **how: object) -> list[Path]:
    """Write a log as three stores of Apache's brokers."""
    keys = key_files(log)
    return [
        write_apache_store(log, root / f"n{number}", f"n{number}", keys=keys, **how)  # type: ignore[arg-type]
        for number in range(3)
    ]


def old_commit_log(root: Path, end: int) -> None:
    """CommitLog files from before DLedger, which end where its segments begin."""
    (root / "commitlog").mkdir()
    record = encode_record(topic="old", body=b"x", physical_offset=0)
    for start in range(0, end, SEGMENT_SIZE):
        (root / "commitlog" / segment_name(start)).write_bytes(record.ljust(SEGMENT_SIZE, b"\0"))
