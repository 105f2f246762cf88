"""Faults put into one replica of a group: each a name, a way to do the damage, and what must be found.

Used by the audit's own tests and by those of the Spark audit, so that both engines face the same list.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dledger.formats.consume_queue import UNIT, UNIT_SIZE
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT_SIZE, MIN_BLANK_SIZE, Kind
from dledger.formats.record import decode_record
from dledger.formats.store_files import (
    Checkpoint,
    HardState,
    decode_identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
    segment_name,
)
from tests.audit.store_builder import (
    SEGMENT_SIZE,
    Log,
    cut_after,
    flip,
    patch,
    read_entry,
    rewrite,
    segment_path,
    vote_for,
    write_store,
)


@dataclass(frozen=True)
class Fault:
    """`inject(stores, log)` damages; `codes`: what must be found, and nothing else beyond INFO `notes`."""

    name: str
    inject: Callable[[list[Path], Log], None]
    codes: tuple[str, ...]
    exit_code: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def message_index(log: Log, at_least: int) -> int:
    """Index of a message from there on that is no part of a batch, nor is the one before."""
    return next(
        entry.index
        for entry in log.entries[at_least:]
        if entry.kind == Kind.MESSAGE
        and not entry.batch_remaining
        and not log.entries[entry.index - 1].batch_remaining
        and entry.size > 200
    )


def node_dir(store: Path) -> Path:
    return next(store.glob("dledger-*"))


def _body(stores: list[Path], log: Log) -> None:
    flip(stores[0], log.entries[700], 60)


def _two_bodies(stores: list[Path], log: Log) -> None:
    flip(stores[0], log.entries[700], 60)
    flip(stores[1], log.entries[700], 61)


def _all_bodies_alike(stores: list[Path], log: Log) -> None:
    for store in stores:
        flip(store, log.entries[700], 60)


def _header(field_offset: int) -> Callable[[list[Path], Log], None]:
    def inject(stores: list[Path], log: Log) -> None:
        flip(stores[1], log.entries[900], field_offset)

    return inject


def _first_header(stores: list[Path], log: Log) -> None:
    entry = next(entry for entry in log.entries if entry.pos == 2 * SEGMENT_SIZE)
    flip(stores[1], entry, 3)


def _last_segment_head(stores: list[Path], log: Log) -> None:
    entry = next(entry for entry in log.entries if entry.pos == max(log.segments))
    flip(stores[1], entry, 27)


def _rewritten(stores: list[Path], log: Log) -> None:
    rewrite(stores[2], log, message_index(log, 1200))


def _rewritten_keeping_chain(stores: list[Path], log: Log) -> None:
    rewrite(stores[2], log, message_index(log, 1200), chain=False)


def _rewritten_last(stores: list[Path], log: Log) -> None:
    rewrite(stores[2], log, len(log.entries) - 1)


def _segment(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], 3 * SEGMENT_SIZE).unlink()


def _segment_twice(stores: list[Path], log: Log) -> None:
    for store in stores[:2]:
        segment_path(store, 3 * SEGMENT_SIZE).unlink()


def _rot_and_segment(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], 3 * SEGMENT_SIZE).unlink()
    entry = next(entry for entry in log.entries if entry.pos > 3 * SEGMENT_SIZE + 9000)
    flip(stores[0], entry, 70)


def _newest_segment(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], max(log.segments)).unlink()


def _oldest_segment(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], 0).unlink()


def _half_a_segment(stores: list[Path], log: Log) -> None:
    path = segment_path(stores[1], 3 * SEGMENT_SIZE)
    path.write_bytes(path.read_bytes()[: SEGMENT_SIZE // 2])


def _zeroed_beside_a_deleted(stores: list[Path], log: Log) -> None:
    """What is all zeros looks like a segment prepared for what is to come."""
    patch(stores[1], SEGMENT_SIZE, bytes(SEGMENT_SIZE))
    segment_path(stores[1], 2 * SEGMENT_SIZE).unlink()


def _deleted_before_a_zeroed(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], SEGMENT_SIZE).unlink()
    patch(stores[1], 2 * SEGMENT_SIZE, bytes(SEGMENT_SIZE))


def _zeroed_head(stores: list[Path], log: Log) -> None:
    patch(stores[1], 0, bytes(SEGMENT_SIZE))
    segment_path(stores[1], SEGMENT_SIZE).unlink()


def _head_of(size: int) -> Callable[[list[Path], Log], None]:
    def inject(stores: list[Path], log: Log) -> None:
        path = segment_path(stores[1], 0)
        path.write_bytes(path.read_bytes()[:size])

    return inject


def _empty_head_on_two(stores: list[Path], log: Log) -> None:
    for store in stores[:2]:
        segment_path(store, 0).write_bytes(b"")


def _cut_between_entries(stores: list[Path], log: Log) -> None:
    entry = next(entry for entry in log.entries if entry.pos > SEGMENT_SIZE + 9000)
    path = segment_path(stores[1], SEGMENT_SIZE)
    path.write_bytes(path.read_bytes()[: entry.pos - SEGMENT_SIZE])


def _unreadable_beside_a_deleted(stores: list[Path], log: Log) -> None:
    path = segment_path(stores[1], SEGMENT_SIZE)
    path.unlink()
    path.mkdir()
    segment_path(stores[1], 2 * SEGMENT_SIZE).unlink()


def _zeroed_pages(stores: list[Path], log: Log) -> None:
    patch(stores[1], 3 * SEGMENT_SIZE + 8192, bytes(8192))


def _lagging(stores: list[Path], log: Log) -> None:
    cut_after(stores[1], log, 1500)


def _divergent_tail(stores: list[Path], log: Log) -> None:
    _other_tail(stores, log, 4)


def _other_tail_of_one_term(stores: list[Path], log: Log) -> None:
    """Above one replica's older checkpoint, but a leader makes one entry for an index."""
    _other_tail(stores, log, 3)


def _other_tail(stores: list[Path], log: Log, term: int) -> None:
    old = log.copy()
    del old.entries[-40:]
    kept = old.entries[-1]
    cut_after(stores[2], log, kept.index)
    old.pos = kept.pos + kept.size
    old.chain, old.term = kept.chain_crc, term
    for start in [start for start in old.segments if start > old.pos]:
        del old.segments[start]
    start = old.pos - old.pos % SEGMENT_SIZE
    old.segments[start][old.pos - start :] = bytes(SEGMENT_SIZE - old.pos % SEGMENT_SIZE)
    committed_queues = {
        key: [u for u in units if UNIT.unpack(u)[0] < old.pos] for key, units in old.queues.items()
    }
    old.queues = committed_queues
    for number in range(20):
        old.message("orders", b"never acknowledged %d" % number, queue_id=1)
    old.queues = {
        key: [u for u in units if UNIT.unpack(u)[0] <= kept.pos + 48] for key, units in old.queues.items()
    }
    _replace(stores[2], old, committed=kept.index)


def _replace(store: Path, log: Log, committed: int) -> None:
    import shutil

    node = node_dir(store).name.removeprefix("dledger-")
    shutil.rmtree(store)
    write_store(log, store, node, committed=committed)


def _torn_tail(stores: list[Path], log: Log) -> None:
    last = log.entries[-1]
    for store in stores:
        _set_checkpoint(store, last.index, last.index - 1)
    raw = read_entry(stores[0], last)
    patch(stores[0], last.pos, raw[: len(raw) // 2].ljust(len(raw), b"\0"))
    index = max((node_dir(stores[0]) / "index").iterdir())
    unit = last.index * INDEX_UNIT_SIZE - int(index.name)
    data = index.read_bytes()
    index.write_bytes(data[:unit] + bytes(len(data) - unit))


def _set_checkpoint(store: Path, end: int, committed: int) -> None:
    (node_dir(store) / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(end, committed)))


def _index_unit(stores: list[Path], log: Log) -> None:
    path = node_dir(stores[0]) / "index" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[800 * INDEX_UNIT_SIZE + 11] ^= 1
    path.write_bytes(data)


def _index_units_of_missing_segment(stores: list[Path], log: Log) -> None:
    segment_path(stores[1], 2 * SEGMENT_SIZE).unlink()
    inside = next(entry for entry in log.entries if entry.pos > 2 * SEGMENT_SIZE + 5000)
    path = node_dir(stores[1]) / "index" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[inside.index * INDEX_UNIT_SIZE + 15] ^= 1
    path.write_bytes(data)


def _index_beyond(stores: list[Path], log: Log) -> None:
    last = log.entries[-1].index
    cut = log.copy()
    cut_after(stores[1], cut, last - 10)
    source = node_dir(stores[0]) / "index"
    for path in source.iterdir():
        (node_dir(stores[1]) / "index" / path.name).write_bytes(path.read_bytes())
    for path in (node_dir(stores[1]) / "index").iterdir():
        if not (source / path.name).exists():
            path.unlink()


def _queue_file(store: Path, topic: str = "orders", queue_id: int = 1) -> Path:
    return store / "consumequeue" / topic / str(queue_id) / segment_name(0)


def _queue_unit(stores: list[Path], log: Log) -> None:
    path = _queue_file(stores[2])
    data = bytearray(path.read_bytes())
    data[30 * UNIT_SIZE + 7] ^= 4
    path.write_bytes(data)


def _queue_unit_missing(stores: list[Path], log: Log) -> None:
    path = _queue_file(stores[2])
    data = bytearray(path.read_bytes())
    data[30 * UNIT_SIZE : 31 * UNIT_SIZE] = bytes(UNIT_SIZE)
    path.write_bytes(data)


def _queue_dangling(stores: list[Path], log: Log) -> None:
    path = _queue_file(stores[2])
    data = path.read_bytes()
    path.write_bytes(data + data[-UNIT_SIZE:])


def _queue_without_messages(stores: list[Path], log: Log) -> None:
    path = _queue_file(stores[2], "ghost", 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(UNIT.pack(log.entries[40].pos + HEADER_SIZE, 100, 0))


def _queue_lag(stores: list[Path], log: Log) -> None:
    path = _queue_file(stores[2])
    path.write_bytes(path.read_bytes()[: -7 * UNIT_SIZE])


def _queues_lost(stores: list[Path], log: Log) -> None:
    shutil.rmtree(stores[2] / "consumequeue")


def _blank_tail(stores: list[Path], log: Log) -> None:
    last = [entry for entry in log.entries if entry.pos < SEGMENT_SIZE][-1]
    patch(stores[0], last.pos + last.size, bytes(8))


def _blank_size(stores: list[Path], log: Log) -> None:
    last = [entry for entry in log.entries if entry.pos < SEGMENT_SIZE][-1]
    patch(stores[0], last.pos + last.size + 4, b"\0\0\0\1")


def _term_falls(stores: list[Path], log: Log) -> None:
    """A log that says so itself, chain and all: written wrong, not rotten."""
    bad = log.copy()
    bad.term = 2
    bad.message("orders", b"out of another time", queue_id=1)
    for store in stores:
        _replace(store, bad, bad.entries[-1].index)


def _index_jumps(stores: list[Path], log: Log) -> None:
    """Five indexes were never written, and the chain says so."""
    bad = log.copy()
    bad.skip = 5
    bad.message("orders", b"after a gap", queue_id=1)
    for store in stores:
        _replace(store, bad, bad.entries[-1].index)


def _jumps_at_a_seam(stores: list[Path], log: Log) -> None:
    """Five indexes were never written at the beginning of a segment, where no walk meets the gap."""
    bad = log.copy()
    bad._reserve(bad.segment_size - MIN_BLANK_SIZE)
    bad.skip = 5
    bad.message("orders", b"after a gap", queue_id=1)
    for store in stores:
        _replace(store, bad, bad.entries[-1].index)


def _record(stores: list[Path], log: Log) -> None:
    """All replicas hold an entry whose record was patched wrongly before it was sealed."""
    bad = log.copy()
    record = decode_record(read_entry(stores[0], log.entries[message_index(log, 600)])[HEADER_SIZE:])
    from dledger.formats.record import encode_record

    bad.term = 3
    bad._reserve(1000)
    bad.add(encode_record(topic=record.topic, body=b"x", queue_id=1, physical_offset=7), Kind.MESSAGE)
    for store in stores:
        _replace(store, bad, bad.entries[-1].index)


def _batch(stores: list[Path], log: Log) -> None:
    first = next(entry for entry in log.entries if entry.batch_remaining == 4)
    flip(stores[0], log.entries[first.index + 1], 35, mask=1)


def _wrong_queue_offset(stores: list[Path], log: Log) -> None:
    bad = log.copy()
    bad.term = 3
    bad.queues["orders", 1].append(bad.queues["orders", 1][-1])
    bad.message("orders", b"leaves one out", queue_id=1)
    for store in stores:
        _replace(store, bad, bad.entries[-1].index)


def _poisoned(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "poisoned").write_text("fdatasync: Input/output error\n")


def _hard_state(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "hardstate").write_bytes(b"\x01" * 1024)


def _no_hard_state(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "hardstate").unlink()


def _empty_hard_state(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "hardstate").write_bytes(bytes(5120))


def _unreadable_hard_state(stores: list[Path], log: Log) -> None:
    _no_hard_state(stores, log)
    (node_dir(stores[0]) / "hardstate").mkdir()


def _hard_state_of(term: int) -> Callable[[list[Path], Log], None]:
    def inject(stores: list[Path], log: Log) -> None:
        slots = encode_slot(2, HardState(term, vote_for("n1", "n0"))) + encode_slot(1, HardState(1, "n0"))
        (node_dir(stores[0]) / "hardstate").write_bytes(slots)

    return inject


def _refill(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "refill").write_text("the store was wiped\n")


def _segment_size(size: int) -> Callable[[list[Path], Log], None]:
    def inject(stores: list[Path], log: Log) -> None:
        path = node_dir(stores[0]) / "identity"
        path.write_bytes(encode_json(replace(decode_identity(path.read_bytes()), segment_size=size)))

    return inject


def _in_place_of(file: str, kind: Callable[[Path], None]) -> Callable[[list[Path], Log], None]:
    def inject(stores: list[Path], log: Log) -> None:
        path = stores[0] / file.replace("NODE", node_dir(stores[0]).name)
        path.unlink()
        kind(path)

    return inject


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _identity(stores: list[Path], log: Log) -> None:
    path = node_dir(stores[0]) / "identity"
    path.write_bytes(path.read_bytes().replace(b"g0", b"g1"))


def _no_checkpoint(stores: list[Path], log: Log) -> None:
    (node_dir(stores[0]) / "checkpoint").unlink()


def _unreadable(stores: list[Path], log: Log) -> None:
    path = segment_path(stores[0], 2 * SEGMENT_SIZE)
    path.unlink()
    path.mkdir()


def _unreadable_on_two(stores: list[Path], log: Log) -> None:
    """Both may be whole: nothing is proven to be lost."""
    _unreadable(stores[:1], log)
    _unreadable(stores[1:], log)


def _unreadable_last(stores: list[Path], log: Log) -> None:
    for store in stores[:2]:
        path = segment_path(store, max(log.segments))
        path.unlink()
        path.mkdir()


def _unreadable_and_rot(stores: list[Path], log: Log) -> None:
    _unreadable(stores, log)
    flip(stores[1], next(entry for entry in log.entries if entry.pos > 2 * SEGMENT_SIZE + 9000), 70)


def _unreadable_and_lost(stores: list[Path], log: Log) -> None:
    """Even if what could not be read is whole, one copy is too few."""
    _unreadable(stores, log)
    for store in stores[1:]:
        segment_path(store, 2 * SEGMENT_SIZE).unlink()


def _exchanged(stores: list[Path], log: Log) -> None:
    first, second = node_dir(stores[0]), node_dir(stores[1])
    first.rename(stores[0] / "aside")
    second.rename(stores[0] / second.name)
    (stores[0] / "aside").rename(stores[1] / first.name)


def _exchanged_names(stores: list[Path], log: Log) -> None:
    first, second = node_dir(stores[0]), node_dir(stores[1])
    first.rename(stores[0] / second.name)
    second.rename(stores[1] / first.name)


def _copy_of_one(stores: list[Path], log: Log) -> None:
    import shutil

    shutil.rmtree(stores[2])
    shutil.copytree(stores[0], stores[2])


def _other_group(stores: list[Path], log: Log) -> None:
    import shutil

    shutil.rmtree(stores[2])
    write_store(log, stores[2], "n2", group="elsewhere")


FAULTS = [
    Fault("nothing", lambda stores, log: None, (), 0),
    Fault("flipped body byte", _body, ("BIT_ROT",), 2),
    Fault("flipped body bytes on two", _two_bodies, ("BELOW_QUORUM", "BIT_ROT"), 3),
    Fault("the same flip everywhere", _all_bodies_alike, ("BELOW_QUORUM", "BIT_ROT"), 3),
    Fault("flipped magic", _header(3), ("BIT_ROT",), 2),
    Fault("flipped size", _header(6), ("BIT_ROT",), 2),
    Fault("flipped index", _header(15), ("BIT_ROT",), 2),
    Fault("flipped term", _header(23), ("BIT_ROT", "CHAIN_BREAK"), 2),
    Fault("flipped pos", _header(30), ("BIT_ROT",), 2),
    Fault("flipped kind", _header(32), ("BIT_ROT",), 2),
    Fault("flipped chain", _header(38), ("BIT_ROT",), 2),
    Fault("flipped body crc", _header(42), ("BIT_ROT",), 2),
    Fault("flipped body size", _header(46), ("BIT_ROT",), 2),
    Fault("flipped first header of a segment", _first_header, ("BIT_ROT",), 2),
    Fault("flipped first header of the last segment", _last_segment_head, ("BIT_ROT",), 2),
    Fault("rewritten committed entry", _rewritten, ("CHAIN_BREAK", "DIVERGENT_COMMITTED"), 3),
    Fault("rewritten, old chain", _rewritten_keeping_chain, ("CHAIN_BREAK", "DIVERGENT_COMMITTED"), 3),
    Fault("rewritten last entry", _rewritten_last, ("DIVERGENT_COMMITTED",), 3),
    Fault("deleted segment", _segment, ("MISSING_SEGMENT",), 2),
    Fault("deleted segment on two", _segment_twice, ("BELOW_QUORUM", "MISSING_SEGMENT"), 3),
    Fault("rot and a deleted segment", _rot_and_segment, ("BELOW_QUORUM", "BIT_ROT", "MISSING_SEGMENT"), 3),
    Fault("deleted newest segment", _newest_segment, ("MISSING_ENTRIES",), 2),
    Fault("deleted oldest segment", _oldest_segment, ("MISSING_SEGMENT",), 2),
    Fault("half a segment", _half_a_segment, ("BIT_ROT",), 2),
    Fault("zeroed segment, next one deleted", _zeroed_beside_a_deleted, ("BIT_ROT", "MISSING_SEGMENT"), 2),
    Fault("deleted segment, next one zeroed", _deleted_before_a_zeroed, ("BIT_ROT", "MISSING_SEGMENT"), 2),
    Fault("zeroed first segment, next one deleted", _zeroed_head, ("BIT_ROT", "MISSING_SEGMENT"), 2),
    Fault("empty first segment", _head_of(0), ("BIT_ROT",), 2),
    Fault("first segment of five bytes", _head_of(5), ("BIT_ROT",), 2),
    Fault("empty first segment on two", _empty_head_on_two, ("BELOW_QUORUM", "BIT_ROT"), 3),
    Fault("segment cut between two entries", _cut_between_entries, ("BIT_ROT",), 2),
    Fault("unreadable segment, next one deleted", _unreadable_beside_a_deleted,
          ("MISSING_SEGMENT", "UNREADABLE"), 4),
    Fault("zeroed pages", _zeroed_pages, ("BIT_ROT",), 2),
    Fault("lagging replica", _lagging, (), 0, ("LAGGING",)),
    Fault("uncommitted tail of another term", _divergent_tail, (), 0, ("DIVERGENT_UNCOMMITTED", "LAGGING")),
    Fault("uncommitted tail of the same term", _other_tail_of_one_term, ("LOG_MATCHING",), 3, ("LAGGING",)),
    Fault("torn tail", _torn_tail, ("TORN_TAIL",), 1),
    Fault("wrong index unit", _index_unit, ("INDEX_FILE",), 1),
    Fault("wrong index unit of a missing segment", _index_units_of_missing_segment,
          ("INDEX_FILE", "MISSING_SEGMENT"), 2),
    Fault("index beyond the log", _index_beyond, ("ENDS_EARLY",), 1, ("LAGGING",)),
    Fault("wrong ConsumeQueue unit", _queue_unit, ("QUEUE_MISMATCH",), 1),
    Fault("missing ConsumeQueue unit", _queue_unit_missing, ("QUEUE_MISSING",), 1),
    Fault("dangling ConsumeQueue unit", _queue_dangling, ("QUEUE_DANGLING",), 1),
    Fault("ConsumeQueue without messages", _queue_without_messages, ("QUEUE_DANGLING",), 1),
    Fault("lagging ConsumeQueue", _queue_lag, (), 0, ("QUEUE_LAG",)),
    Fault("lost ConsumeQueues", _queues_lost, ("QUEUE_BEHIND",), 1),
    Fault("lost blank tail", _blank_tail, ("BLANK_TAIL",), 1),
    Fault("wrong blank size", _blank_size, ("BLANK_TAIL",), 1),
    Fault("falling term", _term_falls, ("TERM_REGRESSION",), 3),
    Fault("jumping index", _index_jumps, ("BELOW_QUORUM", "INDEX_GAP"), 3),
    Fault("jumping index at a segment's start", _jumps_at_a_seam, ("BELOW_QUORUM", "INDEX_GAP"), 3),
    Fault("malformed record", _record, ("RECORD_CORRUPT",), 2),
    Fault("broken batch", _batch, ("BATCH_BROKEN", "BIT_ROT"), 2),
    Fault("queue offset left out", _wrong_queue_offset, ("QUEUE_OFFSET",), 2),
    Fault("poisoned", _poisoned, ("POISONED",), 1),
    Fault("damaged hard state", _hard_state, ("HARD_STATE",), 2),
    Fault("lost hard state", _no_hard_state, ("HARD_STATE",), 2),
    Fault("hard state of zeros", _empty_hard_state, ("HARD_STATE",), 2),
    Fault("hard state of an older term", _hard_state_of(2), ("HARD_STATE",), 2),
    Fault("hard state of a newer term", _hard_state_of(9), (), 0),
    Fault("marker of a refill", _refill, ("REFILL",), 1),
    Fault("identity of longer segments", _segment_size(2 * SEGMENT_SIZE), ("IDENTITY",), 2),
    Fault("identity of shorter segments", _segment_size(SEGMENT_SIZE // 2), ("IDENTITY",), 2),
    Fault("identity of no segments", _segment_size(0), ("IDENTITY",), 2),
    Fault("unreadable hard state", _unreadable_hard_state, ("UNREADABLE",), 4),
    Fault("damaged identity", _identity, ("IDENTITY",), 2),
    Fault("no checkpoint", _no_checkpoint, ("NO_COMMITTED_INDEX",), 4),
    Fault("unreadable segment", _unreadable, ("UNREADABLE",), 4),
    Fault("unreadable segment on two", _unreadable_on_two, ("UNREADABLE",), 4),
    Fault("unreadable last segment on two", _unreadable_last, ("UNREADABLE",), 4),
    Fault("unreadable segment and rot", _unreadable_and_rot, ("BIT_ROT", "UNREADABLE"), 4),
    Fault("unreadable segment, lost elsewhere", _unreadable_and_lost,
          ("BELOW_QUORUM", "MISSING_SEGMENT", "UNREADABLE"), 3),
    Fault("another group's store", _other_group, ("NOT_REPLICAS",), 4),
]  # fmt: skip


SWAPS = [
    Fault("exchanged log directories", _exchanged, (), 0),
    Fault("exchanged names", _exchanged_names, ("MISPLACED",), 2),
    Fault("one store twice", _copy_of_one, ("NOT_REPLICAS",), 4),
]
"""No node starts on most of these, so that nothing but a look at the directories can find them."""


NO_FILES = {
    "a segment": f"NODE/data/{segment_name(2 * SEGMENT_SIZE)}",
    "an index file": f"NODE/index/{segment_name(0)}",
    "the hard state": "NODE/hardstate",
    "the checkpoint": "NODE/checkpoint",
    "the identity": "NODE/identity",
    "a ConsumeQueue": f"consumequeue/orders/1/{segment_name(0)}",
}

NOT_FILES = [
    Fault(
        f"{kind.__name__.strip('_')} in place of {what}",
        _in_place_of(file, kind),
        ("UNREADABLE",),
        4,
        ("INDEX_LAG",) if what == "an index file" else (),
    )
    for kind in (os.mkfifo, Path.mkdir, _device)
    for what, file in NO_FILES.items()
]
"""Something else where a file belongs: reading it must neither fail everything nor wait for ever."""


def by_names(*names: str) -> Iterator[Fault]:
    """Some of them."""
    return (fault for fault in FAULTS if fault.name in names)
