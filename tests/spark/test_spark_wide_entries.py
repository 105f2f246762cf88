"""Entries that are larger than what is read at a time, or lie across its edge. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from dledger.formats.properties import KEYS, encode_properties
from dledger.spark import entry_ranges
from dledger.spark.options import parse
from dledger.spark.views import MessagesView
from tests.audit.store_builder import Log, write_store

MIB = 1 << 20
SIZES = (100, entry_ranges.WINDOW - 200, 5, entry_ranges.WINDOW, 4 * MIB, 1, 3 * MIB, 3 * MIB, 10)


def test_large_entries_are_read_without_searching_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(segment_size=64 * MIB)
    for number, size in enumerate(SIZES):
        log.message("orders", bytes([number + 1]) * size, properties=encode_properties({KEYS: f"k{number}"}))
    store = write_store(log, tmp_path / "n0")

    def search(*_: object) -> None:
        raise AssertionError("the slow way is for damage")

    monkeypatch.setattr(entry_ranges, "read_entries", search)
    view = MessagesView(parse({"path": str(store)}, "batch"))
    rows = [row for part in view.plan() for batch in view.read(part) for row in batch.to_pylist()]
    assert [(row["key"], len(row["value"]), set(row["value"])) for row in rows] == [
        (f"k{number}", size, {number + 1}) for number, size in enumerate(SIZES)
    ]
