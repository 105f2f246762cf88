"""Plans of logs of 100 TB: the number of tasks is bounded, whatever the number of segments."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.store_directory import Replica, Segment
from dledger.formats.store_files import Checkpoint
from dledger.runtime.files import OsFiles
from dledger.spark.offsets import MOST_RANGES, QueueRange, divided
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from dledger.spark.parts import MOST_TASKS, PACK_BYTES, task_bytes
from dledger.spark.stores import packed, pieces, target_bytes

SEGMENTS = 100_000
SIZE = 1 << 30
ENTRIES = 1000


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    """A replica of 100,000 segments of 1 GiB, as it describes itself; nothing of it is on the disk."""
    root = str(tmp_path_factory.mktemp("huge"))
    segments = tuple(Segment(number * SIZE, SIZE, number * ENTRIES) for number in range(SEGMENTS))
    last = SEGMENTS * ENTRIES - 1
    return Replica(
        name="n0",
        store=root,
        directory=f"{root}/dledger-n0",
        queue_root="",
        identity=None,
        checkpoint=Checkpoint(last, last),
        segment_size=SIZE,
        segments=segments,
        index_end=0,
        head_unit=False,
        problems=(),
    )


@pytest.mark.parametrize(
    ("partition_bytes", "tasks"),
    [(None, MOST_TASKS), (8 * SIZE, 12_500), (100 * SIZE, 1_000)],
)
def test_segments_are_grouped(huge: Replica, partition_bytes: int | None, tasks: int) -> None:
    target = target_bytes([huge], None, partition_bytes)
    packs = packed(pieces(huge, huge.committed, None, target), None, partition_bytes)
    assert len(packs) == tasks
    assert sum(map(len, packs)) == SEGMENTS


def test_an_audit_of_it_is_planned_without_another_look(
    huge: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from dledger.audit import replicas
    from dledger.spark.audit_source import AuditReader, drill_options, scan_options

    view = replicas.StoreReplica(huge, OsFiles())
    monkeypatch.setattr(replicas, "open_store", None)  # whoever plans lists nothing
    options = scan_options(replicas.Look((view,)))
    assert sum(map(len, options.values())) < 2_000_000
    packs = AuditReader(options).partitions()
    assert len(packs) <= MOST_TASKS + 1
    assert sum(len(pack.parts) for pack in packs) == SEGMENTS + 2  # and what belongs to no segment
    (drilled,) = AuditReader(drill_options([view], [(5 * ENTRIES, 5 * ENTRIES + 9)])).partitions()
    assert [part.task.start for part in drilled.parts] == [5 * SIZE]


@pytest.mark.parametrize(("queues", "parts"), [(10_000, 1_000), (300_000, 7), (10_000, 31), (3, 1_000)])
def test_a_batch_of_many_queues_is_cut_into_a_bounded_number_of_pieces(queues: int, parts: int) -> None:
    """Seen before: 10,000 queues and 1,000 tasks made ten million pieces, which are gigabytes of memory."""
    ranges = [QueueRange("t", number, 5, 1005 + number % 7) for number in range(queues)]
    found = divided(ranges, parts)
    assert len(found) == parts
    assert sum(map(len, found)) <= MOST_RANGES + queues + parts
    counts = [sum(item.high - item.low for item in part) for part in found]
    assert sum(counts) == sum(item.high - item.low for item in ranges)
    assert max(counts) <= 1.2 * sum(counts) / parts + 3


def test_a_listing_of_many_files_is_planned(tmp_path: Path) -> None:
    """The store of `dledger bench spark-plans`, with fewer files."""
    pytest.importorskip("pyspark")
    from dledger.bench.spark_plans import PLANS, write_listing

    store = tmp_path / "n0"
    write_listing(store, 50, 40)
    tasks = {name: len(list(plan(str(store), "20")())) for name, plan in PLANS.items()}
    assert tasks == {"batch": 50, "batch with minPartitions": 50, "stream of queues": 20, "audit": 51}


def test_small_logs_are_shared_as_before() -> None:
    assert task_bytes(10 * SIZE) == PACK_BYTES
    assert task_bytes(100_000 * SIZE) == 5 * SIZE


def test_the_option_is_of_batches_over_files(tmp_path: Path) -> None:
    assert parse({"path": "/a", "partitionBytes": "5"}, "batch").partition_bytes == 5
    with pytest.raises(BadOption):
        parse({"path": "/a", "partitionBytes": "0"}, "batch")
    with pytest.raises(BadOption):
        parse({"servers": "127.0.0.1:1", "partitionBytes": "5"}, "batch")
