"""Stores whose log begins at a snapshot are clean; snapshots that differ between replicas are not (S20)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, encode_manifest, make_manifest
from dledger.formats.store_files import SNAPSHOTS_DIR, encode_json, segment_name
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE, Log, sample_log, segment_path, write_group


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def take(store: Path, log: Log, segment: int, state: bytes = b"state") -> Path:
    """Write the snapshot at the beginning of a segment, as a node would."""
    pos = segment * SEGMENT_SIZE
    last = [entry for entry in log.entries if entry.pos < pos][-1]
    parts = {"state": state}
    manifest = make_manifest(last.index, last.term, pos, last.chain_crc, 0, b"", parts)
    (node,) = store.glob("dledger-*")
    directory = node / SNAPSHOTS_DIR / segment_name(pos)
    directory.mkdir(parents=True)
    (directory / "state").write_bytes(state)
    (directory / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return directory


def begins(store: Path, segment: int) -> Path:
    """Note that the log begins at this segment, as a node does before it removes what comes before."""
    (node,) = store.glob("dledger-*")
    note = node / BEGINS_FILE
    note.write_bytes(encode_json({"pos": segment * SEGMENT_SIZE, "replace": False}))
    return note


def worse(stores: list[Path]) -> list[str]:
    return [found.code for found in audit(stores).ordered() if found.severity]


def test_a_log_that_begins_at_its_snapshot_misses_nothing(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for store in stores[:2]:
        segment_path(store, 0).unlink()
    assert "MISSING_SEGMENT" in worse(stores)
    for store in stores[:2]:
        take(store, log, 1)
    assert "MISSING_SEGMENT" in worse(stores)  # no node removed it
    for store in stores[:2]:
        begins(store, 1)
    assert worse(stores) == []
    assert {found.code for found in audit(stores).findings} >= {"RETENTION"}


def test_a_note_of_another_place_is_no_excuse(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for segment in (0, 1):
        segment_path(stores[0], segment * SEGMENT_SIZE).unlink()
    take(stores[0], log, 2)
    begins(stores[0], 1)
    assert worse(stores) == ["MISSING_SEGMENT"]
    begins(stores[0], 3)  # what it was about to remove is still there
    assert worse(stores) == []


def test_a_damaged_note_is_told_and_nothing_follows_from_it(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    segment_path(stores[0], 0).unlink()
    take(stores[0], log, 1)
    note = begins(stores[0], 1)
    note.write_bytes(note.read_bytes()[:-3])
    assert worse(stores) == ["IDENTITY"]


def test_a_snapshot_elsewhere_is_no_excuse(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    segment_path(stores[0], 0).unlink()
    take(stores[0], log, 2)
    assert worse(stores) == ["MISSING_SEGMENT"]


def test_snapshots_of_replicas_must_be_equal(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for store in stores:
        take(store, log, 1)
    take(stores[0], log, 2)  # the others have none there
    assert worse(stores) == []
    take(stores[1], log, 3)
    take(stores[2], log, 3, b"other")
    (found,) = [found for found in audit(stores).findings if found.severity]
    assert (found.code, found.replica, found.segment) == ("SNAPSHOT_DIFFERS", "n1,n2", 3 * SEGMENT_SIZE)
    take(stores[0], log, 3)
    (found,) = [found for found in audit(stores).findings if found.severity]
    assert (found.code, found.replica) == ("SNAPSHOT_DIFFERS", "n2")
    assert audit(stores).exit_code == 3


def test_a_damaged_snapshot_is_a_warning(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    directory = take(stores[0], log, 1)
    (directory / "state").write_bytes(b"stale")
    assert worse(stores) == ["SNAPSHOT_DAMAGED"]
    (directory / MANIFEST_FILE).write_bytes(b"garbage")
    assert worse(stores) == ["SNAPSHOT_DAMAGED"]
    (directory / MANIFEST_FILE).unlink()
    assert worse(stores) == ["SNAPSHOT_DAMAGED"]
    assert audit(stores).exit_code == 1
