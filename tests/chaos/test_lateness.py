"""Which delays of event loops are too long, and that `chaos failover` reports them."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from dledger.chaos.failover import Measurement, Round, describe
from dledger.chaos.lateness import LAG_LIMIT_MS, Delay, Lateness
from dledger.node.metrics import LATE_LOOP_S, NodeMetrics
from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.log import StandardLog
from dledger.runtime.options import Options

JUST = 0.1


@pytest.mark.parametrize(
    ("delay", "within"),
    [
        (Delay(LAG_LIMIT_MS - JUST), True),
        (Delay(LAG_LIMIT_MS), False),
        (Delay(LAG_LIMIT_MS, LAG_LIMIT_MS / 2), False),
        (Delay(LAG_LIMIT_MS, LAG_LIMIT_MS / 2 + JUST), True),
        (Delay(300, 230), False),
        (Delay(300, 299), True),
        (Delay(3 * LAG_LIMIT_MS, 3 * LAG_LIMIT_MS), False),
    ],
)
def test_a_third_of_an_election_time_out_is_the_limit_for_what_no_other_program_did(
    delay: Delay, within: bool
) -> None:
    lateness = Lateness()
    lateness.note(delay)
    assert lateness.within == within
    report = lateness.report()
    assert (report["loop_lag_ms_max"], report["loop_lag_ms_max_waited"]) == (delay.ms, delay.waited_ms)
    assert report["loop_lag_excused"] == (within and delay.ms >= LAG_LIMIT_MS)


def test_an_excused_delay_hides_no_shorter_one() -> None:
    lateness = Lateness()
    lateness.look({"loop_lag_ms_max": 250.0, "loop_lag_ms_max_waited": 249.0})
    lateness.look({})
    assert lateness.within
    lateness.look({"loop_lag_ms_max": 140.0, "loop_lag_ms_max_waited": 0.0})
    assert not lateness.within
    assert lateness.report()["loop_lag_ms_max"] == 250.0, "the longest is reported all the same"


def test_logs_tell_of_delays_that_no_state_shows(caplog: pytest.LogCaptureFixture) -> None:
    lateness = Lateness()
    with caplog.at_level(logging.INFO):
        asyncio.run(blocked(LAG_LIMIT_MS / 1000 + 0.02))
    lateness.read_log("2026-11-23 10:00:00,000 INFO    node.n0 role role=LEADER\n")
    assert lateness.within
    lateness.read_log("\n".join(caplog.messages))
    assert not lateness.within
    assert LATE_LOOP_S * 1e3 < LAG_LIMIT_MS, "what is above the limit is in the log"


async def blocked(seconds: float) -> None:
    watch = asyncio.ensure_future(NodeMetrics(Pauses()).watch_loop(0.01, StandardLog("node")))
    await asyncio.sleep(0)
    time.sleep(seconds)  # noqa: ASYNC251  # what must not happen, and does
    await asyncio.sleep(0.03)
    watch.cancel()


@pytest.mark.parametrize(("mode", "judged"), [("idle", True), ("load", True), ("stop", False)])
def test_failovers_with_a_late_loop_are_not_within_the_budget(
    mode: str, judged: bool, tmp_path: Path
) -> None:
    args = Options(seed=0, stop=mode == "stop", load=mode == "load")
    measure = Measurement(args, tmp_path)
    measure.rounds.append(Round(0, "n0", 20.0, 15.0, 3))
    assert measure.mode == mode and measure.report()["within_budget"]
    measure.lateness.note(Delay(160.0, 150.0))
    assert measure.report()["within_budget"], "the machine, not the program"
    measure.lateness.note(Delay(150.0, 10.0))
    report = measure.report()
    assert report["within_budget"] is not judged
    lines = list(describe(report, measure.rounds))
    assert ("OUTSIDE" in lines[0]) is judged
    assert lines[1].startswith("worst event-loop lag 160.0 ms (150.0 ms waiting for a core)")
    assert (", ABOVE the limit of 133.3 ms, longer ones excused;" in lines[1]) is judged
