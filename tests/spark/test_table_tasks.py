"""Tables that the tasks of a Spark job fill, also when their processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from dledger.lake.parts import Part, PartsWriter, Task, births_in
from dledger.lake.spark_archive import tasks_of
from dledger.lake.table_audit import audit_table
from tests.audit.store_builder import Log
from tests.lake.lake_kit import Group, counts, make_topic, rows_of, sent

pytestmark = pytest.mark.spark


@pytest.fixture(params=["delta", "iceberg"])
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_workers_that_are_killed_leave_each_row_once(spark: Any, tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    run, marks = tasks_of(spark), tmp_path / "marks"
    marks.mkdir()

    def killed_once(part: Part, task: Task) -> Any:
        """Run a task. In the first attempt kill the process after the files are written."""
        found = task(part)
        mark = marks / str(part.first)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def killing(task: Task, parts: Sequence[Part]) -> list[Any]:
        return run(task if task is births_in else partial(killed_once, task=task), parts)

    table = group.table()
    PartsWriter(table, group.write(), lambda first: {}, killing, part_bytes=6000).catch_up()
    assert len(list(marks.iterdir())) > 1
    table.refresh()
    assert counts(rows_of(table)) == {(topic, queue): list(range(n)) for topic, queue, n in sent(group.log)}
    assert not audit_table(table, [group.write()]).findings


@pytest.mark.smoke
def test_the_command_fills_a_table_that_another_command_goes_on_with(tmp_path: Path, format: str) -> None:
    log = Log()
    log.open_term(1)
    make_topic(log)
    for number in range(200):
        log.message("orders", b"%d" % number, queue_id=number % 2)
    group = Group(tmp_path, log, format=format)
    group.write()
    where = ["--format", format, "--to", group.place, "--json"]

    def dledger(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "dledger", *arguments, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    rows = sum(count for _, _, count in sent(group.log))
    shown = dledger("spark", "archive", str(group.store), "--topics", "orders", "--master", "local[2]")
    assert (shown["added"], shown["rows"]) == (rows, rows)
    group.log.message("orders", b"one more")
    group.write()
    shown = dledger("lake", "orders", "--store", str(group.store))
    assert (shown["added"], shown["rows"]) == (1, rows + 1)
    assert not audit_table(group.table(), [group.write()]).findings
