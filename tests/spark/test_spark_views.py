"""Each view on known stores: row for row what the decoders of dledger/formats/ say of the same bytes."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fsspec")

import fsspec

from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC, Kind
from dledger.formats.record import SYSTEM_TOPIC
from dledger.formats.state import GroupConfig, TopicConfig, offsets_op
from dledger.spark.messages import CorruptMessage
from tests.audit.store_builder import (
    SEGMENT_SIZE,
    Log,
    flip,
    read_entry,
    sample_log,
    segment_path,
    write_group,
    write_store,
)
from tests.spark.views_kit import messages_of, place, places_of, planned, record_of, rows_of, view

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEHIND = 11
"""Entries of the store that are not committed."""


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(900)


@pytest.fixture(scope="module")
def store(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(log, tmp_path_factory.mktemp("store") / "n0", committed=len(log.entries) - 1 - BEHIND)


def committed(log: Log) -> int:
    return len(log.entries) - 1 - BEHIND


def moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def read(spark: Any, path: Any, **options: str) -> Any:
    return spark.read.format("dledger").option("path", str(path)).options(**options).load()


def expected_queues(log: Log) -> list[tuple[Any, ...]]:
    times: dict[tuple[str, int], list[int]] = {}
    for _, record in messages_of(log, committed(log)):
        times.setdefault((record.topic, record.queue_id), []).append(record.store_timestamp)
    return [
        ("g0", "n0", topic, queue_id, 0, len(found), moment(found[0]), moment(found[-1]))
        for (topic, queue_id), found in sorted(times.items())
    ]


def test_queues(log: Log, store: Path) -> None:
    rows = rows_of(view(store, view="queues"))
    assert sorted(tuple(row.values()) for row in rows) == expected_queues(log)
    orders = rows_of(view(store, view="queues", assign='{"orders": [1, 3]}'))
    assert [(row["topic"], row["partition"]) for row in orders] == [("orders", 1), ("orders", 3)]


def test_queues_end_where_the_log_begins_and_ends(log: Log, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "n0")
    segment_path(tmp_path / "n0", 0).unlink()
    first = {
        (row["topic"], row["partition"]): row["minOffset"]
        for row in rows_of(view(tmp_path / "n0", view="queues"))
    }
    kept: dict[tuple[str, int], int] = {}
    for entry, record in messages_of(log, committed(log)):
        if entry.pos >= SEGMENT_SIZE:
            kept.setdefault((record.topic, record.queue_id), record.queue_offset)
    assert first == kept and min(kept.values()) > 0


def expected_index(log: Log) -> list[tuple[Any, ...]]:
    return [
        ("n0", entry.index, entry.index, entry.term, entry.pos, entry.size, MAGIC) for entry in log.entries
    ]


def test_index_units_are_shown_as_they_are(log: Log, store: Path, tmp_path: Path) -> None:
    assert [tuple(row.values()) for row in rows_of(view(store, view="index"))] == expected_index(log)
    ranges = rows_of(view(store, view="index", indexRanges="3-5,890-100000"))
    assert [row["number"] for row in ranges] == [3, 4, 5, *range(890, len(log.entries))]
    shutil.copytree(store, tmp_path / "n0")
    wrong = INDEX_UNIT.pack(MAGIC, 123, 45, 6, 7)
    with (tmp_path / "n0" / "dledger-n0" / "index" / f"{0:020}").open("r+b") as file:
        file.seek(10 * INDEX_UNIT_SIZE)
        file.write(wrong)
    (row,) = rows_of(view(tmp_path / "n0", view="index", indexRanges="10"))
    assert tuple(row.values()) == ("n0", 10, 6, 7, 123, 45, MAGIC)


def test_entries(log: Log, store: Path) -> None:
    rows = rows_of(view(store, view="entries"))
    names = ("replica", "index", "term", "pos", "size", "kind", "crc", "stored_crc", "chain_crc", "damage")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("n0", e.index, e.term, e.pos, e.size, e.kind, e.body_crc, e.body_crc, e.chain_crc, row["damage"])
        for e, row in zip(log.entries[: committed(log) + 1], rows, strict=True)
    ]
    assert {row["damage"] for row in rows} <= {0, 4}


def state_log() -> Log:
    log = Log()
    log.open_term(1)
    log.system(TopicConfig("orders", 4, 4, 6).op())
    log.system(TopicConfig("none", 1, 1, 6).op())
    log.system(GroupConfig("readers").op())
    for number in range(600):
        log.message("orders", b"x" * 100, queue_id=number % 3)
        if number % 100 == 99:
            log.system(offsets_op("readers", [("orders", 0, number // 3), ("orders", 2, number // 4)]))
    log.system(offsets_op("readers", [("orders", 0, 3)], reset=True))
    log.system(offsets_op("of tomorrow", [("orders", 1, 9)]))  # not committed
    return log


def expected_state(last: int) -> list[tuple[Any, ...]]:
    """The last column parsed."""
    head = ("g0", "n0", last)
    topic = {"attributes": [], "flags": 0, "order": False, "perm": 6}
    group = {
        "broadcast": True,
        "enable": True,
        "flags": 0,
        "order": False,
        "retry_max": 16,
        "retry_queues": 1,
    }
    return [
        (*head, "topic", "none", "none", None, None, {**topic, "name": "none", "read": 1, "write": 1}),
        (*head, "topic", "orders", "orders", None, None, {**topic, "name": "orders", "read": 4, "write": 4}),
        (*head, "group", "readers", None, None, None, {**group, "name": "readers"}),
        (*head, "offset", "readers", "orders", 0, 3, None),
        (*head, "offset", "readers", "orders", 2, 599 // 4, None),
        *((*head, "queue", "orders", "orders", queue, 200, None) for queue in range(3)),
    ]


def test_state(tmp_path: Path) -> None:
    log = state_log()
    last = len(log.entries) - 2
    store = write_store(log, tmp_path / "n0", committed=last)
    rows = rows_of(view(store, view="state"))
    found = [(*list(row.values())[:-1], row["data"] and json.loads(row["data"])) for row in rows]
    assert found == expected_state(last)


def test_spark_shows_the_same_rows(spark: Any, log: Log, store: Path, tmp_path: Path) -> None:
    """Types and schemas on their way through Spark."""
    for options in ({"view": "queues"}, {"view": "index"}, {"view": "entries"}, {"includeHeaders": "true"}):
        ours = [
            tuple(dict(value) if isinstance(value, list) else value for value in row.values())
            for row in rows_of(view(store, **options))
        ]
        theirs = [
            tuple(
                value.replace(tzinfo=UTC) if isinstance(value, datetime)
                else bytes(value) if isinstance(value, bytearray)
                else value
                for value in row
            )
            for row in read(spark, f"file://{store}", **options).collect()
        ]  # fmt: skip
        assert theirs == ours and theirs, options
    known = write_store(state_log(), tmp_path / "n0")
    rows = read(spark, known, view="state").where("kind = 'queue'").orderBy("partition").collect()
    assert [(row.name, row.partition, row.offset) for row in rows] == [("orders", n, 200) for n in range(3)]


def test_damage_is_rows_if_it_is_to_be_included(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    whole = {row["logIndex"]: row for row in rows_of(view(store))}
    kinds = {
        kind: [entry for entry in log.entries if entry.kind == kind] for kind in (Kind.MESSAGE, Kind.SYSTEM)
    }
    bad = next(entry for entry in kinds[Kind.MESSAGE] if entry.pos > SEGMENT_SIZE and entry.size > 200)
    flip(store, bad, 180)
    flip(store, kinds[Kind.SYSTEM][-1], 140)  # no message: none is missed
    last = max(log.segments)
    lost = [entry.index for entry in log.entries if last - SEGMENT_SIZE <= entry.pos < last]
    segment_path(store, last - SEGMENT_SIZE).unlink()
    rows = rows_of(view(store, corruptRecords="include"))
    good = [row for row in rows if row["_corrupt"] is None]
    assert {row["logIndex"]: {**row, "_corrupt": None} for row in good} == {
        index: {**row, "_corrupt": None}
        for index, row in whole.items()
        if index != bad.index and index not in lost
    }
    named = {row["logIndex"]: row for row in rows if row["_corrupt"] is not None}
    assert sorted(named) == [bad.index, lost[0]]
    assert "does not match its CRC" in named[bad.index]["_corrupt"]
    assert named[bad.index]["value"] == read_entry(store, bad)[HEADER_SIZE:]
    assert f"entries {lost[0]} to {lost[-1]} are lost" in named[lost[0]]["_corrupt"]


def test_a_segment_that_cannot_be_read_is_a_row_if_damage_is(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    whole = rows_of(view(store))
    bad = segment_path(store, SEGMENT_SIZE)
    bad.unlink()
    bad.mkdir()  # reading it fails, also for root
    lost = [entry.index for entry in log.entries if SEGMENT_SIZE <= entry.pos < 2 * SEGMENT_SIZE]
    with pytest.raises(CorruptMessage, match=f"{bad.name}: from entry {lost[0]} on the file cannot be read"):
        rows_of(view(store))
    rest = [row for row in whole if row["logIndex"] not in lost]
    assert rows_of(view(store, corruptRecords="skip")) == rest
    rows = rows_of(view(store, corruptRecords="include"))
    (named,) = [row for row in rows if row["_corrupt"]]
    assert named["logIndex"] == lost[0]
    assert f"entries {lost[0]} to {lost[-1]} are lost here (the file cannot be read: " in named["_corrupt"]
    assert [row["logIndex"] for row in rows if row is not named] == [row["logIndex"] for row in rest]


def test_system_topics_are_shown_if_they_are_asked_for(log: Log, store: Path) -> None:
    own = [
        (SYSTEM_TOPIC, entry.index, record_of(log, entry).body)
        for entry in log.entries[: committed(log) + 1]
        if entry.kind in (Kind.SYSTEM, Kind.TERM_OPENING)
    ]

    def system(**options: str) -> list[tuple[Any, ...]]:
        rows = rows_of(view(store, **options))
        return [(row["topic"], row["logIndex"], row["value"]) for row in rows if row["topic"] == SYSTEM_TOPIC]

    assert system() == []
    assert system(includeSystemTopics="true") == own == system(subscribe=SYSTEM_TOPIC)
    everything = rows_of(view(store, includeSystemTopics="true"))
    assert len(everything) == len(own) + len(places_of(log, committed(log)))
    assert system(includeSystemTopics="true", subscribePattern="or.*") == []


def test_stores_are_read_by_url(log: Log, store: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(store), "/views/n0", recursive=True)
    try:
        for name in ("messages", "entries", "index", "queues"):
            assert rows_of(view("memory://views/n0", view=name)) == rows_of(view(store, view=name))
        assert rows_of(view(f"file://{store}")) == rows_of(view(store))
    finally:
        memory.rm("/views", recursive=True)


def test_several_groups_are_read_together(spark: Any, log: Log, tmp_path: Path) -> None:
    other = sample_log(300)
    one = write_group(log, tmp_path / "one")
    two = write_store(other, tmp_path / "two", group="g1")
    paths = json.dumps([str(path) for path in (*one, two)])
    rows = read(spark, paths, includeGroup="true").collect()
    found = {name: [place(row.asDict()) for row in rows if row.group == name] for name in ("g0", "g1")}
    assert {name: sorted(places) for name, places in found.items()} == {
        "g0": sorted(places_of(log)),
        "g1": sorted(places_of(other)),
    }
    assert [place(row) for row in rows_of(view(paths, group="g1"))] == places_of(other)
    part = rows_of(view(paths, startingOffsets='{"orders@g1": {"0": 20}}', includeGroup="true"))
    skipped = [row for row in places_of(other) if row[:2] == ("orders", 0) and row[2] < 20]
    assert len(skipped) == 20 and len(part) == len(rows) - 20
    assert not [row for row in part if row["group"] == "g1" and place(row) in skipped]


@pytest.mark.parametrize("state", ["true", "missing", "lying"])
def test_one_segment_is_read_in_pieces(state: str, tmp_path: Path) -> None:
    """What the index files say where to cut is a hint: they may be gone, or wrong."""
    log = Log(segment_size=4 << 20)
    for number in range(3000):
        log.message("orders", b"%06d" % number + bytes(800), queue_id=number % 4)
    store = write_store(log, tmp_path / "n0")
    assert len(log.segments) == 1
    index = store / "dledger-n0" / "index"
    if state == "missing":
        shutil.rmtree(index)
        index.mkdir()
    elif state == "lying":
        for path in index.iterdir():
            units = bytearray(path.read_bytes())
            for at in range(0, len(units) - INDEX_UNIT_SIZE, 7 * INDEX_UNIT_SIZE):
                magic, pos, size, number, term = INDEX_UNIT.unpack_from(units, at)
                INDEX_UNIT.pack_into(units, at, magic, pos + 48, size, number, term)
            path.write_bytes(units)
    parts = view(store, minPartitions="8")
    pieces = planned(parts)
    if state == "missing":
        assert len(pieces) == 1
    elif state == "true":
        assert len(pieces) > 4
    assert [place(row) for row in rows_of(parts)] == places_of(log)
