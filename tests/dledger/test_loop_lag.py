"""A long delay of the event loop is measured, and said in the log."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from dledger.metrics import LATE_LOOP_S, NodeMetrics
from runtime.log import StandardLog
from runtime.pauses import Pauses


@pytest.mark.parametrize(("blocked_s", "said"), [(LATE_LOOP_S * 2, True), (0.0, False)])
def test_a_late_loop_is_said(caplog: pytest.LogCaptureFixture, blocked_s: float, said: bool) -> None:
    metrics = NodeMetrics(Pauses())

    async def work() -> None:
        watch = asyncio.ensure_future(metrics.watch_loop(0.01, StandardLog("node")))
        await asyncio.sleep(0)
        time.sleep(blocked_s)  # noqa: ASYNC251  # what must not happen, and does
        await asyncio.sleep(0.03)
        watch.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert any("event loop was late" in line for line in caplog.messages) == said
    assert (metrics.loop_lag_max_s >= LATE_LOOP_S) == said
