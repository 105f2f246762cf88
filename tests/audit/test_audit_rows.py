"""Rows travel through one flat shape; digests add up and tell contents apart."""

from __future__ import annotations

import json

import pytest

from dledger.audit.digests import BlockDigests, differing, merge
from dledger.audit.entries import Entry, columns_of
from dledger.audit.findings import (
    CODES,
    EXIT_CODES,
    BlockRow,
    BoundRow,
    FlatRow,
    KeyFileRow,
    QueueFilesRow,
    QueueRow,
    ReplicaRow,
    Row,
    SegmentRow,
    Severity,
    SnapshotRow,
    finding,
    flatten,
    unflatten,
    worst,
)
from dledger.audit.row_codec import (
    PAGE_BYTES,
    EntriesRow,
    UnknownRow,
    as_columns,
    as_entries_rows,
    decode_page,
    encode_pages,
)


def entry(index: int, crc: int, term: int = 1) -> Entry:
    return Entry(index, term, index * 100, 100, 0, crc, crc, 0, 0)


def digest(replica: str, entries: list[Entry]) -> list[BlockRow]:
    blocks = BlockDigests(replica)
    blocks.add(columns_of(entries))
    return list(blocks.rows())


def test_every_row_survives_the_flat_shape() -> None:
    rows: list[Row] = [
        finding("BIT_ROT", "n0", "text", first=3, last=5, segment=65536),
        ReplicaRow("n0", "/s", "g", "c", "i", 3, 10, 9, 2, 65536, 11, 0, 1, 1, 7),
        SegmentRow("n0", 0, 0, 9, 1, 2, 10, 1000, 1000, "blank", 1, 2, 3, 0, ((-1, 4), (7, 7))),
        BlockRow("n0", 4, 1024, -5, 1 << 62),
        QueueRow("n0", 0, "topic", 1, 5, 9),
        QueueFilesRow("n0", "topic", 1, 0, 10, 900),
        KeyFileRow("n0", "20240305101112000", 48, 900, 12),
        SnapshotRow("n0", 65536, 20, "abc"),
        BoundRow("n0", -1, "g", "i", 9, 0, -1, -1, 1_700_000_000_000, 0, 1, 1024, (0, 65536)),
    ]
    for row in rows:
        assert unflatten(FlatRow(*json.loads(json.dumps(flatten(row))))) == row


def test_entries_travel_as_columns_and_in_rows_of_a_bounded_size() -> None:
    entries = [Entry(index, 7, index * 100, 100, 1 << 24, 0xFFFFFFFF, index, 5, 4) for index in range(20_000)]
    rows = list(as_entries_rows("n0", columns_of(entries)))
    pages = list(encode_pages(rows))
    assert max(map(len, pages)) < 2 * PAGE_BYTES and len(rows) == len(pages) + 1 == 3
    found = [row for page in pages for row in decode_page(page)]
    assert found == rows
    assert [entry for row in rows for entry in as_columns(row).entries()] == entries
    with pytest.raises(UnknownRow, match="719 bytes are not 10 entries"):
        as_columns(EntriesRow("n0", 10, bytes(719)))


def test_digests_do_not_depend_on_order_or_parts() -> None:
    entries = [entry(index, index * 7) for index in range(3000)]
    whole = merge(digest("n0", entries))
    parts = merge(digest("n0", entries[2000:]) + digest("n0", entries[:2000]))
    assert whole == parts
    assert [whole[block]["n0"][0] for block in sorted(whole)] == [1024, 1024, 952]


def test_digests_tell_contents_apart() -> None:
    same = [entry(index, index) for index in range(10)]
    swapped = [*same[:3], entry(3, 4), entry(4, 3), *same[5:]]  # a sum or a CRC would not see it
    other_term = [*same[:9], entry(9, 9, term=2)]
    for changed in (swapped, other_term, same[:9]):
        assert differing(merge(digest("n0", same) + digest("n1", changed))) == [0]
    assert differing(merge(digest("n0", same) + digest("n1", same))) == []


def test_mixes_fit_signed_64_bit_columns() -> None:
    for row in digest("n0", [entry(index * 1024, index) for index in range(50)]):
        assert -(1 << 63) <= row.mix_a < 1 << 63 and -(1 << 63) <= row.mix_b < 1 << 63


def test_the_worst_finding_decides() -> None:
    def severities(*codes: str) -> int:
        return EXIT_CODES[worst(finding(code, "n0", "") for code in codes)]

    assert severities() == 0
    assert severities("LAGGING", "TORN_TAIL") == 1
    assert severities("TORN_TAIL", "BIT_ROT") == 2
    assert severities("BIT_ROT", "UNREADABLE") == 4
    assert severities("BELOW_QUORUM", "UNREADABLE") == 3


def test_every_code_says_what_to_do() -> None:
    assert all(code.advice and isinstance(code.severity, Severity) for code in CODES.values())
