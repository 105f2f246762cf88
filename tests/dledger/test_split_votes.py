"""Two followers notice at the same moment that their leader is gone: their votes must not be split."""

from __future__ import annotations

from test_elector import Tip, elector, sent, vote_of

from dledger.election.elector import Elector
from dledger.host import Role
from dledger.messages import VoteRequest, VoteResponse, VoteResult


def follower(self_id: str, tip: Tip | None = None) -> Elector:
    """One whose leader n9 is gone, of n0, n1 and n9."""
    node = elector(self_id, tip=tip, voters=("n0", "n1", "n9"))
    node.leader_contact("n9", 3, 0.5)
    node.leader_refused("n9", 0.6)
    return node


def pre_vote(node: Elector, now: float = 0.65) -> VoteRequest:
    request = sent(node.tick(now), VoteRequest)[0]
    assert isinstance(request, VoteRequest) and request.pre
    return request


def test_of_two_that_stand_at_once_the_lower_id_goes_first() -> None:
    low, high = follower("n0"), follower("n1")
    of_low, of_high = pre_vote(low), pre_vote(high)
    assert vote_of(low.receive("n1", of_high, 0.651)) is VoteResult.REJECT_ALREADY_VOTED
    assert vote_of(high.receive("n0", of_low, 0.651)) is VoteResult.ACCEPT
    late = high.receive("n0", VoteResponse(3, 4, True, VoteResult.ACCEPT), 0.652)
    assert late == [] and high.term == 3, "it stands back, whatever still arrives"
    assert low.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 0.652)
    assert low.term == 4


def test_the_better_log_goes_before_the_lower_id() -> None:
    low, high = follower("n0"), follower("n1", Tip(last_index=11))
    of_low, of_high = pre_vote(low), pre_vote(high)
    assert vote_of(low.receive("n1", of_high, 0.651)) is VoteResult.ACCEPT
    assert vote_of(high.receive("n0", of_low, 0.651)) is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert low.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 0.652) == []


def test_who_goes_first_and_cannot_win_gives_way_in_the_next_round() -> None:
    low, high = follower("n0"), follower("n1")
    of_high = pre_vote(high)
    pre_vote(low)
    assert low.tick(low.deadline) == [], "nobody answered: slow links are given time"
    pre_vote(low, now=low.deadline)
    assert vote_of(low.receive("n1", of_high, low.deadline)) is VoteResult.ACCEPT


def test_who_stood_before_the_other_knew_of_the_loss_does_not_keep_it_from_winning() -> None:
    low, high = follower("n0"), follower("n1")
    pre_vote(low)
    of_high = pre_vote(high)
    low.receive("n1", VoteResponse(3, 4, True, VoteResult.REJECT_ALREADY_HAS_LEADER), 0.651)
    assert vote_of(low.receive("n1", of_high, 0.652)) is VoteResult.ACCEPT, "its own round is lost"
    assert low.deadline >= 0.652 + 0.02, "and it stands back"


def test_who_may_not_stand_any_more_keeps_nobody_from_winning() -> None:
    low, high = follower("n0"), follower("n1")
    pre_vote(low)
    low.may_stand = False
    assert vote_of(low.receive("n1", pre_vote(high), 0.652)) is VoteResult.ACCEPT


def test_a_leader_that_refuses_again_does_not_end_the_standing_back() -> None:
    low, high = follower("n0"), follower("n1")
    low.receive("n1", pre_vote(high, now=0.62), 0.62)
    before = low.deadline
    for _ in range(10):
        low.leader_refused("n9", 0.621)
    assert low.deadline == before


def test_a_follower_that_granted_a_pre_vote_stands_back_a_little() -> None:
    low, high = follower("n0"), follower("n1")
    low.receive("n1", pre_vote(high, now=0.62), 0.62)
    assert low.deadline >= 0.62 + 0.02
    assert low.deadline <= 0.62 + 0.04, "not longer than that: the other may die too"


def test_a_split_vote_is_seen_without_waiting_for_the_dead() -> None:
    node = follower("n0")
    pre_vote(node)
    node.receive("n1", VoteResponse(3, 4, True, VoteResult.ACCEPT), 0.65)
    assert node.role is Role.CANDIDATE and node.deadline > 0.65 + 0.2
    node.receive("n1", VoteResponse(4, 4, False, VoteResult.REJECT_ALREADY_VOTED), 0.66)
    assert node.deadline <= 0.66 + 0.04, "n9 refused the connection: its vote will not come"
    node.leader_contact("n9", 5, 0.7)
    node.tick(2.0)
    node.receive("n1", VoteResponse(5, 6, True, VoteResult.ACCEPT), 2.0)
    node.receive("n1", VoteResponse(6, 6, False, VoteResult.REJECT_ALREADY_VOTED), 2.0)
    assert node.deadline > 2.0 + 0.2, "it was heard again, so its vote may come"
