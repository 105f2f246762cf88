"""A leader and those who join and leave: what is sent, what counts (decision 0005)."""

from __future__ import annotations

from test_elector import elector
from test_replication import ListLog, leader_of

from dledger.host import Role
from dledger.messages import Code, PushResponse
from dledger.replication import leader as lcore

TERM = 1


def appends(effects: list[lcore.Effect], peer: str) -> list[tuple[int, int]]:
    return [
        (effect.first, effect.last)
        for effect in effects
        if isinstance(effect, lcore.SendAppend) and effect.peer == peer
    ]


def stored(index: int) -> PushResponse:
    return PushResponse(TERM, Code.SUCCESS, index, index, index)


def test_who_leaves_gets_only_what_is_committed() -> None:
    log = ListLog([1])
    leader = leader_of(log, TERM)
    for peer in ("n1", "n2"):
        leader.peer_up(peer, True)
        leader.response(peer, stored(0))
    assert leader.commit_index == 0
    log.entries.append(1)  # the entry that removes n2
    leader.set_members(["n0", "n1"], ["n0", "n1", "n2"], ["n2"])
    effects = leader.extended()
    assert appends(effects, "n1") == [(1, 1)] and appends(effects, "n2") == []
    log.durable = 1
    leader.local_durable()
    effects = leader.response("n1", stored(1))
    assert leader.commit_index == 1
    assert appends(effects, "n2") == [(1, 1)]


def test_who_left_does_not_count_and_who_joined_does() -> None:
    log = ListLog([1])
    leader = leader_of(log, TERM)
    for peer in ("n1", "n2"):
        leader.peer_up(peer, True)
        leader.response(peer, stored(0))
    log.entries += [1, 1]
    log.durable = 2
    leader.set_members(["n0", "n1", "n3"], ["n0", "n1", "n2", "n3"], ["n2"])
    leader.extended()
    leader.response("n2", stored(2))
    assert leader.commit_index == 0
    leader.peer_up("n3", True)
    leader.response("n3", stored(0))
    leader.response("n3", stored(2))
    assert leader.commit_index == 2


def test_a_leader_that_leaves_does_not_count_itself() -> None:
    log = ListLog([1])
    leader = leader_of(log, TERM)
    for peer in ("n1", "n2"):
        leader.peer_up(peer, True)
        leader.response(peer, stored(0))
    log.entries.append(1)
    log.durable = 1
    leader.set_members(["n1", "n2"], ["n1", "n2"])
    leader.extended()
    leader.response("n1", stored(1))
    assert leader.commit_index == 0, "n1 and n0 are not a majority of n1 and n2"
    leader.response("n2", stored(1))
    assert leader.commit_index == 1


def test_frames_in_flight_are_bounded_in_number() -> None:
    log = ListLog([1])
    leader = leader_of(log, TERM, window=1 << 30)
    leader._frames = 4
    leader.peer_up("n1", True)
    leader.response("n1", stored(0))
    sent = []
    for _ in range(20):
        log.entries.append(1)
        sent += appends(leader.extended(), "n1")
    assert len(sent) == 4
    sent += appends(leader.response("n1", stored(4)), "n1")
    assert len(sent) == 8 and sent[4][1] - sent[4][0] == 2, "they got larger instead"


def test_a_voter_that_joins_is_not_taken_for_lost() -> None:
    node = elector(voters=("n0",))
    node.tick(1.0)
    assert node.role is Role.LEADER
    for now in (1.1, 1.8, 1.9, 2.0):
        node.tick(now)
    node.set_members(("n0", "n1"), ("n0", "n1"), 2.0)
    for now in (2.1, 2.2, 2.3, 2.4):
        node.tick(now)
        assert node.role is Role.LEADER
    node.tick(3.5)
    assert node.role is Role.FOLLOWER, "now it is"


def test_a_leader_that_leaves_needs_a_majority_of_those_who_stay() -> None:
    node = elector(voters=("n0", "n1", "n2"))
    node.set_members(("n0",), ("n0",), 0.0)
    node.tick(1.0)
    node.set_members(("n1", "n2"), ("n1", "n2"), 1.0)
    for now in (1.5, 2.0, 2.5, 3.0):
        node.peer_active("n1", now)
        node.tick(now)
    assert node.role is Role.LEARNER, "n1 and n0 are not a majority of n1 and n2"
