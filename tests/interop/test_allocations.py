"""What tests/client/consuming/test_allocation.py compares with is what Apache's client gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.conftest import DRIVERS, cache, install, rocketmq_libraries

pytestmark = pytest.mark.interop

KEPT = Path(__file__).parents[1] / "client" / "allocations.jsonl"


def test_the_divisions_of_queues_are_those_of_apaches_client(request: pytest.FixtureRequest) -> None:
    libraries = rocketmq_libraries(5)
    source = DRIVERS / "Allocations.java"
    classes = cache() / "java" / f"{libraries.name}-allocations"
    path = f"{libraries}/*"
    install(classes, ["javac", "-nowarn", "-d", str(classes), "-cp", path, str(source)], "the Java program")
    command = ["java", f"-Duser.home={classes}", "-cp", f"{classes}:{path}", "Allocations"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if request.config.getoption("--rewrite"):
        KEPT.write_text("".join(f"{line}\n" for line in lines))
    assert lines == KEPT.read_text().splitlines()
