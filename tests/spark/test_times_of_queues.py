"""`startingOffsetsByTimestamp`, `endingOffsetsByTimestamp` and their strategy, and options that would read
nothing. Without a Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.client import Message, MessageQueue, Producer
from dledger.spark.all_views import view_of
from dledger.spark.live_queues import LiveQueues
from dledger.spark.log_streams import DirectoryQueues
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from dledger.spark.queues import offsets_at_times
from dledger.spark.selection import Bounds
from dledger.spark.stores import open_replicas
from dledger.spark.streaming import StreamReader
from tests.audit.store_builder import Log, write_store
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeCluster
from tests.client.test_sync import running

TOPIC = "orders"
MESSAGES = 600
"""Messages of each of the two queues."""
LATE = STORED_AT_MS + 10_000_000
"""A time after all messages."""


class Source:
    """The same two queues, as files or at live brokers. Message i of each queue is stored at `times[i]`."""

    def __init__(self, options: dict[str, str], times: list[list[int]]) -> None:
        self.options = options
        self.times = times

    def given(self, options: dict[str, str | None]) -> dict[str, str]:
        """These options and those that say what is read. An option that is None is not given."""
        given = {**self.options, "subscribe": TOPIC, **options}
        return {name: value for name, value in given.items() if value is not None}

    def batch(self, **options: str | None) -> list[tuple[int, int]]:
        """Queue and offset of the messages that a batch reads."""
        found: Any = view_of(parse(self.given(options), "batch"))
        batches = [batch for part in found.plan() for batch in found.read(part)]
        columns = [(batch["partition"].to_pylist(), batch["offset"].to_pylist()) for batch in batches]
        return sorted(at for pair in columns for at in zip(*pair, strict=True))

    def stream(self, **options: str | None) -> StreamReader:
        parsed = parse(self.given(options), "stream")
        queues = LiveQueues(parsed) if parsed.servers else DirectoryQueues(parsed)
        return StreamReader(parsed, queues)

    def begins(self, **options: str) -> list[object]:
        """Where a stream of these options begins in each queue."""
        reader = self.stream(**options)
        found = reader.initialOffset()
        reader.stop()
        return [found[f"{TOPIC}/{queue}"] for queue in (0, 1)]


@pytest.fixture(scope="module")
def log() -> Log:
    log = Log()
    log.open_term(1)
    for number in range(2 * MESSAGES):
        log.message(TOPIC, b"x" * 100, queue_id=number % 2)
    return log


@pytest.fixture(scope="module")
def live() -> Iterator[Source]:
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for number in range(40):
                producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, GROUP, number % 2))
        yield Source({"servers": cluster.namesrv}, [[STORED_AT_MS + at for at in range(20)]] * 2)


@pytest.fixture(scope="module")
def files(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Source:
    store = write_store(log, tmp_path_factory.mktemp("times") / "n0")
    first = 1_700_000_000_000 + 1  # after the entry that opened the term
    return Source(
        {"path": str(store)}, [[first + 2 * at + queue for at in range(MESSAGES)] for queue in (0, 1)]
    )


@pytest.fixture(params=["live", "files"])
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(request.param)
    return found


def by_queue(**times: int | str) -> str:
    """`{"orders": {"0": T}}` of q0=T."""
    return json.dumps({TOPIC: {name[1:]: time for name, time in times.items()}})


def test_each_queue_has_its_time(source: Source) -> None:
    low, high = (source.times[0][7], source.times[1][11])
    expected = {queue: len(times) for queue, times in enumerate(source.times)}
    text = by_queue(q0=low, q1=high)
    assert source.begins(startingOffsetsByTimestamp=text) == [7, 11]
    assert source.batch(startingOffsetsByTimestamp=text) == [
        *((0, at) for at in range(7, expected[0])),
        *((1, at) for at in range(11, expected[1])),
    ]
    assert source.batch(endingOffsetsByTimestamp=text) == [
        *((0, at) for at in range(7)),
        *((1, at) for at in range(11)),
    ]
    both = {
        "startingOffsetsByTimestamp": by_queue(q0=low),
        "endingOffsetsByTimestamp": by_queue(q0=source.times[0][9], q1=source.times[1][2]),
    }
    assert source.batch(**both) == [(0, 7), (0, 8), (1, 0), (1, 1)]


def test_a_batch_reads_queues_that_are_not_named_from_their_first_message(source: Source) -> None:
    text = by_queue(q1=source.times[1][11])
    assert len(source.batch(startingOffsetsByTimestamp=text)) == 2 * len(source.times[0]) - 11


def test_a_stream_needs_the_start_of_every_queue(source: Source) -> None:
    text = by_queue(q1=source.times[1][11])
    with pytest.raises(BadOption, match=f"startingOffsetsByTimestamp: .* it leaves out {TOPIC}/0: give each"):
        source.begins(startingOffsetsByTimestamp=text)
    with pytest.raises(BadOption, match=f"startingOffsets: .* leaves out {TOPIC}/1: give each -2"):
        source.begins(startingOffsets=f'{{"{TOPIC}": {{"0": 5}}}}')
    assert source.begins(startingOffsets=f'{{"{TOPIC}": {{"0": 5, "1": -2}}}}') == [5, 0]


def test_a_pattern_that_matches_no_topic(source: Source) -> None:
    options = {"subscribe": None, "subscribePattern": "ord"}
    text = f"subscribePattern: no topic matches 'ord', which must match the whole name; there are {TOPIC}"
    with pytest.raises(BadOption, match=text):
        source.batch(**options)
    with pytest.raises(BadOption, match=text):
        source.batch(view="queues", **options)
    with pytest.warns(UserWarning, match=f"{text}.* reads topics that match as soon as they are made"):
        reader = source.stream(startingOffsets="earliest", **options)
        assert reader.initialOffset() == {}
    reader.stop()
    assert source.batch(subscribe=None, subscribePattern="ord.*") == source.batch()


def test_a_queue_without_a_later_message_is_an_error_or_starts_at_its_end(source: Source) -> None:
    options = {"startingOffsetsByTimestamp": by_queue(q0=source.times[0][7], q1=LATE)}
    text = f"ByTimestamp: {TOPIC}/1 has no message stored at or after {LATE} .2023-.*Strategy=latest"
    with pytest.raises(BadOption, match=text):
        source.begins(**options)
    with pytest.raises(BadOption, match=text):
        source.batch(**options)
    options["startingOffsetsByTimestampStrategy"] = "latest"
    count = len(source.times[0])
    assert source.begins(**options) == [7, count]
    assert source.batch(**options) == [(0, at) for at in range(7, count)]
    assert source.batch(endingOffsetsByTimestamp=by_queue(q0=LATE, q1=LATE)) == source.batch(), "to the end"


def test_the_strategy_counts_for_one_time_too(source: Source) -> None:
    last = source.times[0][-1] + 1  # queue 1 of the files has one message more than this
    options = {"startingTimestamp": str(LATE)}
    assert source.begins(**options) == [len(source.times[0])] * 2
    assert source.batch(**options) == []
    options["startingOffsetsByTimestampStrategy"] = "error"
    for ask in (source.begins, source.batch):
        with pytest.raises(
            BadOption, match=rf"startingTimestamp: {TOPIC}/0 has no message stored at or after"
        ):
            ask(**options)
    options["startingTimestamp"] = str(last - 1)
    assert source.batch(**options) == [(queue, len(source.times[0]) - 1) for queue in (0, 1)]


def test_a_queue_that_does_not_exist_is_named(source: Source) -> None:
    for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(
            BadOption, match=rf"{name}: there is no queue {TOPIC}/7; the queues are {TOPIC}/0"
        ):
            source.batch(**{name: by_queue(q7=source.times[0][3])})
    with pytest.raises(BadOption, match=f"there is no queue {TOPIC}/7"):
        source.begins(startingOffsetsByTimestamp=by_queue(q7=source.times[0][3]))


def test_times_in_iso_form(source: Source) -> None:
    texts = by_queue(q0="2023-01-01", q1="2023-01-01T01:00:00+01:00")
    assert source.begins(startingOffsetsByTimestamp=texts) == [0, 0]


def test_a_stream_with_a_checkpoint_does_not_look_at_times(source: Source) -> None:
    """Seen before: over live brokers, messages stored before startingTimestamp were left out for ever."""
    count = len(source.times[0])
    for options in ({"startingTimestamp": str(LATE)}, {"startingOffsetsByTimestamp": by_queue(q0=LATE)}):
        reader = source.stream(**options)
        start = {f"{TOPIC}/0": 3, f"{TOPIC}/1": 4}
        end = {f"{TOPIC}/0": count, f"{TOPIC}/1": count}
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in batches) == 2 * count - 7
        reader.stop()


def test_offsets_of_the_times_narrow_the_search_for_segments(files: Source) -> None:
    parsed = parse(
        {
            **files.options,
            "startingOffsetsByTimestamp": by_queue(q0=files.times[0][590]),
            "endingOffsetsByTimestamp": by_queue(q0=files.times[0][595], q1=files.times[1][5]),
        }
    )
    (replica,) = open_replicas(parsed.paths)
    found = offsets_at_times(parsed, replica)
    assert found == {(TOPIC, 0): Bounds(590, 595), (TOPIC, 1): Bounds(0, 5)}
