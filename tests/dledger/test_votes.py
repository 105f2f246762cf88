"""DLedger's vote results and what a round of votes comes to (spec: VoteResponse.RESULT, ParseResult)."""

from __future__ import annotations

import random

import pytest

from dledger.election.effects import SaveHardState, Send
from dledger.election.elector import ElectionSettings, Elector
from dledger.election.votes import Verdict, arbitrate, lost
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import Heartbeat, VoteRequest, VoteResponse, VoteResult

SETTINGS = ElectionSettings(heartbeat_interval_s=0.1, timeout_min_s=0.4, timeout_max_s=0.8, retry_min_s=0.02)
VOTERS = ("n0", "n1", "n2")
R = VoteResult


class Tip:
    last_index = 10
    last_term = 3


def elector(term: int = 3, vote: str | None = None) -> Elector:
    result = Elector(SETTINGS, "n0", VOTERS, HardState(term, vote), Tip(), random.Random(1), now=0.0)
    result.set_members(VOTERS, VOTERS, 0.0)
    return result


def response(node: Elector, request: VoteRequest, now: float = 1.0) -> VoteResponse:
    (answer,) = [
        effect.message
        for effect in node.receive(request.candidate, request, now)
        if isinstance(effect, Send) and isinstance(effect.message, VoteResponse)
    ]
    return answer


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize(
    ("term", "vote", "leader", "request_", "result"),
    [
        (3, "n1", None, (2, 10, 3), R.REJECT_EXPIRED_VOTE_TERM),
        (3, "n1", None, (3, 10, 3), R.REJECT_ALREADY_VOTED),
        (3, "n2", None, (3, 10, 3), R.ACCEPT),
        (3, None, None, (3, 10, 3), R.ACCEPT),
        (3, None, None, (4, 10, 3), R.ACCEPT),
        (3, "n1", "n1", (4, 10, 3), R.REJECT_ALREADY_HAS_LEADER),
        (3, None, None, (4, 99, 2), R.REJECT_EXPIRED_LEDGER_TERM),
        (3, None, None, (4, 9, 3), R.REJECT_SMALL_LEDGER_END_INDEX),
        (1, None, None, (2, 10, 3), R.REJECT_TERM_SMALL_THAN_LEDGER),
    ],
)
def test_every_result_of_dledger_is_given_where_dledger_gives_it(
    term: int,
    vote: str | None,
    leader: str | None,
    request_: tuple[int, int, int],
    result: VoteResult,
    pre: bool,
) -> None:
    node = elector(term, vote)
    if leader:
        node.receive(leader, Heartbeat(term, leader), 1.0)
    asked, last_index, last_term = request_
    answer = response(node, VoteRequest(asked, "n2", last_index, last_term, pre), 1.1)
    assert answer.result is result


def test_already_voted_or_has_leader_as_dledger_tells_them_apart() -> None:
    node = elector(3, "n1")
    assert response(node, VoteRequest(3, "n2", 10, 3)).result is R.REJECT_ALREADY_VOTED
    node.receive("n1", Heartbeat(3, "n1"), 1.0)
    assert response(node, VoteRequest(3, "n2", 10, 3)).result is R.REJECT_ALREADY_HAS_LEADER


def test_a_node_that_does_not_vote_says_unknown() -> None:
    node = elector()
    node.may_vote = False
    assert response(node, VoteRequest(4, "n2", 10, 3)).result is R.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ((R.ACCEPT, R.REJECT_TERM_NOT_READY, None), Verdict.REVOTE_IMMEDIATELY),
        ((R.ACCEPT, None, None), Verdict.WAIT_TO_REVOTE),
        ((R.ACCEPT, R.REJECT_ALREADY_VOTED, R.REJECT_ALREADY_VOTED), Verdict.WAIT_TO_VOTE_NEXT),
        ((R.ACCEPT, R.REJECT_SMALL_LEDGER_END_INDEX, None), Verdict.WAIT_TO_REVOTE),
        ((R.ACCEPT, R.REJECT_EXPIRED_LEDGER_TERM, R.REJECT_ALREADY_VOTED), Verdict.WAIT_TO_REVOTE),
        ((R.ACCEPT, R.REJECT_ALREADY_HAS_LEADER, None), Verdict.WAIT_TO_VOTE_NEXT),
        ((R.ACCEPT, R.ACCEPT, None), Verdict.PASSED),
        ((R.ACCEPT, R.UNKNOWN, R.UNKNOWN), Verdict.WAIT_TO_REVOTE),
        # the difference to DLedger: votes that were given are not undone
        ((R.ACCEPT, R.ACCEPT, R.REJECT_ALREADY_HAS_LEADER), Verdict.PASSED),
    ],
)
def test_a_round_comes_to_what_dledger_makes_of_it(
    answers: tuple[VoteResult | None, ...], verdict: Verdict
) -> None:
    given = {voter: answer for voter, answer in zip(VOTERS, answers, strict=True) if answer is not None}
    assert arbitrate(given, VOTERS) is verdict


def test_a_round_is_lost_when_the_open_answers_cannot_make_a_quorum() -> None:
    assert not lost({"n0": R.ACCEPT, "n1": R.REJECT_ALREADY_VOTED}, VOTERS)
    assert lost({"n0": R.ACCEPT, "n1": R.REJECT_ALREADY_VOTED, "n2": R.UNKNOWN}, VOTERS)


def test_a_candidate_takes_over_a_higher_term_that_it_hears_of() -> None:
    """An isolated node with a lower or higher term always finds back (dledger #325)."""
    node = elector()
    node.tick(1.0)
    assert node.role is Role.CANDIDATE
    effects = node.receive("n1", VoteResponse(7, 4, True, R.REJECT_EXPIRED_VOTE_TERM), 1.0)
    assert (node.role, node.term, node.vote) == (Role.FOLLOWER, 7, None)
    assert SaveHardState(HardState(7, None)) in effects


def test_a_leader_takes_over_the_higher_term_of_a_node_that_comes_back() -> None:
    """The node with the higher term never follows a lower one; so the leader must move (dledger #325)."""
    node = elector(9)
    (reply,) = node.receive("n1", Heartbeat(3, "n1"), 1.0)
    assert isinstance(reply, Send)
    leader = Elector(SETTINGS, "n1", VOTERS, HardState(3, "n1"), Tip(), random.Random(2), now=0.0)
    leader.set_members(VOTERS, VOTERS, 0.0)
    leader.tick(1.0)
    leader.receive("n2", VoteResponse(3, 4, True, R.ACCEPT), 1.0)
    leader.receive("n2", VoteResponse(4, 4, False, R.ACCEPT), 1.0)
    leader.receive("n0", reply.message, 1.1)
    assert (leader.role, leader.term) == (Role.FOLLOWER, 9)


def test_a_node_that_fell_ill_while_it_stood_does_not_win() -> None:
    node = elector()
    node.tick(1.0)
    node.may_stand = False
    assert node.receive("n1", VoteResponse(3, 4, True, R.ACCEPT), 1.0) == []
    assert node.term == 3
