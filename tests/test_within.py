"""The options `--within` and `--turn` of tests/conftest.py, by which CI runs what fits."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
FEW = ["tests/formats", "tests/runtime"]


def pytest_lines(*arguments: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *FEW, *arguments],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


def files_in_order(turn: str) -> list[str]:
    lines = pytest_lines("--collect-only", "--turn", turn)
    return [name for name, _ in groupby(line.partition("::")[0] for line in lines if "::" in line)]


def test_what_is_not_begun_in_time_is_skipped_and_told() -> None:
    lines = pytest_lines("--within", "0")
    told = [line for line in lines if line.startswith("out of time")]
    assert len(told) == 1 and "files were not begun" in told[0]
    assert any("skipped" in line for line in lines) and not any("passed" in line for line in lines)


def test_each_turn_has_its_own_order_of_whole_files() -> None:
    monday, again, tuesday = files_in_order("328"), files_in_order("328"), files_in_order("329")
    assert monday == again != tuesday
    assert sorted(monday) == sorted(tuesday) == sorted(set(monday))
