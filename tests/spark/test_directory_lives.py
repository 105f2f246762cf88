"""Streams over store directories whose topic was deleted and made again. Without a Spark session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.formats.state import TopicConfig
from dledger.formats.state.births import TopicBirth
from dledger.formats.state.deletions import TopicDeletion
from dledger.formats.state_file import pack_snapshot
from dledger.spark import state
from dledger.spark.log_streams import DirectoryQueues
from dledger.spark.offsets import DataLost, Encoded
from dledger.spark.options import parse
from dledger.spark.stores import open_replicas
from dledger.spark.streaming import StreamReader
from tests.audit.store_builder import Log, write_store

TOPIC = "orders"
FIRST, SECOND = 10, 25
"""Messages of the two lives; the second has more, so the old offset lies inside of it."""


def make(log: Log) -> int:
    """Make the topic. Returns the position in its life."""
    born = log.pos
    log.system(TopicConfig(TOPIC, 1, 1, 6).op())
    log.system(TopicBirth(TOPIC, born).op())
    return born


def send(log: Log, count: int) -> None:
    for number in range(count):
        log.message(TOPIC, b"%d" % number, queue_id=0)


class Store:
    """A store whose log grows: it is written again."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "n0"
        self.log = Log()
        self.log.open_term(1)
        self.lives = [make(self.log)]
        send(self.log, FIRST)
        self.write()

    def write(self, cluster: str = "c0") -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        write_store(self.log, self.path, cluster=cluster)

    def delete(self) -> None:
        self.log.system(TopicDeletion(TOPIC, self.log.pos).op())
        del self.log.queues[TOPIC, 0]
        self.write()

    def make_again(self) -> None:
        self.lives.append(make(self.log))
        send(self.log, SECOND)
        self.write()

    def stream(self, fail: str = "true") -> StreamReader:
        options = {"path": str(self.path), "subscribe": TOPIC, "failOnDataLoss": fail}
        parsed = parse({**options, "startingOffsets": "earliest"}, "stream")
        return StreamReader(parsed, DirectoryQueues(parsed))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def take(reader: StreamReader, start: Encoded) -> Encoded:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def rows(reader: StreamReader, start: Encoded, end: Encoded) -> list[int]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def read_all(store: Store) -> Encoded:
    """The position behind the first life."""
    reader = store.stream()
    start = reader.initialOffset()
    end = take(reader, start)
    assert rows(reader, start, end) == [*range(FIRST)]
    assert end == {f"{TOPIC}/0": FIRST, TOPIC: f"c0.{store.lives[0]}"}
    return end


def test_a_topic_that_is_made_again_is_another_one(store: Store) -> None:
    read = read_all(store)
    store.delete()
    store.make_again()
    old, new = (f"c0.{born}" for born in store.lives)
    with pytest.raises(DataLost, match=f"deleted and made again: .* the life {old} .* now there is {new}"):
        take(store.stream(), read)
    going_on = store.stream("false")
    end = take(going_on, read)
    assert end == {f"{TOPIC}/0": SECOND, TOPIC: new}
    assert rows(going_on, read, end) == [*range(SECOND)]
    assert take(going_on, end) == end


def test_a_topic_that_is_gone_is_an_error_or_nothing(store: Store) -> None:
    read = read_all(store)
    store.delete()
    with pytest.raises(DataLost, match=f"topic {TOPIC} was deleted: .* now there is none"):
        take(store.stream(), read)
    going_on = store.stream("false")
    assert take(going_on, read) == read
    store.make_again()
    assert rows(going_on, read, take(going_on, read)) == [*range(SECOND)]


def test_the_store_of_another_group_is_not_gone_on_with(store: Store) -> None:
    read = read_all(store)
    store.write(cluster="c9")
    with pytest.raises(DataLost, match=r"the life c0\..* now there is c9\."):
        take(store.stream(), read)


def test_a_store_whose_state_cannot_be_read_reports_no_lives(store: Store) -> None:
    read = read_all(store)
    store.log.system({"op": "an operation of a later version"})
    send(store.log, 2)
    store.write()
    with pytest.raises(DataLost, match="the source does not report lives now"):
        take(store.stream(), read)
    going_on = store.stream("false")
    end = take(going_on, read)
    assert end == {**read, f"{TOPIC}/0": FIRST + 2}
    assert rows(going_on, read, end) == [FIRST, FIRST + 1]


def test_the_snapshot_tells_lives_where_much_log_follows_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, nothing is known of a log that is too long to replay."""
    monkeypatch.setattr(state, "REPLAY_BYTES", 100)
    (replica,) = open_replicas([str(store.path)])
    assert state.topic_lives(replica) == {}
    known = state.committed_state(replica)
    last = store.log.entries[-1]
    store.delete()
    store.make_again()
    path = store.path / "state/snapshot"
    path.parent.mkdir()
    path.write_bytes(pack_snapshot(last.index, last.pos + last.size, known, last.term))
    (replica,) = open_replicas([str(store.path)])
    assert state.topic_lives(replica) == {TOPIC: f"c0.{store.lives[0]}"}
    monkeypatch.undo()
    assert state.topic_lives(replica) == {TOPIC: f"c0.{store.lives[1]}"}
