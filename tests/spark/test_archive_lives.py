"""What an archive makes of topics that were deleted and made again, without Spark: plans and checks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from dledger.runtime.files import OsFiles
from dledger.spark.jobs.archive import Plan, StagedQueue, _made_since, checked_queues, renewed_queues
from dledger.spark.jobs.archive_files import ArchiveFiles, Batch
from dledger.spark.jobs.errors import JobError
from dledger.spark.stores import open_replicas
from tests.audit.store_builder import write_store
from tests.spark.test_deleted_messages import TOPIC, three_lives

OLD, NEW = "c0.163", "c0.20584"


def archive(root: Path, lives: dict[str, str]) -> ArchiveFiles:
    """An archive of one group: ten messages in queue 0 of `orders`, six of `payments`."""
    queues = {"g": {"orders/0": 10, "payments/0": 6}}
    return ArchiveFiles(
        OsFiles(), str(root), Batch(0, "g", "", {}, {"g": {"log": 20}}, queues, lives={"g": lives})
    )


def plan(*renewed: str) -> Plan:
    return Plan("g", "", {}, {}, (), "index 20 to 40", frozenset(renewed))


def staged(first: int, last: int, life: str | None, topic: str = "orders") -> StagedQueue:
    count = last - first + 1
    return StagedQueue(topic, 0, life, first, last, count, count)


def test_a_topic_goes_on_in_its_life(tmp_path: Path) -> None:
    for known in ({"orders": OLD}, {}):
        found = checked_queues([staged(10, 14, OLD)], archive(tmp_path, known), plan(), whole=True)
        assert found.queues == {"orders/0": 15, "payments/0": 6}
        assert (found.lives, found.renewed) == ({"orders": OLD}, frozenset())


def test_another_life_begins_again(tmp_path: Path) -> None:
    """Seen before: `orders/0: offset 0 again: 9 is in the archive`, for ever."""
    kept = archive(tmp_path, {"orders": OLD, "payments": OLD})
    found = checked_queues([staged(0, 3, NEW), staged(6, 6, OLD, "payments")], kept, plan(), whole=True)
    assert found.queues == {"orders/0": 4, "payments/0": 7}
    assert (found.lives, found.renewed) == ({"orders": NEW, "payments": OLD}, {"orders"})


def test_queues_of_the_old_life_are_forgotten(tmp_path: Path) -> None:
    kept = archive(tmp_path, {"orders": OLD})
    assert kept.last is not None
    queue = staged(0, 3, NEW)._replace(queue=7)
    assert checked_queues([queue], kept, plan(), whole=True).queues == {"orders/7": 4, "payments/0": 6}


def test_an_archive_without_lives_goes_on_with_what_was_made_since(tmp_path: Path) -> None:
    kept = archive(tmp_path, {})
    found = checked_queues([staged(0, 3, NEW)], kept, plan("orders"), whole=True)
    assert (found.queues["orders/0"], found.renewed) == (4, {"orders"})
    known = archive(tmp_path, {"orders": NEW})
    with pytest.raises(JobError, match="orders/0: offset 0 again"):
        checked_queues([staged(0, 3, NEW)], known, plan("orders"), whole=True)


@pytest.mark.parametrize("life", [OLD, None])
def test_the_same_life_does_not_begin_again(tmp_path: Path, life: str | None) -> None:
    kept = archive(tmp_path, {"orders": OLD})
    with pytest.raises(JobError, match="offset 0 again: 9 is in the archive"):
        checked_queues([staged(0, 3, life)], kept, plan(), whole=True)
    with pytest.raises(JobError, match="offset 12 after 9"):
        checked_queues([staged(12, 13, life)], kept, plan(), whole=True)


def test_two_lives_in_one_batch_are_no_batch(tmp_path: Path) -> None:
    kept = archive(tmp_path, {"orders": OLD})
    with pytest.raises(JobError, match=r"topic orders was deleted while it was read: .*run the job again"):
        checked_queues([staged(10, 12, OLD), staged(0, 3, NEW)], kept, plan(), whole=True)


def test_live_queues_of_another_life_begin_again() -> None:
    ends = {("orders", 0): (0, 25), ("orders", 1): (0, 3), ("payments", 0): (0, 6)}
    position = {"orders/0": 10, "orders/1": 9, "payments/0": 6}
    now: dict[str, str | None] = {"orders": NEW, "payments": OLD}
    assert renewed_queues(ends, position, {"orders": OLD, "payments": OLD}, now) == {"orders"}
    assert renewed_queues(ends, position, {"orders": NEW, "payments": OLD}, now) == frozenset()
    assert renewed_queues(ends, position, {}, now) == {"orders"}, "a queue ends before the archive"
    assert renewed_queues(ends, {**position, "orders/1": 3}, {}, now) == frozenset()
    assert renewed_queues(ends, position, {"orders": OLD}, {"orders": None}) == {"orders"}


def test_topics_that_were_made_since_an_entry_are_found(tmp_path: Path) -> None:
    built = three_lives()
    (replica,) = open_replicas([str(write_store(built.log, tmp_path / "n0"))])
    first, second = (at for at, op in built.ops if op["op"] == "topic_delete")
    for index in (first - 1, first, second - 1, second):
        assert _made_since(replica, index) == {TOPIC}
    assert _made_since(replica, second + 1) == frozenset()
