"""Streams over store directories whose topic was deleted and made again. Without a Spark session."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.audit.scan import Window
from dledger.formats.state import ReplicatedState, TopicConfig
from dledger.formats.state.births import TopicBirth
from dledger.formats.state.deletions import TopicDeletion
from dledger.formats.state_file import pack_snapshot
from dledger.spark import log_lives, state
from dledger.spark.entry_ranges import Piece
from dledger.spark.log_streams import DirectoryLog, DirectoryQueues
from dledger.spark.offsets import DataLost, Encoded
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from dledger.spark.stores import open_replicas
from dledger.spark.streaming import StreamReader
from tests.audit.store_builder import Log, flip, write_store

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
    with pytest.raises(DataLost, match=f"topic {TOPIC} was deleted; the stream has read its life"):
        take(store.stream(), read)
    going_on = store.stream("false")
    assert take(going_on, read) == read
    store.make_again()
    assert rows(going_on, read, take(going_on, read)) == [*range(SECOND)]


def test_the_store_of_another_group_is_not_gone_on_with(store: Store) -> None:
    read = read_all(store)
    store.write(cluster="c9")
    with pytest.raises(DataLost, match=r"the log of another group: .* the life c0\..* now there is c9\."):
        take(store.stream(), read)


def write_snapshot(store: Store, index: int, known: ReplicatedState) -> None:
    """The snapshot that a broker wrote when it had applied the entry `index`."""
    (entry,) = (one for one in store.log.entries if one.index == index)
    path = store.path / "state/snapshot"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pack_snapshot(index, entry.pos + entry.size, known, entry.term))


def lives_of(store: Store) -> tuple[dict[str, str], dict[str, str]]:
    (replica,) = open_replicas([str(store.path)])
    return state.topic_lives(replica)


def state_of(store: Store) -> tuple[int, ReplicatedState]:
    (replica,) = open_replicas([str(store.path)])
    return store.log.entries[-1].index, state.committed_state(replica)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_store_whose_state_cannot_be_read_is_read_on(store: Store, fail: str) -> None:
    """The position keeps its life, and is compared when the state can be read again."""
    read = read_all(store)
    store.log.system({"op": "an operation of a later version"})
    send(store.log, 2)
    store.write()
    assert lives_of(store) == ({}, {})
    reader = store.stream(fail)
    end = take(reader, read)
    assert end == {**read, f"{TOPIC}/0": FIRST + 2}
    assert rows(reader, read, end) == [FIRST, FIRST + 1]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_that_is_too_long_to_replay_ends_no_stream(
    store: Store, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young group has no snapshot yet."""
    read = read_all(store)
    send(store.log, 5)
    store.write()
    monkeypatch.setattr(state, "REPLAY_BYTES", 100)
    assert lives_of(store) == ({}, {})
    reader = store.stream(fail)
    end = take(reader, read)
    assert end == {**read, f"{TOPIC}/0": FIRST + 5}
    assert rows(reader, read, end) == [*range(FIRST, FIRST + 5)]


def test_an_older_snapshot_takes_nothing_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream has read the second life when much log follows a snapshot that knows the first."""
    index, known = state_of(store)
    store.delete()
    store.make_again()
    reader = store.stream()
    read = take(reader, reader.initialOffset())
    assert read == {f"{TOPIC}/0": SECOND, TOPIC: f"c0.{store.lives[1]}"}
    write_snapshot(store, index, known)
    monkeypatch.setattr(state, "REPLAY_BYTES", 100)
    assert lives_of(store) == ({}, {TOPIC: f"c0.{store.lives[0]}"})
    for fail in ("true", "false"):
        assert take(store.stream(fail), read) == read


def test_a_newer_snapshot_shows_the_new_life(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_all(store)
    store.delete()
    store.make_again()
    index, known = state_of(store)
    send(store.log, 2)
    store.write()
    write_snapshot(store, index, known)
    monkeypatch.setattr(state, "REPLAY_BYTES", 100)
    with pytest.raises(DataLost, match="was deleted and made again"):
        take(store.stream(), read)
    going_on = store.stream("false")
    end = take(going_on, read)
    assert end == {f"{TOPIC}/0": SECOND + 2}, "the life of a snapshot is not recorded"
    monkeypatch.undo()
    assert take(going_on, end) == end


def test_damage_behind_the_snapshot_ends_no_stream(store: Store) -> None:
    """The snapshot is used, and the damaged entry is the affair of whoever reads it."""
    read = read_all(store)
    index, known = state_of(store)
    other = store.log.message("other", bytes(200))
    send(store.log, 3)
    store.write()
    write_snapshot(store, index, known)
    (entry,) = (one for one in store.log.entries if one.index == other)
    flip(store.path, entry, 120)
    assert lives_of(store) == ({}, {TOPIC: f"c0.{store.lives[0]}"})
    reader = store.stream()
    end = take(reader, read)
    assert rows(reader, read, end) == [FIRST, FIRST + 1, FIRST + 2]


def test_a_stream_names_its_messages_for_ever(store: Store) -> None:
    def ids(start: Encoded) -> list[str]:
        options = {
            "path": str(store.path),
            "subscribe": TOPIC,
            "failOnDataLoss": "false",
            "includeId": "true",
        }
        parsed = parse({**options, "startingOffsets": "earliest"}, "stream")
        reader = StreamReader(parsed, DirectoryQueues(parsed))
        batches = [
            batch for part in reader.partitions(start, take(reader, start)) for batch in reader.read(part)
        ]
        return [one for batch in batches for one in batch["id"].to_pylist()]

    read = read_all(store)
    first = ids({f"{TOPIC}/0": 0})
    assert first == [f"{TOPIC}:0:c0.{store.lives[0]}:{offset}" for offset in range(FIRST)]
    store.delete()
    store.make_again()
    assert ids(read) == [f"{TOPIC}:0:c0.{store.lives[1]}:{offset}" for offset in range(SECOND)]


PLACE = ("offset", "life")


def by_log(store: Store, **options: str) -> list[tuple[int, str | None]]:
    """Offsets and lives that a stream by log index gives."""
    given = {"path": str(store.path), "offsetType": "log", "startingOffsets": "earliest", **options}
    parsed = parse({**given, "includeLife": "true"}, "stream")
    reader = StreamReader(parsed, DirectoryLog(parsed))
    start = reader.initialOffset()
    end = take(reader, start)
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [
        row for batch in batches for row in zip(*(batch[name].to_pylist() for name in PLACE), strict=True)
    ]


def test_a_stream_by_log_index_leaves_deleted_messages_out(store: Store) -> None:
    store.delete()
    store.make_again()
    old, new = (f"c0.{born}" for born in store.lives)
    assert by_log(store) == [(offset, new) for offset in range(SECOND)]
    assert by_log(store, includeDeleted="true") == [
        *((offset, old) for offset in range(FIRST)),
        *((offset, new) for offset in range(SECOND)),
    ]


def test_deleted_messages_are_in_no_queue(store: Store) -> None:
    options = {"path": str(store.path), "includeDeleted": "true"}
    with pytest.raises(BadOption, match="includeDeleted has no effect on a stream of queues"):
        parse(options, "stream")
    assert parse({**options, "offsetType": "log"}, "stream").include_deleted


@pytest.mark.parametrize("kind", [DirectoryQueues, DirectoryLog])
def test_a_stream_over_a_topic_that_does_not_exist_is_refused(
    store: Store, kind: type[DirectoryQueues] | type[DirectoryLog]
) -> None:
    by = {"offsetType": "log"} if kind is DirectoryLog else {}
    parsed = parse({"path": str(store.path), "subscribe": "ordrs", **by}, "stream")
    with pytest.raises(BadOption, match=r"there is no topic 'ordrs': did you mean 'orders'\?"):
        StreamReader(parsed, kind(parsed)).initialOffset()


def test_a_stream_reads_each_entry_once_for_its_lives(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no snapshot. Each batch would read the whole log again."""
    read: list[int] = []
    plain = log_lives.read_windows

    def counted(piece: Piece) -> Iterator[Window]:
        for window in plain(piece):
            read.extend(window.columns.index.tolist())
            yield window

    monkeypatch.setattr(log_lives, "read_windows", counted)
    parsed = parse({"path": str(store.path), "offsetType": "log", "includeLife": "true"}, "stream")
    reader = StreamReader(parsed, DirectoryLog(parsed))
    end: Encoded = {"log/0": 0}
    found: list[tuple[int, str]] = []
    for change in (None, store.delete, store.make_again, lambda: send(store.log, 1), store.write):
        if change is not None:
            change()
        end, start = take(reader, end), end
        for part in reader.partitions(start, end):
            for batch in reader.read(pickle.loads(pickle.dumps(part))):
                found += zip(*(batch[name].to_pylist() for name in PLACE), strict=True)
    assert read == sorted(set(read)) and len(read) == len(store.log.entries)
    old, new = (f"c0.{born}" for born in store.lives)
    assert found == [*((n, old) for n in range(FIRST)), *((n, new) for n in range(SECOND + 1))]
    assert pickle.loads(pickle.dumps(reader))._queues.known.found == {}
