"""A long delay of the event loop is measured, and said in the log."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dledger.node.metrics import LATE_LOOP_S, NodeMetrics
from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.log import StandardLog
from dledger.runtime.program import THREAD_STATISTICS, waits_for_cores


async def one_look(metrics: NodeMetrics, blocked_s: float) -> None:
    """Let the loop wake up so much too late, once, by a clock that stands otherwise."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    loop.time = lambda: now  # type: ignore[method-assign]
    watch = asyncio.ensure_future(metrics.watch_loop(0.01, StandardLog("node")))
    await asyncio.sleep(0)
    now += 0.01 + blocked_s + loop._clock_resolution  # type: ignore[attr-defined]
    for _ in range(3):
        await asyncio.sleep(0)
    watch.cancel()


@pytest.mark.parametrize(("blocked_s", "said"), [(LATE_LOOP_S * 2, True), (0.0, False)])
def test_a_late_loop_is_said(caplog: pytest.LogCaptureFixture, blocked_s: float, said: bool) -> None:
    metrics = NodeMetrics(Pauses())

    with caplog.at_level(logging.WARNING):
        asyncio.run(one_look(metrics, blocked_s))
    assert any("event loop was late" in line for line in caplog.messages) == said
    assert (metrics.loop_lag_max_s >= LATE_LOOP_S) == said


def test_waiting_for_a_core_is_told_apart() -> None:
    pauses = Pauses()
    waits = iter([5.0, 5.25, 5.25])
    pauses.waited_s = lambda: next(waits)
    metrics = NodeMetrics(pauses)

    asyncio.run(one_look(metrics, 0.05))
    assert metrics.loop_lag_max_s == pytest.approx(0.05)
    assert metrics.snapshot()["loop_lag_ms_max_waited"] == 250.0


@pytest.mark.skipif(not Path(THREAD_STATISTICS).exists(), reason="the system does not tell")
def test_a_thread_that_has_no_core_knows_how_long_it_waited() -> None:
    pauses = Pauses()
    affinity = os.sched_getaffinity(0)
    spin = "import time\nprint(flush=True)\nend = time.monotonic() + 300\nwhile time.monotonic() < end: pass"
    command = [sys.executable, "-c", spin]
    with waits_for_cores(pauses), subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline(), "it has started"
            core = {min(affinity)}
            os.sched_setaffinity(other.pid, core)
            os.sched_setaffinity(0, core)
            before, began = pauses.waited_s(), time.monotonic()
            while pauses.waited_s() - before < 0.02:
                assert time.monotonic() - began < 60, "two busy programs on one core, and nobody waited"
        finally:
            os.sched_setaffinity(0, affinity)
            other.kill()
    assert pauses.waited_s() == 0.0
