"""Raft (Ongaro and Ousterhout 2014), figure 2: one test for each bullet, on the pure cores.

Our log starts at index 0 and has no entry at -1, where the paper has index 1 and 0. An AppendEntries is an
Append here; the consistency check without entries is a Compare; its answer is a PushResponse.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import paper_kit as kit
import pytest
from msgspec.structs import replace

from dledger.chaos.cores import Entry, FixedChance
from dledger.context.applier import Applier
from dledger.election.effects import RoleChanged, SaveHardState
from dledger.formats.entry import HEADER_SIZE, Kind, encode_entry
from dledger.formats.store_files import HardState
from dledger.host import Chunk, Role
from dledger.log.faulty import FaultyEntries
from dledger.messages import (
    Append,
    Code,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    PushResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.replication import follower as fcore
from dledger.replication import leader as lcore
from dledger.replication.leader import PushState
from tests.dledger.node_context import context

# State


def test_state_current_term_and_vote_are_on_disk_before_an_answer_leaves() -> None:
    core = kit.elector(term=3)
    effects = core.receive("n1", VoteRequest(4, "n1", 9, 3), 1.0)
    place = kit.saved(effects, HardState(4, "n1"))
    assert not kit.messages(effects[:place], VoteResponse)
    assert kit.answer(effects[place:]) is VoteResult.ACCEPT


def test_state_log_entries_are_on_disk_before_they_are_acknowledged_as_durable() -> None:
    log = kit.log_of(1)
    follower = kit.following(log)
    follower.receive(Append(5, "n1", 0, 1, 1, 1, 0, -1, b""), -1)
    log.append([Entry(5, "x")])
    follower.stored(1)
    (early,) = follower.durable_moved()
    assert isinstance(early, fcore.Respond)
    assert (early.response.stored, early.response.durable) == (0, 0)
    log.durable_index = 1
    (late,) = follower.durable_moved()
    assert isinstance(late, fcore.Respond) and late.response.durable == 1


def test_state_the_term_survives_a_restart_and_so_does_the_vote() -> None:
    core = kit.elector(term=7, vote="n2")
    assert kit.ask(core, VoteRequest(7, "n1", 9, 9)) is VoteResult.REJECT_ALREADY_VOTED
    assert kit.ask(core, VoteRequest(7, "n2", 9, 9)) is VoteResult.ACCEPT


def test_state_commit_index_increases_monotonically() -> None:
    log = kit.log_of(1, 1, 1)
    leader = kit.leading(log, 1, commit=-1)
    leader.opening_index = 0
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 2, 2, 2))
    assert leader.commit_index == 2
    leader.peer_up("n1", True)  # it comes back and has confirmed nothing yet
    leader.response("n1", PushResponse(1, Code.SUCCESS, 1, 1, 2))
    assert leader.commit_index == 2


def test_state_next_and_match_index_begin_anew_with_each_leader() -> None:
    group = kit.group((1,), (1,), (1,))
    kit.elect(group, "n0")
    first = group.nodes["n0"].leader
    assert first is not None and first.progress["n1"].durable == 1
    kit.elect(group, "n1")
    group.stop("n0")
    group.start("n0")
    kit.elect(group, "n0")
    second = group.nodes["n0"].leader
    assert second is not None and second is not first
    fresh = kit.leading(kit.log_of(1, 2), 2)
    assert all((progress.next, progress.durable) == (0, -1) for progress in fresh.progress.values())


# AppendEntries RPC, receiver implementation


@pytest.mark.parametrize("push", [Compare(2, "n1", 0, 1, -1), Append(2, "n1", 0, 1, 1, 1, 0, -1, b"")])
def test_append_1_reply_false_if_the_term_is_smaller_than_the_current_one(push: Compare | Append) -> None:
    group = kit.group((1,), (1,), (1,))
    node = group.nodes["n2"]
    node.core.higher_term(3, 0.0)
    node.hard_state = HardState(3)
    group._send("n1", "n2", push)
    group.deliver(group.bag[-1])
    (answer,) = group.bag
    assert answer.message == PushResponse(3, Code.EXPIRED_TERM, -1, -1, 0)
    assert node.core.leader_id is None and node.log.last_index == 0


def test_append_1_a_heartbeat_of_an_older_term_is_refused_too() -> None:
    core = kit.elector(term=3)
    assert kit.messages(core.receive("n1", Heartbeat(2, "n1"), 1.0), HeartbeatResponse) == [
        HeartbeatResponse(3, Code.EXPIRED_TERM)
    ]
    assert core.leader_id is None


@pytest.mark.parametrize(("prev_index", "prev_term"), [(1, 2), (2, 1), (5, 3)])
def test_append_2_reply_false_if_the_log_has_no_entry_of_that_term_at_prev(
    prev_index: int, prev_term: int
) -> None:
    follower = kit.following(kit.log_of(1, 1))
    first = prev_index + 1
    (effect,) = follower.receive(Append(5, "n1", prev_index, prev_term, first, first, 0, 9, b""), -1)
    assert isinstance(effect, fcore.Respond)
    assert effect.response.code is Code.INCONSISTENT_STATE
    assert effect.response.stored == -1, "nothing is known to agree"


def test_append_3_an_entry_that_conflicts_is_deleted_with_all_that_follow() -> None:
    follower = kit.following(kit.log_of(1, 2, 2, 2))
    follower.receive(Compare(5, "n1", 0, 1, -1), -1)
    assert follower.overlap(1, [3, 3], -1) == [fcore.CutLog(1)]
    assert follower.receive(Truncate(5, "n1", 2, 3, -1), -1) == [fcore.CutLog(2)]


def test_append_3_entries_that_do_not_conflict_are_kept_even_if_they_are_not_in_the_message() -> None:
    """A late Append must not shorten the log: 'if (and only if) an existing entry conflicts'."""
    follower = kit.following(kit.log_of(1, 5, 5, 5))
    follower.receive(Compare(5, "n1", 3, 5, -1), -1)
    assert follower.receive(Append(5, "n1", 0, 1, 1, 2, 0, -1, b""), -1) == [fcore.StoreEntries(1)]
    assert follower.overlap(1, [5, 5], -1) == []
    follower.stored(2)
    assert follower.matched == 3


def test_append_4_only_entries_that_are_not_in_the_log_are_appended() -> None:
    follower = kit.following(kit.log_of(1, 5))
    assert follower.overlap(0, [1, 5, 5], -1) == [fcore.StoreEntries(2)]
    assert follower.overlap(0, [1, 5], -1) == []


@pytest.mark.parametrize(("leader_commit", "commit"), [(0, 0), (1, 1), (9, 1)])
def test_append_5_the_commit_index_is_the_smaller_of_the_leaders_and_the_last_new_entry(
    leader_commit: int, commit: int
) -> None:
    follower = kit.following(kit.log_of(1, 1, 1, 1))
    follower.receive(Append(5, "n1", 0, 1, 1, 1, 0, leader_commit, b""), -1)
    assert fcore.CommitTo(commit) in follower.stored(1)
    assert follower.receive(Commit(5, "n1", leader_commit), -1) == [fcore.CommitTo(commit)]


# RequestVote RPC, receiver implementation


def test_vote_1_reply_false_if_the_term_is_smaller_than_the_current_one() -> None:
    core = kit.elector(term=3)
    assert kit.ask(core, VoteRequest(2, "n1", 99, 99)) is VoteResult.REJECT_EXPIRED_VOTE_TERM
    assert core.vote is None


@pytest.mark.parametrize(("vote", "granted"), [(None, True), ("n1", True), ("n2", False), ("n0", False)])
def test_vote_2_grant_if_the_vote_is_free_or_the_candidates(vote: str | None, granted: bool) -> None:
    core = kit.elector(term=3, vote=vote)
    assert (kit.ask(core, VoteRequest(3, "n1", 9, 3)) is VoteResult.ACCEPT) == granted


@pytest.mark.parametrize("term", [3, 4])
def test_vote_2_and_only_if_the_candidates_log_is_at_least_as_up_to_date(term: int) -> None:
    core = kit.elector(term=3, log=kit.log_of(1, 3, 3))
    assert kit.ask(core, VoteRequest(term, "n1", 1, 3)) is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert core.vote is None
    assert kit.ask(core, VoteRequest(term, "n2", 2, 3)) is VoteResult.ACCEPT


# Rules for servers: all


class Applied:
    """A host that notes how far it was asked to apply."""

    def __init__(self) -> None:
        self.indexes: list[int] = []

    def apply(self, chunk: Chunk) -> None:
        self.indexes += range(chunk.first_index, chunk.first_index + chunk.count)


class FlatLog:
    """As much of a log store as the applier sees; entries are a header."""

    segment_size = 1 << 20

    def __init__(self, durable_index: int) -> None:
        self.durable_index = durable_index
        self.faulty = FaultyEntries()

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        return first + 2, 3 * HEADER_SIZE

    def range_bytes(self, first: int, last: int) -> bytes:
        return b"".join(
            encode_entry(index, 1, index * HEADER_SIZE, b"", 0, Kind.RAW) for index in range(first, last + 1)
        )


@pytest.mark.parametrize(("committed", "durable", "last"), [(4, 9, 4), (9, 4, 4), (-1, 9, -1)])
def test_all_servers_apply_what_is_committed_in_order_and_nothing_else(
    committed: int, durable: int, last: int
) -> None:
    host = Applied()

    async def run() -> None:
        log: Any = FlatLog(durable)
        events: Any = SimpleNamespace(applied=lambda: None, segment_applied=lambda index, pos: None)
        applier = Applier(context(log=log, host=host), events)
        task = asyncio.create_task(applier.run())
        applier.commit_to(committed)
        async with asyncio.timeout(20):
            while applier.applied_index < last:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for _ in range(10):  # and not one more
            await asyncio.sleep(0)
        assert applier.applied_index == last
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert host.indexes == list(range(last + 1))


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(9, "n1", 9, 9),
        VoteResponse(9, 4, False, VoteResult.REJECT_ALREADY_VOTED),
        Heartbeat(9, "n1"),
        HeartbeatResponse(9, Code.EXPIRED_TERM),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_all_servers_a_higher_term_makes_a_follower_of_that_term(message: object, role: Role) -> None:
    core = kit.elector(term=3)
    if role is Role.CANDIDATE:
        kit.candidate(core)
    elif role is Role.LEADER:
        kit.leader(core)
        if isinstance(message, VoteRequest):  # a leader refuses others (section 6), but not its successor
            message = replace(message, transfer=True)
    effects = core.receive("n1", message, 9.0)  # type: ignore[arg-type]
    assert (core.term, core.role) == (9, Role.FOLLOWER)
    assert any(isinstance(effect, SaveHardState) and effect.state.term == 9 for effect in effects)


def test_all_servers_a_push_or_its_answer_with_a_higher_term_does_too() -> None:
    core = kit.elector(term=3)
    kit.leader(core)
    core.higher_term(9, 2.0)  # of a PushResponse
    assert (core.term, core.role) == (9, Role.FOLLOWER)
    core = kit.elector(term=3)
    core.leader_contact("n1", 9, 2.0)  # a push
    assert (core.term, core.leader_id) == (9, "n1")


def test_all_servers_the_vote_belongs_to_its_term() -> None:
    core = kit.elector(term=3, vote="n2")
    core.receive("n1", Heartbeat(4, "n1"), 1.0)
    assert core.vote is None


# Rules for servers: followers


def test_followers_answer_candidates_and_leaders() -> None:
    core = kit.elector(term=3)
    assert kit.ask(core, VoteRequest(4, "n1", 9, 3)) is VoteResult.ACCEPT
    assert kit.messages(core.receive("n1", Heartbeat(4, "n1"), 1.0), HeartbeatResponse) == [
        HeartbeatResponse(4, Code.SUCCESS)
    ]
    effects = kit.following(kit.log_of(1)).receive(Compare(5, "n1", 0, 1, -1), -1)
    assert any(isinstance(effect, fcore.Respond) for effect in effects)


def test_followers_become_candidates_when_the_time_out_elapses() -> None:
    core = kit.elector(chance=FixedChance(0.5))
    assert core.tick(0.59) == [] and core.role is Role.FOLLOWER
    core.tick(0.61)
    assert core.role is Role.CANDIDATE  # type: ignore[comparison-overlap]


def test_followers_do_not_while_the_current_leader_is_heard() -> None:
    core = kit.elector(chance=FixedChance(0.5))
    for now in (0.3, 0.7, 1.1):
        core.receive("n1", Heartbeat(3, "n1"), now)
        assert core.tick(now + 0.39) == []
    core.leader_contact("n1", 3, 1.5)  # a push counts as well
    assert core.tick(1.9) == [] and core.role is Role.FOLLOWER


def test_followers_do_not_after_granting_a_vote() -> None:
    core = kit.elector(chance=FixedChance(0.5))
    assert kit.ask(core, VoteRequest(4, "n1", 9, 3), 0.5) is VoteResult.ACCEPT
    assert core.tick(1.0) == [] and core.role is Role.FOLLOWER


# Rules for servers: candidates


def test_candidates_take_a_new_term_vote_for_themselves_set_the_timer_and_ask_all() -> None:
    core = kit.elector(term=3, voters=kit.FIVE)
    core.tick(1.0)
    effects = []
    for peer in ("n1", "n2"):
        effects = core.receive(peer, VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    assert (core.term, core.vote) == (4, "n0")
    assert 1.0 < core.deadline <= 1.8
    assert kit.saved(effects, HardState(4, "n0")) == 0
    assert kit.messages(effects, VoteRequest) == [VoteRequest(4, "n0", 1, 3)] * 4


@pytest.mark.parametrize(("voters", "needed"), [(kit.THREE, 1), (kit.FIVE, 2)])
def test_candidates_with_votes_of_a_majority_become_leaders(voters: tuple[str, ...], needed: int) -> None:
    core = kit.elector(voters=voters)
    core.tick(1.0)
    for peer in voters[1 : needed + 1]:
        core.receive(peer, VoteResponse(3, 4, True, VoteResult.ACCEPT), 1.0)
    assert (core.role, core.term) == (Role.CANDIDATE, 4)
    for place, peer in enumerate(voters[1 : needed + 1]):
        assert core.role is Role.CANDIDATE, f"{place + 1} votes of {len(voters)}"
        core.receive(peer, VoteResponse(4, 4, False, VoteResult.ACCEPT), 1.0)
    assert core.role is Role.LEADER


def test_candidates_follow_a_leader_of_their_term() -> None:
    core = kit.elector()
    kit.candidate(core)
    core.receive("n2", Heartbeat(4, "n2"), 1.1)
    assert (core.role, core.term, core.leader_id) == (Role.FOLLOWER, 4, "n2")


def test_candidates_start_a_new_election_when_the_time_out_elapses() -> None:
    core = kit.elector()
    kit.candidate(core)
    effects = core.tick(core.deadline)
    assert kit.messages(effects, VoteRequest) == [VoteRequest(5, "n0", 1, 3, pre=True)] * 2
    effects = core.receive("n1", VoteResponse(4, 5, True, VoteResult.ACCEPT), 3.0)
    assert core.term == 5 and kit.saved(effects, HardState(5, "n0")) == 0


# Rules for servers: leaders


def test_leaders_send_heartbeats_at_once_and_again_when_idle() -> None:
    core = kit.elector()
    effects = kit.leader(core)
    assert effects[0] == RoleChanged(Role.LEADER, 4, "n0", "quorum of votes")
    assert len(kit.messages(effects, Heartbeat)) == 2
    assert core.tick(1.05) == []
    assert core.deadline <= 1.1 + 1e-9
    assert len(kit.messages(core.tick(1.1), Heartbeat)) == 2


def test_leaders_append_a_command_to_their_log_and_answer_when_it_is_committed() -> None:
    group = kit.group((1,), (1,), (1,))
    kit.elect(group, "n0")
    node = group.nodes["n0"]
    group.propose("n0", ["command"])
    assert node.log.entry(node.log.last_index).text == "command"
    assert node.commit_index == node.log.last_index - 1
    group.settle()
    assert node.commit_index == node.log.last_index


def test_leaders_send_entries_from_the_next_index_on() -> None:
    log = kit.log_of(1, 1)
    leader = kit.leading(log, 1)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 1, 1, 1))
    log.append([Entry(1, "a"), Entry(1, "b")])
    sent = [effect for effect in leader.extended() if isinstance(effect, lcore.SendAppend)]
    assert [(push.first, push.last, push.prev_term) for push in sent] == [(2, 3, 1)]


def test_leaders_advance_next_and_match_index_on_success() -> None:
    leader = kit.leading(kit.log_of(1, 1, 1), 1)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 2, 1, 2))
    progress = leader.progress["n1"]
    assert (progress.next, progress.stored, progress.durable) == (3, 2, 1)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 1, 0, 2))  # a late answer moves nothing back
    assert (progress.next, progress.stored, progress.durable) == (3, 2, 1)


def test_leaders_go_back_and_try_again_on_inconsistency() -> None:
    leader = kit.leading(kit.log_of(1, 1, 2, 2, 4), 4)
    leader.peer_up("n1", True)
    # The follower has 1 1 1: its last entry that may agree is 2, of term 1.
    effects = leader.response("n1", PushResponse(4, Code.INCONSISTENT_STATE, -1, -1, 2, 2, 1))
    assert effects == [lcore.SendCompare("n1", 1, 1)]
    effects = leader.response("n1", PushResponse(4, Code.SUCCESS, 1, 1, 2))
    assert effects == [lcore.SendTruncate("n1", 2, 2)]
    leader.response("n1", PushResponse(4, Code.SUCCESS, 1, 1, 1))
    assert leader.progress["n1"].state is PushState.APPEND


@pytest.mark.parametrize(
    ("voters", "marks", "commit"),
    [
        (kit.THREE, {"n1": 3, "n2": -1}, 3),
        (kit.THREE, {"n1": -1, "n2": -1}, -1),
        (kit.FIVE, {"n1": 4, "n2": -1, "n3": -1, "n4": -1}, -1),
        (kit.FIVE, {"n1": 4, "n2": 3, "n3": -1, "n4": -1}, 3),
        (kit.FIVE, {"n1": 4, "n2": 4, "n3": 4, "n4": 4}, 4),
    ],
)
def test_leaders_commit_what_a_majority_has(
    voters: tuple[str, ...], marks: dict[str, int], commit: int
) -> None:
    leader = kit.leading(kit.log_of(2, 2, 2, 2, 2), 2, voters=voters)
    leader.opening_index = 0
    for peer, mark in marks.items():
        leader.peer_up(peer, True)
        leader.response(peer, PushResponse(2, Code.SUCCESS, max(mark, 0), mark, 4))
    assert leader.commit_index == commit


def test_leaders_commit_by_counting_only_entries_of_their_term() -> None:
    leader = kit.leading(kit.log_of(1, 1, 1, 2), 2)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(2, Code.SUCCESS, 2, 2, 2))
    assert leader.commit_index == -1
    leader.progress["n1"].state = PushState.APPEND
    leader.response("n1", PushResponse(2, Code.SUCCESS, 3, 3, 3))
    assert leader.commit_index == 3
