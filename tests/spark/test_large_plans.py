"""Plans of logs of 100 TB: the number of tasks is bounded, whatever the number of segments."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.store_directory import Replica, Segment
from dledger.formats.store_files import Checkpoint
from dledger.runtime.files import OsFiles
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


def test_small_logs_are_shared_as_before() -> None:
    assert task_bytes(10 * SIZE) == PACK_BYTES
    assert task_bytes(100_000 * SIZE) == 5 * SIZE


def test_the_option_is_of_batches_over_files(tmp_path: Path) -> None:
    assert parse({"path": "/a", "partitionBytes": "5"}, "batch").partition_bytes == 5
    with pytest.raises(BadOption):
        parse({"path": "/a", "partitionBytes": "0"}, "batch")
    with pytest.raises(BadOption):
        parse({"servers": "127.0.0.1:1", "partitionBytes": "5"}, "batch")
