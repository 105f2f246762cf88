"""The programs of the tutorial for data engineers, and of the pages for users of Kafka and of the sink, on a
real group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dledger.local.cluster import LocalCluster
from tests.page_programs import ROOT, Program, programs, run_program

TUTORIAL = ROOT / "docs/tutorial/first-day-with-data.md"
KAFKA = ROOT / "docs/reference/from-kafka.md"
SINK = ROOT / "docs/reference/spark-sink.md"
LIMIT_S = 300
"""Spark starts slowly on a loaded machine."""


def run(program: Program, group: LocalCluster, directory: Path) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run_program(program, group.namesrv_addr, directory, LIMIT_S, {**os.environ, "PYTHONPATH": paths})


def room(group: LocalCluster, tmp_path: Path) -> Path:
    """A directory that looks as after `dledger up`: the stores are where the pages say."""
    (tmp_path / "dledger-data").mkdir()
    (tmp_path / "dledger-data" / "store").symlink_to(group.store("n0").parent)
    return tmp_path


def with_spark(program: Program) -> bool:
    return "spark" in program.code


def test_the_programs_without_spark(group: LocalCluster, tmp_path: Path) -> None:
    for package in ("pandas", "polars", "duckdb", "pyarrow"):
        pytest.importorskip(package)
    directory = room(group, tmp_path)
    for program in programs(TUTORIAL):
        if not with_spark(program):
            run(program, group, directory)
            group.wait_caught_up()


@pytest.mark.spark
@pytest.mark.parametrize("page", [TUTORIAL, KAFKA], ids=lambda page: page.stem)
def test_the_programs_with_spark(page: Path, group: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    directory = room(group, tmp_path)
    (sales, *_) = programs(TUTORIAL)
    topic = "purchases" if page == TUTORIAL else "clicks"  # the group has "sales" already
    sent = Program(sales.page, sales.line, sales.code.replace('"sales"', f'"{topic}"'))
    run(sent, group, directory)
    for program in programs(page):
        if with_spark(program):
            program.code = program.code.replace("sales", topic)
            program.output = program.output and program.output.replace("sales", topic)
            run(program, group, directory)


@pytest.mark.spark
def test_the_example_of_the_sink(group: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (example,) = [program for program in programs(SINK) if program.not_run is None]
    run(example, group, tmp_path)
