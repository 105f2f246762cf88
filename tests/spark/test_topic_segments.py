"""A read of some topics leaves segments out, and never a message: whatever derived files say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import dledger
from dledger.formats.consume_queue import UNIT, UNIT_SIZE
from dledger.formats.state import ReplicatedState, pack_op
from dledger.formats.state.deletions import TopicDeletion
from dledger.formats.state_file import pack_snapshot
from dledger.spark import topic_segments, views
from tests.audit.store_builder import Log, segment_path, write_store

SEGMENT = 4096
RARE = ("rare", 1)


def write_state(store: Path, log: Log, applied: int, **bounds: Any) -> ReplicatedState:
    """The state file of a broker that has applied so much. `deleted`: topic -> log offset."""
    end = log.entries[applied].pos + log.entries[applied].size
    state = ReplicatedState()
    for (topic, queue_id), units in log.queues.items():
        there = [at for at, _, _ in UNIT.iter_unpack(b"".join(units)) if at < end]
        if there:
            queue = state.bounds(topic, queue_id)
            queue.next, queue.first_position = len(there), there[0]
            queue.min = sum(at < bounds.get("log_start", 0) for at in there)
    for name, at in bounds.get("deleted", {}).items():
        state.apply(pack_op(TopicDeletion(name, at).op()))
    path = store / "state/snapshot"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pack_snapshot(applied, end, state, bounds.get("term", log.entries[applied].term)))
    return state


def some_log(rare: set[int], messages: int = 300, body: int = 60) -> Log:
    """Mostly of other topics; those whose number is in `rare` are of the queue RARE."""
    log = Log(segment_size=SEGMENT)
    log.open_term(1)
    for number in range(messages):
        topic, queue_id = RARE if number in rare else (f"noise-{number % 2}", number % 3)
        if number in {110, 120, 130} - rare:
            topic, queue_id = "other", 1
        log.batch([{"topic": topic, "queue_id": queue_id, "body": bytes(body), "properties": "TAGS\1a\2"}])
    return log


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[list[int], int]]]:
    """Offsets of RARE that a read gives, and how many segments it leaves."""
    seen: list[int] = []
    plain = views.packed

    def packed(found: Any, *rest: Any) -> Any:
        known = list(found)
        seen.append(len({piece.task.start for piece in known}))
        return plain(known, *rest)

    monkeypatch.setattr(views, "packed", packed)

    def rows(store: Path, **options: Any) -> tuple[list[int], int]:
        chosen = {name: value for name, value in {"subscribe": RARE[0], **options}.items() if value}
        table = dledger.read(str(store), columns=["offset"], **chosen).read_all()
        return table["offset"].to_pylist(), seen[-1]

    yield rows


def test_segments_without_the_topic_are_left_out(tmp_path: Path, read: Any) -> None:
    log = some_log({20, 21, 150, 290})
    store = write_store(log, tmp_path)
    count = len(log.segments)
    assert read(store) == ([0, 1, 2, 3], count)
    write_state(store, log, len(log.entries) - 1)
    # Of the last segment nobody knows whether it will get more.
    offsets, segments = read(store)
    assert offsets == [0, 1, 2, 3] and segments <= 4 < count
    assert read(store, subscribe="SELF_TEST_TOPIC") == ([], 1)
    assert read(store, startingOffsets={"rare": {"1": 2}})[0] == [2, 3]
    assert read(store, startingOffsets={"rare": {"1": 2}})[1] < segments
    assert read(store, subscribe="noise-0,rare")[1] == count
    assert read(store, corruptRecords="include") == ([0, 1, 2, 3], count)


def test_what_the_state_does_not_know_yet_is_read(tmp_path: Path, read: Any) -> None:
    log = some_log({20, 150, 290})
    store = write_store(log, tmp_path)
    write_state(store, log, 100)
    offsets, segments = read(store)
    behind = sum(start + SEGMENT > log.entries[101].pos for start in log.segments)
    assert offsets == [0, 1, 2] and segments == behind + 1


def test_messages_of_a_topic_that_was_deleted_are_found_if_they_are_wanted(tmp_path: Path, read: Any) -> None:
    log = some_log({20, 150})
    store = write_store(log, tmp_path)
    write_state(store, log, len(log.entries) - 1, deleted={"rare": log.entries[200].pos})
    shutil.rmtree(store / "consumequeue/rare")
    offsets, segments = read(store, includeDeleted=True)
    assert offsets == [0, 1] and segments < len(log.segments)
    found, several = read(store, subscribePattern="rare|other", subscribe=None, includeDeleted=True)
    assert found == [0, 0, 1, 2, 1]
    found, without = read(store, subscribePattern="rare|other", subscribe=None)
    assert found == [0, 1, 2] and without < several


def _units(store: Path) -> Path:
    (path,) = (store / "consumequeue/rare/1").iterdir()
    return path


def _overwrite(number: int, unit: bytes) -> Callable[[Path, Log], None]:
    def fault(store: Path, log: Log) -> None:
        data = bytearray(_units(store).read_bytes())
        data[number * UNIT_SIZE : (number + 1) * UNIT_SIZE] = unit
        _units(store).write_bytes(data)

    return fault


def _pointing_at(key: tuple[str, int], offset: int) -> Callable[[Path, Log], None]:
    return lambda store, log: _overwrite(2, log.queues[key][offset])(store, log)


def _of_another_log(store: Path, log: Log) -> None:
    write_state(store, some_log(set(), body=61), 250)


FAULTS: dict[str, Callable[[Path, Log], None]] = {
    "no unit": _overwrite(2, bytes(UNIT_SIZE)),
    "a unit that points at nothing": _overwrite(2, UNIT.pack(50, 100, 0)),
    "a unit that points at the next message": _pointing_at(RARE, 3),
    "a unit that points at another topic": _pointing_at(("other", 1), 2),
    "a unit that points behind the log": _overwrite(2, UNIT.pack(1 << 40, 100, 0)),
    "a unit before the log": _overwrite(0, UNIT.pack(-5, 100, 0)),
    "a last unit that is damaged": _overwrite(4, UNIT.pack(SEGMENT + 48, 100, 0)),
    "no ConsumeQueue": lambda store, log: shutil.rmtree(store / "consumequeue/rare"),
    "a ConsumeQueue that ends early": lambda store, log: _units(store).write_bytes(bytes(UNIT_SIZE)),
    "a state file that is damaged": lambda store, log: (store / "state/snapshot").write_bytes(b"DLSS1234"),
    "a state of another log": _of_another_log,
    "a state of another term": lambda store, log: write_state(store, log, 250, term=9) and None,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_damage_of_derived_files_hides_nothing(
    fault: Callable[[Path, Log], None], tmp_path: Path, read: Any
) -> None:
    log = some_log({20, 100, 150, 151, 280})
    store = write_store(log, tmp_path)
    write_state(store, log, len(log.entries) - 1)
    before = read(store)
    fault(store, log)
    offsets, segments = read(store)
    assert offsets == [0, 1, 2, 3, 4] and segments > before[1]


def test_messages_that_retention_took_are_not_looked_for(tmp_path: Path, read: Any) -> None:
    log = some_log({20, 60, 250})
    store = write_store(log, tmp_path)
    gone = [start for start in log.segments if start < log.entries[40].pos - SEGMENT]
    for start in gone:
        segment_path(store, start).unlink()
    for log_start in (0, max(gone) + SEGMENT):  # before the broker has written its state again, and after
        write_state(store, log, len(log.entries) - 1, log_start=log_start)
        offsets, segments = read(store)
        assert offsets == [1, 2]
    assert segments <= 3


def test_few_messages_are_looked_up(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = set(range(0, 300, 2))
    log = some_log(rare)
    store = write_store(log, tmp_path)
    write_state(store, log, len(log.entries) - 1)
    looks: list[int] = []
    plain = topic_segments._Places.look

    def look(self: Any, offset: int, *rest: Any) -> Any:
        looks.append(offset)
        return plain(self, offset, *rest)

    monkeypatch.setattr(topic_segments._Places, "look", look)
    assert read(store) == (list(range(150)), len(log.segments))
    assert 0 < len(looks) <= 4 * len(log.segments)
    looks.clear()
    monkeypatch.setattr(topic_segments, "MOST_LOOKS", 5)
    assert read(store) == (list(range(150)), len(log.segments))
    assert len(looks) == 5


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(0, 149), min_size=1, max_size=12),
    st.integers(0, 150),
    st.lists(st.tuples(st.integers(0, 11), st.binary(min_size=8, max_size=8)), max_size=3),
)
def test_the_same_messages_come_as_without(
    rare: set[int], applied: int, wrong: list[tuple[int, bytes]]
) -> None:
    from tempfile import TemporaryDirectory

    log = some_log(rare, 150)
    with TemporaryDirectory() as root:
        store = write_store(log, Path(root))
        write_state(store, log, applied)
        for number, place in wrong:
            if number < len(rare):
                _overwrite(number, place + bytes(11) + b"\1")(store, log)
        found = dledger.read(root, subscribe="rare", columns=["offset"]).read_all()["offset"].to_pylist()
    assert found == list(range(len(rare)))
