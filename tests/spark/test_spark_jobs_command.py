"""The jobs as processes: what is printed, written and returned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.store_builder import sample_log, write_store
from tests.audit.test_audit_reports import read_page
from tests.spark.test_spark_accounting import World

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dledger.spark", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_log_is_archived_and_the_archive_counted(tmp_path: Path) -> None:
    store, root, page = (
        write_store(sample_log(), tmp_path / "n0"),
        tmp_path / "archive",
        tmp_path / "stats.html",
    )
    done = command("archive", store, "--to", root, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == 2500 and told["positions"] == {"g0": {"log": 2512}}
    done = command("stats", "--archive", root, "--report", page)
    assert done.returncode == 0, done.stderr
    assert "payments" in done.stdout
    assert "orders" in " ".join(read_page(page.read_text()).shown)


def test_acknowledged_messages_are_accounted_for(tmp_path: Path) -> None:
    """With no option that need not be given."""
    world = World()
    store, acknowledged = write_store(world.log, tmp_path / "n0"), tmp_path / "acks.jsonl"
    acknowledged.write_text("".join(json.dumps(ack) + "\n" for ack in world.acks))
    done = command("account", store, "--acknowledged", acknowledged, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["produced"] == told["stored"] == len(world.acks)


def test_what_cannot_run_is_4_and_one_line(tmp_path: Path) -> None:
    done = command("read", write_store(sample_log(50), tmp_path / "n0"), "--view", "mesages", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["verdict"] == "failed"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("dledger spark read:")]
    assert "did you mean 'messages'" in line


def test_a_wrong_condition_is_one_line(tmp_path: Path) -> None:
    done = command("read", write_store(sample_log(50), tmp_path / "n0"), "--where", "topik = 'x'")
    assert done.returncode == 4
    assert "`topik` cannot be resolved. Did you mean" in done.stderr
    assert "SQLQueryContextLogger" not in done.stderr and len(done.stderr) < 1000, done.stderr
