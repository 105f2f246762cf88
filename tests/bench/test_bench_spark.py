"""The store that Spark is measured on is a right one, and all of its messages are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.findings import Finding
from dledger.audit.scan import scan_segment
from dledger.audit.store_directory import open_stores, segment_tasks
from dledger.bench.spark_read import write_store
from dledger.runtime.remote_files import files_for

MESSAGES = 300


def test_the_store_is_sound(tmp_path: Path) -> None:
    store = str(tmp_path / "n0")
    write_store(Path(store), MESSAGES, 500, segment_size=1 << 16)
    (replica,) = open_stores(files_for(store), [store])
    tasks = segment_tasks(replica)
    assert len(tasks) > 2
    rows = [row for task in tasks for row in scan_segment(files_for(store), task)]
    assert [row for row in rows if isinstance(row, Finding) and row.code != "QUEUE_LAG"] == []


def test_all_of_its_messages_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from dledger.spark.options import parse
    from dledger.spark.views import MessagesView

    write_store(tmp_path / "n0", MESSAGES, 500, segment_size=1 << 16)
    view = MessagesView(parse({"path": str(tmp_path / "n0")}, "batch"))
    batches = [batch for part in view.plan() for batch in view.read(part)]
    assert [index for batch in batches for index in batch["logIndex"].to_pylist()] == list(range(MESSAGES))
    assert {len(value) for batch in batches for value in batch["value"].to_pylist()} == {500}
