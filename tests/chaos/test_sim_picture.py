"""The picture of a simulated run: what is recorded, and how elections are drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from dledger.chaos.scenarios.picture import Became, Picture, describe
from dledger.chaos.scenarios.plan import draw_plan
from dledger.chaos.scenarios.runner import make_run, run_plan
from dledger.chaos.trials.simulated import MOST_ARROWS, arrows_of, elections_of, report, spans_of
from dledger.messages import Append, Commit, Heartbeat, PushResponse, VoteRequest, VoteResponse, VoteResult

S = 1_000_000_000


def ask(term: int, *, pre: bool = False) -> VoteRequest:
    return VoteRequest(term, "n0", 5, term - 1, pre)


def test_a_message_ends_when_it_is_received_and_one_before_it_that_did_not_come_is_lost() -> None:
    picture = Picture()
    picture.sends("n0", "n1", ask(2, pre=True), 10)
    picture.sends("n0", "n1", ask(2), 20)
    picture.sends("n0", "n2", ask(2), 20)
    picture.receives("n1", "n0", ask(2), 25)
    picture.receives("n1", "n0", ask(2), 30)
    assert [(one.receiver, one.kind, one.received) for one in picture.flights] == [
        ("n1", "pre-vote", -1), ("n1", "vote", 25), ("n2", "vote", -1),
    ]  # fmt: skip


def test_entries_are_not_kept_and_a_view_of_them_is_the_same_message() -> None:
    picture = Picture()
    picture.sends("n0", "n1", Append(1, "n0", 3, 1, 4, 6, 100, 2, b"bytes"), 1)
    picture.receives("n1", "n0", Append(1, "n0", 3, 1, 4, 6, 100, 2, memoryview(b"bytes")), 2)
    (flight,) = picture.flights
    assert (flight.text, flight.received) == ("append 4..6", 2)


def test_what_messages_say() -> None:
    assert describe(ask(7, pre=True)) == ("pre-vote", "pre-vote? term 7")
    assert describe(VoteResponse(7, 7, False, VoteResult.ACCEPT)) == ("vote", "yes")
    assert describe(VoteResponse(7, 7, True, VoteResult.REJECT_ALREADY_HAS_LEADER)) == ("pre-vote", "no")
    assert describe(Commit(1, "n0", 4))[0] == ""
    assert describe(PushResponse(1, 0, 5, 4, 5, -1, -1)) == ("answer", "has 4")  # type: ignore[arg-type]


def test_a_state_is_noted_when_it_changes() -> None:
    picture = Picture()
    for at in (1, 2, 3):
        picture.is_now("n0", "FOLLOWER", 1, serving=False, at=at)
    picture.is_now("n0", "LEADER", 2, serving=True, at=4 * S)
    assert [one.at for one in picture.became] == [1, 4 * S]
    (spans,) = spans_of(picture.became, 6.0).values()
    assert [(one.state, one.end_s) for one in spans] == [("follower", 4.0), ("leader", 6.0)]


def test_an_election_begins_with_its_first_vote_and_ends_when_a_node_serves() -> None:
    picture = Picture()
    for at_s in (1.0, 5.0, 5.2):
        picture.sends("n0", "n1", ask(2), round(at_s * S))
    picture.became.append(Became(round(5.3 * S), "n0", "LEADER", 2, serving=True))
    ((begin, end),) = elections_of(picture)
    assert 4.9 < begin < 5.0 and 5.3 < end < 5.4, "the vote at 1 s was long before"


def test_a_close_up_keeps_all_votes_and_leaves_out_heartbeats() -> None:
    picture = Picture()
    for number in range(2 * MOST_ARROWS):
        picture.sends("n0", "n1", Append(1, "n0", number, 1, number + 1, number + 1, 0, 0, b""), number)
    picture.sends("n0", "n1", Heartbeat(1, "n0", 1), 1)
    picture.sends("n1", "n0", ask(2), 2 * MOST_ARROWS)
    arrows = arrows_of(picture.flights, 0.0, 1.0)
    assert len(arrows) == MOST_ARROWS and arrows[-1].kind == "vote"
    assert all(arrow.text != "heartbeat" for arrow in arrows)


def test_a_run_is_not_changed_by_its_picture_and_every_election_is_drawn() -> None:
    plan = draw_plan(3, "kills")
    plan = replace(plan, operations=plan.operations[:40])
    plain = run_plan(plan)
    run = make_run(plan)
    run.stage.picture = picture = Picture()
    outcome = run.play()
    assert (outcome.digest, outcome.events) == (plain.digest, plain.events)
    page = report(plan, outcome, picture, "dledger sim --start 3 --profile kills --picture FILE")
    assert "Every rule holds" in page and not re.search(r"https?://|<script|src=", page)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(drawing)
    assert page.count("<h2>Election") == min(len(elections_of(picture)), 12) >= 2
    assert "vote? term 1" in page and ">yes<" in page and "append 0" in page
    assert {"DOWN", "LEADER", "FOLLOWER", "CANDIDATE"} <= {one.role for one in picture.became}


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    options = ["--start", "1", "--profile", "kills", "--picture", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "dledger", "sim", *options],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "seed 1 (kills): no violation\n" and "leaders" in done.stderr
    assert "Who led when" in path.read_text()
