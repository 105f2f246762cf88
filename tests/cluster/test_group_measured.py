"""The commands that measure groups of real processes: few rounds, the figures they report."""

from __future__ import annotations

import json

import pytest

from dledger.bench.__main__ import main as bench
from dledger.chaos.__main__ import main
from dledger.chaos.lateness import LAG_LIMIT_MS, Delay


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(report, dict)
    return report


@pytest.mark.parametrize("load", [False, True])
def test_failovers_are_measured(load: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report = figures(capsys, "failover", "--kills", "3", *(["--load"] if load else []))
    assert report["rounds"] == 3 and report["lost"] == report["load_lost"] == 0
    assert float(str(report["p50_ms"])) < (500 if load else 200), "wanted: 100; CI's machines are busy"
    assert float(str(report["max_ms"])) < 1000
    assert bool(report["load_acknowledged"]) is load
    assert float(str(report["loop_lag_ms_max"])) > 0 and report["loop_lag_within"], "not for want of a core"
    slowest = report["slowest"]
    assert isinstance(slowest, list)
    course = "\n".join(slowest[0]["timeline"])
    for event in ("connection to the leader lost", "role=CANDIDATE", "role=LEADER", "serving"):
        assert event in course


def test_a_stopped_leader_is_replaced_once_and_its_return_disturbs_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = figures(capsys, "failover", "--stop", "--kills", "1")
    assert float(str(report["max_ms"])) < 1000
    assert report["leader_changes_max"] == 1 and report["terms_max"] == 1


def test_members_are_replaced_without_a_long_pause(capsys: pytest.CaptureFixture[str]) -> None:
    report = figures(capsys, "replace", "--mib", "16")
    assert report["lost"] == 0
    assert float(str(report["pause_ms_max"])) < 1000


def test_delays_of_event_loops_under_load_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code = bench(["loaded", "--seconds", "5", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] > 1000 and report["terms"] == 0
    nodes = [value for name, value in report.items() if name.startswith(("leader (", "n"))]
    assert len(nodes) == 3
    assert all(node["gc_pauses_full"] == 0 for node in nodes)
    worst = max(node["loop_lag_ms_max"] for node in nodes)
    assert 0 < worst == report["loop_lag_ms_max"] < 3 * LAG_LIMIT_MS, "as long as an election time-out"
    for node in nodes:
        delay = Delay(node["loop_lag_ms_max"], node["loop_lag_ms_max_waited"])
        assert not delay.above_limit or delay.excused, "not for want of a core"
    assert code == (0 if worst < LAG_LIMIT_MS else 1)


def test_an_idle_group_takes_next_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):  # one group of some sixty took 5 % on a shared machine; who spins does it again
        code = bench(["idle", "--seconds", "10", "--check", "--json"])
        reports.append(json.loads(capsys.readouterr().out))
        if code == 0:
            break
    report = reports[-1]
    nodes = [percent for name, percent in report.items() if name.startswith(("leader (", "n"))]
    assert len(nodes) == 3 and min(nodes) > 0 and max(nodes) == report["worst"]
    assert code == 0 and report["worst"] <= report["limit"], reports
