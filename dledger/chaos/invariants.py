"""Checks of what must hold in every group at every moment. A comment above each check says the rule in
English.

There are three kinds, after LogCabin's RaftConsensusInvariants:

* `check_node`  the state of one node at one instant;
* `check_step`  one node before and after a change;
* `Cluster`     the whole group. It is told of each event (an election, a vote, an append, a commit, an
  acknowledgement) and compares the event with all earlier ones.

Every check costs O(1) per event: the chain CRC of an entry stands for the whole log up to it. All checks
raise `InvariantViolated`. No check uses random numbers, waits, or changes the state that it reads. The
simulator calls the checks from its hooks (`dledger/chaos/scenarios/probe.py`); unit tests call them with
made-up states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dledger.host import Role


class InvariantViolated(Exception):
    """Raised when an invariant does not hold."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The observable state of one running node at one instant. `life` counts the starts of its process."""

    name: str
    life: int
    role: Role
    term: int
    vote: str | None
    serving: bool
    first_index: int
    last_index: int
    last_term: int
    durable_index: int
    commit_index: int
    applied_index: int


class Entry(NamedTuple):
    """The parts of an entry by which logs are compared. `chain` is a checksum of the entry and of everything
    before it, without the entry's `channel`."""

    term: int
    chain: int
    pos: int
    size: int
    channel: int = 0
    """Number that combines the kind of the entry and its batch count."""


# One node, one instant.


def commit_within_log(node: NodeState) -> bool:
    """Invariant: the commit index never lies beyond the last entry of the log."""
    return node.commit_index <= node.last_index


def durable_within_log(node: NodeState) -> bool:
    """Invariant: the durable index never lies beyond the last entry of the log."""
    return node.durable_index <= node.last_index


def applied_is_committed(node: NodeState) -> bool:
    """Invariant: only committed entries are applied."""
    return node.applied_index <= node.commit_index


def applied_is_durable(node: NodeState) -> bool:
    """Invariant: only entries that are durable on this node itself are applied (safety.md S21)."""
    return node.applied_index <= max(node.durable_index, node.first_index - 1)


def last_term_within_term(node: NodeState) -> bool:
    """Invariant: no entry of the log has a later term than the current term of the node."""
    return node.last_term <= node.term


def log_joins_commit(node: NodeState) -> bool:
    """Invariant: the log begins where the part that retention removed ends: no committed entry is missing
    between the two."""
    return node.first_index <= node.commit_index + 1 or node.last_index < node.first_index


def only_leaders_serve(node: NodeState) -> bool:
    """Invariant: only a leader serves."""
    return not node.serving or node.role is Role.LEADER


def serving_term_is_open(node: NodeState) -> bool:
    """Invariant: a node that serves has an entry of its own term, and has applied it (architecture rule
    6)."""
    return not node.serving or node.last_term == node.term


def leader_voted_for_itself(node: NodeState) -> bool:
    """Invariant: a leader has given its vote in its own term to itself."""
    return node.role is not Role.LEADER or node.vote == node.name


NODE: tuple[Callable[[NodeState], bool], ...] = (
    commit_within_log,
    durable_within_log,
    applied_is_committed,
    applied_is_durable,
    last_term_within_term,
    log_joins_commit,
    only_leaders_serve,
    serving_term_is_open,
    leader_voted_for_itself,
)


def check_node(node: NodeState) -> None:
    """Check all invariants of one node. Raises InvariantViolated for the first that does not hold."""
    for holds in NODE:
        if not holds(node):
            raise InvariantViolated(f"{holds.__name__}: {node}")


# One node, before and after.


def term_never_falls(before: NodeState, after: NodeState) -> bool:
    """Invariant: the term of a running node only grows (across crashes: see `Cluster.started`)."""
    return after.term >= before.term


def commit_never_falls(before: NodeState, after: NodeState) -> bool:
    """Invariant: the commit index of a running node only grows."""
    return after.commit_index >= before.commit_index


def applied_never_falls(before: NodeState, after: NodeState) -> bool:
    """Invariant: the applied index of a running node only grows."""
    return after.applied_index >= before.applied_index


def vote_stays(before: NodeState, after: NodeState) -> bool:
    """Invariant: a vote given in a term is neither changed nor taken back in that term."""
    return after.term != before.term or before.vote is None or after.vote == before.vote


def leader_only_appends(before: NodeState, after: NodeState) -> bool:
    """Invariant: a leader never shortens its own log (Leader Append-Only, Raft figure 3)."""
    leads = before.role is Role.LEADER and after.role is Role.LEADER and before.term == after.term
    return not leads or after.last_index >= before.last_index


STEP: tuple[Callable[[NodeState, NodeState], bool], ...] = (
    term_never_falls,
    commit_never_falls,
    applied_never_falls,
    vote_stays,
    leader_only_appends,
)


def check_step(before: NodeState, after: NodeState) -> None:
    """Check all invariants of a change of one node from state `before` to state `after`. The node must not
    have been started again between the two. Raises InvariantViolated for the first that does not hold."""
    if (before.name, before.life) != (after.name, after.life):
        raise ValueError("two lives of a node have no step between them: use Cluster.started")
    for holds in STEP:
        if not holds(before, after):
            raise InvariantViolated(f"{holds.__name__}:\n  before {before}\n  after  {after}")


# The group.


class Cluster:
    """The history of the whole group so far, and the checks of each new event against it.

    A *store* is one node's directory. A node whose disk was wiped gets another store. Each method for an
    event records the event, and raises InvariantViolated if the event contradicts the history.
    """

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        """Maps a term to the store of its leader."""
        self.votes: dict[tuple[str, int], str] = {}
        """Maps (store, term) to the candidate that the store voted for."""
        self.chains: dict[tuple[int, int], int] = {}
        """Maps (index, term) to the chain value of the entry, for every entry that ever was in a log."""
        self.committed: dict[int, Entry] = {}
        """Maps an index to its entry, for all entries that a node regarded as committed."""
        self.commit_index: int = -1
        self.announced: dict[str, int] = {}
        """Maps a store to the highest term that the store used in a message."""
        self.promised: dict[str, tuple[int, Entry]] = {}
        """Maps a store to (index, entry) of the last entry that the store acknowledged as durable and has not
        removed since."""
        self.forgotten: dict[str, int] = {}
        """Maps a store that lost acknowledged entries to the group's commit index when the store was opened
        again."""
        self.checks: dict[str, int] = {}
        """Maps the name of an invariant to how often it was checked."""

    def count(self, name: str, times: int = 1) -> None:
        """Count that an invariant was checked so many times."""
        self.checks[name] = self.checks.get(name, 0) + times

    def elected(self, store: str, term: int, log: dict[int, Entry]) -> None:
        """Note that a store was elected leader of a term with this log. Checks that the term has no other
        leader, and that the log has the last entry that was committed in an earlier term."""
        # Election Safety: at most one leader per term; and who lost a term does not lead it again.
        self.count("one leader per term")
        other = self.leaders.get(term)
        if other is not None:
            raise InvariantViolated(f"two leaders in term {term}: {other} and {store}")
        self.leaders[term] = store
        # Leader Completeness: an entry that was committed before is in the log of every later leader.
        self.count("leader completeness")
        wanted = self.committed.get(self.commit_index)
        if wanted is not None and wanted.term < term and log.get(self.commit_index) != wanted:
            raise InvariantViolated(
                f"{store} leads term {term} without committed entry {self.commit_index}: "
                f"{log.get(self.commit_index)} is no {wanted}"
            )

    def serves(self, store: str, term: int, applied_index: int, log: dict[int, Entry]) -> None:
        """Note that a leader begins to serve clients. Checks that the last applied entry is of the leader's
        own term."""
        # It serves when an entry of its own term is committed and applied (architecture rule 6): only then
        # does it know what was committed before.
        self.count("the term is open before it is served")
        entry = log.get(applied_index)
        if entry is None or entry.term != term:
            raise InvariantViolated(f"{store} serves term {term}, but applied {applied_index}: {entry}")

    def voted(self, store: str, term: int, candidate: str, log: dict[int, Entry]) -> None:
        """Note that a node sent a vote for `candidate`. Checks that it gave no other vote in this term. If
        its store had lost acknowledged entries, checks that it has got them back."""
        # Who lost what it had acknowledged gives no vote before it holds what was committed then (S3).
        index = self.forgotten.get(store)
        if index is not None:
            self.count("no vote of a store that forgot")
            if index in self.committed and log.get(index) != self.committed[index]:
                raise InvariantViolated(f"{store} votes for {candidate}, but has not got entry {index} back")
            del self.forgotten[store]
        # One vote per term and store, also across crashes.
        self.count("one vote per term")
        other = self.votes.setdefault((store, term), candidate)
        if other != candidate:
            raise InvariantViolated(f"{store} voted in term {term} for {other} and for {candidate}")

    def told_term(self, store: str, term: int) -> None:
        """Record that a node used its term in a message."""
        if term > self.announced.get(store, -1):
            self.announced[store] = term

    def started(self, store: str, term: int, log: dict[int, Entry], excused: bool) -> None:
        """Note that a node opened its store. Checks that the node's term is not lower than one it used in a
        message before. Checks also that the last entry it had acknowledged as durable is still in the store.

        `excused` says that the node's disk failed, so the acknowledged entry may be missing.
        """
        # The term survives a crash: whoever said "term 7" never comes back in term 6.
        self.count("term survives a crash")
        if term < self.announced.get(store, -1):
            raise InvariantViolated(f"{store} said it is in term {self.announced[store]}, now {term}")
        # What was acknowledged as durable survives a crash.
        self.count("acknowledged entries survive a crash")
        promise = self.promised.get(store)
        if promise is None:
            return
        index, entry = promise
        if log.get(index) == entry:
            return
        if not excused:
            raise InvariantViolated(
                f"{store} acknowledged entry {index} {entry} as durable and came back with {log.get(index)}"
            )
        del self.promised[store]
        self.forgotten[store] = self.commit_index

    def ends(self, store: str, index: int, end_pos: int, entry_end: int) -> None:
        """Check where a log ends. Its last entry is `index`, that entry ends at `entry_end`, and the next
        entry would begin at `end_pos`."""
        # A log ends where its last entry ends: equal logs go on at one place on every node (safety.md S5).
        self.count("a log ends where its last entry ends")
        if end_pos != entry_end:
            raise InvariantViolated(
                f"the log of {store} ends at {end_pos}, its last entry {index} at {entry_end}"
            )

    def appended(self, store: str, index: int, entry: Entry) -> None:
        """Note that an entry was added to a log. Checks that its chain value is that of every other entry
        with this index and term."""
        # Log Matching: one term has one entry at an index, and the same ones before it.
        self.count("log matching")
        chain = self.chains.setdefault((index, entry.term), entry.chain)
        if chain != entry.chain:
            raise InvariantViolated(
                f"entry {index} of term {entry.term} has chain {entry.chain:x} on {store}, {chain:x} before"
            )

    def dated(self, store: str, index: int, store_time_ms: int, before_ms: int) -> None:
        """Check that the store time of an entry that was added to a log does not go back. `store_time_ms` is
        the time of its record, and `before_ms` the time of the record before it. -1 means that a record has
        no store time."""
        # Store time never goes back in a log (safety.md S15): retention goes by it.
        self.count("store time never goes back")
        if 0 <= store_time_ms < before_ms:
            raise InvariantViolated(
                f"store time goes back at entry {index} on {store}: {store_time_ms} ms after {before_ms}"
            )

    def cut(self, store: str, index: int, log: dict[int, Entry]) -> None:
        """Note that a node removes its entries from `index` on. Checks that they are not committed."""
        # Nothing committed is ever cut, whether the node knows of the commit or not.
        self.count("nothing committed is cut")
        entry = log.get(index)
        if entry is not None and self.committed.get(index) == entry:
            raise InvariantViolated(f"{store} cuts entry {index}, which is committed: {entry}")
        promise = self.promised.get(store)
        if promise is not None and promise[0] >= index:
            if index - 1 in log:
                self.promised[store] = (index - 1, log[index - 1])
            else:
                del self.promised[store]

    def commits(self, store: str, first: int, last: int, log: dict[int, Entry]) -> None:
        """Note that a node regards the entries `first..last` as committed. Checks that it has them, and that
        no other entry was committed at one of these indexes."""
        # State Machine Safety: no two nodes commit different entries at one index.
        for index in range(first, last + 1):
            self.count("state machine safety")
            entry = log.get(index)
            if entry is None:
                raise InvariantViolated(f"{store} commits entry {index}, which it does not have")
            other = self.committed.setdefault(index, entry)
            if other != entry:
                raise InvariantViolated(f"{store} commits {entry} at {index}, elsewhere {other} is committed")
        if last > self.commit_index:
            self.commit_index = last

    def leader_commits(
        self, store: str, term: int, index: int, log: dict[int, Entry], durable: int, voters: int
    ) -> None:
        """Check that a leader may move its commit index to `index`: the entry must be of its own term, and
        durable on a majority. `voters` is the number of members with a vote, and `durable` is how many of
        them have the entry on their disks."""
        # Only entries of the leader's own term are committed by counting (Raft 5.4.2, figure 8).
        self.count("no old term committed by counting")
        entry = log.get(index)
        if entry is None or entry.term != term:
            raise InvariantViolated(
                f"{store}, leader of term {term}, commits entry {index} by counting: {entry}"
            )
        # Nothing is committed before it is durable on a majority. So nothing is acknowledged before that
        # either.
        self.count("committed is durable on a quorum")
        if durable * 2 <= voters:
            raise InvariantViolated(
                f"{store} commits entry {index}, which is durable on {durable} of {voters} voters only"
            )

    def promises(self, store: str, index: int, log: dict[int, Entry], durable: bool) -> None:
        """Note that a node acknowledges everything up to `index` as durable. Raises InvariantViolated if its
        disk does not have all of it (`durable` is false)."""
        # An acknowledgement is given for what is on the disk, not for what was handed to it.
        self.count("acknowledged is durable")
        if not durable:
            raise InvariantViolated(
                f"{store} acknowledges entry {index} as durable, its disk does not have it"
            )
        if index in log:
            self.promised[store] = (index, log[index])

    def applied(self, store: str, index: int, term: int, chain: int) -> None:
        """Check that the entry which a state machine applied is the committed one."""
        # Every state machine applies the committed entries and no others, each at its index.
        self.count("applied is committed")
        entry = self.committed.get(index)
        if entry is None or (entry.term, entry.chain) != (term, chain):
            raise InvariantViolated(
                f"{store} applied term {term} chain {chain:08x} at {index}, committed is {entry}"
            )

    def same(self, what: str, values: Iterable[tuple[str, object]]) -> None:
        """Check that all given stores have the same value: equal state at equal indexes, or equal logs."""
        self.count(what)
        items = list(values)
        for store, value in items[1:]:
            if value != items[0][1]:
                raise InvariantViolated(f"{what}: {items[0][0]} has {items[0][1]}, {store} has {value}")
