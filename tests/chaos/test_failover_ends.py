"""The kernel's part in the report of `chaos failover`: no connection of a process closes before it has
ended."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dledger.chaos.failover import End, Measurement, Round, describe
from dledger.runtime.options import Options


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfds")
def test_the_end_of_a_killed_process_is_seen_by_others_than_its_parent_too() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        end = End(process.pid)
        killed_at = time.monotonic()
        process.kill()
        ended_at = end.wait()  # nobody has reaped it
        assert ended_at is not None and killed_at < ended_at <= time.monotonic()
    assert End(None).wait() is None, "it does not run"


def test_the_report_tells_the_part_of_the_kernel_from_the_rest(tmp_path: Path) -> None:
    measure = Measurement(Options(seed=0, stop=False, load=False), tmp_path)
    measure.rounds = [Round(0, "n0", 20.0, 15.0, 3, 5.0), Round(1, "n1", 507.0, 500.0, 3, 482.0)]
    report = measure.report()
    assert (report["ended_p50_ms"], report["ended_max_ms"]) == (5.0, 482.0)
    assert (report["after_end_p50_ms"], report["after_end_max_ms"]) == (15.0, 25.0)
    lines = list(describe(report, measure.rounds))
    assert lines[1].startswith("the kernel ended the killed process after p50 5 ms, p99 482 ms, max 482 ms")
    assert "        482 ms n1 has ended, the kernel says" in lines


def test_without_ends_nothing_is_said_of_them(tmp_path: Path) -> None:
    measure = Measurement(Options(seed=0, stop=True, load=False), tmp_path)
    measure.rounds = [Round(0, "n0", 20.0, 15.0, 3)]
    report = measure.report()
    assert "ended_p50_ms" not in report
    assert not any("kernel" in line for line in describe(report, measure.rounds))
