"""Ways to damage stores of brokers, for the table in `broker_faults`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack

from dledger.audit.state_sense import OVERDUE_MS
from dledger.formats.consume_queue import UNIT, UNIT_SIZE
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT_SIZE
from dledger.formats.index_file import HEADER as KEY_HEADER
from dledger.formats.index_file import HEADER_SIZE as KEY_HEADER_SIZE
from dledger.formats.index_file import unpack_index_header
from dledger.formats.snapshot import BEGINS_FILE
from dledger.formats.state import (
    TimerProgress,
)
from dledger.formats.state_file import pack_snapshot, unpack_snapshot
from dledger.formats.store_files import (
    MIRROR_OFFSET,
    HardState,
    decode_identity,
    decode_json,
    encode_json,
    encode_slot,
    segment_name,
)
from dledger.formats.timers import TIMER_TOPIC
from tests.audit.broker_store import (
    STEP_MS,
    BrokerLog,
    begin_at,
    write_begins,
    write_broker_group,
)
from tests.audit.store_builder import SEGMENT_SIZE, cut_after, patch, segment_path

Inject = Callable[[list[Path], BrokerLog], None]


@dataclass(frozen=True)
class BrokerFault:
    """`inject(stores, log)` damages; `codes`: what must be found, and nothing else beyond INFO."""

    name: str
    inject: Inject
    codes: tuple[str, ...]
    exit_code: int
    same_time: bool = False

    def __str__(self) -> str:
        return self.name


def node_dir(store: Path) -> Path:
    return next(store.glob("dledger-*"))


def on(number: int, change: Callable[[Path, BrokerLog], None]) -> Inject:
    """Change one store."""
    return lambda stores, log: change(stores[number], log)


def everywhere(change: Callable[[Path, BrokerLog], None]) -> Inject:
    """Change all stores in the same way."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        for store in stores:
            change(store, log)

    return inject


def changed(path: str, change: Callable[[bytes], bytes]) -> Inject:
    """Change the content of one file of the first store; NODE stands for its log directory."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        file = stores[0] / path.replace("NODE", node_dir(stores[0]).name)
        file.write_bytes(change(file.read_bytes()))

    return inject


def gone(path: str) -> Inject:
    """Remove a file or directory of the first store."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        file = stores[0] / path.replace("NODE", node_dir(stores[0]).name)
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()

    return inject


def link_to_nothing(path: str) -> Inject:
    """Replace a file of the first store by a link whose target is missing."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        file = stores[0] / path.replace("NODE", node_dir(stores[0]).name)
        file.unlink(missing_ok=True)
        file.symlink_to("nowhere")

    return inject


def from_other(path: str) -> Inject:
    """Replace a file of the first store by that of the second."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        one, other = (store / path.replace("NODE", node_dir(store).name) for store in stores[:2])
        one.write_bytes(other.read_bytes())

    return inject


def swapped(one: str, other: str) -> Inject:
    """Swap two files or directories of the first store."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        first, second = (stores[0] / path.replace("NODE", node_dir(stores[0]).name) for path in (one, other))
        first.rename(stores[0] / "aside")
        second.rename(first)
        (stores[0] / "aside").rename(second)

    return inject


def both(*injects: Inject) -> Inject:
    def inject(stores: list[Path], log: BrokerLog) -> None:
        for one in injects:
            one(stores, log)

    return inject


# --- a log that ends too early -----------------------------------------------------------------------

LOST = 104
BESIDE = ("consumequeue", "index", "state", "NODE/lock", "NODE/snapshots", "NODE/members")
"""What a rollback of the log leaves alone."""


def rolled_back(*kept: str, lost: int = LOST) -> Callable[[Path, BrokerLog], None]:
    """Cut log, index units and checkpoint; of the rest only `kept` stays as it was."""

    def change(store: Path, log: BrokerLog) -> None:
        aside = store.with_name("aside")
        store.rename(aside)
        store.mkdir()
        shutil.copytree(node_dir(aside), store / node_dir(aside).name)
        cut_after(store, log, len(log.entries) - 1 - lost)
        for path in kept:
            name = path.replace("NODE", node_dir(store).name)
            target = store / name
            if target.is_dir():
                shutil.rmtree(target)
            if (aside / name).is_dir():
                shutil.copytree(aside / name, target)
            else:
                target.write_bytes((aside / name).read_bytes())
        shutil.rmtree(aside)

    return change


def more_index_units(store: Path, log: BrokerLog) -> None:
    index = {path.name: path.read_bytes() for path in (node_dir(store) / "index").iterdir()}
    rolled_back()(store, log)
    for path in (node_dir(store) / "index").iterdir():
        path.unlink()
    for name, data in index.items():
        (node_dir(store) / "index" / name).write_bytes(data)


def zeros_from(entry: int, offset: int) -> Callable[[Path, BrokerLog], None]:
    """Only zeros from this many bytes into an entry to the end of the log, counted from the last entry."""

    def change(store: Path, log: BrokerLog) -> None:
        pos = log.entries[entry].pos + offset
        start = pos - pos % SEGMENT_SIZE
        patch(store, pos, bytes(SEGMENT_SIZE - pos % SEGMENT_SIZE))
        for path in (node_dir(store) / "data").iterdir():
            if int(path.name) > start:
                path.unlink()

    return change


def snapshot_ahead(store: Path, log: BrokerLog) -> None:
    """A boundary snapshot of entries that the log does not hold, and nothing else that knows them."""
    lost = len(log.entries) - 1 - log.snapshots[-1].index + 3
    rolled_back("NODE/snapshots", lost=lost)(store, log)


# --- small files -------------------------------------------------------------------------------------


def other_cluster(stores: list[Path], log: BrokerLog) -> None:
    path = node_dir(stores[0]) / "identity"
    path.write_bytes(encode_json(replace(decode_identity(path.read_bytes()), cluster="c9")))


def vote(vote: str) -> Inject:
    def inject(stores: list[Path], log: BrokerLog) -> None:
        slots = encode_slot(2, HardState(3, vote)) + encode_slot(1, HardState(1, "n0"))
        (node_dir(stores[0]) / "hardstate").write_bytes(slots.ljust(MIRROR_OFFSET, b"\0") + slots)

    return inject


def flip(*offsets: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        image = bytearray(data)
        for offset in offsets:
            image[offset] ^= 0x10
        return bytes(image)

    return change


def json(value: dict[str, object]) -> Callable[[bytes], bytes]:
    return lambda data: encode_json(value)


def members(change: Callable[[BrokerLog], tuple[list[object], list[int]]]) -> Inject:
    def inject(stores: list[Path], log: BrokerLog) -> None:
        copies, indexes = change(log)
        value: dict[str, object] = {"copies": copies, "indexes": indexes}
        (node_dir(stores[0]) / "members").write_bytes(encode_json(value))

    return inject


def copies(log: BrokerLog) -> list[object]:
    return [[index, term, packed.hex()] for index, term, packed in log.configs]


def of_other_members(log: BrokerLog) -> tuple[list[object], list[int]]:
    other = msgpack.packb({"members": {"x1": {"role": "voter"}, "x2": {"role": "voter"}}, "version": 2})
    index, term, _ = log.configs[-1]
    return [*copies(log)[:-1], [index, term, other.hex()]], [one[0] for one in log.configs]


def of_another_term(log: BrokerLog) -> tuple[list[object], list[int]]:
    index, term, packed = log.configs[-1]
    return [*copies(log)[:-1], [index, term + 1, packed.hex()]], [one[0] for one in log.configs]


def no_configuration(log: BrokerLog) -> tuple[list[object], list[int]]:
    return copies(log), [*(one[0] for one in log.configs), 700]


def message_as_configuration(log: BrokerLog) -> tuple[list[object], list[int]]:
    return [*copies(log), [701, log.entries[701].term, log.configs[0][2].hex()]], [
        one[0] for one in log.configs
    ]


def nothing_named(log: BrokerLog) -> tuple[list[object], list[int]]:
    return [], []


def older_members(log: BrokerLog) -> tuple[list[object], list[int]]:
    return copies(log)[:1], [log.configs[0][0]]


def begins(pos: int, *, replace: bool = False) -> Inject:
    return on(0, lambda store, log: write_begins(node_dir(store), pos, replace=replace))


def begins_json(value: dict[str, object]) -> Inject:
    return on(0, lambda store, log: (node_dir(store) / BEGINS_FILE).write_bytes(encode_json(value)) and None)


def retained(segment: int = 2) -> Inject:
    """Retention on all stores."""
    return everywhere(lambda store, log: begin_at(store, log, segment))


def older_begins(stores: list[Path], log: BrokerLog) -> None:
    """Segments before the first one are gone, and so are the index units of their entries."""
    retained()(stores, log)
    first = next(entry.index for entry in log.entries if entry.pos >= 2 * SEGMENT_SIZE)
    path = min((node_dir(stores[0]) / "index").iterdir())
    data = path.read_bytes()
    path.write_bytes(bytes(first * INDEX_UNIT_SIZE) + data[first * INDEX_UNIT_SIZE :])
    write_begins(node_dir(stores[0]), SEGMENT_SIZE)


def snapshot(number: int = 3) -> str:
    return f"NODE/snapshots/{segment_name(number * SEGMENT_SIZE)}"


# --- the state file ----------------------------------------------------------------------------------


def state_of(other: Callable[[BrokerLog], BrokerLog]) -> Inject:
    """The state file of another cluster's broker."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        theirs = other(log)
        last = theirs.entries[-1]
        data = pack_snapshot(last.index, theirs.pos, theirs.state, last.term)
        (stores[0] / "state" / "snapshot").write_bytes(data)

    return inject


def without_term(data: bytes) -> bytes:
    held = unpack_snapshot(data)
    held.state.topics.pop("payments")  # type: ignore[attr-defined]
    return pack_snapshot(held.applied, held.end_pos, held.state)


# --- logs that agree on something impossible ---------------------------------------------------------


def agreed(change: Callable[[BrokerLog], object]) -> Inject:
    """All replicas have this log, and their states follow from it."""

    def inject(stores: list[Path], log: BrokerLog) -> None:
        bad = log.copy()
        change(bad)
        root = stores[0].parent
        for store in stores:
            shutil.rmtree(store)
        write_broker_group(bad, root)

    return inject


def timers_ahead(log: BrokerLog) -> None:
    log.op(TimerProgress(0, log.now_ms + 60_000, 0).op())


def overdue(log: BrokerLog) -> None:
    log.put(TIMER_TOPIC, b"forgotten", 0, TIMER_OUT_MS=str(log.now_ms + 10 * STEP_MS))
    for number in range(OVERDUE_MS // STEP_MS + 100):
        if number % 3 == 0:
            log.put("orders", b"later")
        else:
            log.put("payments", b"later")


# --- IndexFiles --------------------------------------------------------------------------------------

KEYS = [f"index/20240305101112{number:03d}" for number in range(3)]


def key_header(**fields: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        old = unpack_index_header(data)
        new = old._replace(**{name: getattr(old, name) + more for name, more in fields.items()})
        return KEY_HEADER.pack(*new) + data[KEY_HEADER_SIZE:]

    return change


def older_key_header(stores: list[Path], log: BrokerLog) -> None:
    """The header of the newest IndexFile as it was before the last four messages."""
    path = stores[0] / KEYS[2]
    old = unpack_index_header(path.read_bytes())
    less = sum(key[2] > log.keys[-13][2] for key in log.keys)
    _, _, position, at_ms = log.keys[-less - 1]
    new = old._replace(
        end_ms=at_ms, end_position=position, slots_used=old.slots_used - less, count=old.count - less
    )
    path.write_bytes(KEY_HEADER.pack(*new) + path.read_bytes()[KEY_HEADER_SIZE:])


def zeros(begin: int, end: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:begin] + bytes(min(end, len(data)) - begin) + data[end:]


def doubled(stores: list[Path], log: BrokerLog) -> None:
    (stores[0] / "index" / "20240305101112999").write_bytes((stores[0] / KEYS[1]).read_bytes())


def listed(more: list[object]) -> Callable[[bytes], bytes]:
    """One more IndexFile in `state/index`."""

    def change(data: bytes) -> bytes:
        value = decode_json(data)
        return encode_json({**value, "files": [*value["files"], more]})  # type: ignore[misc]

    return change


# --- ConsumeQueues and segments ----------------------------------------------------------------------


def timer_unit(data: bytes) -> bytes:
    position, size, code = UNIT.unpack_from(data, 5 * UNIT_SIZE)
    return data[: 5 * UNIT_SIZE] + UNIT.pack(position, size, code + 2000) + data[6 * UNIT_SIZE :]


def of_a_deleted_topic(stores: list[Path], log: BrokerLog) -> None:
    entry = log.entries[30]
    path = stores[0] / "consumequeue" / "gone" / "0" / segment_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(UNIT.pack(entry.pos + HEADER_SIZE, entry.size - HEADER_SIZE, 0))


def short_last(stores: list[Path], log: BrokerLog) -> None:
    path = segment_path(stores[0], max(log.segments))
    used = log.pos - max(log.segments)
    path.write_bytes(path.read_bytes()[: used + 100])


def long_segment(stores: list[Path], log: BrokerLog) -> None:
    path = segment_path(stores[0], SEGMENT_SIZE)
    path.write_bytes(path.read_bytes() + b"more")


def data(number: int) -> str:
    return f"NODE/data/{segment_name(number * SEGMENT_SIZE)}"


def queue(topic: str = "orders", queue: int = 1) -> str:
    return f"consumequeue/{topic}/{queue}/{segment_name(0)}"


def copy(store: Path, source: str, target: str, name: str) -> None:
    directory = node_dir(store).name
    one, other = (store / path.replace("NODE", directory) / name for path in (source, target))
    other.write_bytes(one.read_bytes())


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage behind the units".ljust(64, b"!"))
