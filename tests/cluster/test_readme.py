"""What README, tutorial and how-to guides show works as it stands there, on a real group (but for its address and
what a page's marks say: tests/page_programs.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.local.cluster import LocalCluster
from tests.page_programs import PAGES, README, Program, missing_lines, programs

ADDRESS = "127.0.0.1:9876"
LIMIT_S = 60


def run(program: Program, group: LocalCluster, directory: Path) -> str:
    """Run it in the directory of its page; programs of a page may import each other by their names."""
    code = program.shortened().replace(ADDRESS, group.namesrv_addr)
    (directory / program.name).write_text(code)
    if program.not_run is not None:
        return ""
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{program.where}: {done.stdout}{done.stderr}"
    if program.output is not None:
        wrong = missing_lines(program.output, done.stdout)
        assert not wrong, f"{program.where}: {wrong}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_program_of_the_readme(group: LocalCluster, tmp_path: Path) -> None:
    (program,) = programs(README)
    assert ADDRESS in program.code
    assert program.not_run is None
    assert len(program.code.strip().splitlines()) <= 12
    received = run(program, group, tmp_path)
    assert sorted(received.splitlines()) == [f"order {number}" for number in range(10)]


@pytest.mark.parametrize("page", [page for page in PAGES if page != README], ids=lambda page: page.stem)
def test_the_programs_of_a_page(page: Path, group: LocalCluster, tmp_path: Path) -> None:
    for program in programs(page):
        assert not re.search(r"127\.0\.0\.1:(?!9876|8080)", program.code), f"{program.where}: another port"
        run(program, group, tmp_path)
