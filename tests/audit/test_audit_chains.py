"""An entry was replaced and the chain rebuilt after it: boundary snapshots and other replicas know better."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.report import Report
from tests.audit.engine import audit
from tests.audit.faults import message_index
from tests.audit.store_builder import (
    SEGMENT_SIZE,
    Log,
    flip,
    read_entry,
    rebuild_chain,
    rewrite,
    sample_log,
    segment_path,
    write_group,
)
from tests.audit.test_audit_snapshots import begins, take

OLD = 300
"""An entry of the first segment."""


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def rewritten(stores: list[Path], log: Log, at_least: int = OLD) -> int:
    """Another message in the place of one, alike on these; its index."""
    index = message_index(log, at_least)
    for store in stores:
        rewrite(store, log, index)
        rebuild_chain(store, log, index)
    return index


def worse(report: Report) -> list[tuple[str, str, int]]:
    return [(f.code, f.replica, f.first_index) for f in report.ordered() if f.severity]


def last_before(log: Log, segment: int) -> int:
    return [entry.index for entry in log.entries if entry.pos < segment * SEGMENT_SIZE][-1]


def test_one_rewritten_alike_on_all_does_not_fit_the_boundary_snapshots(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for store in stores:
        take(store, log, 2)
    assert worse(audit(stores)) == []
    rewritten(stores, log)
    expected = [("CHAIN_DIFFERS", f"n{number}", last_before(log, 2)) for number in range(3)]
    assert worse(audit(stores)) == expected
    assert worse(audit(stores[:1])) == expected[:1]
    assert audit(stores).exit_code == 3


def test_a_snapshot_where_the_log_begins_knows_what_came_before(log: Log, tmp_path: Path) -> None:
    """What it was taken of is gone: the entry behind it continues its chain."""
    (store, *_) = write_group(log, tmp_path)
    take(store, log, 2)
    begins(store, 2)
    for segment in range(2):
        segment_path(store, segment * SEGMENT_SIZE).unlink()
    assert worse(audit([store])) == []
    rebuild_chain_from(store, log, last_before(log, 2) + 1)
    assert worse(audit([store])) == [("CHAIN_DIFFERS", "n0", last_before(log, 2))]


def rebuild_chain_from(store: Path, log: Log, index: int) -> None:
    """As if another entry had come before this one."""
    other = log.copy()
    before = other.entries[index - 1]
    other.entries[index - 1] = before._replace(chain_crc=before.chain_crc ^ 1)
    rebuild_chain(store, other, index)


def test_a_damaged_chain_value_beside_a_snapshot_is_not_told_twice(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    take(stores[0], log, 2)
    flip(stores[0], log.entries[last_before(log, 2)], 38)
    assert {code for code, _, _ in worse(audit(stores))} == {"CHAIN_BREAK"}


def test_replicas_whose_chains_part_before_what_can_be_compared(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    index = rewritten(stores[2:], log)
    assert worse(audit(stores)) == [("DIVERGENT_COMMITTED", "n2", index)]
    other = log.copy()
    last = last_before(log, 2)
    header = read_entry(stores[2], log.entries[last])
    other.entries[last] = other.entries[last]._replace(chain_crc=int.from_bytes(header[36:40], "big"))
    take(stores[2], other, 2)
    begins(stores[2], 2)
    for segment in range(2):
        segment_path(stores[2], segment * SEGMENT_SIZE).unlink()
    report = audit(stores)
    assert worse(report) == [("CHAIN_DIFFERS", "n2", last + 1)]
    assert report.exit_code == 3
    assert worse(audit(stores[1:])) == [("CHAIN_DIFFERS", "n1,n2", last + 1)]
