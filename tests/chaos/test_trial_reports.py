"""The report of a trial: pages and files made from results, without any process."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dledger.chaos.scenarios.broker_history import Receipt, Send
from dledger.chaos.scenarios.history import ACKNOWLEDGED, UNKNOWN
from dledger.chaos.trials import command, suite
from dledger.chaos.trials.charts import Scale
from dledger.chaos.trials.checkers import Verdict
from dledger.chaos.trials.command import describe, find_scenario, write_report
from dledger.chaos.trials.injected import Injected
from dledger.chaos.trials.node_logs import Line, Parts, parts_of, read_lines
from dledger.chaos.trials.page import report, spans_of
from dledger.chaos.trials.result import Done, Failover, Result, bins_of, failovers_of, programs_of
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.system import Seen
from dledger.local.cluster import ClusterError
from dledger.runtime.options import Options, WrongUsage

S = 1_000_000_000
COUNTS = {
    "acknowledged": 900, "refused": 1, "unknown": 2, "received": 1800, "entries": 1000, "elections": 2,
    "faults": 1, "failed_faults": 0, "load": 0,
}  # fmt: skip


def result() -> Result:
    return Result(
        scenario="kill-leader",
        purpose="The leader is killed.",
        must_hold="Nothing is lost.",
        seed=3,
        seconds=10.0,
        command="dledger chaos run kill-leader --seconds 10 --seed 3",
        nodes=("n0", "n1", "n2"),
        clients=("probe", "producers"),
        faults=[Injected("kill", "leader", ("n0",), 2.0, 3.0), Injected("stop", "any", ("n1",), 5.0)],
        roles=[
            Seen(0.0, "n0", "LEADER", 1, True),
            Seen(0.0, "n1", "FOLLOWER", 1, False),
            Seen(2.1, "n0", "SILENT", -1, False),
            Seen(2.05, "n1", "CANDIDATE", 2, False),
            Seen(2.1, "n1", "LEADER", 2, True),
        ],
        failovers=[Failover(2.0, "kill", "n0", 48.5, Parts(1.0, 20.0, 30.0))],
        bins=bins_of([_probe(0.1, 0.2), _probe(2.0, 2.05), _probe(4.0, 4.1, UNKNOWN)], 10.0),
        counts=dict(COUNTS),
        verdicts=[Verdict("sends", "Everything is there.", True, 900)],
    )


def _probe(begin_s: float, end_s: float, outcome: str = ACKNOWLEDGED) -> Send:
    sent = Send("probe-0", "probe", [b"x|"], round(begin_s * S), end=round(end_s * S))
    sent.outcome = outcome
    return sent


def test_the_page_needs_nothing_but_itself_and_its_pictures_are_well_formed() -> None:
    page = report(result())
    assert not re.search(r"https?://|<script|<link|src=", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(pictures) >= 4
    for picture in pictures:
        ElementTree.fromstring(picture)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "What was done", "Who led when", "What clients saw", "Time without a leader", "What was shown",
        "Run it again",
    ]  # fmt: skip
    assert "Every rule holds" in page and "dledger chaos run kill-leader --seconds 10 --seed 3" in page
    assert "n0 leads and serves, term 1, 0.00 to 2.10 s" in page
    assert "2.00 s: kill" in page and "48.5" in page


def test_a_broken_rule_is_said_first_and_its_text_is_escaped() -> None:
    wrong = result()
    wrong.verdicts.append(Verdict("receipts", "Only what is there.", False, 1, "c read <b>x</b> & more"))
    page = report(wrong)
    assert "A rule was broken" in page and "Every rule holds" not in page
    assert "1 of 2 rules are broken: receipts." in page
    assert "<b>x</b>" not in page and "c read &lt;b&gt;x&lt;/b&gt; &amp; more" in page
    assert any("BROKEN" in line and "c read" in line for line in describe(wrong))


def test_what_each_client_did_is_counted_and_shown() -> None:
    sends = [_probe(0.1, 0.2), _probe(0.2, 0.3), _probe(0.3, 0.4, UNKNOWN)]
    receipt = Receipt("readers", "pull-0", 1, ("probe", 0), 0, b"x|", 0, 0)
    programs = programs_of(sends, [receipt])
    assert programs == [Done("probe-0", 2, 1, 0, 0), Done("pull-0", 0, 0, 0, 1)]
    page = report(replace(result(), programs=programs))
    assert (
        "<td>pull-0</td>" in page and "outcome unknown" in page and "outcome unknown" not in report(result())
    )


def test_messages_that_other_clients_sent_again_are_told() -> None:
    again = replace(result(), counts={**COUNTS, "stored_again": 3})
    assert "3 messages of other clients stored again" in report(again)
    assert any("3 stored again" in line for line in describe(again))
    assert "stored again" not in report(result())


def test_a_trial_without_failovers_has_no_chapter_about_them() -> None:
    calm = replace(result(), failovers=[])
    assert "Time without a leader" not in report(calm)


def test_states_follow_one_another_without_a_gap() -> None:
    spans = spans_of(result().roles, 10.0)
    assert [(one.state, one.begin_s, one.end_s) for one in spans["n1"]] == [
        ("follower", 0.0, 2.05), ("electing", 2.05, 2.1), ("leader", 2.1, 10.0),
    ]  # fmt: skip
    assert [one.state for one in spans["n0"]] == ["leader", "silent"]


def test_a_node_that_is_no_member_has_a_blank_lane_and_does_not_count() -> None:
    moved = replace(
        result(),
        nodes=("n0", "n1", "n2", "n3"),
        size=3,
        roles=[Seen(0.0, "n3", "OUTSIDE", -1, False), Seen(4.0, "n3", "LEARNER", 2, False)],
    )
    page = report(moved)
    assert "a group of 3 brokers" in page and "group of 4" not in page
    assert "n3 learns: has no vote, term 2, 4.00 to 10.00 s" in page and "0.00 to 4.00 s" not in page


@pytest.mark.parametrize("seconds", [0.5, 3, 15, 60, 180, 3600, 86_400])
def test_the_axis_has_round_times_and_not_too_many(seconds: float) -> None:
    ticks = Scale(seconds).ticks()
    assert 1 <= len(ticks) <= 11 and ticks[-1] <= seconds
    assert seconds < 2 or len(ticks) >= 3


def test_a_failover_ends_with_a_message_that_was_sent_after_the_fault() -> None:
    faults = [Injected("kill", "leader", ("n0",), 2.0, 3.0), Injected("kill", "follower", ("n1",), 5.0, 6.0)]
    sends = [_probe(1.9, 2.01), _probe(2.001, 2.2, UNKNOWN), _probe(2.002, 2.09), _probe(2.02, 2.08)]
    lines = [
        Line(2.003, "n1", "connection to the leader lost leader=n0"),
        Line(2.02, "n1", "role role=LEADER term=2 leader=n1"),
        Line(2.03, "n1", "serving term=2 opening=4"),
        Line(2.2, "n2", "role role=LEADER term=3 leader=n2"),
    ]
    (found,) = failovers_of(faults, sends, lines)
    assert (found.ms, found.node) == (80.0, "n0")
    assert found.parts == Parts(3.0, 20.0, 30.0)


def test_a_failover_by_a_command_is_the_longest_pause_since_the_command_began() -> None:
    fault = Injected("kill", "leader", ("n0",), 2.0, 6.0, command_s=1.5)
    sends = [_probe(1.8, 1.9), _probe(2.0, 2.01), _probe(2.4, 2.5), _probe(2.5, 2.55), _probe(2.6, 2.9)]
    (open_one,) = failovers_of([fault], sends, [])
    assert open_one.ms is None, "no message was sent after the end of the command"
    sends += [_probe(2.95, 3.2), _probe(3.3, 3.55), _probe(3.6, 3.7), _probe(3.8, 9.0)]
    (found,) = failovers_of([fault], sends, [])
    assert found.ms == 490.0


def test_lines_of_the_killed_node_itself_do_not_count() -> None:
    lines = [Line(2.001, "n0", "role role=LEADER term=1 leader=n0")]
    assert parts_of(lines, 2.0, "n0", 3.0) == Parts(None, None, None)


def test_log_lines_get_the_time_of_the_trial(tmp_path: Path) -> None:
    text = "2026-01-02 03:04:05,250 INFO    broker.node.n1 serving term=2 opening=7\nno line of ours\n"
    (tmp_path / "broker.log").write_text(text)
    from datetime import datetime

    began = datetime(2026, 1, 2, 3, 4, 5).timestamp()
    (line,) = read_lines(tmp_path, "n1", began)
    assert line.text == "serving term=2 opening=7" and line.at_s == pytest.approx(0.25)


def test_a_result_is_written_as_json_and_as_a_page(tmp_path: Path) -> None:
    write_report(result(), tmp_path / "new" / "place")
    written = json.loads((tmp_path / "new" / "place" / "result.json").read_text())
    assert written["holds"] is True and written["version"] == 1 and written["failovers"][0]["ms"] == 48.5
    assert (tmp_path / "new" / "place" / "report.html").read_text() == report(result())


def test_an_unknown_scenario_and_a_wrong_file_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="there is no scenario kill-everything; `dledger chaos list`"):
        find_scenario("kill-everything")
    with pytest.raises(WrongUsage, match="No such file"):
        find_scenario(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text("name = 1")
    with pytest.raises(WrongUsage, match=r"mine\.toml: name is 1"):
        find_scenario(str(tmp_path / "mine.toml"))


# Suites


def options(**given: object) -> Options:
    found = {
        "full": False, "smoke": False, "seconds": None, "only": (), "seed": 3, "results": None,
        "report": None, "json": False,
    }  # fmt: skip
    return Options(**{**found, **given})


def test_a_suite_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    async def trial(scenario: Scenario, seed: int, directory: Path, *_: object) -> Result:
        ran.append(scenario.name)
        if scenario.name == "kill-leader" and len(ran) == 2:
            raise KeyboardInterrupt
        return replace(result(), scenario=scenario.name, seed=seed, seconds=scenario.seconds)

    monkeypatch.setattr(command, "run_trial", trial)
    args = options(only=("kill-all", "kill-leader"), results=str(tmp_path / "deep" / "rows.jsonl"))
    with pytest.raises(KeyboardInterrupt):
        suite.run(args)
    assert ran == ["kill-all", "kill-leader"]
    assert suite.run(args) == 0
    assert ran == ["kill-all", "kill-leader", "kill-leader"], "what has a result is not run again"
    assert suite.run(args) == 0 and len(ran) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith(
        "kill-all           holds   1 rules, 2 faults, 900 acknowledged; failover 48 ms"
    )
    suite.run(options(only=("kill-all",), seconds=99.0, results=args.results))
    assert len(ran) == 4, "another duration is another trial"


def test_a_broken_rule_and_a_group_that_does_not_start_make_a_suite_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(scenario: Scenario, seed: int, directory: Path, *_: object) -> Result:
        wrong = Verdict("sends", "Everything is there.", False, 1, "lost: m1")
        return replace(result(), scenario=scenario.name, verdicts=[wrong])

    async def silent(*_: object) -> Result:
        raise ClusterError("after 30 s no leader is serving")

    monkeypatch.setattr(command, "run_trial", broken)
    assert suite.run(options(only=("kill-all",))) == 1
    assert "BROKEN" in (said := capsys.readouterr().out) and "broken: sends" in said
    monkeypatch.setattr(command, "run_trial", silent)
    assert suite.run(options(only=("kill-all",), json=True)) == 1
    (row,) = json.loads(capsys.readouterr().out)["trials"]
    assert row["error"] == "after 30 s no leader is serving" and not row["holds"]


def test_a_file_that_holds_no_results_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"scenario": 1}\n')
    with pytest.raises(WrongUsage, match="rows, line 1 is no result of a suite"):
        suite.run(options(results=str(tmp_path / "rows")))
    with pytest.raises(WrongUsage, match="there is no scenario nothing"):
        suite.run(options(only=("nothing",)))
