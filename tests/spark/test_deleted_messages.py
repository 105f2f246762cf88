"""Batch reads of store directories with topics that were deleted, and made again. Without Spark and Java."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import dledger
from dledger.formats.entry import EntryHeader
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, encode_manifest, make_manifest
from dledger.formats.state import ReplicatedState, TopicConfig, pack_op, pack_parts
from dledger.formats.state.births import TopicBirth
from dledger.formats.state.deletions import TopicDeletion
from dledger.formats.state_file import pack_snapshot
from dledger.formats.store_files import SNAPSHOTS_DIR, encode_json, segment_name
from dledger.spark.option_values import BadOption
from tests.audit.store_builder import Log, flip, write_store
from tests.spark import views_kit

pa = pytest.importorskip("pyarrow")

TOPIC, OTHER = "orders", "payments"
SEGMENT = 16 * 1024
FIRST, SECOND, THIRD = 40, 25, 5
BODY = b"x" * 300


@dataclass
class Builder:
    """A log, the state after each of its entries, and the births of the topics."""

    log: Log = field(default_factory=lambda: Log(segment_size=SEGMENT))
    births: list[int] = field(default_factory=list)
    ops: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def op(self, op: dict[str, Any]) -> int:
        index = self.log.system(op)
        self.ops.append((index, op))
        return index

    def make(self, topic: str = TOPIC, *, birth: bool = True) -> None:
        born = self.log.pos
        self.op(TopicConfig(topic, 2, 2, 6).op())
        if birth:
            self.op(TopicBirth(topic, born).op())
        if topic == TOPIC:
            self.births.append(born if birth else 0)

    def delete(self, topic: str = TOPIC) -> None:
        self.op(TopicDeletion(topic, self.log.pos).op())
        for key in [key for key in self.log.queues if key[0] == topic]:
            del self.log.queues[key]

    def send(self, count: int, topic: str = TOPIC) -> None:
        for number in range(count):
            self.log.message(topic, BODY, queue_id=number % 2)

    def state(self, index: int) -> ReplicatedState:
        """The state after the entry `index`, without the queues."""
        state = ReplicatedState()
        for at, op in self.ops:
            if at <= index:
                state.apply(pack_op(op))
        return state

    def write_state(self, store: Path, index: int) -> None:
        """The state file of a broker that has applied the entry `index`."""
        entry = self.log.entries[index]
        path = store / "state/snapshot"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack_snapshot(index, entry.pos + entry.size, self.state(index), entry.term))

    def write_boundary(self, store: Path, segment: int, *, begins: bool = False) -> None:
        """The snapshot at the beginning of a segment. `begins`: the log begins there."""
        pos = segment * SEGMENT
        last = [entry for entry in self.log.entries if entry.pos < pos][-1]
        parts = pack_parts(self.state(last.index))
        manifest = make_manifest(last.index, last.term, pos, last.chain_crc, 0, b"", parts)
        directory = store / "dledger-n0" / SNAPSHOTS_DIR / segment_name(pos)
        directory.mkdir(parents=True)
        for name, data in parts.items():
            (directory / name).write_bytes(data)
        (directory / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
        if begins:
            note = encode_json({"pos": pos, "replace": False})
            (store / "dledger-n0" / BEGINS_FILE).write_bytes(note)
            for before in range(segment):
                (store / "dledger-n0/data" / segment_name(before * SEGMENT)).unlink()

    @property
    def last(self) -> int:
        return self.log.entries[-1].index


def three_lives() -> Builder:
    """Two topics; one was deleted and made again twice. Its present life is the shortest."""
    built = Builder()
    built.log.open_term(1)
    built.make(OTHER)
    for count in (FIRST, SECOND, THIRD):
        if built.births:
            built.delete()
        built.make()
        built.send(count)
        built.send(3, OTHER)
    return built


STATES: dict[str, Any] = {
    "no snapshot": lambda built: None,
    "a snapshot of now": lambda built: built.last,
    "a snapshot of the first life": lambda built: 20,
    "a snapshot between two lives": lambda built: [at for at, op in built.ops if op["op"] == "topic_delete"][
        1
    ],
}


@pytest.fixture(params=STATES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Builder, Path]:
    built = three_lives()
    path = write_store(built.log, tmp_path / "n0")
    index = STATES[request.param](built)
    if index is not None:
        built.write_state(path, index)
    return built, path


def rows(path: Path | Sequence[Path], **options: Any) -> list[dict[str, Any]]:
    paths = [str(path)] if isinstance(path, Path) else list(map(str, path))
    found: list[dict[str, Any]] = dledger.read(paths, includeValue=False, **options).read_all().to_pylist()
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["partition"], row["offset"]) for row in found]


def count_of(found: list[dict[str, Any]], topic: str = TOPIC) -> int:
    return sum(row["topic"] == topic for row in found)


def test_only_messages_of_the_present_life_are_read(store: tuple[Builder, Path]) -> None:
    _, path = store
    found = rows(path)
    assert count_of(found) == THIRD
    assert count_of(found, OTHER) == 9, "another topic is whole"
    assert len(set(places(found))) == len(found)
    assert count_of(rows(path, subscribe=TOPIC)) == THIRD
    assert count_of(rows(path, assign={TOPIC: [1]})) == THIRD // 2
    assert count_of(rows(path, subscribePattern="ord.*")) == THIRD


def test_deleted_messages_are_shown_with_their_lives(store: tuple[Builder, Path]) -> None:
    built, path = store
    found = rows(path, includeDeleted=True, includeLife=True)
    counts = dict.fromkeys((row["life"] for row in found if row["topic"] == TOPIC), 0)
    for row in found:
        if row["topic"] == TOPIC:
            counts[row["life"]] += 1
    expected = zip(built.births, (FIRST, SECOND, THIRD), strict=True)
    assert counts == {f"c0.{born}": count for born, count in expected}
    assert count_of(found, OTHER) == 9
    assert count_of(rows(path, includeDeleted=True)) == FIRST + SECOND + THIRD


def test_the_present_life_is_named(store: tuple[Builder, Path]) -> None:
    built, path = store
    found = rows(path, subscribe=TOPIC, includeLife=True)
    assert {row["life"] for row in found} == {f"c0.{built.births[-1]}"} and len(found) == THIRD
    table = dledger.read(str(path), columns=["life", "offset"], subscribe=TOPIC)
    assert table.schema.names == ["life", "offset"]
    assert "life" not in rows(path)[0]


def test_an_id_is_unique_for_ever(store: tuple[Builder, Path]) -> None:
    built, path = store
    every = rows(path, includeDeleted=True, includeId=True, includeLife=True)
    ids = [row["id"] for row in every]
    assert len(set(ids)) == len(ids) == FIRST + SECOND + THIRD + 9
    for row in every:
        assert row["id"] == f"{row['topic']}:{row['partition']}:{row['life']}:{row['offset']}"
    present = rows(path, subscribe=TOPIC, includeId=True)
    assert [row["id"] for row in present] == [
        row["id"] for row in every if row["life"] == f"c0.{built.births[-1]}"
    ]
    assert dledger.read(str(path), columns=["id"], subscribe=TOPIC).read_all().num_rows == THIRD


def test_the_order_of_messages_that_are_asked_for_is_the_log(store: tuple[Builder, Path]) -> None:
    built, path = store
    found = rows(path, includeDeleted=True)
    assert [row["logIndex"] for row in found] == sorted(row["logIndex"] for row in found)
    deleted = next(at for at, op in built.ops if op["op"] == "topic_delete")
    assert count_of(rows(path, indexRanges=f"0-{deleted}")) == 0
    assert count_of(rows(path, indexRanges=f"0-{deleted}", includeDeleted=True)) == FIRST
    assert count_of(rows(path, isolation="all")) == THIRD
    assert count_of(rows(path, corruptRecords="include")) == THIRD


def test_queues_are_those_of_now_and_name_the_life(store: tuple[Builder, Path]) -> None:
    built, path = store
    table = dledger.read(str(path), view="queues", subscribe=TOPIC, includeLife=True).read_all().to_pylist()
    assert [(row["minOffset"], row["maxOffset"]) for row in table] == [(0, 3), (0, 2)]
    assert {row["life"] for row in table} == {f"c0.{built.births[-1]}"}
    assert "life" not in dledger.read(str(path), view="queues").schema.names


def test_a_topic_that_is_gone_is_refused(tmp_path: Path) -> None:
    built = three_lives()
    built.delete()
    path = write_store(built.log, tmp_path / "n0")
    for state in (None, built.last, 30):
        if state is not None:
            built.write_state(path, state)
        for view in ("messages", "queues"):
            with pytest.raises(BadOption, match=f"there is no topic '{TOPIC}': it was deleted"):
                dledger.read(str(path), view=view, subscribe=TOPIC)
        assert count_of(rows(path)) == 0
        assert count_of(rows(path, includeDeleted=True)) == FIRST + SECOND + THIRD
        found = rows(path, subscribe=TOPIC, includeDeleted=True, includeLife=True)
        assert len({row["life"] for row in found}) == 3


def test_queue_files_that_the_node_has_not_removed_yet_make_no_topic(tmp_path: Path) -> None:
    built = Builder()
    built.log.open_term(1)
    built.make()
    built.send(FIRST)
    kept = built.log.copy()
    kept_queues = dict(built.log.queues)
    built.delete()
    built.log.queues = kept_queues
    path = write_store(built.log, tmp_path / "n0")
    assert kept.pos < built.log.pos
    assert (path / "consumequeue" / TOPIC).is_dir()
    with pytest.raises(BadOption, match="there is no topic"):
        dledger.read(str(path), subscribe=TOPIC)
    assert dledger.read(str(path), view="queues").read_all().num_rows == 0


def test_a_topic_without_messages_gives_no_rows(tmp_path: Path) -> None:
    built = three_lives()
    built.make("empty")
    path = write_store(built.log, tmp_path / "n0")
    assert rows(path, subscribe="empty") == []
    assert dledger.read(str(path), view="queues", subscribe="empty").read_all().num_rows == 0
    built.write_state(path, built.last)
    assert rows(path, subscribe="empty") == []
    assert rows(path, subscribe="SCHEDULE_TOPIC_XXXX") == []


@pytest.mark.parametrize("option", ["subscribe", "assign"])
def test_a_topic_that_does_not_exist_is_refused(option: str, tmp_path: Path) -> None:
    path = write_store(three_lives().log, tmp_path / "n0")
    value: Any = "ordrs" if option == "subscribe" else {"ordrs": [0]}
    with pytest.raises(BadOption, match=r"there is no topic 'ordrs': did you mean 'orders'\?") as refused:
        dledger.read(str(path), **{option: value})
    assert "create" not in str(refused.value)
    with pytest.raises(BadOption, match="there is no topic 'zzz'; there are orders, payments"):
        dledger.read(str(path), subscribe="zzz")
    with pytest.raises(BadOption, match="no topic matches 'zzz"):
        rows(path, subscribePattern="zzz.*")


def test_a_deletion_that_is_not_committed_hides_nothing(tmp_path: Path) -> None:
    built = three_lives()
    before = built.last
    built.delete()
    path = write_store(built.log, tmp_path / "n0", committed=before)
    assert count_of(rows(path)) == THIRD
    assert count_of(rows(path, isolation="all")) == 0, "the log as if all of it were committed"


def test_damage_elsewhere_does_not_bring_deleted_messages_back(tmp_path: Path) -> None:
    built = three_lives()
    path = write_store(built.log, tmp_path / "n0")
    rotten = next(entry for entry in built.log.entries if entry.index > built.ops[2][0] + 5)
    flip(path, rotten, 100)
    assert count_of(rows(path, corruptRecords="skip")) == THIRD
    shown = rows(path, corruptRecords="include")
    assert count_of(shown) == THIRD and sum(row["_corrupt"] is not None for row in shown) == 1


def test_a_log_of_which_only_the_tail_is_left(tmp_path: Path) -> None:
    """Retention took the first life and the snapshot is lost: the deletions are in the log, lives are not."""
    built = three_lives()
    path = write_store(built.log, tmp_path / "n0")
    deletion = next(at for at, op in built.ops if op["op"] == "topic_delete")
    assert built.log.entries[deletion].pos > SEGMENT
    (path / "dledger-n0/data" / segment_name(0)).unlink()
    found = rows(path, includeLife=True)
    assert count_of(found) == THIRD
    assert {row["life"] for row in found if row["topic"] == TOPIC} == {f"c0.{built.births[-1]}"}
    assert {row["life"] for row in found if row["topic"] == OTHER} == {None}


@pytest.mark.parametrize("segment", [1, 2])
@pytest.mark.parametrize("begins", [False, True], ids=["whole log", "cut log"])
@pytest.mark.parametrize("state", ["none", "damaged", "of another log"])
def test_boundary_snapshots_tell_of_deletions(tmp_path: Path, segment: int, begins: bool, state: str) -> None:
    built = three_lives()
    path = write_store(built.log, tmp_path / "n0")
    if state == "damaged":
        built.write_state(path, built.last)
        (path / "state/snapshot").write_bytes(b"rotten")
    if state == "of another log":
        other = three_lives()
        other.delete()
        other.write_state(path, other.last)
    built.write_boundary(path, segment, begins=begins)
    found = rows(path, includeLife=True)
    assert count_of(found) == THIRD
    assert {row["life"] for row in found if row["topic"] == TOPIC} == {f"c0.{built.births[-1]}"}
    assert {row["life"] for row in found if row["topic"] == OTHER} == {"c0.163"}
    every = rows(path, subscribe=TOPIC, includeDeleted=True, includeLife=True)
    there = [entry.pos for entry in built.log.entries if entry.pos >= segment * SEGMENT * begins]
    assert len(every) == sum(entry.pos in there for entry in messages_of(built, TOPIC))
    for row, entry in zip(every, [one for one in messages_of(built, TOPIC) if one.pos in there], strict=True):
        assert row["life"] == f"c0.{max(born for born in built.births if born < entry.pos)}"


def messages_of(built: Builder, topic: str) -> list[EntryHeader]:
    return [entry for entry, record in views_kit.messages_of(built.log) if record.topic == topic]


def test_lives_without_a_recorded_birth_are_told_apart_by_the_deletion(tmp_path: Path) -> None:
    built = Builder()
    built.log.open_term(1)
    built.make(birth=False)
    built.send(FIRST)
    built.delete()
    built.make(birth=False)
    built.send(THIRD)
    path = write_store(built.log, tmp_path / "n0")
    found = rows(path, includeLife=True)
    assert count_of(found) == THIRD
    assert {row["life"] for row in found} == {"c0.0"}


def test_stores_of_apache_hide_nothing_and_name_no_life(tmp_path: Path) -> None:
    built = three_lives()
    path = write_store(built.log, tmp_path / "n0")
    for name in ("identity", "cluster"):
        for file in path.rglob(name):
            file.unlink()
    found = rows(path, includeLife=True, includeId=True)
    assert count_of(found) == FIRST + SECOND + THIRD
    assert {row["life"] for row in found} == {row["id"] for row in found} == {None}


def test_groups_are_judged_each_by_its_own_log(tmp_path: Path) -> None:
    built = three_lives()
    one = write_store(built.log, tmp_path / "a", group="a", cluster="ca")
    built.delete()
    other = write_store(built.log, tmp_path / "b", group="b", cluster="cb")
    found = rows([one, other], includeGroup=True, includeLife=True, includeId=True)
    assert {row["group"] for row in found if row["topic"] == TOPIC} == {"a"}
    assert count_of(found) == THIRD
    assert len({row["id"] for row in found}) == len(found)
    assert count_of(rows([one, other], subscribe=TOPIC)) == THIRD, "one group has it"
    with pytest.raises(BadOption, match="there is no topic"):
        rows([one, other], subscribe=TOPIC, group="b")


def test_a_deletion_costs_tasks_only_where_it_hides_something(tmp_path: Path) -> None:
    from dledger.spark.options import parse
    from dledger.spark.views import directory_view

    built = three_lives()
    built.send(100, OTHER)
    path = write_store(built.log, tmp_path / "n0")
    options = {"path": str(path), "partitionBytes": str(SEGMENT)}
    tasks: list[Any] = directory_view(parse(options, "batch")).plan()
    assert TOPIC in tasks[0].lives.of and not tasks[-1].lives.of
    tasks = list(directory_view(parse({**options, "subscribe": OTHER}, "batch")).plan())
    assert not any(task.lives.of for task in tasks)
