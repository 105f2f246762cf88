"""The walk through one segment: windows, tails, recycled files, files that change while they are read."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from dledger.audit.scan import make_walker, read_entries, scan_segment
from dledger.audit.store_directory import open_store, segment_tasks
from dledger.audit.walk import CHAIN_UNKNOWN, Entry, Fault, SegmentWalker, Stop, collapse
from dledger.formats.entry import chain_crc, crc_begin
from dledger.runtime.files import OsFiles
from tests.audit.store_builder import SEGMENT_SIZE, Log, flip, patch, sample_log, segment_path, write_store


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(800)


def walk(data: bytes, window: int, must_reach: int, **more: object) -> tuple[SegmentWalker, list[Entry]]:
    """Feed a segment in windows of some size."""
    walker = SegmentWalker(0, len(data), must_reach, **more)  # type: ignore[arg-type]
    entries: list[Entry] = []
    size = window
    while not walker.stop:
        before = walker.offset
        piece = data[before : before + size]
        entries += walker.feed(piece, before + size >= len(data)).entries()
        size = window if walker.offset > before else size * 2
    return walker, entries


@pytest.mark.parametrize("window", [50, 333, 4096, SEGMENT_SIZE])
def test_windows_do_not_change_what_is_seen(log: Log, window: int) -> None:
    data = bytes(log.segments[0])
    expected = [entry for entry in log.entries if entry.pos < SEGMENT_SIZE]
    walker, entries = walk(data, window, len(log.entries) - 1)
    assert [(e.index, e.term, e.pos, e.crc, e.damage) for e in entries] == [
        (e.index, e.term, e.pos, e.body_crc, 0) for e in expected
    ]
    assert (walker.stop, walker.faults, walker.holes) == (Stop.BLANK, [], [])


@pytest.mark.parametrize("window", [50, 333, 4096, SEGMENT_SIZE])
@pytest.mark.parametrize("offset", [3, 6, 15, 30, 46])
def test_the_walk_goes_on_behind_a_damaged_header(log: Log, window: int, offset: int) -> None:
    data = bytearray(log.segments[0])
    data[log.entries[50].pos + offset] ^= 0x10
    walker, entries = walk(bytes(data), window, len(log.entries) - 1)
    last = max(entry.index for entry in log.entries if entry.pos < SEGMENT_SIZE)
    assert [entry.index for entry in entries] == [i for i in range(last + 1) if i != 50]
    assert walker.holes == [(50, 50)]
    assert [entry.index for entry in entries if entry.damage] == [51]
    assert entries[50].damage == CHAIN_UNKNOWN


def test_above_the_commit_index_damage_is_the_end(log: Log) -> None:
    data = bytearray(log.segments[0])
    data[log.entries[50].pos + 60] ^= 1
    walker, entries = walk(bytes(data), 4096, 49)
    assert (entries[-1].index, walker.stop, walker.faults) == (49, Stop.TORN, [])


def test_a_torn_tail_is_looked_at_again(log: Log) -> None:
    data = bytes(log.segments[0])
    at = log.entries[50].pos
    walker = SegmentWalker(0, len(data), 40)
    walker.feed(data[: at + 60] + bytes(len(data) - at - 60), True)
    assert (walker.stop, walker.next_index) == (Stop.TORN, 50)
    walker.retry()
    assert walker.feed(data[walker.offset :], True).entry(0).index == 50


def test_old_bytes_of_a_recycled_segment_are_not_believed(log: Log) -> None:
    """Behind the end of the log lie whole entries with good CRCs, of another place and time."""
    old = bytes(log.segments[SEGMENT_SIZE])
    short = Log(stale=old)
    short.open_term(1)
    for number in range(20):
        short.message("orders", b"fresh %d" % number)
    walker, entries = walk(bytes(short.segments[0]), 4096, short.entries[-1].index)
    assert (len(entries), walker.stop, walker.faults) == (21, Stop.END, [])


def test_a_segment_recycled_while_it_is_read_is_no_rot(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    files = OsFiles()
    (replica,) = open_store(files, str(store))
    task = segment_tasks(replica)[0]
    walker = make_walker(files, task)
    walker.feed(segment_path(store, 0).read_bytes()[: SEGMENT_SIZE // 2], False)
    patch(store, 0, bytes(log.segments[SEGMENT_SIZE]))
    walker.feed(segment_path(store, 0).read_bytes()[walker.offset :], True)
    assert (walker.stop, walker.faults) == (Stop.RETIRED, [])


def test_a_segment_gone_since_it_was_listed_is_retired(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    files = OsFiles()
    (replica,) = open_store(files, str(store))
    task = segment_tasks(replica)[0]
    segment_path(store, 0).unlink()
    assert [getattr(row, "code", "") for row in scan_segment(files, task)] == ["RETIRED", ""]


@pytest.mark.parametrize("low", [0, 1, 70, 100])
def test_ranges_are_read_alone_with_the_chain_known(log: Log, tmp_path: Path, low: int) -> None:
    store = write_store(log, tmp_path / "n0")
    flip(store, log.entries[30], 60)
    (replica,) = open_store(OsFiles(), str(store))
    task = segment_tasks(replica)[0]
    got = [entry for window in read_entries(OsFiles(), task, 0, [(low, low + 4)]) for entry in window.entries]
    assert [entry.index for entry in got] == list(range(low, low + 5))
    assert {entry.damage for entry in got} == {0}


def test_runs_of_faults_collapse_by_code() -> None:
    faults = [Fault("A", 1, 1, "x"), Fault("B", 1, 1, "y"), Fault("A", 2, 2, "z"), Fault("A", 4, 4, "w")]
    assert collapse(faults) == [Fault("A", 1, 2, "x"), Fault("B", 1, 1, "y"), Fault("A", 4, 4, "w")]


def _chained(log: Log, number: int, body_byte: bool, chain: int | None) -> list[Fault]:
    """Faults after this entry's chain value was replaced, and its body (with its CRC) if asked for."""
    entry = log.entries[number]
    data = bytearray(log.segments[0])
    end = entry.pos + entry.size
    if body_byte:
        data[end - 1] ^= 1
        body_crc = crc32(data[entry.pos + 48 : end], crc_begin(entry.channel))
        data[entry.pos + 40 : entry.pos + 44] = body_crc.to_bytes(4, "big")
    if chain is not None:
        data[entry.pos + 36 : entry.pos + 40] = chain.to_bytes(4, "big")
    walker, _ = walk(bytes(data), SEGMENT_SIZE, len(log.entries) - 1)
    return [fault[:3] for fault in collapse(walker.faults)]  # type: ignore[misc]


def test_a_wrong_chain_value_is_rot_where_the_entry_behind_knows_the_right_one(log: Log) -> None:
    right = log.entries[50].chain_crc
    assert _chained(log, 50, False, right ^ 4) == [("BIT_ROT", 50, 50)]


def test_a_replaced_entry_breaks_the_chain(log: Log) -> None:
    """Behind it when its own chain value was made for it, at it when that is the old one."""
    before, old = log.entries[49:51]
    end = old.pos + old.size
    body = bytearray(log.segments[0][old.pos + 48 : end])
    body[-1] ^= 1
    made = chain_crc(before.chain_crc, 50, old.term, crc32(body, crc_begin(old.channel)))
    assert _chained(log, 50, True, made) == [("CHAIN_BREAK", 51, 51)]
    assert _chained(log, 50, True, None) == [("CHAIN_BREAK", 50, 50)]
    assert _chained(log, 50, True, made ^ 4) == [("CHAIN_BREAK", 50, 51)]
