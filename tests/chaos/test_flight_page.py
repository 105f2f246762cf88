"""The page of a replayed flight recording."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from dledger.chaos.trials.flight_page import changes_of, report, spans_of
from dledger.flight.steps import Replay, Step


def step(
    number: int, at_s: float, role: str, term: int, event: str = "elector tick(1.0)", **more: str
) -> Step:
    return Step(number, at_s, "n1", event, ("Send(peer='n0', message=...)",), role, term, 3, **more)


STEPS = (
    step(0, 100.0, "FOLLOWER", 0, "elector open(HardState(term=0, vote=None), (), 100.0)"),
    step(1, 101.0, "CANDIDATE", 1),
    step(2, 101.1, "LEADER", 1),
    step(3, 104.0, "LEADER", 1),
    step(4, 110.0, "FOLLOWER", 1, "elector open(HardState(term=1, vote='n1'), (), 110.0)"),
    step(5, 112.0, "FOLLOWER", 2),
)


def replayed(*steps: Step, problems: tuple[str, ...] = ()) -> Replay:
    return Replay("n1", "abc", (), steps, len(steps), problems, ("after 1.flight: the last calls",))


def test_while_a_process_did_not_run_it_has_no_role() -> None:
    assert [(one.state, one.begin_s, one.end_s) for one in spans_of(STEPS, 100.0)] == [
        ("follower", 0.0, 1.0),
        ("electing", 1.0, pytest.approx(1.1)),
        ("leader", pytest.approx(1.1), 4.0),
        ("follower", 10.0, 12.0),
        ("follower", 12.0, 12.0),
    ]


def test_the_changes_are_those_of_role_and_term() -> None:
    assert [one.number for one in changes_of(STEPS)] == [0, 1, 2, 4, 5]


def test_the_page_says_whether_the_replay_agrees() -> None:
    page = report(replayed(*STEPS), "the digests of all 6 steps are equal")
    assert "The replay agrees" in page and "after 1.flight: the last calls" in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(drawing)
    wrong = step(6, 113.0, "FOLLOWER", 2, problem="the digest is <another>")
    page = report(replayed(*STEPS, wrong, problems=("step 6: the digest is <another>",)), "1 problem(s)")
    assert "The replay does not agree" in page and "the digest is &lt;another&gt;" in page
    assert "<another>" not in page


def test_a_recording_without_steps_is_a_page_too() -> None:
    assert "What the node was" not in report(replayed(), "the digests of all 0 steps are equal")
