"""Audits of stores whose topics were deleted: messages of a former topic belong to no queue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dledger.formats.state import ReplicatedState, pack_op
from dledger.formats.state.deletions import TopicDeletion
from dledger.formats.state_file import pack_snapshot
from tests.audit.engine import audit
from tests.audit.store_builder import Log, flip, write_store

GONE, KEPT = "bench", "orders"


def log_with_a_deletion(others: int) -> Log:
    """More than a segment of messages of a topic that is then deleted, and `others` of one that stays."""
    log = Log()
    log.open_term(1)
    for _ in range(200):
        log.message(GONE, bytes(900))
    for number in range(others):
        log.message(KEPT, b"%d" % number)
    return log


def write_deleted(log: Log, root: Path) -> Path:
    """The store of a broker that has applied the deletion and removed the queue."""
    deletion = TopicDeletion(GONE, log.pos).op()
    last = log.system(deletion)
    store = write_store(log, root)
    shutil.rmtree(store / "consumequeue" / GONE)
    state = ReplicatedState()
    for (topic, queue_id), units in log.queues.items():
        if topic != GONE:
            queue = state.bounds(topic, queue_id)
            queue.next, queue.first_position = len(units), 0
    state.apply(pack_op(deletion))
    path = store / "state/snapshot"
    path.parent.mkdir()
    path.write_bytes(pack_snapshot(last, log.pos, state, 1))
    return store


@pytest.mark.parametrize("others", [0, 1, 300])
def test_segments_of_a_deleted_topic_alone_are_clean(others: int, tmp_path: Path) -> None:
    """Windows without a single wanted message ended the audit with an IndexError."""
    report = audit([write_deleted(log_with_a_deletion(others), tmp_path / "n0")])
    assert [found.code for found in report.findings if found.code.startswith("QUEUE")] == []
    assert not [found for found in report.findings if found.code == "BIT_ROT"]


def test_damage_among_messages_of_a_deleted_topic_is_found(tmp_path: Path) -> None:
    log = log_with_a_deletion(5)
    store = write_deleted(log, tmp_path / "n0")
    flip(store, log.entries[40], 100)
    report = audit([store])
    assert "BIT_ROT" in [found.code for found in report.findings]
