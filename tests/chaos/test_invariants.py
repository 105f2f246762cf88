"""Each invariant holds in a sound state, and is violated by a state that was made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.chaos.invariants import (
    NODE,
    STEP,
    Cluster,
    Entry,
    InvariantViolated,
    NodeState,
    check_node,
    check_step,
)
from dledger.host import Role

SOUND = NodeState(
    name="n0",
    life=1,
    role=Role.LEADER,
    term=3,
    vote="n0",
    serving=True,
    first_index=0,
    last_index=9,
    last_term=3,
    durable_index=8,
    commit_index=7,
    applied_index=6,
)

BAD_NODES = {
    "commit_within_log": replace(SOUND, commit_index=10, applied_index=8),
    "durable_within_log": replace(SOUND, durable_index=10),
    "applied_is_committed": replace(SOUND, applied_index=8),
    "applied_is_durable": replace(SOUND, durable_index=5),
    "last_term_within_term": replace(SOUND, last_term=4),
    "log_joins_commit": replace(SOUND, first_index=9),
    "only_leaders_serve": replace(SOUND, role=Role.FOLLOWER),
    "serving_term_is_open": replace(SOUND, last_term=2),
    "leader_voted_for_itself": replace(SOUND, vote="n1"),
}
BAD_STEPS = {
    "term_never_falls": replace(SOUND, term=2, last_term=2),
    "commit_never_falls": replace(SOUND, commit_index=6),
    "applied_never_falls": replace(SOUND, applied_index=5),
    "vote_stays": replace(SOUND, vote=None, role=Role.FOLLOWER, serving=False),
    "leader_only_appends": replace(SOUND, last_index=8),
}


def test_a_sound_node_passes() -> None:
    check_node(SOUND)
    check_node(replace(SOUND, role=Role.LEARNER, serving=False, last_index=-1, last_term=-1, durable_index=-1,
                       commit_index=-1, applied_index=-1))  # fmt: skip


def test_every_invariant_of_a_node_and_of_a_step_has_a_state_that_violates_it() -> None:
    assert sorted(BAD_NODES) == sorted(check.__name__ for check in NODE)
    assert sorted(BAD_STEPS) == sorted(check.__name__ for check in STEP)


@pytest.mark.parametrize("name", BAD_NODES)
def test_a_node_is_found_that_violates(name: str) -> None:
    with pytest.raises(InvariantViolated, match=name):
        check_node(BAD_NODES[name])


def test_sound_steps_pass() -> None:
    check_step(SOUND, SOUND)
    check_step(SOUND, replace(SOUND, last_index=12, commit_index=9, durable_index=10, applied_index=9))
    deposed = replace(SOUND, role=Role.FOLLOWER, serving=False, term=4, vote=None, last_index=8)
    check_step(SOUND, deposed)
    check_step(deposed, replace(deposed, vote="n2"))


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_step_is_found_that_violates(name: str) -> None:
    with pytest.raises(InvariantViolated, match=name):
        check_step(SOUND, BAD_STEPS[name])


def test_two_lives_have_no_step_between_them() -> None:
    with pytest.raises(ValueError, match="two lives"):
        check_step(SOUND, replace(SOUND, life=2))


def entries(*terms: int) -> dict[int, Entry]:
    """A log with one entry of each term; equal prefixes have equal chains."""
    log: dict[int, Entry] = {}
    chain = 1
    for index, term in enumerate(terms):
        chain = chain * 31 + term
        log[index] = Entry(term, chain, index * 100, 100)
    return log


def committed(*terms: int) -> Cluster:
    """A group that committed entries of these terms."""
    cluster = Cluster()
    cluster.commits("n0", 0, len(terms) - 1, entries(*terms))
    return cluster


def test_one_leader_per_term() -> None:
    cluster = Cluster()
    cluster.elected("n0", 1, {})
    cluster.elected("n0", 2, {})
    with pytest.raises(InvariantViolated, match="two leaders in term 2"):
        cluster.elected("n1", 2, {})


def test_a_term_is_not_led_twice_by_one_node() -> None:
    cluster = Cluster()
    cluster.elected("n0", 1, {})
    with pytest.raises(InvariantViolated, match="two leaders in term 1"):
        cluster.elected("n0", 1, {})


def test_a_leader_has_what_was_committed_before() -> None:
    cluster = committed(1, 1)
    cluster.elected("n1", 2, entries(1, 1, 1))
    with pytest.raises(InvariantViolated, match="leads term 3 without committed entry 1"):
        cluster.elected("n2", 3, entries(1))
    with pytest.raises(InvariantViolated, match="leads term 4 without committed entry 1"):
        cluster.elected("n2", 4, entries(1, 2))


def test_a_leader_serves_when_it_applied_an_entry_of_its_term() -> None:
    cluster = Cluster()
    cluster.serves("n0", 2, 1, entries(1, 2))
    with pytest.raises(InvariantViolated, match="serves term 2"):
        cluster.serves("n0", 2, 0, entries(1, 2))


def test_one_vote_per_term_across_crashes() -> None:
    cluster = Cluster()
    cluster.voted("n0", 1, "n1", {})
    cluster.voted("n0", 1, "n1", {})
    cluster.voted("n0.1", 1, "n2", {})  # a wiped node is another voter
    with pytest.raises(InvariantViolated, match="voted in term 1 for n1 and for n2"):
        cluster.voted("n0", 1, "n2", {})


def test_the_term_survives_a_crash() -> None:
    cluster = Cluster()
    cluster.told_term("n0", 7)
    cluster.started("n0", 7, {}, excused=False)
    with pytest.raises(InvariantViolated, match="said it is in term 7, now 6"):
        cluster.started("n0", 6, {}, excused=False)


def test_what_was_acknowledged_survives_a_crash() -> None:
    cluster = Cluster()
    cluster.promises("n0", 1, entries(1, 1), durable=True)
    cluster.started("n0", 1, entries(1, 1, 1), excused=False)
    with pytest.raises(InvariantViolated, match="acknowledged entry 1"):
        cluster.started("n0", 1, entries(1), excused=False)


def test_a_store_that_forgot_votes_again_when_it_holds_what_was_committed() -> None:
    cluster = committed(1, 1)
    cluster.promises("n0", 1, entries(1, 1), durable=True)
    cluster.started("n0", 1, entries(1), excused=True)
    with pytest.raises(InvariantViolated, match="has not got entry 1 back"):
        cluster.voted("n0", 2, "n1", entries(1))
    cluster.voted("n0", 2, "n1", entries(1, 1))


def test_what_a_node_cut_it_need_not_keep() -> None:
    cluster = Cluster()
    cluster.promises("n0", 2, entries(1, 1, 1), durable=True)
    cluster.cut("n0", 1, entries(1, 1, 1))
    cluster.started("n0", 1, entries(1), excused=False)
    with pytest.raises(InvariantViolated, match="acknowledged entry 0"):
        cluster.started("n0", 1, {}, excused=False)


def test_a_log_ends_where_its_last_entry_ends() -> None:
    cluster = Cluster()
    cluster.ends("n0", 122, 183_936, 183_936)
    with pytest.raises(InvariantViolated, match="the log of n0 ends at 196608, its last entry 122 at 183936"):
        cluster.ends("n0", 122, 196_608, 183_936)


def test_one_term_has_one_entry_at_an_index() -> None:
    cluster = Cluster()
    cluster.appended("n0", 0, Entry(1, 5, 0, 100))
    cluster.appended("n1", 0, Entry(2, 6, 0, 100))
    cluster.appended("n1", 0, Entry(1, 5, 0, 100))
    with pytest.raises(InvariantViolated, match="entry 0 of term 1"):
        cluster.appended("n1", 0, Entry(1, 7, 0, 100))


def test_store_time_never_goes_back_in_a_log() -> None:
    cluster = Cluster()
    cluster.dated("n0", 1, 7, 7)
    cluster.dated("n0", 2, -1, 7)  # no record
    with pytest.raises(InvariantViolated, match="store time goes back at entry 3 on n0: 6 ms after 7"):
        cluster.dated("n0", 3, 6, 7)


def test_nothing_committed_is_cut() -> None:
    cluster = committed(1, 1)
    cluster.cut("n1", 1, entries(1, 2))
    with pytest.raises(InvariantViolated, match="cuts entry 1, which is committed"):
        cluster.cut("n1", 1, entries(1, 1))


def test_nodes_commit_equal_entries() -> None:
    cluster = committed(1, 1)
    cluster.commits("n1", 0, 1, entries(1, 1))
    with pytest.raises(InvariantViolated, match="elsewhere"):
        cluster.commits("n2", 0, 1, entries(1, 2))
    with pytest.raises(InvariantViolated, match="which it does not have"):
        cluster.commits("n2", 2, 2, entries(1, 1))


def test_a_leader_commits_its_own_term_and_what_is_durable_on_a_majority() -> None:
    cluster = Cluster()
    cluster.leader_commits("n0", 2, 1, entries(1, 2), durable=2, voters=3)
    with pytest.raises(InvariantViolated, match="by counting"):
        cluster.leader_commits("n0", 2, 0, entries(1, 2), durable=3, voters=3)
    with pytest.raises(InvariantViolated, match="durable on 1 of 3"):
        cluster.leader_commits("n0", 2, 1, entries(1, 2), durable=1, voters=3)
    with pytest.raises(InvariantViolated, match="durable on 2 of 4"):
        cluster.leader_commits("n0", 2, 1, entries(1, 2), durable=2, voters=4)


def test_only_what_is_on_the_disk_is_acknowledged() -> None:
    with pytest.raises(InvariantViolated, match="its disk does not have it"):
        Cluster().promises("n0", 0, entries(1), durable=False)


def test_only_committed_entries_are_applied() -> None:
    cluster = committed(1)
    entry = entries(1)[0]
    cluster.applied("n0", 0, entry.term, entry.chain)
    with pytest.raises(InvariantViolated, match="applied term 1"):
        cluster.applied("n0", 0, 1, entry.chain + 1)
    with pytest.raises(InvariantViolated, match="committed is None"):
        cluster.applied("n0", 1, 1, entry.chain)


def test_equal_states_are_demanded() -> None:
    cluster = Cluster()
    cluster.same("states", [("n0", b"a"), ("n1", b"a")])
    with pytest.raises(InvariantViolated, match="states: n0 has"):
        cluster.same("states", [("n0", b"a"), ("n1", b"b")])
    assert cluster.checks == {"states": 2}
