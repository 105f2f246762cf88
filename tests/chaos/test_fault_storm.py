"""Three real nodes under all families of faults: nothing acknowledged is lost, and a seed is reproducible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fault_storm
import pytest

from dledger.chaos.machine import Trace
from dledger.chaos.machine.trace import first_difference

ROOT = Path(__file__).resolve().parents[2]


def survive(seeds: range) -> tuple[int, dict[str, int]]:
    acknowledged, faults = 0, dict[str, int]()
    for seed in seeds:
        count, injected = fault_storm.run_seed(seed)
        acknowledged += count
        for kind, number in injected.items():
            faults[kind] = faults.get(kind, 0) + number
    return acknowledged, faults


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 4])
def test_nothing_acknowledged_is_lost_in_a_storm(first: int) -> None:
    acknowledged, faults = survive(range(first, first + 4))
    assert acknowledged > 50, "too little was acknowledged to show anything"
    assert len(faults) >= 15, sorted(faults)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_nothing_acknowledged_is_lost_in_many_storms(first: int) -> None:
    assert survive(range(first, first + 100))[0] > 2000


def test_a_storm_is_the_same_in_another_process() -> None:
    trace = Trace()
    fault_storm.run_seed(3, trace)
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(fault_storm.__file__)), "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assert first_difference(trace.lines, done.stdout.split("\n")) is None
