"""Install in the replication cores: a peer behind the log, no circle of install and COMPARE (dledger 319)."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvariantBroken
from dledger.messages import Append, Code, Compare, InstallResponse, PushResponse, Truncate
from dledger.replication import follower as fcore
from dledger.replication import leader as lcore
from dledger.replication.follower import FollowerReplication
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication, PushState

TOTAL = 1000
PIECE = 300


class BasedLog:
    """Terms of the entries from `first_index` on, and of the one before."""

    def __init__(self, terms: list[int], first_index: int = 0, before: int | None = -1) -> None:
        self.terms = list(terms)
        self.first_index = first_index
        self.before = before

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.terms) - 1

    @property
    def durable_index(self) -> int:
        return self.last_index

    @property
    def durable_mark(self) -> int:
        return self.last_index

    def term_of(self, index: int) -> int | None:
        if index == self.first_index - 1:
            return self.before
        if not self.first_index <= index <= self.last_index:
            return None
        return self.terms[index - self.first_index]

    def last_of_term_at_most(self, term: int, index: int) -> int:
        for at in range(min(index, self.last_index), self.first_index - 2, -1):
            own = self.term_of(at)
            if own is not None and own <= term:
                return at
        return -1

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        last = min(self.last_index, first + 2)
        return last, 100 * (last - first + 1)


def based(history: list[int], first: int, extra: list[int] | None = None) -> BasedLog:
    """A log of this history of terms that begins at `first`, with other entries behind."""
    return BasedLog([*history[first:], *(extra or [])], first, history[first - 1] if first else -1)


def offer_at(history: list[int], first: int) -> Offer | None:
    return Offer(first - 1, history[first - 1], first * 100, 0, TOTAL, "d") if first else None


class Wire:
    """Carries effects between a leader and a follower until nothing moves."""

    def __init__(
        self, history: list[int], leader_first: int, follower: BasedLog, commit: int, term: int
    ) -> None:
        self.history = history
        self.leader_log = based(history, leader_first)
        self.log = follower
        self.commit = commit
        self.offers = [offer_at(history, leader_first)]
        self.leader = LeaderReplication(
            term,
            "n0",
            ["n0", "n1"],
            ["n0", "n1"],
            self.leader_log,
            -1,
            self.leader_log.last_index,
            push_bytes=300,
            inflight_bytes=1000,
            offer=lambda: self.offers[0],
        )
        self.follower = FollowerReplication(term, "n0", follower)
        self.received = 0
        self.exchanges = 0
        self.installs = 0
        self.given_up = False

    def run(self, limit: int = 500) -> None:
        queue: deque[lcore.Effect] = deque(self.leader.peer_up("n1", True))
        while queue:
            effect = queue.popleft()
            self.exchanges += 1
            assert self.exchanges < limit, "they go round in circles"
            for answer in self.deliver(effect):
                if isinstance(answer, PushResponse):
                    queue.extend(self.leader.response("n1", answer))
                else:
                    queue.extend(self.leader.install_response("n1", answer))

    def deliver(self, effect: lcore.Effect) -> list[PushResponse | InstallResponse]:
        term, commit = self.leader.term, self.leader.commit_index
        if isinstance(effect, lcore.SendInstall):
            return [self.install(effect)]
        if isinstance(effect, lcore.NeedsSnapshot):
            self.given_up = True
            return []
        if isinstance(effect, lcore.SendCompare):
            return self.push(Compare(term, "n0", effect.index, effect.entry_term, commit))
        if isinstance(effect, lcore.SendTruncate):
            return self.push(Truncate(term, "n0", effect.index, effect.entry_term, commit))
        if isinstance(effect, lcore.SendAppend):
            push = Append(
                term, "n0", effect.first - 1, effect.prev_term, effect.first, effect.last, 0, commit, b""
            )
            return self.push(push)
        return []

    def install(self, effect: lcore.SendInstall) -> InstallResponse:
        offer = effect.offer
        if self.log.term_of(offer.index) == offer.term or offer.index <= self.commit:
            return InstallResponse(self.leader.term, Code.SUCCESS, offer.index, offer.total)
        if effect.offset == self.received:
            self.received = min(self.received + PIECE, offer.total)
        if self.received == offer.total:
            self.installs += 1
            self.received = 0
            self.log.terms = []
            self.log.first_index, self.log.before = offer.index + 1, offer.term
            self.commit = max(self.commit, offer.index)
            self.follower.installed(offer.index)
            return InstallResponse(self.leader.term, Code.SUCCESS, offer.index, offer.total)
        return InstallResponse(self.leader.term, Code.SUCCESS, offer.index, self.received)

    def push(self, push: fcore.Push) -> list[PushResponse | InstallResponse]:
        answers: list[PushResponse | InstallResponse] = []
        for effect in self.follower.receive(push, self.commit):
            if isinstance(effect, fcore.Respond):
                answers.append(effect.response)
            elif isinstance(effect, fcore.CutLog):
                del self.log.terms[effect.index - self.log.first_index :]
                answers += self.push(push)
            elif isinstance(effect, fcore.StoreEntries):
                assert isinstance(push, Append)
                del self.log.terms[push.first - self.log.first_index :]
                self.log.terms += [self.history[at] for at in range(push.first, push.last + 1)]
                self.follower.stored(push.last)
                answers += [e.response for e in self.follower.durable_moved() if isinstance(e, fcore.Respond)]
        return answers


def test_a_peer_behind_the_log_is_installed_and_then_fed() -> None:
    wire = Wire([1] * 10 + [2] * 10 + [3], 12, BasedLog([1] * 5), 4, 3)
    wire.run()
    assert wire.installs == 1 and not wire.given_up
    assert wire.log.first_index == 12 and wire.log.last_index == 20
    assert wire.leader.progress["n1"].state is PushState.APPEND
    assert wire.leader.progress["n1"].durable == 20


def test_an_empty_peer_is_asked_for_its_offset_before_anything_is_sent() -> None:
    wire = Wire([1] * 20, 10, BasedLog([]), -1, 1)
    effects = wire.leader.peer_up("n1", True)
    assert effects == [lcore.SendCompare("n1", 19, 1)]
    effects = wire.leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    assert isinstance(effects[0], lcore.SendInstall) and effects[0].offset == -1
    effects = wire.leader.install_response("n1", InstallResponse(1, Code.SUCCESS, 9, 700))
    assert isinstance(effects[0], lcore.SendInstall) and effects[0].offset == 700, "it goes on where it was"


def test_late_push_answers_do_not_disturb_an_install() -> None:
    wire = Wire([1] * 20, 10, BasedLog([]), -1, 1)
    wire.leader.peer_up("n1", True)
    wire.leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    for code in (Code.INCONSISTENT_STATE, Code.SUCCESS):
        assert wire.leader.response("n1", PushResponse(1, code, -1, -1, -1, -1, -1)) == []
    assert wire.leader.progress["n1"].state is PushState.INSTALL


def test_the_same_snapshot_is_not_installed_twice_over_one_connection() -> None:
    wire = Wire([1] * 20, 10, BasedLog([]), -1, 1)
    wire.leader.peer_up("n1", True)
    no = PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1)
    wire.leader.response("n1", no)
    wire.leader.install_response("n1", InstallResponse(1, Code.SUCCESS, 9, TOTAL))
    assert wire.leader.response("n1", no) == [lcore.NeedsSnapshot("n1")], "the peer still does not agree"
    assert wire.leader.offers_changed() == [lcore.NeedsSnapshot("n1")]
    wire.offers[0] = Offer(14, 1, 1500, 0, TOTAL, "e")
    assert isinstance(wire.leader.offers_changed()[0], lcore.SendInstall), "another one may help"
    assert wire.leader.peer_up("n1", True) == [lcore.SendCompare("n1", 19, 1)], "nor after a reconnection"
    assert isinstance(wire.leader.response("n1", no)[0], lcore.SendInstall)


def test_a_refused_snapshot_is_offered_anew() -> None:
    wire = Wire([1] * 20, 10, BasedLog([]), -1, 1)
    wire.leader.peer_up("n1", True)
    wire.leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    again = wire.leader.install_response("n1", InstallResponse(1, Code.INCONSISTENT_STATE, 9, 0))
    assert isinstance(again[0], lcore.SendInstall) and again[0].offset == -1


def test_a_follower_whose_log_begins_later_is_asked_there() -> None:
    history = [1] * 30
    wire = Wire(history, 0, based(history[:25], 20), 24, 1)
    wire.run()
    assert wire.installs == 0 and wire.log.last_index == 29


@pytest.mark.parametrize("leader_first", [0, 5, 20])
@pytest.mark.parametrize("extra", [[], [2], [2, 2, 2]])
@pytest.mark.parametrize("kept", [0, 3])
def test_a_follower_that_lost_the_snapshot_at_its_beginning_goes_on_there(
    leader_first: int, extra: list[int], kept: int
) -> None:
    """Found by review: nothing it held agreed, what it had named did not either, and so on without end."""
    history = [1] * 23 + [3] * 7
    log = BasedLog([*history[20 : 20 + kept], *extra], 20, None)
    wire = Wire(history, leader_first, log, 19, 3)
    wire.run(40)
    assert wire.installs == 0 and not wire.given_up
    assert (wire.log.first_index, wire.log.terms) == (20, history[20:])


def test_a_question_before_the_log_names_the_entry_in_front_of_it() -> None:
    log = based([1] * 10 + [2] * 10, 15)
    follower = FollowerReplication(3, "n0", log)
    (answer,) = follower.receive(Compare(3, "n0", 5, 1, -1), 17)
    assert isinstance(answer, fcore.Respond)
    assert (answer.response.code, answer.response.hint_index) == (Code.INCONSISTENT_STATE, 14)


def test_a_leader_that_contradicts_what_a_snapshot_covers_is_an_error() -> None:
    follower = FollowerReplication(3, "n0", based([1] * 10, 5))
    with pytest.raises(InvariantBroken, match="committed entry 4"):
        follower.receive(Compare(3, "n0", 4, 2, -1), 9)


def test_a_leader_shorter_than_what_a_follower_has_forgotten_asks_once() -> None:
    wire = Wire([1] * 10, 0, based([1] * 30, 25), 29, 1)
    wire.run(20)
    assert wire.given_up


def test_retention_is_told_what_connected_peers_need() -> None:
    wire = Wire([1] * 20, 10, BasedLog([]), -1, 1)
    assert wire.leader.needed_from() == 20, "nobody is connected"
    wire.leader.peer_up("n1", True)
    wire.leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    assert wire.leader.needed_from() == 10
    wire.leader.install_response("n1", InstallResponse(1, Code.SUCCESS, 9, TOTAL))
    assert wire.leader.needed_from() == 10
    wire.leader.response("n1", PushResponse(1, Code.SUCCESS, 9, 9, 9))
    wire.leader.response("n1", PushResponse(1, Code.SUCCESS, 12, 12, 12))
    assert wire.leader.needed_from() == 13
    wire.leader.peer_down("n1")
    assert wire.leader.needed_from() == 20


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[int], int, BasedLog, int, int]:
    """(history, where the leader's log begins, the follower's log, its commit index, term)."""
    steps = draw(st.lists(st.integers(0, 2), min_size=2, max_size=40))
    history = [2]
    for step in steps:
        history.append(history[-1] + 2 * step)
    committed = draw(st.integers(-1, len(history) - 2))
    leader_first = draw(st.integers(0, committed + 1))
    own_commit = draw(st.integers(-1, committed))
    first = draw(st.integers(0, own_commit + 1))
    agrees_to = draw(st.integers(own_commit, len(history) - 1))
    prefix = history[: agrees_to + 1]
    extra = []
    if draw(st.booleans()):
        # what a deposed leader left: odd terms, between the last that agrees and the present
        terms = [term for term in range(prefix[-1] if prefix else 1, history[-1]) if term % 2]
        extra = sorted(draw(st.lists(st.sampled_from(terms), max_size=10))) if terms else []
    term = history[-1]
    follower = BasedLog([*prefix[first:], *extra], first, prefix[first - 1] if first else -1)
    return history, leader_first, follower, own_commit, term


@given(situations())
def test_every_follower_ends_with_the_leaders_log_in_a_bounded_number_of_exchanges(
    situation: tuple[list[int], int, BasedLog, int, int],
) -> None:
    history, leader_first, follower, commit, term = situation
    wire = Wire(history, leader_first, follower, commit, term)
    wire.run(200)
    assert wire.installs <= 1 and not wire.given_up
    assert wire.log.terms == history[wire.log.first_index :]
