"""The accounting of the quickstart: what it counts, and when it says ok."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def quickstart() -> Iterator[ModuleType]:
    """scripts/ is no package: what runs there has its own folder on the path."""
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("quickstart", SCRIPTS / "quickstart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quickstart"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPTS))


GOOD = {"wanted": 9, "produced": 9, "consumed": 9, "duplicated": 1, "failover_ms": 80, "audit": "clean"}


def test_the_last_line_when_all_is_well(quickstart: ModuleType) -> None:
    line = quickstart.Summary(**GOOD).last_line()
    assert line == "quickstart: ok produced=9 consumed=9 lost=0 duplicated=1 failover_ms=80 audit=clean"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"produced": 8}, "not every message"),
        ({"lost": 1, "consumed": 8}, "lost"),
        ({"consumed": 8}, "lost"),
        ({"reordered": 1}, "changed places"),
        ({"failover_ms": None}, "no failover"),
        ({"audit": "warnings"}, "warnings"),
        ({"audit": "not-run"}, "not-run"),
        ({"reason": "port in use"}, "port in use"),
        ({"wanted": 0, "produced": 0, "consumed": 0}, "not every message"),
    ],
)
def test_the_last_line_when_something_is_not(
    quickstart: ModuleType, change: dict[str, object], reason: str
) -> None:
    summary = quickstart.Summary(**{**GOOD, **change})
    assert summary.last_line().startswith("quickstart: failed produced=")
    assert reason in summary.last_line()
    assert "\n" not in summary.last_line()


def test_order_is_looked_at_in_the_log_and_copies_do_not_count(quickstart: ModuleType) -> None:
    receiving = quickstart.Receiving()
    receiving.places = [(0, 2, "a", 3), (0, 0, "a", 1), (0, 1, "b", 2), (0, 3, "a", 1), (1, 0, "c", 9)]
    assert receiving.reordered() == 0
    receiving.places.append((0, 4, "b", 0))
    assert receiving.reordered() == 1


def test_lines_of_a_file_are_messages(quickstart: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\ntwo \xff\r\nthree")
    arguments = argparse.Namespace(input=file, messages=None, seed=1)
    assert [event.body for event in quickstart.load_events(arguments)] == [b"one", b"two \xff", b"three"]
    arguments.messages = 2
    assert len(quickstart.load_events(arguments)) == 2


def test_a_directory_of_somebody_else_is_left_alone(quickstart: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    arguments = argparse.Namespace(dir=tmp_path, base_port=None)
    with pytest.raises(quickstart.ClusterError):
        quickstart.make_cluster(arguments)
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    ("argv", "extra", "engine"), [([], "server", "dledger.audit"), (["--spark"], "spark", "dledger.spark")]
)
def test_spark_is_installed_and_used_only_when_it_is_asked_for(
    quickstart: ModuleType,
    argv: list[str],
    extra: str,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a gigabyte, and half a minute of a first run that need not be."""
    venv = tmp_path / "venv.sh"
    venv.write_text('prepare_venv() { echo "$1"; }\nVENV_PYTHON=true\nROOT=.\n')
    shell = (
        (SCRIPTS / "quickstart").read_text().replace('"$(dirname "${BASH_SOURCE[0]}")/venv.sh"', str(venv))
    )
    done = subprocess.run(
        ["bash", "-c", shell, "quickstart", *argv], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [extra]

    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(quickstart.subprocess, "run", run)
    cluster = quickstart.LocalCluster.create(tmp_path / "c", quickstart.ClusterSpec())
    assert quickstart.audit(cluster, on_spark=quickstart.parse_arguments(argv).spark) == "clean"
    assert asked[0][2] == engine


def test_ci_runs_both() -> None:
    steps = (SCRIPTS.parent / ".ci" / "run").read_text().splitlines()
    runs = [line for line in steps if line.startswith("step quickstart")]
    assert [line.endswith(" --spark") for line in runs] == [False, True]
