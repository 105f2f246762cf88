"""Columns judge as entries one by one do: on whole segments, on damaged ones, on Apache's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.audit import record_check
from dledger.audit.digests import BlockDigests, mixes
from dledger.audit.entries import _HEADERS as HEADERS
from dledger.audit.entries import (
    CHAIN_UNKNOWN,
    Before,
    Columns,
    _chain_crcs,
    columns_of,
    join,
    plain_run,
    slice_crcs,
    structs,
)
from dledger.audit.findings import Row
from dledger.audit.records import (
    PropertyTexts,
    QueueNames,
    Records,
    padded_texts,
    padded_words,
    read_records,
    tag_codes,
    taken_texts,
)
from dledger.audit.scan import scan_segment
from dledger.audit.store_directory import open_store, segment_tasks
from dledger.audit.walk import SegmentWalker
from dledger.formats.entry import HEADER, HEADER_SIZE, Kind, chain_crc
from dledger.formats.message_ids import tags_code
from dledger.formats.properties import TAGS, find_property
from dledger.runtime.files import OsFiles
from tests.audit.faults import FAULTS, Fault
from tests.audit.store_builder import SEGMENT_SIZE, Log, sample_log, write_group

LOG = sample_log(900)
START = SEGMENT_SIZE


def apaches(data: bytes, first: int, last: int) -> bytes:
    """These entries without CRCs and kinds, as Apache's broker writes them. One of them looks like an empty
    NOOP."""
    out = bytearray(data)
    for entry in LOG.entries:
        if first <= entry.pos < last:
            at = entry.pos - first
            HEADER.pack_into(out, at, *entry._replace(channel=0, chain_crc=0, body_crc=0))
    return bytes(out)


SEGMENTS = {
    "ours": bytes(LOG.segments[START]),
    "Apache's": apaches(bytes(LOG.segments[START]), START, 2 * START),
}
FIRST = next(entry.index for entry in LOG.entries if entry.pos == START)
LAST = [entry.index for entry in LOG.entries if entry.pos < 2 * START][-1]
PLACES = [entry.pos - START for entry in LOG.entries if START <= entry.pos < 2 * START]

damages = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.integers(0, SEGMENT_SIZE * 8 - 1), st.just(0)),
        st.tuples(st.just("header"), st.sampled_from(PLACES), st.integers(0, HEADER_SIZE * 8 - 1)),
        st.tuples(st.just("zero"), st.integers(0, SEGMENT_SIZE - 1), st.integers(1, 9000)),
        st.tuples(st.just("copy"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
        st.tuples(st.just("foreign"), st.sampled_from(PLACES), st.integers(1, 3000)),
    ),
    max_size=4,
)


def damaged(data: bytes, what: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, at, how in what:
        if kind == "flip":
            out[at // 8] ^= 1 << at % 8
        elif kind == "header":
            out[at + how // 8] ^= 1 << how % 8
        elif kind == "zero":
            out[at : at + how] = bytes(len(out[at : at + how]))
        elif kind == "copy":
            piece = out[how : how + 700]
            out[at : at + len(piece)] = piece
        else:
            piece = LOG.segments[0][at : at + how]
            out[at : at + len(piece)] = piece
    return bytes(out[:SEGMENT_SIZE])


def state(walker: SegmentWalker) -> tuple[object, ...]:
    return (walker.offset, walker.stop, walker.faults, walker.holes, walker.bytes, walker.next_index)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(SEGMENTS)),
    what=damages,
    window=st.sampled_from([60, 500, 4096, 20_000, SEGMENT_SIZE]),
    must_reach=st.one_of(st.just(LAST), st.integers(FIRST - 1, LAST + 5)),
    has_next=st.booleans(),
)
def test_columns_judge_as_single_entries_do(
    kind: str, what: list[tuple[str, int, int]], window: int, must_reach: int, has_next: bool
) -> None:
    data = damaged(SEGMENTS[kind], what)
    fast, slow = (SegmentWalker(START, len(data), must_reach, has_next=has_next) for _ in range(2))
    size = window
    while not slow.stop:
        at = slow.offset
        piece, last = data[at : at + size], at + size >= len(data)
        theirs = slow.feed_slowly(piece, last).entries()
        assert fast.feed(piece, last).entries() == theirs
        assert state(fast) == state(slow)
        size = window if slow.offset > at else size * 2


def test_whole_segments_are_walked_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only equal, but without the slow loop: else the test above compares it with itself."""
    judged: list[int] = []
    original = SegmentWalker._run

    def counting(self: SegmentWalker, data: bytes, at: int, last: bool, out: list, most: int) -> object:  # type: ignore[type-arg]
        result = original(self, data, at, last, out, most)
        judged.append(len(out))
        return result

    monkeypatch.setattr(SegmentWalker, "_run", counting)
    for data in SEGMENTS.values():
        judged.clear()
        walker = SegmentWalker(START, len(data), LAST)
        assert len(walker.feed(data, True)) == LAST - FIRST + 1
        assert sum(judged) <= 16


def test_the_chain_in_columns_is_the_chain() -> None:
    data = SEGMENTS["ours"]
    headers = structs(np.frombuffer(data, np.uint8), np.array(PLACES), HEADERS)
    before = np.array([0, 0xFFFFFFFF, *range(2, len(PLACES))], np.int64) * 2_654_435_761 % (1 << 32)
    expected = [
        chain_crc(int(value), int(row["index"]), int(row["term"]), int(row["stored"]))
        for value, row in zip(before, headers, strict=True)
    ]
    assert _chain_crcs(headers, before).tolist() == expected


def test_crcs_of_ranges() -> None:
    data = SEGMENTS["ours"]
    starts, ends = np.array([0, 5, 5]), np.array([100, 5, 60_000])
    assert slice_crcs(data, starts, ends).tolist() == [crc32(data[:100]), 0, crc32(data[5:60_000])]


def test_a_run_starts_only_where_the_entry_before_is_known() -> None:
    first = LOG.entries[FIRST]
    known = Before(FIRST, 0, LOG.entries[FIRST - 1].chain_crc, 0, False)
    columns, end = plain_run(SEGMENTS["ours"], 0, START, known)
    assert (len(columns), columns.entry(0).pos, end) == (
        LAST - FIRST + 1,
        first.pos,
        PLACES[-1] + LOG.entries[LAST].size,
    )
    for wrong in (
        known._replace(chain=None),
        known._replace(chain=1),
        known._replace(expect=FIRST + 1),
        known._replace(term=99),
        known._replace(batch=3),
    ):
        columns, end = plain_run(SEGMENTS["ours"], 0, START, wrong)
        assert (len(columns), end) == (0, 0)


def test_columns_and_entries_are_two_views_of_one_thing() -> None:
    walker = SegmentWalker(START, SEGMENT_SIZE, LAST)
    columns = walker.feed(SEGMENTS["Apache's"], True)
    entries = columns.entries()
    assert columns_of(entries).entries() == entries
    assert columns[3:7].entries() == entries[3:7]
    assert join([columns[:5], columns_of(()), columns[5:]]).entries() == entries
    assert {entry.damage for entry in entries} == {CHAIN_UNKNOWN}
    assert entries[4] == columns.entry(4)


def columns_in(data: bytes) -> Columns:
    return SegmentWalker(START, len(data), LAST).feed(data, True)


Texts = Callable[[bytes, Records], PropertyTexts]


@pytest.fixture(params=["pyarrow", "numpy"])
def texts_of(request: pytest.FixtureRequest) -> Texts:
    pytest.importorskip(request.param)
    return taken_texts if request.param == "pyarrow" else padded_texts


def test_queues_and_tags_of_records(texts_of: Texts) -> None:
    data = SEGMENTS["ours"]
    columns = columns_in(data)
    records = read_records(data, START, columns)
    assert records is not None
    chosen = records[records.dispatched]
    codes = tag_codes(texts_of(data, chosen)).tolist()
    for number, code in enumerate(codes):
        at, size = int(chosen.properties_at[number]), int(chosen.properties_size[number])
        tags = find_property(data[at : at + size], TAGS.encode())
        assert code == tags_code(tags.decode() if tags else None)
    assert len(set(codes)) == 4
    names = QueueNames()
    first = names.numbers(data, chosen)
    which = names.numbers(data, chosen)
    keys = names.keys
    assert first.tolist() == which.tolist()
    assert len(set(keys)) == len(keys) == 8
    for number, one in enumerate(which.tolist()):
        topic, queue_id = keys[one]
        at, size = int(chosen.topic_at[number]), int(chosen.topic_size[number])
        assert (data[at : at + size], chosen.queue_id[number]) == (topic, queue_id)


@pytest.mark.parametrize(
    "properties",
    [
        "",
        "TAGS\x01A\x02",
        "XTAGS\x01B\x02TAGS\x01C\x02",
        "KEYS\x01TAGS\x02TAGS\x01D\x02TAGS\x01E\x02",
        "TAGS\x01",
        "TAGS\x01\x02",
        "TAGS\x01last",
        "TAGS\x01größe\x02",
        "TAGS\x01" + "x" * 300 + "\x02",
        "TAG",
    ],
)
def test_odd_tags_have_the_code_that_the_broker_gives_them(properties: str, texts_of: Texts) -> None:
    log = Log()
    log.open_term(1)
    for text in ("TAGS\x01first\x02", properties, "K\x01v\x02"):
        log.message("orders", b"x", properties=text)
    data = bytes(log.segments[0])[: log.pos]
    columns = SegmentWalker(0, len(data), 3).feed(data, True)
    records = read_records(data, 0, columns)
    assert records is not None
    tags = find_property(properties.encode(), TAGS.encode())
    expected = [0, tags_code("first"), tags_code(tags.decode() if tags else None), 0]
    assert tag_codes(texts_of(data, records)).tolist() == expected


def test_topics_of_two_lengths_and_long_ones_are_told_apart() -> None:
    log = Log()
    topics = ["a", "a\0", "ab", "t" * 127, "t" * 200, "a"]
    for topic in topics:
        log.message(topic, b"x", queue_id=len(topic) % 3)
    data = bytes(log.segments[0])
    columns = SegmentWalker(0, len(data), len(topics) - 1).feed(data, True)
    records = read_records(data, 0, columns)
    assert records is not None
    names = QueueNames()
    for _ in range(2):
        found = [names.keys[one] for one in names.numbers(data, records)]
        assert found == [(topic.encode(), len(topic) % 3) for topic in topics]
    assert len(names.keys) == len(topics) - 1


@pytest.mark.parametrize("text", [b"", b"abc", b"abcdefg", b"abcdefgh", bytes(range(1, 40))], ids=len)
def test_words_hold_the_ranges_of_a_text_up_to_its_end(text: bytes) -> None:
    ranges = [(begin, end) for begin in range(len(text) + 1) for end in range(begin, len(text) + 1)]
    begin, end = np.array(ranges).T
    words = padded_words(np.frombuffer(text, np.uint8), begin, end - begin)
    rows = [row.tobytes() for row in np.stack([*words, np.zeros(len(ranges), "<u8")], axis=1)]
    assert rows == [text[first:last].ljust(8 * len(words) + 8, b"\0") for first, last in ranges]
    assert len(words) == -(-len(text) // 8)


def test_queues_with_one_hash_value_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from dledger.audit import records

    monkeypatch.setattr(records, "_hashes", lambda words, ids, sizes: np.zeros(len(ids), np.uint64))
    test_topics_of_two_lengths_and_long_ones_are_told_apart()


def rows_of(stores: list[Path]) -> list[Row]:
    files = OsFiles()
    return [
        row
        for store in stores
        for replica in open_store(files, str(store))
        for task in segment_tasks(replica)
        for row in scan_segment(files, task)
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.sample(22)
def test_a_scan_in_columns_gives_the_rows_of_a_scan_entry_by_entry(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sample_log()
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    fast = rows_of(stores)
    monkeypatch.setattr(SegmentWalker, "feed", SegmentWalker.feed_slowly)
    monkeypatch.setattr(record_check, "read_records", lambda data, base, columns, deep: None)
    assert rows_of(stores) == fast


def test_mixes_depend_on_every_field() -> None:
    one = columns_in(SEGMENTS["ours"])[:2]
    base = [lane.tolist() for lane in mixes(one)]
    for name in ("index", "term", "size", "channel", "crc"):
        fields = {field: getattr(one, field).copy() for field in one.__slots__}
        fields[name][0] ^= 1
        for lane, old in zip(mixes(Columns(**fields)), base, strict=True):
            assert lane[0] != old[0]
            assert lane[1] == old[1]
    digests = BlockDigests("n0")
    digests.add(columns_of(()))
    assert list(digests.rows()) == []


def test_raw_entries_have_no_records() -> None:
    log = Log()
    log._reserve(500)
    log.add(b"anything", Kind.RAW)
    data = bytes(log.segments[0])
    columns = SegmentWalker(0, len(data), 0).feed(data, True)
    records = read_records(data, 0, columns)
    assert records is not None
    assert len(records) == 0
