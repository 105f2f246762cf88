"""Election rules, one test a rule (Raft dissertation 3.4, 6.2, 9.6; safety.md S17, S19)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from dledger.election.effects import Effect, RoleChanged, SaveHardState, Send
from dledger.election.elector import MAX_LEAP, MAX_TOLD_TERM, NO_READ, ElectionSettings, Elector
from dledger.election.transitions import Cause, State
from dledger.errors import InvariantBroken
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import (
    Heartbeat,
    HeartbeatResponse,
    ReadIndexRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

SETTINGS = ElectionSettings(heartbeat_interval_s=0.1, timeout_min_s=0.4, timeout_max_s=0.8, retry_min_s=0.02)
VOTERS = ("n0", "n1", "n2")


@dataclass
class Tip:
    last_index: int = 10
    last_term: int = 3


WON = RoleChanged(Role.LEADER, 4, "n0", Cause.QUORUM.value)
DEPOSED = RoleChanged(Role.FOLLOWER, 9, None, Cause.HIGHER_TERM.value)


def elector(
    self_id: str = "n0",
    term: int = 3,
    vote: str | None = None,
    tip: Tip | None = None,
    voters: tuple[str, ...] = VOTERS,
) -> Elector:
    result = Elector(
        SETTINGS, self_id, voters, HardState(term, vote), tip or Tip(), random.Random(1), now=0.0
    )
    result.set_members(voters, voters, 0.0)
    return result


def sent(effects: list[Effect], kind: type) -> list[object]:
    return [
        effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def vote_of(effects: list[Effect]) -> VoteResult:
    (response,) = sent(effects, VoteResponse)
    assert isinstance(response, VoteResponse)
    return response.result


def make_leader(node: Elector, now: float = 1.0) -> list[Effect]:
    node.tick(now)
    node.receive("n1", VoteResponse(node.term, node.term + 1, True, VoteResult.ACCEPT), now)
    return node.receive("n1", VoteResponse(node.term, node.term, False, VoteResult.ACCEPT), now)


def test_a_silent_follower_asks_for_pre_votes_and_keeps_its_term() -> None:
    node = elector()
    effects = node.tick(1.0)
    assert node.role is Role.CANDIDATE
    assert node.term == 3
    assert not any(isinstance(effect, SaveHardState) for effect in effects)
    assert sent(effects, VoteRequest) == [VoteRequest(4, "n0", 10, 3, pre=True)] * 2


def test_of_five_voters_three_elect() -> None:
    node = elector(voters=("n0", "n1", "n2", "n3", "n4"))
    node.tick(1.0)
    for pre in (True, False):
        for voter in ("n1", "n2"):
            assert (node.term, node.role) == (3 if pre else 4, Role.CANDIDATE), (
                "two votes of five are not enough"
            )
            node.receive(voter, VoteResponse(node.term, 4, pre, VoteResult.ACCEPT), 1.0)
    assert node.role is Role.LEADER


def test_term_and_own_vote_are_saved_before_votes_are_asked_for() -> None:
    node = elector()
    node.tick(1.0)
    effects = node.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    assert effects[0] == SaveHardState(HardState(4, "n0"))
    assert sent(effects, VoteRequest) == [VoteRequest(4, "n0", 10, 3)] * 2


def test_a_quorum_of_votes_makes_a_leader_that_heartbeats_at_once() -> None:
    node = elector()
    effects = make_leader(node)
    assert node.role is Role.LEADER
    assert WON in effects
    assert len(sent(effects, Heartbeat)) == 2


def test_late_and_foreign_votes_do_not_count() -> None:
    node = elector()
    node.tick(1.0)
    node.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    for response in (
        VoteResponse(4, 3, False, VoteResult.ACCEPT),
        VoteResponse(4, 4, True, VoteResult.ACCEPT),
    ):
        node.receive("n2", response, 1.0)
        assert node.role is Role.CANDIDATE
    node.receive("n9", VoteResponse(4, 4, False, VoteResult.ACCEPT), 1.0)
    assert node.role is Role.CANDIDATE


def candidate_again() -> Elector:
    """Its vote in term 4 came to nothing in time: it asks for pre-votes in term 5."""
    node = elector()
    node.tick(1.0)
    node.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    (request, _) = sent(node.tick(2.0), VoteRequest)
    assert request == VoteRequest(5, "n0", 10, 3, pre=True)
    assert (node.term, node.state) == (4, State.PRE_CANDIDATE)
    return node


def test_a_vote_that_took_longer_than_the_round_still_counts() -> None:
    node = candidate_again()
    effects = node.receive("n1", VoteResponse(4, 4, False, VoteResult.ACCEPT), 2.1)
    assert (node.role, node.term) == (Role.LEADER, 4)
    assert WON in effects and len(sent(effects, Heartbeat)) == 2
    node.tick(2.6)
    assert node.role is Role.LEADER and node.heard("n1", 2.0), "the late voter was heard, so it is a quorum"


def test_a_late_vote_is_for_the_term_it_was_given_in_and_for_who_stood_since() -> None:
    node = candidate_again()
    for response in (
        VoteResponse(4, 4, False, VoteResult.REJECT_ALREADY_VOTED),
        VoteResponse(4, 3, False, VoteResult.ACCEPT),
        VoteResponse(4, 4, True, VoteResult.ACCEPT),
    ):
        assert node.receive("n2", response, 2.1) == []
    assert node.receive("n9", VoteResponse(4, 4, False, VoteResult.ACCEPT), 2.1) == []
    node.receive("n2", VoteResponse(4, 5, True, VoteResult.ACCEPT), 2.1)
    assert (node.term, node.state) == (5, State.CANDIDATE)
    assert node.receive("n1", VoteResponse(4, 4, False, VoteResult.ACCEPT), 2.2) == [], "it stands in term 5"

    node = candidate_again()
    node.receive("n2", Heartbeat(4, "n2"), 2.1)
    node.tick(3.0)
    assert (node.term, node.state) == (4, State.PRE_CANDIDATE)
    for voter in ("n1", "n2"):
        assert node.receive(voter, VoteResponse(4, 4, False, VoteResult.ACCEPT), 3.1) == [], (
            "it followed since"
        )


def test_a_node_that_voted_for_another_takes_no_late_vote() -> None:
    node = elector(term=4)
    node.tick(1.0)
    assert vote_of(node.receive("n2", VoteRequest(4, "n2", 10, 3), 1.0)) is VoteResult.ACCEPT
    for voter in ("n1", "n2"):
        assert node.receive(voter, VoteResponse(4, 4, False, VoteResult.ACCEPT), 1.1) == []


def test_who_gives_way_to_another_candidate_can_still_win_the_vote_that_it_asked_for() -> None:
    node = candidate_again()
    node.receive("n2", VoteRequest(5, "n2", 10, 3, pre=True), 2.1)
    node.receive("n1", VoteResponse(4, 4, False, VoteResult.ACCEPT), 2.2)
    assert node.role is Role.LEADER


def test_time_outs_begin_when_term_and_vote_are_saved_and_allow_for_another_disk_as_slow() -> None:
    candidate, voter = elector(), elector("n1")
    candidate.tick(1.0)
    candidate.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    voter.receive("n0", VoteRequest(4, "n0", 10, 3), 1.0)
    for node, shortest in ((candidate, 0.2), (voter, 0.4)):
        before = node.deadline
        node.saved(0.5)
        assert node.deadline == before + 1.0 >= 2.0 + shortest
        node.saved(60.0)
        assert node.deadline == before + 1.0 + 60.0 + 1.6, "a disk that hung says nothing about the others"


def test_who_stands_back_allows_for_the_fsync_of_the_other() -> None:
    node = elector()
    node.receive("n2", VoteRequest(4, "n2", 10, 3, pre=True), 1.0)
    assert node.deadline <= 1.04
    node.saved(0.5)
    node.receive("n2", VoteRequest(5, "n2", 10, 3, pre=True), 3.0)
    assert 3.52 <= node.deadline <= 3.54
    node.receive("n2", VoteRequest(5, "n2", 10, 3, pre=True), 4.0)
    assert node.deadline <= 4.04, "it had that time, and cannot win"


def test_one_vote_a_term_also_across_a_restart() -> None:
    node = elector(term=4, vote="n1")
    request = VoteRequest(4, "n2", 10, 3)
    assert vote_of(node.receive("n2", request, 1.0)) is VoteResult.REJECT_ALREADY_VOTED
    assert vote_of(node.receive("n1", VoteRequest(4, "n1", 10, 3), 1.0)) is VoteResult.ACCEPT


def test_a_vote_is_saved_before_it_is_sent() -> None:
    node = elector()
    effects = node.receive("n1", VoteRequest(5, "n1", 10, 3), 1.0)
    saved = effects.index(SaveHardState(HardState(5, "n1")))
    answered = next(place for place, effect in enumerate(effects) if isinstance(effect, Send))
    assert saved < answered
    assert vote_of(effects) is VoteResult.ACCEPT


@pytest.mark.parametrize(
    ("last_term", "last_index", "result"),
    [
        (2, 99, VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (3, 9, VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (3, 10, VoteResult.ACCEPT),
        (3, 11, VoteResult.ACCEPT),
        (4, 0, VoteResult.ACCEPT),
    ],
)
@pytest.mark.parametrize("pre", [True, False])
def test_only_a_log_at_least_as_up_to_date_wins(
    last_term: int, last_index: int, result: VoteResult, pre: bool
) -> None:
    node = elector()
    assert vote_of(node.receive("n1", VoteRequest(5, "n1", last_index, last_term, pre), 1.0)) is result


def test_a_pre_vote_changes_nothing() -> None:
    node = elector()
    effects = node.receive("n1", VoteRequest(9, "n1", 10, 3, pre=True), 1.0)
    assert (node.term, node.vote) == (3, None)
    assert len(effects) == 1


@pytest.mark.parametrize("pre", [True, False])
def test_a_node_that_hears_its_leader_refuses_and_keeps_its_term(pre: bool) -> None:
    node = elector()
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    effects = node.receive("n1", VoteRequest(4, "n1", 99, 3, pre), 1.1)
    assert vote_of(effects) is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert node.term == 3


def test_a_leadership_transfer_overrides_stickiness() -> None:
    node = elector()
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    assert vote_of(node.receive("n1", VoteRequest(4, "n1", 10, 3, transfer=True), 1.1)) is VoteResult.ACCEPT


def test_a_refused_connection_to_the_leader_starts_a_pre_vote_early_and_ends_stickiness() -> None:
    node = elector()
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    before = node.deadline
    node.leader_refused("n2", 1.05)
    assert node.deadline <= 1.05 + SETTINGS.retry_min_s < before
    assert vote_of(node.receive("n1", VoteRequest(4, "n1", 10, 3, pre=True), 1.06)) is VoteResult.ACCEPT
    node.receive("n2", Heartbeat(3, "n2"), 1.07)
    assert vote_of(node.receive("n1", VoteRequest(4, "n1", 10, 3, pre=True), 1.08)) is not VoteResult.ACCEPT


def test_who_lacks_cores_waits_longer_for_others() -> None:
    """Its own delays are no sign that anybody is gone."""
    node = elector()
    node.feels(0, may_stand=True, patience_s=2.0)
    node.receive("n1", Heartbeat(3, "n1"), 0.0)
    assert 2.4 <= node.deadline <= 2.8
    node.feels(0, may_stand=True)
    node.receive("n1", Heartbeat(3, "n1"), 1.0)
    assert 1.4 <= node.deadline <= 1.8
    leader = elector()
    make_leader(leader)
    leader.feels(0, may_stand=True, patience_s=2.0)
    leader.tick(3.5)
    assert leader.state is State.LEADER
    leader.tick(4.1)
    assert leader.state is not State.LEADER


def test_a_refused_connection_to_somebody_else_means_nothing() -> None:
    node = elector()
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    before = node.deadline
    node.leader_refused("n1", 1.05)
    assert node.deadline == before


def test_a_leader_without_contact_to_a_quorum_steps_down() -> None:
    node = elector()
    make_leader(node, 1.0)
    node.receive("n1", HeartbeatResponse(4, 0), 1.5)  # type: ignore[arg-type]
    node.tick(2.2)
    assert node.role is Role.LEADER
    effects = node.tick(2.6)
    assert node.role is Role.FOLLOWER
    assert RoleChanged(Role.FOLLOWER, 4, None, Cause.NO_QUORUM.value) in effects


@pytest.mark.parametrize("alive", [1, 2])
def test_of_five_voters_three_keep_a_leader(alive: int) -> None:
    node = elector(voters=("n0", "n1", "n2", "n3", "n4"))
    node.tick(1.0)
    for pre in (True, False):
        for voter in ("n1", "n2"):
            node.receive(voter, VoteResponse(node.term, 4, pre, VoteResult.ACCEPT), 1.0)
    for now in (1.5, 2.0, 2.5, 3.0):
        for voter in ("n1", "n2")[:alive]:
            node.receive(voter, HeartbeatResponse(4, 0), now)  # type: ignore[arg-type]
        node.tick(now)
    assert (node.role is Role.LEADER) == (alive == 2)


def test_a_higher_term_deposes_before_the_disk_is_asked() -> None:
    node = elector()
    make_leader(node)
    effects = node.receive("n1", HeartbeatResponse(9, 1), 1.1)  # type: ignore[arg-type]
    assert effects == [
        DEPOSED,
        SaveHardState(HardState(9, None)),
    ]


def test_two_leaders_in_one_term_are_a_bug() -> None:
    node = elector()
    node.receive("n1", Heartbeat(3, "n1"), 1.0)
    with pytest.raises(InvariantBroken):
        node.receive("n2", Heartbeat(3, "n2"), 1.0)


def test_a_node_outside_its_own_configuration_does_not_stand_but_votes_when_asked() -> None:
    """Found by random schedules: the entry that makes it a voter may be in the candidate's log only."""
    node = elector(self_id="n3")
    assert node.role is Role.LEARNER
    assert sent(node.tick(5.0), VoteRequest) == []
    assert vote_of(node.receive("n1", VoteRequest(9, "n1", 99, 9), 5.0)) is VoteResult.ACCEPT
    assert (node.role, node.term, node.vote) == (Role.LEARNER, 9, "n1")


def test_a_store_that_is_not_trusted_neither_stands_nor_votes() -> None:
    node = elector()
    node.may_vote = False
    assert sent(node.tick(5.0), VoteRequest) == []
    assert vote_of(node.receive("n1", VoteRequest(9, "n1", 99, 9), 5.0)) is VoteResult.UNKNOWN


def test_a_single_voter_elects_itself() -> None:
    node = elector(voters=("n0",))
    effects = node.tick(5.0)
    assert node.role is Role.LEADER
    assert effects.index(SaveHardState(HardState(4, "n0"))) < effects.index(WON)


def test_timeout_now_skips_the_pre_vote_only_from_the_current_leader() -> None:
    node = elector()
    node.receive("n2", Heartbeat(3, "n2"), 1.0)
    assert node.receive("n1", TimeoutNow(3, "n1"), 1.0) == []
    effects = node.receive("n2", TimeoutNow(3, "n2"), 1.0)
    assert sent(effects, VoteRequest) == [VoteRequest(4, "n0", 10, 3, transfer=True)] * 2


def test_failed_rounds_back_off_to_the_election_timeout() -> None:
    node = elector()
    now = 1.0
    pauses = []
    for _ in range(12):
        node.tick(now)
        node.receive("n1", VoteResponse(3, 4, True, VoteResult.REJECT_ALREADY_HAS_LEADER), now)
        pauses.append(node.deadline - now)
        now = node.deadline
    assert pauses[0] <= 0.04
    assert max(pauses) <= SETTINGS.timeout_min_s
    assert pauses[-1] >= SETTINGS.timeout_min_s / 2


def test_a_pre_vote_that_nobody_answers_is_not_repeated_before_slow_links_had_time() -> None:
    """Half the shortest time-out: a second round would end the rule that settles who goes on."""
    for seed in range(20):
        node = elector()
        node._rng = random.Random(seed)
        now = asked = 1.0
        pauses = []
        assert sent(node.tick(now), VoteRequest)
        for _ in range(12):
            now = node.deadline
            if sent(node.tick(now), VoteRequest):
                pauses.append(now - asked)
                asked = now
        assert min(pauses) >= SETTINGS.timeout_min_s / 2
        assert max(pauses) <= SETTINGS.timeout_min_s


@pytest.mark.parametrize(
    ("mine", "term", "follows"),
    [
        (3, 4, True),
        (3, MAX_TOLD_TERM, True),
        (3, MAX_TOLD_TERM + 1, False),
        (MAX_TOLD_TERM, MAX_TOLD_TERM + 1, True),
        (MAX_TOLD_TERM, MAX_TOLD_TERM + MAX_LEAP, True),
        (MAX_TOLD_TERM, MAX_TOLD_TERM + MAX_LEAP + 1, False),
    ],
)
def test_a_term_that_elections_cannot_have_made_is_not_followed(mine: int, term: int, follows: bool) -> None:
    assert elector(term=mine).may_follow(term) is follows


def test_a_request_that_leaps_has_its_sender_asked_for_its_term() -> None:
    node = elector(term=3)
    ask = ReadIndexRequest(3, "n0", NO_READ)
    leap = 3 + MAX_LEAP + 1
    vote = VoteRequest(leap, "n1", 9, 9, transfer=True)
    assert node.receive("n1", vote, 9.0) == [Send("n1", ask)]
    again = 9.0 + SETTINGS.heartbeat_interval_s
    assert node.receive("n1", vote, again - 0.001) == [], "it was just asked"
    assert node.receive("n1", vote, again) == [Send("n1", ask)]
    assert node.receive("n2", vote, again) == [Send("n2", ask)]
    assert node.term == 3 and node.vote is None
    node.receive("n1", replace(vote, term=leap - 1), again)
    assert node.term == leap - 1 and node.vote == "n1"


def test_what_raises_no_term_may_leap() -> None:
    """A pre-vote is answered, and a vote refused: what is asked for is nobody's term yet."""
    node = elector(term=3)
    leap = 3 + 2 * MAX_LEAP
    assert vote_of(node.receive("n1", VoteRequest(leap, "n1", 9, 9, pre=True), 9.0)) is VoteResult.ACCEPT
    node.receive("n1", Heartbeat(3, "n1"), 9.0)
    refused = node.receive("n2", VoteRequest(leap, "n2", 9, 9), 9.0)
    assert vote_of(refused) is VoteResult.REJECT_ALREADY_HAS_LEADER and node.term == 3


def test_an_answer_may_leap() -> None:
    """It came over a connection that this node dialled."""
    node = elector(term=3)
    node.higher_term(MAX_TOLD_TERM, 9.0)
    assert node.term == MAX_TOLD_TERM
