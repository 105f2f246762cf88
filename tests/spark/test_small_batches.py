"""`minOffsetsPerTrigger`, `maxTriggerDelay` and `maxRecordsPerPartition`. Without a Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from dledger.client import Message, MessageQueue, Producer
from dledger.spark.live_queues import LiveMessagesView, LiveQueues
from dledger.spark.log_streams import DirectoryLog, DirectoryQueues
from dledger.spark.offsets import Encoded, QueueRange, parts_of
from dledger.spark.options import Options, parse
from dledger.spark.streaming import BaseReader, Pace, PlainStreamReader, StreamReader
from dledger.spark.versions import HAS_READ_LIMITS, ReadAllAvailable
from tests.audit.store_builder import Log, sample_log, write_store
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.client.test_sync import running
from tests.spark.views_kit import place, places_of, planned, rows_of, view

TOPIC = "orders"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        yield cluster


def send(fake: FakeCluster, count: int) -> None:
    with Producer(group="producers", namesrv=fake.namesrv) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))


def stream(
    fake: FakeCluster, kind: type[BaseReader] = StreamReader, **options: str
) -> tuple[BaseReader, Clock]:
    """A stream that waits for 10 messages, for at most 15 minutes."""
    given = {"servers": fake.namesrv, "subscribe": TOPIC, "minOffsetsPerTrigger": "10", **options}
    parsed = parse({**given, "startingOffsets": "earliest"}, "stream")
    reader, clock = kind(parsed, LiveQueues(parsed)), Clock()
    reader._pace = Pace(parsed.min_offsets, parsed.max_trigger_delay_ms, clock)
    return reader, clock


def take(reader: BaseReader, start: Encoded, *, once: bool = False) -> Encoded:
    """The end of the next batch, as Spark asks for it."""
    if isinstance(reader, StreamReader):
        limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
        return reader.latestOffset(start, limit)
    assert isinstance(reader, PlainStreamReader)
    return reader.latestOffset()


def read(position: Encoded) -> int:
    """How many messages there are before a position."""
    return sum(at for name, at in position.items() if "/" in name and isinstance(at, int))


KINDS = [pytest.param(StreamReader, marks=[] if HAS_READ_LIMITS else pytest.mark.skip()), PlainStreamReader]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_waits_for_its_messages_or_its_time(fake: FakeCluster, kind: type[BaseReader]) -> None:
    reader, clock = stream(fake, kind)
    send(fake, 3)
    first = take(reader, reader.initialOffset())
    assert read(first) == 3, "the first batch after a start does not wait, as with Kafka"
    send(fake, 9)
    assert take(reader, first) == first, "too few"
    send(fake, 1)
    second = take(reader, first)
    assert read(second) == 13
    send(fake, 1)
    clock.now_s += 15 * 60 - 1
    assert take(reader, second) == second, "neither enough nor late enough"
    clock.now_s += 1
    third = take(reader, second)
    assert read(third) == 14, "maxTriggerDelay is over"
    send(fake, 1)
    assert take(reader, third) == third, "the time begins anew with each batch"
    reader.stop()


def test_the_delay_is_an_option(fake: FakeCluster) -> None:
    reader, clock = stream(fake, PlainStreamReader, maxTriggerDelay="30s")
    send(fake, 1)
    first = take(reader, {})
    send(fake, 1)
    clock.now_s += 29
    assert take(reader, first) == first
    clock.now_s += 1
    assert read(take(reader, first)) == 2
    reader.stop()


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="needs Spark 4.2")
def test_the_largest_number_counts_too(fake: FakeCluster) -> None:
    reader, _ = stream(fake, maxOffsetsPerTrigger="12")
    start = reader.initialOffset()
    send(fake, 30)
    first = take(reader, start)
    second = take(reader, first)
    assert (read(first), read(second)) == (12, 24)
    assert take(reader, second) == second, "6 messages wait for 4 more"
    reader.stop()


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="needs Spark 4.2")
def test_a_query_that_ends_leaves_nothing_behind(fake: FakeCluster) -> None:
    """With Kafka's source, the rest of fewer messages than minOffsetsPerTrigger is left unread."""
    reader, _ = stream(fake, maxOffsetsPerTrigger="12")
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    send(fake, 15)
    reader.prepareForTriggerAvailableNow()
    send(fake, 5)
    first = take(reader, start)
    second = take(reader, first)
    assert (read(first), read(second)) == (12, 15), "what was there when the query began"
    assert take(reader, second) == second
    reader.stop()
    again, _ = stream(fake)
    take(again, second)
    send(fake, 1)
    assert read(take(again, second, once=True)) == 21, "the trigger Once"
    again.stop()


def test_a_reader_goes_to_the_tasks(fake: FakeCluster) -> None:
    reader, _ = stream(fake)
    reader._pace = Pace(1, 1)
    assert pickle.loads(pickle.dumps(reader))._options == reader._options
    reader.stop()


# --- maxRecordsPerPartition ------------------------------------------------------------------------------

RANGES = st.lists(
    st.builds(
        lambda queue, low, count: QueueRange(TOPIC, queue, low, low + count),
        st.integers(0, 3),
        st.integers(0, 50),
        st.integers(1, 90),
    ),
    max_size=5,
)


@given(RANGES, st.integers(1, 100), st.none() | st.integers(1, 20))
def test_no_task_has_more_messages_and_all_are_read_once(
    ranges: list[QueueRange], most: int, least: int | None
) -> None:
    parts = parts_of(ranges, Options(max_records=most, min_partitions=least))
    assert all(0 < sum(item.high - item.low for item in part) <= most for part in parts)
    messages = sum(item.high - item.low for item in ranges)
    assert len(parts) >= -(-messages // most)
    offsets = [(i.queue_id, at) for part in parts for i in part for at in range(i.low, i.high)]
    assert sorted(offsets) == sorted((i.queue_id, at) for i in ranges for at in range(i.low, i.high))


@pytest.mark.parametrize("most", [1, 7, 100_000])
def test_a_batch_over_live_brokers(fake: FakeCluster, most: int) -> None:
    send(fake, 20)
    options = {"servers": fake.namesrv, "subscribe": TOPIC, "maxRecordsPerPartition": str(most)}
    found = LiveMessagesView(parse(options, "batch"))
    counts = [sum(batch.num_rows for batch in found.read(part)) for part in found.plan()]
    assert sum(counts) == 20 and max(counts) <= most


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(1200)


@pytest.mark.parametrize(
    "options", [{}, {"isolation": "all"}, {"partitionBytes": "20000"}, {"minPartitions": "9"}]
)
def test_a_batch_over_files(log: Log, tmp_path: Path, options: dict[str, str]) -> None:
    store = write_store(log, tmp_path / "n0")
    found = view(store, maxRecordsPerPartition="100", **options)
    packs = [pack.pieces for pack in found.plan()]
    assert len(packs) >= len(log.entries) // 100
    for pack in packs:
        last = [piece.last if piece.last >= 0 else len(log.entries) - 1 for piece in pack]
        assert sum(end - piece.first + 1 for piece, end in zip(pack, last, strict=True)) <= 100
    assert [place(row) for row in rows_of(found)] == places_of(log)


def test_a_batch_over_files_without_index_files(log: Log, tmp_path: Path) -> None:
    """Then it is not known where entries lie, so each task looks for its first one."""
    store = write_store(log, tmp_path / "n0")
    for file in (store / "dledger-n0/index").iterdir():
        file.unlink()
    found = view(store, maxRecordsPerPartition="500")
    assert len(planned(found)) >= len(log.entries) // 500
    assert [place(row) for row in rows_of(found)] == places_of(log)


@pytest.mark.parametrize("kind", [DirectoryQueues, DirectoryLog])
def test_a_stream_over_files(log: Log, tmp_path: Path, kind: type[DirectoryQueues]) -> None:
    store = write_store(log, tmp_path / "n0")
    options = {"path": str(store), "maxRecordsPerPartition": "90", "startingOffsets": "earliest"}
    parsed = parse({**options, **({"offsetType": "log"} if kind is DirectoryLog else {})}, "stream")
    reader = PlainStreamReader(parsed, kind(parsed))
    counts = [
        sum(batch.num_rows for batch in reader.read(part))
        for part in reader.partitions(reader.initialOffset(), reader.latestOffset())
    ]
    assert sum(counts) == len(places_of(log)) and max(counts) <= 90
