"""One seed gives one course of events: twice in this process, and in others with other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ping_group
import pytest

from dledger.chaos.machine.trace import first_difference

ROOT = Path(__file__).resolve().parents[2]


def run_elsewhere(seed: int, hash_seed: int, *options: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(ping_group.__file__)), str(seed), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout.split("\n")


def test_one_seed_gives_one_trace_in_one_process() -> None:
    first = ping_group.run(5)
    ballast = [bytearray(number) for number in range(2000)]  # other addresses
    second = ping_group.run(5)
    assert first_difference(first, second) is None
    assert len(first) > 1000 and ballast


@pytest.mark.parametrize("hash_seed", [1, 4711])
def test_one_seed_gives_one_trace_under_any_hash_seed(hash_seed: int) -> None:
    assert first_difference(ping_group.run(5), run_elsewhere(5, hash_seed)) is None


def test_one_seed_gives_one_trace_with_every_family_of_faults() -> None:
    first = ping_group.run_with_faults(5)
    kinds = dict.fromkeys(line.split()[3] for line in first if line.split()[2] == "fault")
    assert len(kinds) >= 19, list(kinds)
    assert first_difference(first, ping_group.run_with_faults(5)) is None
    assert first_difference(first, run_elsewhere(5, 4711, "--faults")) is None


def test_seeds_differ() -> None:
    traces = ["\n".join(ping_group.run(seed)) for seed in range(6)]
    assert len(dict.fromkeys(traces)) == 6


def test_what_the_toy_is_expected_to_show_happens() -> None:
    text = "\n".join(ping_group.run(5))
    for sight in ("no answer", "cannot connect", "lost peer=", "fsync /pings", "refused", "reset", "power"):
        assert sight in text, sight


def test_the_first_difference_is_shown_with_what_came_before() -> None:
    assert first_difference(["a", "b", "c"], ["a", "b", "d"]) == "line 3:\n  a\n  b\n< c\n> d"
    assert first_difference(["a"], ["a", "b"]) == "line 2: one trace ends, the other goes on with\n  b"
