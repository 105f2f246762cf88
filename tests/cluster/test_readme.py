"""What README, tutorial and how-to guides show works as it stands there, on a real group, but for its address
and what a page's marks say (tests/page_programs.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.local.cluster import LocalCluster
from tests.page_programs import ADDRESS, README, ROOT, Program, programs, run_program

DOCS = ROOT / "docs"
LIMIT_S = 60


def run(program: Program, group: LocalCluster, directory: Path) -> str:
    return run_program(program, group.namesrv_addr, directory, LIMIT_S)


def test_the_program_of_the_readme(group: LocalCluster, tmp_path: Path) -> None:
    (program,) = programs(README)
    assert ADDRESS in program.code
    assert program.not_run is None
    assert sum(map(bool, program.code.splitlines())) <= 12
    received = run(program, group, tmp_path)
    assert sorted(received.splitlines()) == [f"job {number}" for number in range(10)]


def test_the_programs_of_the_tutorial(group: LocalCluster, tmp_path: Path) -> None:
    """Each lesson builds on the one before."""
    for lesson in ("first-group", "first-consumer", "first-audit"):
        for program in programs(DOCS / "tutorial" / f"{lesson}.md"):
            run(program, group, tmp_path)


@pytest.mark.parametrize("page", sorted(DOCS.glob("howto/*.md")), ids=lambda page: page.stem)
def test_the_programs_of_a_guide(page: Path, new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """Each with a group of its own: pages have topics of the same names."""
    shown = programs(page)
    group = new_group() if shown else None
    for program in shown:
        assert group is not None
        run(program, group, tmp_path)
