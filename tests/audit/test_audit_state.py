"""Topics, groups, offsets and queue ends follow from the log: in boundary snapshots and the state file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.bench.big_store import BigLog, write_big_group
from dledger.formats.snapshot import MANIFEST_FILE, decode_manifest, encode_manifest, make_manifest
from dledger.formats.state import GroupConfig, ReplicatedState, TopicConfig, pack_parts, unpack_parts
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot, unpack_snapshot
from tests.audit.engine import audit

SEGMENT = 1 << 18

Change = Callable[[ReplicatedState], object]

CHANGES: dict[str, Change] = {
    "topics": lambda state: state.topics.pop("topic-1"),
    "groups": lambda state: state.groups.update(stranger=GroupConfig("stranger")),
    "offsets": lambda state: state.offsets["readers"].update({("topic-0", 1): 3}),
    "queues": lambda state: setattr(state.bounds("topic-2", 3), "next", 1),
    "counters": lambda state: setattr(state, "skipped", 1),
}


@pytest.fixture
def group(tmp_path: Path) -> tuple[list[Path], BigLog]:
    return write_big_group(tmp_path, 6_000_000, segment_size=SEGMENT, body=300)


def found(stores: list[Path]) -> list[tuple[str, str, str]]:
    return [(f.code, f.replica, f.detail) for f in audit(stores).ordered() if f.severity]


def snapshots(store: Path) -> list[Path]:
    return sorted(next(store.glob("dledger-*")).joinpath("snapshots").iterdir())


def change_snapshot(directory: Path, change: Change) -> None:
    """Another state, in a snapshot that fits itself: made wrong, not rotten."""
    old = decode_manifest((directory / MANIFEST_FILE).read_bytes())
    state = unpack_parts({name: (directory / name).read_bytes() for name in old.parts})
    change(state)
    parts = pack_parts(state)
    manifest = make_manifest(old.index, old.term, old.pos, old.chain, old.store_time_ms, old.config, parts)
    for name, data in parts.items():
        (directory / name).write_bytes(data)
    (directory / MANIFEST_FILE).write_bytes(encode_manifest(manifest))


def change_state_file(store: Path, change: Change) -> None:
    path = store / "state" / SNAPSHOT_FILE
    old = unpack_snapshot(path.read_bytes())
    change(old.state)
    path.write_bytes(pack_snapshot(old.applied, old.end_pos, old.state))


def test_states_that_follow_from_the_log_are_clean(group: tuple[list[Path], BigLog]) -> None:
    stores, _ = group
    assert len(snapshots(stores[0])) > 5
    assert audit(stores).findings == []


@pytest.mark.parametrize("part", CHANGES)
def test_a_snapshot_that_does_not_follow_is_found(part: str, group: tuple[list[Path], BigLog]) -> None:
    stores, _ = group
    for store in stores:  # alike on all, so that only the log can tell
        change_snapshot(snapshots(store)[4], CHANGES[part])
    results = [item for item in found(stores) if f"at {5 * SEGMENT} " in item[2]]
    assert [item[:2] for item in results] == [("STATE_DIFFERS", f"n{n}") for n in range(3)]
    assert results[0][2].endswith(f"does not follow from the log in {part}")
    assert audit(stores).exit_code == 3


def test_a_wrong_snapshot_is_told_once_by_its_log_and_once_by_the_others(
    group: tuple[list[Path], BigLog],
) -> None:
    stores, _ = group
    change_snapshot(snapshots(stores[1])[-1], CHANGES["counters"])
    codes = {(code, replica) for code, replica, _ in found(stores)}
    assert ("STATE_DIFFERS", "n1") in codes
    assert ("SNAPSHOT_DIFFERS", "n1") in codes
    assert {replica for _, replica in codes} == {"n1"}


@pytest.mark.parametrize("part", CHANGES)
def test_a_state_file_that_does_not_follow_is_found(part: str, group: tuple[list[Path], BigLog]) -> None:
    stores, log = group
    change_state_file(stores[2], CHANGES[part])
    ((code, replica, detail),) = found(stores)
    assert (code, replica) == ("STATE_DIFFERS", "n2")
    assert detail.endswith(f"state/snapshot does not follow from the log in {part}")
    assert log.last > 0


def test_a_state_file_of_earlier_entries_is_compared_there(group: tuple[list[Path], BigLog]) -> None:
    """As a running broker leaves it: behind the end of the log."""
    stores, _ = group
    directory = snapshots(stores[0])[6]
    manifest = decode_manifest((directory / MANIFEST_FILE).read_bytes())
    state = unpack_parts({name: (directory / name).read_bytes() for name in manifest.parts})
    path = stores[0] / "state" / SNAPSHOT_FILE
    path.write_bytes(pack_snapshot(manifest.index, manifest.pos, state))
    assert found(stores) == []
    state.topics["new"] = TopicConfig("new", 1, 1, 6)
    path.write_bytes(pack_snapshot(manifest.index, manifest.pos, state))
    assert [item[:2] for item in found(stores)] == [("STATE_DIFFERS", "n0")]


def test_a_damaged_state_file_is_a_warning(group: tuple[list[Path], BigLog]) -> None:
    stores, _ = group
    path = stores[0] / "state" / SNAPSHOT_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert [item[:2] for item in found(stores)] == [("STATE_DAMAGED", "n0")]
    path.unlink()
    assert found(stores) == []


def test_damage_of_the_log_is_not_told_as_a_wrong_state(group: tuple[list[Path], BigLog]) -> None:
    stores, log = group
    entry = log.near(0.5)
    path = next(stores[0].glob("dledger-*")) / "data" / f"{entry.pos // SEGMENT * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[entry.pos % SEGMENT + 150] ^= 1
    path.write_bytes(data)
    assert [item[:2] for item in found(stores)] == [("BIT_ROT", "n0")]


@pytest.mark.parametrize(
    ("term", "end_pos", "text"), [(9, None, "is of term 9, in the log"), (None, 7, "ends at 7")]
)
def test_a_state_file_of_another_log(
    term: int | None, end_pos: int | None, text: str, group: tuple[list[Path], BigLog]
) -> None:
    """The node does not believe it either, and replays its log."""
    stores, _ = group
    path = stores[0] / "state" / SNAPSHOT_FILE
    old = unpack_snapshot(path.read_bytes())
    path.write_bytes(pack_snapshot(old.applied, end_pos or old.end_pos, old.state, term or old.term))
    ((code, replica, detail),) = found(stores)
    assert (code, replica) == ("STATE_DAMAGED", "n0")
    assert text in detail
