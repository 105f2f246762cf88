"""What a replica holds: nothing that is lost is passed over, nothing that was taken on purpose is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.coverage import check_replica, gather
from dledger.audit.findings import ReplicaRow, Row, SegmentRow, unread_segment
from dledger.formats.entry import BLANK, BLANK_MAGIC, Kind
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE, Log, sample_log, segment_path, write_store

SIZE = 100


def replica(committed: int, *, base: int = -1, head_unit: int = 0) -> ReplicaRow:
    return ReplicaRow("n0", "/s", "g", "c", "i", 3, committed, committed, 4, SIZE, 0, head_unit, 1, 1, base)


def segment(number: int, first: int, last: int, stop: str = "blank") -> SegmentRow:
    """Entries without chain values."""
    start = number * SIZE
    return SegmentRow("n0", start, first, last, 1, 1, last - first + 1, 9, start + 9, stop, 0, 0, 0, 0, ())


def said(*rows: Row) -> list[tuple[str, int, int]]:
    (holding,) = gather(list(rows))
    return [(found.code, found.first_index, found.last_index) for found in check_replica(holding)]


def test_what_no_segment_holds_is_missing_whatever_the_cause() -> None:
    """A segment without entries lies between two others, and the scan reported nothing about it."""
    rows = [replica(39), segment(0, 0, 9), segment(1, -1, -2, "end"), segment(2, 20, 39, "end")]
    assert [each for each in said(*rows) if each[0] != "INDEX_LAG"] == [("MISSING_ENTRIES", 10, 19)]


@pytest.mark.parametrize("base", [-1, 4])
def test_segments_that_retention_took_meanwhile_are_not_missing(base: int) -> None:
    """An earlier retention left a unit of the entry before the log, as index files are removed as a whole."""
    rows = [
        replica(39, base=base, head_unit=1),
        unread_segment("n0", SIZE, "retired"),
        segment(2, 10, 19),
        segment(3, 20, 39, "end"),
    ]
    assert said(*rows) == []
    assert gather(list(rows))[0].beginning == 10
    half = [*rows[:1], segment(1, 5, 7, "retired"), *rows[2:]]
    assert said(*half) == []


def test_a_log_that_ends_early_is_told_also_beside_an_unread_segment() -> None:
    rows = [replica(39), unread_segment("n0", 0), segment(1, 10, 19)]
    assert said(*rows) == [("MISSING_ENTRIES", 20, 39)]


def raw_log(entries: int) -> Log:
    log = Log()
    log.open_term(1)
    for number in range(entries):
        body = bytes([number % 251]) * 900
        log._reserve(len(body) + 48)
        log.add(body, Kind.RAW)
    return log


@pytest.mark.parametrize("size", [0, 5])
def test_a_segment_without_messages_is_missed_too(size: int, tmp_path: Path) -> None:
    """No queue offset tells that entries of users of the library are gone."""
    store = write_store(raw_log(300), tmp_path / "n0")
    path = segment_path(store, 2 * SEGMENT_SIZE)
    path.write_bytes(path.read_bytes()[:size])
    report = audit([store])
    assert [found.code for found in report.findings] == ["BIT_ROT"]
    assert report.exit_code == 2
    assert f"the file ends after {size} bytes" in report.findings[0].detail


@pytest.mark.parametrize("content", [b"", bytes(SEGMENT_SIZE)])
def test_prepared_segments_at_the_end_are_clean(content: bytes, tmp_path: Path) -> None:
    log = sample_log(600)
    store = write_store(log, tmp_path / "n0")
    for behind in (1, 2):
        (segment_path(store, max(log.segments) + behind * SEGMENT_SIZE)).write_bytes(content)
    assert audit([store]).findings == []


def test_a_recycled_file_at_the_end_is_clean(tmp_path: Path) -> None:
    log = sample_log(600)
    store = write_store(log, tmp_path / "n0")
    path = segment_path(store, max(log.segments) + SEGMENT_SIZE)
    path.write_bytes(segment_path(store, 0).read_bytes())
    assert audit([store]).findings == []


FILLER = BLANK.pack(BLANK_MAGIC, SEGMENT_SIZE).ljust(SEGMENT_SIZE, b"\0")


def log_over_an_empty_segment(*contents: bytes, chain: int = 0, term: int = 1) -> Log:
    """Entries, segments with these contents, and entries that go on behind them. `chain` is XORed to the
    chain value that the first of them is sealed with."""
    log = Log()
    log.open_term(1 if term == 1 else 3)
    for _ in range(60):
        log._reserve(948)
        log.add(bytes(900), Kind.RAW)
    log._reserve(log.segment_size)  # rolls
    for content in contents:
        log.segments[log.pos] = bytearray(content)
        log.pos += log.segment_size
    log.segments[log.pos] = bytearray(log.segment_size)
    log.chain ^= chain
    log.term = term
    for _ in range(60):
        log._reserve(948)
        log.add(bytes(900), Kind.RAW)
    return log


@pytest.mark.parametrize(
    ("changes", "codes"),
    [({}, []), ({"chain": 1}, ["CHAIN_BREAK"]), ({"term": 2}, ["TERM_REGRESSION"])],
)
def test_an_empty_segment_hides_nothing_behind_it(
    changes: dict[str, int], codes: list[str], tmp_path: Path
) -> None:
    store = write_store(log_over_an_empty_segment(FILLER, **changes), tmp_path / "n0")
    report = audit([store])
    assert [found.code for found in report.findings if found.code != "HARD_STATE"] == codes
    assert (report.exit_code == 0) == (not codes)


def test_a_segment_of_zeros_that_lacks_no_entry_names_none(tmp_path: Path) -> None:
    store = write_store(log_over_an_empty_segment(bytes(SEGMENT_SIZE)), tmp_path / "n0")
    (found,) = audit([store]).findings
    assert (found.code, found.first_index, found.last_index, found.segment) == (
        "BIT_ROT",
        -1,
        -1,
        SEGMENT_SIZE,
    )
    assert found.detail.endswith("no entry is missing")


ZEROS = bytes(SEGMENT_SIZE)


@pytest.mark.parametrize("contents", [(ZEROS, ZEROS), (FILLER, ZEROS), (ZEROS, FILLER)])
def test_several_empty_segments_lack_no_entry(contents: tuple[bytes, bytes], tmp_path: Path) -> None:
    findings = audit([write_store(log_over_an_empty_segment(*contents), tmp_path / "n0")]).findings
    assert [found.code for found in findings] == ["BIT_ROT"] * contents.count(ZEROS)
    assert {(found.first_index, found.last_index) for found in findings} == {(-1, -1)}
    assert all(found.detail.endswith("no entry is missing") for found in findings)


def test_a_missing_file_that_held_no_entry_names_none(tmp_path: Path) -> None:
    store = write_store(log_over_an_empty_segment(FILLER), tmp_path / "n0")
    segment_path(store, SEGMENT_SIZE).unlink()
    (found,) = audit([store]).findings
    assert (found.code, found.first_index, found.last_index) == ("MISSING_SEGMENT", -1, -1)
    assert found.detail.endswith("no entry is missing")


@pytest.mark.parametrize("wiped", [(0, 1), (1, 2), (2, 3)])
def test_wiped_segments_name_the_entries_that_they_held(wiped: tuple[int, int], tmp_path: Path) -> None:
    log = raw_log(400)
    store = write_store(log, tmp_path / "n0")
    held = [[e.index for e in log.entries if e.pos // SEGMENT_SIZE == number] for number in wiped]
    for number in wiped:
        segment_path(store, number * SEGMENT_SIZE).write_bytes(ZEROS)
    findings = [found for found in audit([store]).findings if found.code == "BIT_ROT"]
    assert findings, "the wiped segments are reported"
    for found in findings:
        assert (found.first_index, found.last_index) == (held[0][0], held[1][-1]), found
