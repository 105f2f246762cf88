"""Damage in one replica is read from another one that was given, which is said. Without a Spark session."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import dledger
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.spark.copies import DamageWarning
from dledger.spark.messages import CorruptMessage
from dledger.spark.offsets import encode_offsets
from dledger.spark.options import parse
from tests.audit.store_builder import Log, flip, sample_log, segment_path, write_group

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(900)


@pytest.fixture
def stores(log: Log, tmp_path: Path) -> list[Path]:
    return write_group(log, tmp_path)


def key(row: dict[str, Any]) -> Row:
    return row["topic"], row["partition"], row["offset"], row["value"]


def read(stores: list[Path], **options: Any) -> list[Row]:
    return [key(row) for row in dledger.read(stores, **options).read_all().to_pylist()]


def streamed(stores: list[Path], **options: str) -> list[Row]:
    """All messages as the first batch of a stream reads them."""
    pytest.importorskip("pyspark")
    from dledger.spark.log_streams import DirectoryLog, DirectoryQueues
    from dledger.spark.offsets import ranges_between

    paths = ",".join(map(str, stores))
    parsed = parse({"path": paths, "startingOffsets": "earliest", **options}, "stream")
    queues = DirectoryLog(parsed) if parsed.offset_type == "log" else DirectoryQueues(parsed)
    there = queues.bounds(qualify=False)
    low, high = ({queue: getattr(one, end) for queue, one in there.items()} for end in ("low", "high"))
    assert encode_offsets(high)
    parts = queues.plan(ranges_between(low, high))
    rows = [row for part in parts for batch in queues.read(part) for row in batch.to_pylist()]
    return [key(row) for row in rows]


WAYS: dict[str, Callable[..., list[Row]]] = {
    "batch": read,
    "stream by queue": streamed,
    "stream by log index": lambda stores, **options: streamed(stores, offsetType="log", **options),
}


def messages(log: Log) -> Iterator[EntryHeader]:
    return (entry for entry in log.entries if entry.kind == Kind.MESSAGE)


def body(store: Path, entry: EntryHeader) -> None:
    flip(store, entry, HEADER_SIZE + 95)


def header(store: Path, entry: EntryHeader) -> None:
    flip(store, entry, 4)


def kind(store: Path, entry: EntryHeader) -> None:
    flip(store, entry, 32)


def segment_gone(store: Path, entry: EntryHeader) -> None:
    segment_path(store, entry.pos - entry.pos % 65536).unlink()


def zeros(store: Path, entry: EntryHeader) -> None:
    path = segment_path(store, entry.pos - entry.pos % 65536)
    data = bytearray(path.read_bytes())
    at = entry.pos % 65536
    data[at : at + 5000] = bytes(5000)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [body, header, kind, segment_gone, zeros], ids=lambda one: one.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_what_one_replica_lost_is_read_from_another(
    way: str, damage: Callable[[Path, EntryHeader], None], log: Log, stores: list[Path]
) -> None:
    everything = sorted(WAYS[way](stores))
    entry = [*messages(log)][300]
    damage(stores[0], entry)
    for others in (stores, [stores[1], stores[0]]):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = WAYS[way](others)
        assert sorted(found) == everything
        texts = [str(one.message) for one in told if one.category is DamageWarning]
        if others[0] == stores[0]:
            assert texts and all(str(stores[0]) in text and str(stores[1]) in text for text in texts)
            assert len(texts) <= 2 or way == "stream by queue", "a run of entries is one warning"


@pytest.mark.parametrize("way", ["batch", "stream by log index"])
def test_rows_of_a_queue_stay_in_order(way: str, log: Log, stores: list[Path]) -> None:
    everything = WAYS[way](stores)
    for number in (100, 101, 250, 400):
        body(stores[0], [*messages(log)][number])
    with pytest.warns(DamageWarning):
        assert WAYS[way](stores) == everything


def test_each_entry_may_come_from_another_replica(log: Log, stores: list[Path]) -> None:
    everything = sorted(read(stores))
    for number in range(300, 312):
        body(stores[0], [*messages(log)][number])
        body(stores[1 + number % 2], [*messages(log)][number])
    with pytest.warns(DamageWarning):
        assert sorted(read(stores)) == everything


def test_the_warning_names_the_message(log: Log, stores: list[Path]) -> None:
    entry = [*messages(log)][300]
    body(stores[0], entry)
    with pytest.warns(DamageWarning) as told:
        read(stores)
    (text,) = [str(one.message) for one in told]
    assert f"entry {entry.index} (topic " in text and "offset " in text
    assert "Nothing is missing in the result" in text and "dledger audit" in text


@pytest.mark.parametrize("way", WAYS)
def test_what_no_replica_has_is_an_error_that_says_where_and_what_to_do(
    way: str, log: Log, stores: list[Path]
) -> None:
    everything = WAYS[way](stores)
    entry = [*messages(log)][300]
    for store in stores:
        body(store, entry)
    with pytest.raises(CorruptMessage) as raised:
        WAYS[way](stores)
    text = str(raised.value)
    for part in (str(stores[0]), f"index {entry.index}", "(topic ", "queue ", "offset ", "audit"):
        assert part in text
    assert len(WAYS[way](stores, corruptRecords="skip")) == len(everything) - 1


def test_what_was_not_damaged_everywhere_is_not_skipped(log: Log, stores: list[Path]) -> None:
    body(stores[0], [*messages(log)][300])
    with pytest.warns(DamageWarning):
        assert len(read(stores, corruptRecords="skip")) == len(read(stores[1:]))


def test_an_entry_that_another_replica_does_not_know_to_be_committed_is_not_taken(
    log: Log, stores: list[Path], tmp_path: Path
) -> None:
    from tests.audit.store_builder import write_store

    shutil.rmtree(stores[1])
    entry = [*messages(log)][300]
    write_store(log, stores[1], "n1", committed=entry.index - 1)
    body(stores[0], entry)
    with pytest.raises(CorruptMessage):
        read(stores[:2])


def test_a_stream_uses_the_consume_queue_of_another_replica(log: Log, stores: list[Path]) -> None:
    everything = sorted(streamed(stores))
    (path,) = (stores[0] / "consumequeue" / "orders" / "1").iterdir()
    data = bytearray(path.read_bytes())
    data[400:420] = bytes(20)
    data[607] ^= 4
    path.write_bytes(data)
    with pytest.warns(DamageWarning):
        assert sorted(streamed(stores)) == everything
