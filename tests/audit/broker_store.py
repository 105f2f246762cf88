"""Stores as our brokers leave them, with every file that a store can have: state file, boundary snapshots,
IndexFiles, `state/index`, `lock`, `members`, `begins`, hard state with its mirror.

The log holds every kind of replicated state that an audit checks: consumer offsets, delay levels, timer
messages, transactions, deleted topics, changed members. The state is computed by applying its operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from dledger.formats.checksum import crc32
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.index_file import IndexFileWriter, file_size, is_indexed, key_hash, message_keys
from dledger.formats.lock_file import BOOT_SIZE, LOCK_SIZE, MODE_SIZE, MODES, pack_written
from dledger.formats.record import (
    decode_record,
    encode_record,
    record_size,
    system_record,
    system_record_size,
)
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, encode_manifest, make_manifest
from dledger.formats.state import (
    DelayProgress,
    GroupConfig,
    ReplicatedState,
    TimerProgress,
    TopicBirth,
    TopicConfig,
    TopicDeletion,
    offsets_op,
    pack_op,
    pack_parts,
    unpack_parts,
)
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot
from dledger.formats.store_files import encode_json, segment_name
from dledger.formats.timers import TIMER_TOPIC, timer_code
from tests.audit.store_builder import SEGMENT_SIZE, Log, segment_path, write_store

START_MS = 1_700_000_000_000
STEP_MS = 1_000
"""Between the store times of two entries."""
SLOTS, UNITS = 500, 2000
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
MEMBERS = ("n0", "n1", "n2")
BOOT = b"0f7c3ed2-9b3c-4b44-a2a4-a3b0b5b4c7e1"


@dataclass(frozen=True)
class Taken:
    """The state after entry `index`, which ends at `pos`."""

    index: int
    term: int
    chain: int
    pos: int
    store_ms: int
    parts: dict[str, bytes]


@dataclass
class BrokerLog(Log):
    """A log that applies its operations and messages to `state` as it grows."""

    state: ReplicatedState = field(default_factory=ReplicatedState)
    snapshots: list[Taken] = field(default_factory=list)
    configs: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Index, term and packed configuration of each configuration entry."""
    keys: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Topic, key, position and store time of each key."""

    @property
    def now_ms(self) -> int:
        return START_MS + STEP_MS * len(self.entries)

    def _reserve(self, size: int) -> None:
        before = self.pos - self.pos % self.segment_size
        super()._reserve(size)
        start = self.pos - self.pos % self.segment_size
        if start > before:
            self.snapshots.append(self.taken(start))

    def taken(self, pos: int) -> Taken:
        """The state after the last entry."""
        last = self.entries[-1]
        at_ms = self.now_ms - STEP_MS
        return Taken(last.index, last.term, last.chain_crc, pos, at_ms, pack_parts(self.state))

    def op(self, op: dict[str, object]) -> int:
        """Append an operation and apply it."""
        packed = pack_op(op)
        self._reserve(HEADER_SIZE + system_record_size(len(packed)))
        record = system_record(packed, self.pos + HEADER_SIZE, self.now_ms)
        index = self.add(record, Kind.SYSTEM)
        self.state.apply(packed)
        return index

    def configuration(self, nodes: tuple[str, ...]) -> int:
        """Append a configuration with these voters."""
        members = {
            node: {"address": f"{node}:1", "incarnation": f"incarnation-{node}", "role": "voter"}
            for node in nodes
        }
        packed = msgpack.packb({"members": members, "version": 2}, use_bin_type=True)
        self._reserve(HEADER_SIZE + system_record_size(len(packed)))
        index = self.add(system_record(packed, self.pos + HEADER_SIZE, self.now_ms), Kind.CONFIG)
        self.configs.append((index, self.term, packed))
        return index

    def put(self, topic: str, body: bytes, queue_id: int = 0, **properties: str) -> int:
        """Append a message and apply it."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        self._reserve(HEADER_SIZE + record_size(len(body), len(topic), len(text.encode())))
        bounds = self.state.bounds(topic, queue_id)
        position, at_ms = self.pos + HEADER_SIZE, self.now_ms
        record = encode_record(
            topic=topic,
            body=body,
            queue_id=queue_id,
            queue_offset=bounds.next,
            physical_offset=position,
            store_timestamp=at_ms,
            born_timestamp=at_ms - 3,
            properties=text,
        )
        code = timer_code(text.encode()) if topic == TIMER_TOPIC else 0
        self.queues.setdefault((topic, queue_id), []).append(UNIT.pack(position, len(record), code))
        if bounds.next == 0:
            bounds.first_position = position
        bounds.next += 1
        self.state.last_store_time_ms = at_ms
        if is_indexed(decode_record(record).sys_flag):
            self.keys += [(topic, key, position, at_ms) for key in message_keys(text.encode())]
        return self.add(record, Kind.MESSAGE)

    def copy(self) -> BrokerLog:
        other = BrokerLog(
            self.segment_size,
            {start: bytearray(data) for start, data in self.segments.items()},
            list(self.entries),
            {key: list(units) for key, units in self.queues.items()},
            self.pos,
            self.chain,
            self.term,
        )
        other.state = unpack_parts(pack_parts(self.state))
        for topic, queues in self.state.queues.items():
            for queue in queues:
                other.state.bounds(topic, queue).min = 0
        other.snapshots, other.configs = list(self.snapshots), list(self.configs)
        other.keys = list(self.keys)
        return other


def broker_log(messages: int = 1800) -> BrokerLog:
    """Some of everything, over several segments."""
    log = BrokerLog()
    log.term = 1
    log.system({"op": "open"}, Kind.TERM_OPENING, log.now_ms)
    for topic in ("orders", "payments", "gone", SCHEDULE_TOPIC, TIMER_TOPIC):
        log.op(TopicConfig(topic, 4, 4, 6).op())
    log.op(GroupConfig("readers").op())
    log.op(TopicBirth("orders", log.pos).op())
    log.op(TimerProgress(0).op())
    log.configuration((*MEMBERS, "n3"))
    timers: list[int] = []
    for number in range(messages):
        topic = ("orders", "payments", "gone")[number % 3] if number < messages // 3 else "orders"
        log.put(
            topic,
            b"message %06d " % number + bytes([number % 251]) * (number * 37 % 150),
            number % 4,
            KEYS=f"k{number} s{number % 7}",
            UNIQ_KEY=f"U{number:08X}",
        )
        if number % 50 == 10:
            log.put(SCHEDULE_TOPIC, b"later", 1, REAL_TOPIC="orders")
        if number % 50 == 20:
            due = log.now_ms + 20 * STEP_MS
            log.put(TIMER_TOPIC, b"at a time", 0, REAL_TOPIC="orders", TIMER_OUT_MS=str(due))
            timers.append(due)
        if number % 50 == 49:
            log.put("orders", b"delivered")
            log.op(DelayProgress(2, log.state.next_offset(SCHEDULE_TOPIC, 1)).op())
            log.op(TimerProgress(0, timers[-1], len(timers)).op())
        if number % 100 == 99:
            ends = [("orders", queue, log.state.next_offset("orders", queue)) for queue in range(4)]
            log.op(offsets_op("readers", ends))
        if number == messages // 3:
            log.op(TopicDeletion("gone", log.pos).op())
            for key in [key for key in log.queues if key[0] == "gone"]:
                del log.queues[key]
        if number == messages // 2:
            log.term = 3
            log.system({"op": "open"}, Kind.TERM_OPENING, log.now_ms)
            log.configuration(MEMBERS)
    return log


def write_broker_store(log: BrokerLog, root: Path, node: str) -> Path:
    """Write a store as a stopped broker leaves it."""
    write_store(log, root, node)
    directory = root / f"dledger-{node}"
    last = log.entries[-1].index
    for taken in log.snapshots:
        write_snapshot(directory, taken, _config_at(log, taken.index))
    copies = [(index, term, packed.hex()) for index, term, packed in log.configs]
    indexes = [index for index, _, _ in log.configs]
    (directory / "members").write_bytes(encode_json({"copies": copies, "indexes": indexes}))
    write_lock(directory, last)
    state = root / "state"
    state.mkdir()
    (state / SNAPSHOT_FILE).write_bytes(pack_snapshot(last, log.pos, log.state, log.entries[-1].term))
    write_key_files(log, root)
    return root


def _config_at(log: BrokerLog, index: int) -> bytes:
    return next((packed for at, _, packed in reversed(log.configs) if at <= index), b"")


def write_broker_group(log: BrokerLog, root: Path) -> list[Path]:
    """Write a log as three equal stores."""
    return [write_broker_store(log, root / node, node) for node in MEMBERS]


def write_snapshot(directory: Path, taken: Taken, config: bytes) -> Path:
    """Write a boundary snapshot."""
    parts = taken.parts
    manifest = make_manifest(taken.index, taken.term, taken.pos, taken.chain, taken.store_ms, config, parts)
    path = directory / "snapshots" / segment_name(taken.pos)
    path.mkdir(parents=True, exist_ok=True)
    for name, data in parts.items():
        (path / name).write_bytes(data)
    (path / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return path


def write_lock(directory: Path, written: int, *, sync: bool = True) -> None:
    """Write the file `lock` of a run that has written up to this index."""
    of_run = BOOT.ljust(BOOT_SIZE, b"\0") + MODES[sync].ljust(MODE_SIZE, b"\0")
    data = of_run + pack_written(written, crc32(of_run))
    (directory / "lock").write_bytes(data.ljust(LOCK_SIZE, b"\0"))


def write_begins(directory: Path, pos: int, *, replace: bool = False) -> None:
    """Write the file `begins`."""
    (directory / BEGINS_FILE).write_bytes(encode_json({"pos": pos, "replace": replace}))


def write_key_files(log: BrokerLog, root: Path) -> list[Path]:
    """Write IndexFiles, each with all keys of its messages, and `state/index`."""
    (root / "index").mkdir(exist_ok=True)
    writers: list[tuple[Path, bytearray, IndexFileWriter]] = []
    at = 0
    while at < len(log.keys):
        together = [each for each in log.keys[at : at + 8] if each[2] == log.keys[at][2]]
        if not writers or writers[-1][2].header.count + len(together) > UNITS:
            image = bytearray(file_size(SLOTS, UNITS))
            after = writers[-1][2].header if writers else None
            path = root / "index" / f"20240305101112{len(writers):03d}"
            writers.append((path, image, IndexFileWriter(_into(image), SLOTS, UNITS, after)))
        for topic, key, position, store_ms in together:
            writers[-1][2].put(key_hash(topic, key), position, store_ms)
        at += len(together)
    for path, image, _ in writers:
        path.write_bytes(image)
    listed = [[path.name, one.header.count, one.header.end_position] for path, _, one in writers]
    (root / "state" / "index").write_bytes(encode_json({"position": log.pos, "files": listed}))
    return [path for path, _, _ in writers]


def _into(image: bytearray) -> Callable[[int, bytes], None]:
    def write(at: int, data: bytes) -> None:
        image[at : at + len(data)] = data

    return write


def begin_at(store: Path, log: BrokerLog, segment: int) -> None:
    """Let retention remove the segments before this one, with all that was derived from them alone."""
    (directory,) = store.glob("dledger-*")
    write_begins(directory, segment * SEGMENT_SIZE)
    for number in range(segment):
        segment_path(store, number * SEGMENT_SIZE).unlink()
        if number:
            path = directory / "snapshots" / segment_name(number * SEGMENT_SIZE)
            for part in path.iterdir():
                part.unlink()
            path.rmdir()
