"""Replication cores against each other over lists: agreement, pipelining, commit (safety.md S16, S22)."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvariantBroken
from dledger.log.terms import TermTable
from dledger.messages import Append, Code, Commit, Compare, PushResponse, Truncate
from dledger.replication import follower as fcore
from dledger.replication import leader as lcore
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication, PushState
from dledger.replication.quorum import quorum_index


class ListLog:
    """A log of terms only."""

    def __init__(self, terms: list[int]) -> None:
        self.entries = list(terms)
        self.durable = len(terms) - 1
        self.rotten = 1 << 62
        """Index of the first rotten entry."""

    first_index = 0

    @property
    def last_index(self) -> int:
        return len(self.entries) - 1

    @property
    def durable_index(self) -> int:
        return min(self.durable, self.rotten - 1)

    @property
    def durable_mark(self) -> int:
        return self.durable

    def term_of(self, index: int) -> int | None:
        if index == -1:
            return -1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def last_of_term_at_most(self, term: int, index: int) -> int:
        while index >= 0 and self.entries[index] > term:
            index -= 1
        return index

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        last = min(self.last_index, first + 2)
        return last, 100 * (last - first + 1)


def leader_of(log: ListLog, term: int, *, window: int = 1000) -> LeaderReplication:
    return LeaderReplication(
        term,
        "n0",
        ["n0", "n1", "n2"],
        ["n0", "n1", "n2"],
        log,
        -1,
        log.last_index,
        push_bytes=300,
        inflight_bytes=window,
    )


class Wire:
    """Carries effects between one leader and one follower until nothing moves."""

    def __init__(self, leader_terms: list[int], follower_terms: list[int], term: int) -> None:
        self.leader_log = ListLog(leader_terms)
        self.follower_log = ListLog(follower_terms)
        self.leader = leader_of(self.leader_log, term)
        self.follower = FollowerReplication(term, "n0", self.follower_log)
        self.commit = -1
        self.messages = 0
        self.compares = 0
        self._queue: deque[lcore.Effect] = deque()

    def run(self) -> None:
        self._queue.extend(self.leader.peer_up("n1", True))
        while self._queue:
            self._deliver(self._queue.popleft())

    def _deliver(self, effect: lcore.Effect) -> None:
        self.messages += 1
        commit = self.leader.commit_index
        if isinstance(effect, lcore.SendCompare):
            self.compares += 1
            self._push(Compare(self.leader.term, "n0", effect.index, effect.entry_term, commit))
        elif isinstance(effect, lcore.SendTruncate):
            self._push(Truncate(self.leader.term, "n0", effect.index, effect.entry_term, commit))
        elif isinstance(effect, lcore.SendAppend):
            self._push(
                Append(
                    self.leader.term,
                    "n0",
                    effect.first - 1,
                    effect.prev_term,
                    effect.first,
                    effect.last,
                    0,
                    commit,
                    b"",
                )
            )
        elif isinstance(effect, lcore.SendCommit):
            self._push(Commit(self.leader.term, "n0", commit))

    def _push(self, push: Compare | Truncate | Append | Commit) -> None:
        self._follow(push, self.follower.receive(push, self.commit))

    def _follow(self, push: Compare | Truncate | Append | Commit, effects: list[fcore.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fcore.Respond):
                self._queue.extend(self.leader.response("n1", effect.response))
            elif isinstance(effect, fcore.CommitTo):
                self.commit = max(self.commit, min(effect.index, self.follower_log.last_index))
            elif isinstance(effect, fcore.CutLog):
                del self.follower_log.entries[effect.index :]
                self.follower_log.durable = min(self.follower_log.durable, effect.index - 1)
                self._push(push)
                return
            elif isinstance(push, Append):
                self._store(push)

    def _store(self, push: Append) -> None:
        terms = self.leader_log.entries[push.first : push.last + 1]
        if push.first <= self.follower_log.last_index:
            overlap = self.follower.overlap(push.first, terms, self.commit)
            if overlap and isinstance(overlap[0], fcore.CutLog):
                self._follow(push, overlap)
                return
        self.follower_log.entries[push.first :] = terms
        self.follower_log.durable = self.follower_log.last_index
        self._follow(push, self.follower.stored(push.last))
        self._follow(push, self.follower.durable_moved())


logs = st.lists(st.integers(0, 6), max_size=30).map(sorted)


@given(logs, logs, st.integers(0, 30))
def test_any_two_logs_become_equal_and_commit(ours: list[int], theirs: list[int], common: int) -> None:
    """Logs that share a prefix (log matching) and diverge after it, the leader's term opened at the end."""
    prefix = ours[:common]
    theirs = prefix + [term for term in theirs if not prefix or term >= prefix[-1]]
    # Entries of one term come from one leader: a shared term must mean shared entries.
    shared = set(ours[len(prefix) :])
    theirs = prefix + [term for term in theirs[len(prefix) :] if term not in shared]
    wire = Wire([*ours, 7], theirs, 7)
    wire.run()
    assert wire.follower_log.entries == wire.leader_log.entries
    assert wire.leader.commit_index == wire.leader_log.last_index
    assert wire.commit == wire.leader.commit_index


def test_a_long_divergence_needs_a_handful_of_exchanges() -> None:
    wire = Wire([1] * 10_000 + [3] * 10_000 + [9], [1] * 10_000 + [2] * 20_000, 9)
    wire.run()
    assert wire.follower_log.entries == wire.leader_log.entries
    assert wire.compares <= 3


def test_an_old_term_entry_is_not_committed_by_counting() -> None:
    """Raft figure 8: index 1 of term 2 is on a majority, but only an entry of term 4 commits it."""
    log = ListLog([1, 2, 4])
    log.durable = 2
    leader = leader_of(log, 4)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(4, Code.SUCCESS, 1, 1, 1))
    assert leader.commit_index == -1
    leader.progress["n1"].state = PushState.APPEND
    leader.response("n1", PushResponse(4, Code.SUCCESS, 2, 2, 2))
    assert leader.commit_index == 2


def test_what_a_peer_holds_only_in_memory_does_not_count() -> None:
    log = ListLog([1, 1, 1])
    leader = leader_of(log, 1)
    leader.opening_index = 0
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 2, 0, 2))
    assert leader.commit_index == 0


def test_a_peer_that_comes_back_with_less_is_sent_what_it_lost() -> None:
    """Found by simulation: a watermark kept across a reconnection led to endless compares."""
    log = ListLog([1] * 10)
    leader = leader_of(log, 1)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 9, 4, 9))
    leader.peer_down("n1")
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, 4, 4, 1))
    effects = leader.response("n1", PushResponse(1, Code.SUCCESS, 4, 4, 4))
    assert next(effect.first for effect in effects if isinstance(effect, lcore.SendAppend)) == 5


def test_an_unrecorded_incarnation_counts_towards_no_quorum() -> None:
    log = ListLog([1])
    leader = leader_of(log, 1)
    leader.peer_up("n1", False)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 0, 0, 0))
    assert leader.commit_index == -1
    leader.peer_counts("n1", True)
    leader.response("n1", PushResponse(1, Code.SUCCESS, 0, 0, 0))
    assert leader.commit_index == 0


def test_the_window_bounds_what_is_in_flight() -> None:
    log = ListLog([1] * 100)
    leader = leader_of(log, 1, window=500)
    leader.peer_up("n1", True)
    effects = leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    assert next(effect for effect in effects if isinstance(effect, lcore.SendCompare)).index == -1
    effects = leader.response("n1", PushResponse(1, Code.SUCCESS, -1, -1, -1))
    frames = [effect for effect in effects if isinstance(effect, lcore.SendAppend)]
    assert [(frame.first, frame.last) for frame in frames] == [(0, 2), (3, 5)]
    effects = leader.response("n1", PushResponse(1, Code.SUCCESS, 2, 2, 2))
    assert [effect.first for effect in effects if isinstance(effect, lcore.SendAppend)] == [6]


def test_a_peer_whose_disk_is_full_is_sent_one_batch_at_a_time_until_one_is_stored() -> None:
    log = ListLog([1] * 100)
    leader = leader_of(log, 1)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))

    def appends(code: Code, stored: int) -> list[int]:
        effects = leader.response("n1", PushResponse(1, code, stored, stored, stored))
        return [effect.first for effect in effects if isinstance(effect, lcore.SendAppend)]

    assert len(appends(Code.SUCCESS, -1)) > 1
    for _ in range(3):
        assert appends(Code.DISK_FULL, -1) == []
        (again,) = leader.resume_paused()
        assert isinstance(again, lcore.SendCompare) and again.index == 99
        leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
        assert appends(Code.SUCCESS, -1) == [0], "not the whole window, twice a second"
    assert len(appends(Code.SUCCESS, 0)) > 1, "it has room again"


def test_what_a_peer_has_beyond_a_push_is_not_sent_again() -> None:
    """A cold push takes the rest of its client batch along; a second push of that rest would not be answered,
    and might be all that the window holds."""
    leader = leader_of(ListLog([1] * 100), 1, window=500)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    leader.response("n1", PushResponse(1, Code.SUCCESS, -1, -1, -1))
    effects = leader.response("n1", PushResponse(1, Code.SUCCESS, 20, 20, 20))
    assert [effect.first for effect in effects if isinstance(effect, lcore.SendAppend)] == [21, 24]


def test_answers_of_another_term_are_ignored() -> None:
    log = ListLog([1, 1])
    leader = leader_of(log, 2)
    leader.peer_up("n1", True)
    assert leader.response("n1", PushResponse(1, Code.SUCCESS, 1, 1, 1)) == []
    assert leader.progress["n1"].stored == -1


def test_a_follower_acknowledges_only_what_agreed_with_this_leader() -> None:
    log = ListLog([1, 1, 1, 1])
    follower = FollowerReplication(5, "n0", log)
    (response, commit) = follower.receive(Compare(5, "n0", 1, 1, 99), -1)
    assert isinstance(response, fcore.Respond)
    assert (response.response.stored, response.response.durable) == (1, 1)
    assert commit == fcore.CommitTo(1)


def watermarks(effects: list[fcore.Effect]) -> list[tuple[int, int]]:
    return [(e.response.stored, e.response.durable) for e in effects if isinstance(e, fcore.Respond)]


def test_a_follower_says_stored_of_what_is_on_its_disk_and_no_more_in_memory() -> None:
    log = ListLog([1, 1])
    follower = FollowerReplication(1, "n0", log)
    assert watermarks(follower.receive(Compare(1, "n0", 1, 1, -1), -1)) == [(1, 1)]
    log.entries += [1, 1, 1]
    follower.receive(Append(1, "n0", 1, 1, 2, 4, 0, -1, b""), -1)
    follower.stored(4)
    assert watermarks(follower.durable_moved()) == []
    log.durable = 3
    assert watermarks(follower.durable_moved()) == [(3, 3)]
    assert watermarks([follower.disk_full()]) == [(3, 3)]
    # What agrees and is in memory is told of when it is written: a new connection opens no second window.
    assert watermarks(follower.receive(Compare(1, "n0", 4, 1, -1), -1)) == [(3, 3)]
    log.durable = 4
    assert watermarks(follower.durable_moved()) == [(4, 4)]


def test_rot_and_lost_trust_hold_back_what_counts_and_not_what_is_sent() -> None:
    """Else a store that is refilled, or waits for a repair, would get one window and never more."""
    log = ListLog([1] * 4)
    log.rotten = 1
    follower = FollowerReplication(1, "n0", log)
    assert watermarks(follower.receive(Compare(1, "n0", 3, 1, -1), -1)) == [(3, 0)]
    log = ListLog([1] * 4)
    follower = FollowerReplication(1, "n0", log)
    follower.trusted = False
    assert watermarks(follower.receive(Compare(1, "n0", 3, 1, 9), -1)) == [(3, -1)]
    assert watermarks([follower.disk_full()]) == [(3, -1)]


def test_nothing_is_sent_to_a_peer_before_its_disk_has_what_was_agreed_upon() -> None:
    leader = leader_of(ListLog([1] * 100), 1)
    (compare,) = leader.peer_up("n1", True)
    assert compare == lcore.SendCompare("n1", 99, 1)
    (compare,) = leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, 50, 50, 1))
    assert compare == lcore.SendCompare("n1", 50, 1)
    for written in (-1, 20, 49):
        assert leader.response("n1", PushResponse(1, Code.SUCCESS, written, written, 50)) == []
        assert leader.progress["n1"].state is PushState.COMPARE
        assert leader.needed_from() == (written + 1 if written >= 0 else 100)
    sent = leader.response("n1", PushResponse(1, Code.SUCCESS, 50, 50, 50))
    assert [push.first for push in sent if isinstance(push, lcore.SendAppend)] == [51, 54, 57, 60]


def test_the_window_opens_by_what_the_peer_has_written() -> None:
    log = ListLog([1] * 100)
    leader = leader_of(log, 1, window=900)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(1, Code.INCONSISTENT_STATE, -1, -1, -1, -1, -1))
    leader.response("n1", PushResponse(1, Code.SUCCESS, -1, -1, -1))
    assert leader.progress["n1"].next == 9
    for written, sent in ((2, [9]), (2, []), (4, []), (8, [12, 15])):
        effects = leader.response("n1", PushResponse(1, Code.SUCCESS, written, -1, 8))
        assert [push.first for push in effects if isinstance(push, lcore.SendAppend)] == sent


def test_cutting_what_is_committed_is_a_bug() -> None:
    follower = FollowerReplication(5, "n0", ListLog([1, 1, 1]))
    with pytest.raises(InvariantBroken):
        follower.receive(Truncate(5, "n0", 1, 4, -1), 2)


def test_a_peer_that_claims_more_than_the_leader_has_is_a_bug() -> None:
    leader = leader_of(ListLog([1]), 1)
    leader.peer_up("n1", True)
    with pytest.raises(InvariantBroken):
        leader.response("n1", PushResponse(1, Code.SUCCESS, 5, 5, 5))


@pytest.mark.parametrize(
    ("marks", "index"),
    [
        ([5, 3, -1], 3),
        ([5, -1, -1], -1),
        ([120, 100, 120, 90, 90], 100),
        ([101, 101, 100], 101),
        ([7], 7),
        ([], -1),
        ([4, 2], 2),
    ],
)
def test_quorum_index(marks: list[int], index: int) -> None:
    assert quorum_index(marks) == index


@given(st.lists(st.integers(0, 5), max_size=20).map(sorted), st.integers(-1, 25), st.integers(-1, 7))
def test_term_table_agrees_with_a_list(terms: list[int], index: int, term: int) -> None:
    table = TermTable()
    for place, value in enumerate(terms):
        table.add(place, value)
    model = ListLog(terms)
    if 0 <= index < len(terms):
        assert table.term_of(index) == model.term_of(index)
        assert table.last_of_term_at_most(term, index) == model.last_of_term_at_most(term, index)
    table.truncate(max(index, 0))
    if index > 0 and terms:
        last = min(index, len(terms)) - 1
        assert table.term_of(last) == terms[last]
