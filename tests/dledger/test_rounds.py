"""Rounds of heartbeats, leases and what they promise (Raft dissertation 6.4; safety.md S17)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dledger.election.effects import Effect, RoundConfirmed, Send
from dledger.election.elector import ElectionSettings, Elector
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import Code, Heartbeat, HeartbeatResponse, VoteRequest, VoteResponse, VoteResult

PLAIN = ElectionSettings(heartbeat_interval_s=0.1, timeout_min_s=0.4, timeout_max_s=0.8, retry_min_s=0.02)
LEASE = replace(PLAIN, lease_s=0.36)
VOTERS = ("n0", "n1", "n2")


class Tip:
    last_index = 10
    last_term = 3


def elector(
    settings: ElectionSettings = PLAIN, voters: tuple[str, ...] = VOTERS, now: float = 0.0
) -> Elector:
    result = Elector(settings, "n0", voters, HardState(3, None), Tip(), random.Random(1), now=now)
    result.set_members(voters, (*voters, "n8"), now)
    return result


def leader(settings: ElectionSettings = PLAIN, voters: tuple[str, ...] = VOTERS, now: float = 1.0) -> Elector:
    node = elector(settings, voters)
    node.tick(now)
    for pre in (True, False):
        for voter in voters[1:]:
            if node.role is Role.CANDIDATE:
                node.receive(voter, VoteResponse(node.term, node.term + pre, pre, VoteResult.ACCEPT), now)
    assert node.role is Role.LEADER
    return node


def answer(node: Elector, peer: str, number: int, now: float = 1.0) -> list[Effect]:
    return node.receive(peer, HeartbeatResponse(node.term, Code.SUCCESS, number), now)


def vote(node: Elector, request: VoteRequest, now: float) -> VoteResult:
    (response,) = [
        effect.message
        for effect in node.receive(request.candidate, request, now)
        if isinstance(effect, Send) and isinstance(effect.message, VoteResponse)
    ]
    return response.result


def test_a_round_goes_to_all_and_is_confirmed_by_a_quorum_of_voters() -> None:
    node = leader()
    effects = node.start_round(1.01)
    assert [effect.peer for effect in effects if isinstance(effect, Send)] == ["n1", "n2", "n8"]
    assert all(effect.message == Heartbeat(4, "n0", 2) for effect in effects if isinstance(effect, Send))
    assert node.round == 2
    assert answer(node, "n8", 2) == [], "a learner's answer proves nothing"
    assert answer(node, "n1", 2) == [RoundConfirmed(2)]
    assert answer(node, "n2", 2) == [], "it is said once"


def test_with_five_voters_two_answers_are_needed_and_a_later_round_counts_for_an_earlier() -> None:
    node = leader(voters=("n0", "n1", "n2", "n3", "n4"))
    node.start_round(1.01)
    node.start_round(1.02)
    assert answer(node, "n1", 3) == []
    assert answer(node, "n2", 2) == [RoundConfirmed(2)]
    assert answer(node, "n2", 3) == [RoundConfirmed(3)]


def test_answers_of_other_terms_of_no_success_or_of_rounds_never_sent_prove_nothing() -> None:
    node = leader()
    node.start_round(1.01)
    assert node.receive("n1", HeartbeatResponse(3, Code.SUCCESS, 2), 1.0) == []
    assert node.receive("n1", HeartbeatResponse(4, Code.INCONSISTENT_LEADER, 2), 1.0) == []
    assert answer(node, "n1", 99) == [RoundConfirmed(2)]
    node.start_round(1.02)
    assert answer(node, "n1", 2) == []


def test_a_peer_of_the_old_protocol_confirms_nothing() -> None:
    node = leader()
    for _ in range(5):
        node.start_round(1.01)
        assert answer(node, "n1", 0) == []


def test_a_single_voter_confirms_itself() -> None:
    node = leader(voters=("n0",))
    assert RoundConfirmed(node.round + 1) in node.start_round(2.0)


def test_a_follower_repeats_the_round() -> None:
    node = elector()
    effects = node.receive("n1", Heartbeat(3, "n1", 7), 1.0)
    assert Send("n1", HeartbeatResponse(3, Code.SUCCESS, 7)) in effects


def test_the_rounds_of_a_new_term_begin_anew() -> None:
    node = leader()
    node.start_round(1.01)
    answer(node, "n1", 2)
    node.receive("n1", Heartbeat(9, "n1", 1), 1.1)
    assert node.role is Role.FOLLOWER
    assert node.start_round(1.1) == []
    node.tick(3.0)
    node.receive("n1", VoteResponse(9, 10, True, VoteResult.ACCEPT), 3.0)
    node.receive("n1", VoteResponse(10, 10, False, VoteResult.ACCEPT), 3.0)
    assert (node.role, node.round) == (Role.LEADER, 1)
    assert answer(node, "n1", 1) == [RoundConfirmed(1)]


def test_a_lease_counts_from_the_sending_of_the_round() -> None:
    node = leader(LEASE)
    assert not node.lease_valid(1.0)
    node.start_round(1.1)
    answer(node, "n1", 2, 1.3)
    assert node.lease_valid(1.1 + 0.35)
    assert not node.lease_valid(1.1 + 0.37)


def test_no_lease_without_the_setting_after_a_hand_over_or_without_leadership() -> None:
    plain = leader(PLAIN)
    plain.start_round(1.1)
    answer(plain, "n1", 2)
    assert not plain.lease_valid(1.1)
    for end in (lambda node: node.hand_over("n1"), lambda node: node.step_down(1.2)):
        node = leader(LEASE)
        node.start_round(1.1)
        answer(node, "n1", 2)
        assert node.lease_valid(1.2)
        end(node)
        assert not node.lease_valid(1.2)


def test_with_leases_a_refused_connection_is_no_hint() -> None:
    node = elector(LEASE)
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    before = node.deadline
    node.leader_refused("n2", 1.01)
    assert node.deadline == before
    assert vote(node, VoteRequest(4, "n1", 10, 3, pre=True), 1.3) is VoteResult.REJECT_ALREADY_HAS_LEADER


def test_with_leases_nothing_but_time_or_a_hand_over_ends_the_promise() -> None:
    node = elector(LEASE)
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    node.higher_term(5, 1.1)
    assert node.leader_id is None
    assert vote(node, VoteRequest(6, "n1", 10, 3), 1.39) is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert vote(node, VoteRequest(6, "n1", 10, 3), 1.41) is VoteResult.ACCEPT


def test_with_leases_a_late_answer_that_raises_the_term_does_not_end_the_promise() -> None:
    node = elector(LEASE)
    node.tick(1.0)  # its question about a pre-vote stays under way for long
    node.receive("n2", Heartbeat(4, "n2"), 1.1)
    node.receive("n1", VoteResponse(6, 4, True, VoteResult.REJECT_ALREADY_VOTED), 1.2)
    assert (node.term, node.vote) == (6, None)
    assert vote(node, VoteRequest(6, "n1", 10, 3), 1.49) is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert vote(node, VoteRequest(6, "n1", 10, 3), 1.51) is VoteResult.ACCEPT
    assert vote(node, VoteRequest(6, "n1", 10, 3), 1.51) is VoteResult.ACCEPT, "it may ask twice"


def test_with_leases_a_restarted_voter_is_not_ready_for_a_while() -> None:
    node = elector(LEASE, now=50.0)
    for pre in (True, False):
        assert vote(node, VoteRequest(4, "n1", 10, 3, pre), 50.39) is VoteResult.REJECT_TERM_NOT_READY
    assert (node.term, node.vote) == (3, None)
    assert vote(node, VoteRequest(4, "n1", 10, 3, transfer=True), 50.39) is VoteResult.ACCEPT
    assert vote(elector(LEASE, now=50.0), VoteRequest(4, "n1", 10, 3), 50.41) is VoteResult.ACCEPT
    assert vote(elector(PLAIN, now=50.0), VoteRequest(4, "n1", 10, 3), 50.0) is VoteResult.ACCEPT


@pytest.mark.parametrize("settings", [PLAIN, LEASE])
def test_what_is_remembered_of_open_rounds_is_bounded(settings: ElectionSettings) -> None:
    node = leader(settings)
    for number in range(2000):
        node.start_round(1.0 + number / 1000)
    assert len(node._rounds_sent) <= 256


def test_a_leader_that_steps_down_knows_why() -> None:
    """Whatever it was: the log has one line for it."""
    ways: dict[str, Callable[[Elector], object]] = {
        "no contact to a quorum": lambda node: node.tick(9.0),
        "higher term": lambda node: node.receive("n1", Heartbeat(node.term + 1, "n1"), 1.2),
        "it transferred leadership": lambda node: (
            node.hand_over("n1"),
            node.receive("n1", VoteRequest(node.term + 1, "n1", 10, 3, transfer=True), 1.2),
        ),
        "this node cannot serve": lambda node: node.step_down(1.2),
        "the group removed it": lambda node: node.step_down(1.2, "the group removed it"),
    }
    for why, way in ways.items():
        node = leader()
        assert node.stepped_down == ""
        way(node)
        assert node.role is not Role.LEADER and node.stepped_down == node.entered == why
