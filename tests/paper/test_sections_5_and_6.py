"""Rules that sections 5.1-5.6 and 6 of the Raft paper (and the dissertation) state in one sentence each."""

from __future__ import annotations

import random

import paper_kit as kit
import pytest

from dledger.chaos.cores import FixedChance
from dledger.errors import InvariantBroken
from dledger.host import Role
from dledger.messages import (
    Code,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.replication import leader as lcore

# 5.1 and 5.2


def test_5_1_a_server_refuses_requests_of_an_older_term() -> None:
    core = kit.elector(term=3)
    assert kit.ask(core, VoteRequest(2, "n1", 9, 9)) is VoteResult.REJECT_EXPIRED_VOTE_TERM
    assert core.receive("n1", TimeoutNow(2, "n1"), 1.0) == []
    core.receive("n1", Heartbeat(2, "n1"), 1.0)
    assert (core.term, core.leader_id, core.role) == (3, None, Role.FOLLOWER)


def test_5_2_a_server_votes_for_at_most_one_candidate_a_term_first_come_first_served() -> None:
    core = kit.elector(term=3)
    assert kit.ask(core, VoteRequest(4, "n2", 9, 9)) is VoteResult.ACCEPT
    assert kit.ask(core, VoteRequest(4, "n1", 9, 9)) is VoteResult.REJECT_ALREADY_VOTED
    assert kit.ask(core, VoteRequest(4, "n2", 9, 9)) is VoteResult.ACCEPT
    assert core.vote == "n2"


def test_5_2_a_candidate_does_not_vote_for_another() -> None:
    core = kit.elector(term=3)
    kit.candidate(core)
    assert kit.ask(core, VoteRequest(4, "n1", 9, 9)) is VoteResult.REJECT_ALREADY_VOTED


def test_5_2_a_leader_of_an_older_term_does_not_end_a_candidacy() -> None:
    core = kit.elector(term=3)
    kit.candidate(core)
    effects = core.receive("n2", Heartbeat(3, "n2"), 1.1)
    assert core.role is Role.CANDIDATE
    assert kit.messages(effects, HeartbeatResponse) == [HeartbeatResponse(4, Code.EXPIRED_TERM)]


def test_5_2_votes_split_and_nobody_leads_until_time_outs_differ() -> None:
    group = kit.group((1,), (1,), (1,), (1,))
    group.now = 2.0
    for name in ("n0", "n1"):
        group.tick(name)
    for name in ("n0", "n1"):
        for envelope in [e for e in group.bag if e.target in ("n2", "n3") and e.source == name]:
            group.deliver(envelope)
    group.settle()
    leaders = [name for name in group.names if group.nodes[name].leader is not None]
    assert len(leaders) <= 1
    kit.elect(group, "n1")
    assert group.nodes["n1"].leader is not None


def test_5_2_election_time_outs_are_random_within_their_bounds() -> None:
    deadlines = [kit.elector(chance=random.Random(seed)).deadline for seed in range(50)]
    assert all(0.4 <= deadline <= 0.8 for deadline in deadlines)
    assert len(dict.fromkeys(deadlines)) == 50


def test_5_2_there_is_one_leader_a_term_and_a_second_one_is_a_bug() -> None:
    core = kit.elector(term=3)
    core.receive("n1", Heartbeat(3, "n1"), 1.0)
    with pytest.raises(InvariantBroken):
        core.receive("n2", Heartbeat(3, "n2"), 1.1)


# 5.3


def test_5_3_a_leader_never_overwrites_or_deletes_entries_of_its_own_log() -> None:
    group = kit.group((1, 1, 3), (1, 2, 2, 2, 2), (1,))
    group.stop("n1")
    kit.elect(group, "n0")
    before = group.nodes["n0"].log.entries(0, 3)
    group.start("n1")
    group.settle()
    assert group.nodes["n0"].log.entries(0, 3) == before


def test_5_3_logs_with_an_entry_of_equal_index_and_term_are_equal_up_to_it() -> None:
    group = kit.group((1, 1, 2), (1, 1, 1, 1), (1, 1, 2))
    kit.elect(group, "n2")
    group.propose("n2", ["a", "b"])
    group.settle()
    logs = [str(group.nodes[name].log) for name in group.names]
    assert logs[0] == logs[1] == logs[2]


def test_5_3_a_follower_that_is_slow_or_down_holds_nobody_up() -> None:
    group = kit.group((1,), (1,), (1,))
    kit.elect(group, "n0")
    group.stop("n2")
    group.propose("n0", ["a"])
    group.settle()
    assert group.nodes["n0"].commit_index == group.nodes["n0"].log.last_index
    group.start("n2")
    group.settle()
    assert str(group.nodes["n2"].log) == str(group.nodes["n0"].log)


def test_5_3_conflicts_are_skipped_by_whole_terms() -> None:
    follower = kit.following(kit.log_of(*[1] * 5 + [2] * 100 + [3] * 100), 9)
    (effect,) = follower.receive(Compare(9, "n1", 150, 8, -1), -1)
    assert effect.response.hint_index == 150  # type: ignore[union-attr]
    leader = kit.leading(kit.log_of(*[1] * 5 + [8] * 200), 8)
    leader.peer_up("n1", True)
    (compare,) = leader.response("n1", PushResponse(8, Code.INCONSISTENT_STATE, -1, -1, 204, 150, 3))
    assert compare == lcore.SendCompare("n1", 4, 1)


# 5.4


@pytest.mark.parametrize(
    ("mine", "last_index", "last_term", "wins"),
    [
        ((1, 1, 1, 1), 0, 2, True),
        ((1, 2), 9, 1, False),
        ((1, 1), 1, 1, True),
        ((1, 1, 1), 1, 1, False),
        ((1, 1), 5, 1, True),
        ((), -1, -1, True),
    ],
)
@pytest.mark.parametrize("pre", [False, True])
def test_5_4_1_later_last_term_wins_then_the_longer_log(
    mine: tuple[int, ...], last_index: int, last_term: int, wins: bool, pre: bool
) -> None:
    core = kit.elector(term=4, log=kit.log_of(*mine))
    assert (kit.ask(core, VoteRequest(5, "n1", last_index, last_term, pre)) is VoteResult.ACCEPT) == wins


def test_5_4_1_the_candidate_is_judged_by_its_log_and_not_by_its_term() -> None:
    core = kit.elector(term=4, log=kit.log_of(1, 2))
    assert kit.ask(core, VoteRequest(99, "n1", 50, 1)) is VoteResult.REJECT_EXPIRED_LEDGER_TERM
    assert (core.term, core.vote) == (99, None), "its term counts, its vote does not go there"


def test_5_4_1_a_leader_holds_every_committed_entry_and_fetches_none() -> None:
    group = kit.group((1,), (1,), (1,))
    kit.elect(group, "n0")
    group.cut("n0", "n2", noticed=True)
    group.propose("n0", ["committed"])
    group.settle()
    group.stop("n0")
    with pytest.raises(AssertionError, match="not elected"):
        kit.elect(group, "n2")
    kit.elect(group, "n1")
    assert "committed" in str(group.nodes["n1"].log)


def test_5_4_2_figure_8_an_old_entry_on_a_majority_is_not_committed_by_that() -> None:
    leader = kit.leading(kit.log_of(1, 2, 4), 4, voters=kit.FIVE)
    for peer in ("n1", "n2", "n3", "n4"):
        leader.peer_up(peer, True)
        leader.response(peer, PushResponse(4, Code.SUCCESS, 1, 1, 1))
    assert leader.commit_index == -1


def test_5_4_2_an_entry_of_the_own_term_commits_all_before_it() -> None:
    leader = kit.leading(kit.log_of(1, 2, 4), 4, voters=kit.FIVE)
    for peer in ("n1", "n2"):
        leader.peer_up(peer, True)
        leader.response(peer, PushResponse(4, Code.SUCCESS, 2, 2, 2))
    assert leader.commit_index == 2


def test_5_4_3_committed_entries_are_never_cut() -> None:
    follower = kit.following(kit.log_of(1, 2, 2))
    with pytest.raises(InvariantBroken, match="committed"):
        follower.receive(Truncate(5, "n1", 1, 4, -1), 1)
    with pytest.raises(InvariantBroken, match="committed"):
        follower.overlap(1, [4, 4], 1)


# 5.5


def test_5_5_requests_that_arrive_twice_change_nothing() -> None:
    core = kit.elector(term=3)
    request = VoteRequest(4, "n1", 9, 9)
    assert kit.ask(core, request) is kit.ask(core, request) is VoteResult.ACCEPT
    group = kit.group((1,), (1,), (1,))
    kit.elect(group, "n0")
    group.propose("n0", ["a"])
    copies = list(group.bag)
    group.settle()
    before = [str(group.nodes[name].log) for name in group.names]
    group.bag += copies
    group.settle()
    assert [str(group.nodes[name].log) for name in group.names] == before


# 6 and the dissertation


def test_6_a_server_uses_the_latest_configuration_of_its_log_committed_or_not() -> None:
    group = kit.group((1,), (1,), (1,), (1,))
    kit.elect(group, "n0")
    group.reconfigure("n0", ["n0", "n1", "n2"])
    assert group.nodes["n0"].core.voters == kit.THREE
    assert group.nodes["n1"].core.voters == ("n0", "n1", "n2", "n3")
    group.settle()
    assert group.nodes["n3"].core.voters == kit.THREE


def test_6_a_server_outside_the_configuration_does_not_stand() -> None:
    core = kit.elector(term=3, name="n9")
    assert core.role is Role.LEARNER
    core.tick(99.0)
    assert core.role is Role.LEARNER


def test_dissertation_4_1_requests_are_answered_without_consulting_the_own_configuration() -> None:
    core = kit.elector(term=3, name="n9")
    assert kit.ask(core, VoteRequest(9, "n1", 99, 99)) is VoteResult.ACCEPT
    assert core.role is Role.LEARNER


def test_6_votes_of_others_than_the_candidates_voters_do_not_count() -> None:
    core = kit.elector(term=3)
    core.tick(1.0)
    core.receive("n9", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    assert (core.role, core.term) == (Role.CANDIDATE, 3)


def test_6_new_servers_join_without_a_vote_until_they_hold_the_log() -> None:
    leader = lcore.LeaderReplication(
        1, "n0", ["n0", "n1"], ["n0", "n1", "n2"], kit.log_of(1), -1, 0, push_bytes=300, inflight_bytes=600
    )
    leader.peer_up("n2", True)
    leader.response("n2", PushResponse(1, Code.SUCCESS, 0, 0, 0))
    assert leader.commit_index == -1, "a learner's copy counts for nothing"
    assert leader.progress["n2"].durable == 0


@pytest.mark.parametrize("pre", [False, True])
def test_6_votes_are_refused_while_a_leader_is_believed_to_exist(pre: bool) -> None:
    core = kit.elector(term=3)
    core.receive("n2", Heartbeat(3, "n2"), 1.0)
    assert kit.ask(core, VoteRequest(9, "n1", 99, 99, pre), 1.39) is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert core.term == 3
    assert kit.ask(core, VoteRequest(9, "n1", 99, 99, pre), 1.41) is VoteResult.ACCEPT


def test_dissertation_3_10_a_transfer_is_no_disruption() -> None:
    core = kit.elector(term=3)
    core.receive("n2", Heartbeat(3, "n2"), 1.0)
    assert kit.ask(core, VoteRequest(4, "n1", 99, 99, transfer=True), 1.1) is VoteResult.ACCEPT


def test_dissertation_6_2_a_leader_without_a_quorum_steps_down_within_an_election_time_out() -> None:
    core = kit.elector(term=3)
    kit.leader(core, 1.0)
    core.receive("n1", HeartbeatResponse(4, Code.SUCCESS), 1.2)
    core.tick(1.9)
    assert core.role is Role.LEADER
    now = 1.9
    while now < 1.2 + 0.8 + 0.4:
        now += 0.1
        core.tick(now)
    assert (core.role, core.term, core.leader_id) == (Role.FOLLOWER, 4, None)


def test_dissertation_9_6_a_pre_vote_takes_no_term_and_gives_no_vote() -> None:
    core = kit.elector(term=3)
    assert kit.ask(core, VoteRequest(9, "n1", 99, 99, pre=True)) is VoteResult.ACCEPT
    assert kit.ask(core, VoteRequest(9, "n2", 99, 99, pre=True)) is VoteResult.ACCEPT
    assert (core.term, core.vote) == (3, None)


def test_dissertation_9_6_a_candidate_needs_a_quorum_of_pre_votes_before_it_takes_a_term() -> None:
    core = kit.elector(voters=kit.FIVE, chance=FixedChance(0.0))
    core.tick(1.0)
    core.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    core.receive("n2", VoteResponse(3, 4, True, VoteResult.REJECT_ALREADY_HAS_LEADER), 1.0)
    assert core.term == 3
    core.receive("n3", VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    assert core.term == 4
