"""The views of the data source."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from dledger.formats.entry import Kind
from dledger.formats.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from tests.audit.store_builder import Log, flip, sample_log, write_group, write_store

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(600)


@pytest.fixture(scope="module")
def store(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(log, tmp_path_factory.mktemp("store") / "n0", committed=len(log.entries) - 11)


def read(spark: Any, path: str, **options: str) -> Any:
    return spark.read.format("dledger").option("path", path).options(**options).load()


@pytest.mark.smoke
def test_messages_are_those_of_the_queues_and_committed(spark: Any, log: Log, store: Path) -> None:
    committed = len(log.entries) - 11
    frame = read(spark, str(store), includeHeaders="true")
    rows = frame.collect()
    expected = sorted(entry.index for entry in log.entries[: committed + 1] if entry.kind == Kind.MESSAGE)
    half = [row.logIndex for row in rows if row.value == b"half"]
    assert half == [], "a prepared half of a transaction is no message"
    prepared = len(expected) - len(rows)
    assert 0 < prepared < 5
    first = min(rows, key=lambda row: row.logIndex)
    assert (first.topic, first.partition, first.offset, first.key) == ("payments", 0, 0, None)
    tagged = next(row for row in rows if row.tags == "B")
    assert tagged.headers["TAGS"] == "B" and tagged.key == tagged.headers["KEYS"]
    assert tagged.timestamp < tagged.storeTimestamp


def test_topics_and_columns_can_be_chosen(spark: Any, store: Path) -> None:
    frame = read(spark, str(store), subscribe="payments", includeValue="false", indexRanges="0-99")
    assert "value" not in frame.columns and "headers" not in frame.columns
    rows = frame.collect()
    assert rows and {row.topic for row in rows} == {"payments"}
    assert max(row.logIndex for row in rows) <= 99


def test_compressed_bodies_are_plain_in_the_frame(spark: Any, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    streamed = zstandard.ZstdCompressor().compressobj()  # as zstd-jni streams: no size in the frame
    plain = [b"%d, some body " % number * 100 for number in range(6)]
    stored = [
        (plain[0], 0),
        (zlib.compress(plain[1]), COMPRESSED),  # of producers that know no other kind
        (zlib.compress(plain[2]), COMPRESSED | COMPRESSION_ZLIB),
        (lz4.frame.compress(plain[3]), COMPRESSED | COMPRESSION_LZ4),
        (zstandard.ZstdCompressor().compress(plain[4]), COMPRESSED | COMPRESSION_ZSTD),
        (streamed.compress(plain[5]) + streamed.flush(), COMPRESSED | COMPRESSION_ZSTD),
    ]
    log = Log()
    log.open_term(1)
    for body, sys_flag in stored:
        log.message("packed", body, sys_flag=sys_flag)
    rows = read(spark, str(write_store(log, tmp_path / "n0"))).orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == list(enumerate(plain))


@pytest.mark.smoke
def test_of_several_replicas_messages_come_once(spark: Any, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    one = read(spark, str(stores[0])).count()
    assert read(spark, json.dumps([str(path) for path in stores])).count() == one


@pytest.mark.smoke
def test_rot_fails_the_query_unless_it_is_to_be_skipped(spark: Any, log: Log, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    store = write_store(log, tmp_path / "n0")
    target = next(entry for entry in log.entries if entry.kind == Kind.MESSAGE and entry.size > 200)
    whole = read(spark, str(store)).count()
    flip(store, target, 180)
    with pytest.raises(PySparkException, match=f"index {target.index}"):
        read(spark, str(store)).count()
    assert read(spark, str(store), corruptRecords="skip").count() == whole - 1


def test_entries_are_committed_unless_all_are_asked_for(spark: Any, log: Log, store: Path) -> None:
    assert read(spark, str(store), view="entries").count() == len(log.entries) - 10
    everything = read(spark, str(store), view="entries", isolation="all")
    assert everything.count() == len(log.entries)
    (row,) = read(spark, str(store), view="entries", indexRanges="[[77, 77]]").collect()
    entry = log.entries[77]
    assert (row["index"], row.term, row.pos, row.crc) == (77, entry.term, entry.pos, entry.body_crc)


def test_unknown_options_are_refused_with_a_hint(spark: Any, store: Path) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="did you mean 'view'"):
        read(spark, str(store), vieuw="scan").count()
