"""`failOnDataLoss` of batches: what retention took before the batch was planned, or before it was read.
Without a Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import dledger
from dledger.client import Message, MessageQueue, Producer
from dledger.spark.copies import DamageWarning
from dledger.spark.live_queues import LiveMessagesView
from dledger.spark.log_streams import DirectoryLog, DirectoryQueues
from dledger.spark.messages import CorruptMessage
from dledger.spark.offsets import DataLost
from dledger.spark.options import parse
from dledger.spark.streaming import PlainStreamReader
from tests.audit.store_builder import SEGMENT_SIZE, Log, sample_log, segment_path, write_store
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.client.test_sync import running
from tests.spark.views_kit import places_of, view

TOPIC = "orders"


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two queues of ten messages each; retention took the first four of one."""
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for number in range(20):
                producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))
        cluster.lowest[TOPIC, 0] = 4
        yield cluster


def live(fake: FakeCluster, **options: str) -> LiveMessagesView:
    return LiveMessagesView(parse({"servers": fake.namesrv, "subscribe": TOPIC, **options}, "batch"))


def offsets(view: LiveMessagesView, parts: list[Any]) -> list[tuple[int, int]]:
    batches = [batch for part in parts for batch in view.read(part)]
    columns = [(batch["partition"].to_pylist(), batch["offset"].to_pylist()) for batch in batches]
    return sorted(at for pair in columns for at in zip(*pair, strict=True))


KEPT = [*((0, at) for at in range(4, 10)), *((1, at) for at in range(10))]


def test_offsets_that_are_gone_are_an_error_or_what_is_there_is_read(fake: FakeCluster) -> None:
    starting = {"startingOffsets": json.dumps({TOPIC: {"0": 1}})}
    with pytest.raises(DataLost, match=f"startingOffsets: {TOPIC}/0: offset 1 is outside .* 4 to 10"):
        live(fake, **starting).plan()
    kept = live(fake, **starting, failOnDataLoss="false")
    assert offsets(kept, kept.plan()) == KEPT
    ending = {"endingOffsets": json.dumps({TOPIC: {"0": 99}})}
    with pytest.raises(DataLost, match=f"endingOffsets: {TOPIC}/0: offset 99 is outside"):
        live(fake, **ending).plan()
    kept = live(fake, **ending, failOnDataLoss="false")
    assert offsets(kept, kept.plan()) == KEPT


def test_what_retention_takes_before_it_is_read(fake: FakeCluster) -> None:
    failing, going_on = live(fake), live(fake, failOnDataLoss="false")
    parts = failing.plan()
    fake.lowest[TOPIC, 1] = 7
    with pytest.raises(DataLost, match=r"offset 0 does not exist"):
        offsets(failing, parts)
    assert offsets(going_on, parts) == [*((0, at) for at in range(4, 10)), *((1, at) for at in range(7, 10))]


def test_a_read_without_spark(fake: FakeCluster) -> None:
    starting = {TOPIC: {"0": 1}}
    read = dledger.read(servers=fake.namesrv, subscribe=TOPIC, startingOffsets=starting, failOnDataLoss=False)
    assert read.read_all().num_rows == len(KEPT)


# --- files -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(2000)


@pytest.fixture
def store(log: Log, tmp_path: Path) -> Path:
    return write_store(log, tmp_path / "n0")


def retire(store: Path) -> None:
    """What retention does while a task waits: it deletes the oldest segment."""
    segment_path(store, 0).unlink()


def kept(log: Log) -> list[tuple[str, int, int, int]]:
    first = next(entry.index for entry in log.entries if entry.pos >= SEGMENT_SIZE)
    return [at for at in places_of(log) if at[3] >= first]


def places(view: Any, parts: list[Any]) -> list[tuple[str, int, int, int]]:
    rows = [row for part in parts for batch in view.read(part) for row in batch.to_pylist()]
    return sorted((row["topic"], row["partition"], row["offset"], row["logIndex"]) for row in rows)


@pytest.mark.parametrize("options", [{}, {"corruptRecords": "include"}, {"partitionBytes": "10000"}])
def test_a_segment_that_retention_takes_before_it_is_read(
    log: Log, store: Path, options: dict[str, str]
) -> None:
    failing, going_on = (view(store, failOnDataLoss=fail, **options) for fail in ("true", "false"))
    parts = failing.plan()
    retire(store)
    if options.get("corruptRecords") == "include":
        assert any(
            row is not None for part in parts for b in failing.read(part) for row in b["_corrupt"].to_pylist()
        )
    else:
        with pytest.raises(DataLost, match=r"retention deleted the segment before .*; failOnDataLoss=false"):
            places(failing, parts)
    assert places(going_on, parts) == sorted(kept(log))


def test_a_segment_that_is_missing_between_others_is_damage(store: Path) -> None:
    going_on = view(store, failOnDataLoss="false")
    parts = going_on.plan()
    segment_path(store, SEGMENT_SIZE).unlink()
    with pytest.raises(CorruptMessage, match="are lost here"):
        places(going_on, parts)


def test_another_replica_still_has_the_segment(log: Log, store: Path, tmp_path: Path) -> None:
    other = write_store(log, tmp_path / "n1", node="n1")
    going_on = view(f"{store},{other}", failOnDataLoss="false")
    parts = going_on.plan()
    read, whole = (store, other) if str(store) in parts[0].pieces[0].task.path else (other, store)
    retire(read)
    with pytest.warns(DamageWarning, match=f"because {whole}/"):
        assert places(going_on, parts) == sorted(places_of(log))


def test_offsets_in_files_that_are_gone(log: Log, store: Path) -> None:
    low = min(offset for topic, queue, offset, _ in kept(log) if (topic, queue) == (TOPIC, 1))
    retire(store)
    starting = json.dumps({TOPIC: {"1": low - 1}})
    with pytest.raises(DataLost, match="outside of the stored range"):
        view(store, startingOffsets=starting).plan()
    going_on = view(store, startingOffsets=starting, failOnDataLoss="false")
    assert places(going_on, going_on.plan()) == sorted(kept(log))


@pytest.mark.parametrize("kind", [DirectoryQueues, DirectoryLog])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_over_files(log: Log, store: Path, kind: type[DirectoryQueues], fail: str) -> None:
    """Seen before: a stream that may skip what retention took failed, and had to be started again."""
    options = {
        "path": str(store),
        "failOnDataLoss": fail,
        "startingOffsets": "earliest",
        "minPartitions": "3",
    }
    parsed = parse({**options, **({"offsetType": "log"} if kind is DirectoryLog else {})}, "stream")
    reader = PlainStreamReader(parsed, kind(parsed))
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset())
    retire(store)
    if fail == "true":
        with pytest.raises(DataLost, match="deleted"):
            places(reader, parts)
    else:
        assert places(reader, parts) == sorted(kept(log))
