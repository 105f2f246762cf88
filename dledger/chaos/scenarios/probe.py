"""Watches a node from one start to its end. Each event is checked against the invariants at once, and the
behaviour of the node does not change.

The probe is the listener of the node's host (roles, commits, applied entries) and wraps methods of this
node's objects: `log.join`, `truncate`, `drop_before` and `reset`, and `peers.send`. It keeps a *shadow* of
the log: a table with (term, chain, pos, size) of each entry by index. So each comparison is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from dledger.chaos.invariants import Entry, InvariantViolated, NodeState, check_node, check_step
from dledger.chaos.scenarios.disks import entry_of
from dledger.chaos.scenarios.register_host import HostEvents
from dledger.election.effects import Effect
from dledger.formats.entry import EntryHeader, unpack_header
from dledger.formats.store_files import HardState
from dledger.host import LogReader, Role
from dledger.log.base import LogBase
from dledger.log.hot_tail import Batch
from dledger.messages import (
    Append,
    Code,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

if TYPE_CHECKING:
    from dledger.chaos.scenarios.machine import Machine
    from dledger.chaos.scenarios.stage import Stage
    from dledger.node.node import Node
    from dledger.peers.links import PeerConnection

_Result = TypeVar("_Result")
_TELLS_TERM = (Heartbeat, HeartbeatResponse, TimeoutNow, Compare, Truncate, Append, Commit, PushResponse)


class Probe(HostEvents):
    """The probe of a node, from one start of the node to its end. The stage sets `node` right after it has
    made the node."""

    def __init__(self, stage: Stage, machine: Machine) -> None:
        self.machine = machine
        self._stage = stage
        self._cluster = stage.cluster
        self._marks = stage.marks
        self._life = machine.lives
        self._before: NodeState | None = None
        self._commit_checked = -1
        self._term_on_disk = -1
        self._saving: list[list[Effect]] = []
        """The effects that wait for a save of term and vote. There is one list for each save in progress."""
        self.cutting = False
        """Whether the node is truncating its log, so that the removed entries may or may not be on the disk.
        """
        self.opened = False
        """Whether the store is open. Until then the node counts as an empty learner."""
        self.node: Node

    @property
    def log(self) -> dict[int, Entry]:
        """The shadow of the log (see the module). Until the store is open, it is the shadow from before the
        node's start."""
        return self.machine.log

    def attach(self, node: Node) -> None:
        """Begin to watch a node: replace some of its methods by ones that also tell the probe."""
        self.node = node
        append, truncate, send = node.log.join, node.log.truncate, node.peers.send
        drop_before, reset = node.log.drop_before, node.log.reset
        reached = node.snapshots.boundary.reached
        opens, save, perform = node.elector.open, node.elections._save, node.elections.perform
        durable, applied = node._on_durable, node.applied
        receive = node.inbox.on_message

        def probed_open(hard_state: HardState, voters: Iterable[str], now: float, *, may_vote: bool) -> None:
            opens(hard_state, voters, now, may_vote=may_vote)
            self.opened = True

        def probed_append(batch: Batch) -> None:
            append(batch)
            self.guarded(self._appended, batch)
            self.guarded(self.check, "an append")

        async def probed_truncate(index: int, resets: int | None = None) -> bool:
            if resets in (None, node.log.resets):
                self.guarded(self._truncates, index)
            self.cutting = True
            done = await self._followed(truncate(index, resets), "a cut")
            self.cutting = False
            return done

        def probed_drop_before(base: LogBase) -> Coroutine[Any, Any, bool]:
            if base.index > self.machine.base.index:
                self.guarded(self.machine.begins, base)
            return self._followed(drop_before(base), "the log begins later")

        def probed_reset(base: LogBase) -> Coroutine[Any, Any, None]:
            self.guarded(self._replaced, base)
            return self._followed(reset(base), "an install")

        def probed_send(peer: str, message: Message) -> None:
            self.guarded(self._sends, peer, message)
            send(peer, message)

        picture, name, world = self._stage.picture, self.machine.name, self._stage.world

        def pictured_send(peer: str, message: Message) -> None:
            if picture is not None:
                picture.sends(name, peer, message, world.now)
            probed_send(peer, message)

        def pictured_message(connection: PeerConnection, peer: str, message: Message) -> None:
            if picture is not None:
                picture.receives(name, peer, message, world.now)
            receive(connection, peer, message)

        def probed_save(state: HardState, then: list[Effect]) -> None:
            self._saving.append(then)
            save(state, then)

        def probed_perform(effects: list[Effect]) -> None:
            saved = bool(self._saving) and effects is self._saving[0]
            if saved:
                del self._saving[0]
                self.guarded(self._stage.saved, self.machine)
            perform(effects)
            if saved:
                self.guarded(self.check, "a saved term or vote")

        def probed_durable() -> None:
            self.guarded(self.check, "an fsync")
            durable()

        def probed_applied() -> None:
            self.guarded(self.check, "an apply")
            applied()

        def probed_reached(index: int, pos: int) -> None:
            before = len(node.snapshots.boundary._waiting)
            reached(index, pos)
            if len(node.snapshots.boundary._waiting) > before:
                self.guarded(self._stage.takes_snapshot, self.machine)

        node.snapshots.boundary.reached = probed_reached  # type: ignore[method-assign]
        node.elector.open = probed_open  # type: ignore[method-assign]
        node.elections._save = probed_save  # type: ignore[method-assign]
        node.elections.perform = probed_perform  # type: ignore[method-assign]
        node._on_durable = probed_durable  # type: ignore[method-assign]
        node.applied = probed_applied  # type: ignore[method-assign]
        node.log.join = probed_append  # type: ignore[method-assign]
        node.log.truncate = probed_truncate  # type: ignore[method-assign]
        node.log.drop_before = probed_drop_before  # type: ignore[method-assign]
        node.log.reset = probed_reset  # type: ignore[method-assign]
        node.peers.send = probed_send  # type: ignore[method-assign]
        if picture is not None:
            node.peers.send = pictured_send  # type: ignore[method-assign]
            node.inbox.on_message = pictured_message  # type: ignore[method-assign]

    def state(self) -> NodeState:
        """The node's state for the invariants. While a new term or vote is not saved yet, it has the role,
        term and vote from before the change."""
        node = self.node
        elector, log = node.elector, node.log
        role, term, vote = elector.role, elector.term, elector.vote
        if self._saving and self._before is not None:
            role, term, vote = self._before.role, self._before.term, self._before.vote
        return NodeState(
            self.machine.name,
            self._life,
            role,
            term,
            vote,
            node.serving,
            log.first_index,
            log.last_index,
            log.last_term,
            log.durable_mark,
            node.commit_index,
            node.applied_index,
        )

    def check(self, event: str) -> None:
        """Check the node's own invariants after an event, and the change since the last check."""
        if not self.opened:
            return
        after = self.state()
        if (picture := self._stage.picture) is not None:
            now = self._stage.world.now
            picture.is_now(self.machine.name, after.role.value, after.term, after.serving, now)
        self._cluster.count(f"node after {event}")
        check_node(after)
        self._ends()
        if self._before is not None:
            self._cluster.count("step")
            check_step(self._before, after)
        self._before = after

    def _ends(self) -> None:
        log, store = self.node.log, self.machine.store
        if log.last_index < log.first_index:
            self._cluster.ends(store, log.last_index, log.end_pos, log.base.pos)
        elif (last := self.log.get(log.last_index)) is not None:  # otherwise the entry is being cut
            self._cluster.ends(store, log.last_index, log.end_pos, last.pos + last.size)

    async def _followed(self, work: Coroutine[Any, Any, _Result], event: str) -> _Result:
        """Await some work of the node, and then check the node."""
        done = await work
        self.guarded(self.check, event)
        return done

    def guarded(self, check: Callable[..., object], *arguments: Any) -> None:
        """Run a check. If it raises InvariantViolated, the run ends.

        No check is made in the rest of a turn in which the process has ended. The results of that rest never
        leave the node. Besides, under ASYNC_FLUSH, entries that had counted as durable may be lost with the
        power.
        """
        if not self.machine.running:
            return
        # The world ends the run. The node must not see the exception, because it might handle it.
        try:
            check(*arguments)
        except InvariantViolated as violation:
            self._stage.violated(str(violation))

    # What the node's host is told

    def opening(self, log: LogReader) -> None:
        self.guarded(self._open)

    def role(self, role: Role, term: int) -> None:
        if self.opened:
            self.guarded(self._role, role, term)

    def serving(self, term: int) -> None:
        self.guarded(self._serves, term)

    def committed(self, index: int) -> None:
        self.guarded(self._committed, index)

    def applied(self, header: EntryHeader) -> None:
        self.guarded(self._cluster.applied, self.machine.store, header.index, header.term, header.chain_crc)

    def restored(self, content: bytes, index: int) -> None:
        self.guarded(self._restored, content, index)

    def _restored(self, content: bytes, index: int) -> None:
        """Check that a restored snapshot equals the replayed state."""
        replayed = self._stage.chronicle.states([index])[index]
        self._cluster.same("snapshot equals replay", [("replay", replayed), (self.machine.name, content)])

    def _open(self) -> None:
        node, machine = self.node, self.machine
        last = node.log.last_index
        # Damaged entries cannot be read, but they still belong to the log.
        before, machine.log = machine.log, {}
        machine.log = {
            index: entry
            for index, entry in before.items()
            if machine.rotten and index <= last and node.log.term_of(index) == entry.term
        }
        machine.begins(node.log.base)
        for header, _ in machine.disk_store.walk(False, node.log.begin_pos, node.log.base.index):
            if header.index > last:
                break
            if header.index in machine.rotten and header.index in self.log:
                # no CRC covers the batch count: the walk accepts a damaged one, and the node does not
                continue
            self.log[header.index] = entry_of(header)
            self._cluster.appended(machine.store, header.index, self.log[header.index])
        if last >= node.log.first_index and last not in self.log:
            raise InvariantViolated(f"{machine.name} says its log ends at {last}, its disk ends before")
        self._ends()
        hard_state = node.elections._hard_state.loaded
        term = 0 if hard_state is None else hard_state.term
        # Entries that recovery has read are not durable for that reason, so the disk is checked again
        # (safety.md S2).
        machine.durable.cut(0)
        self._cluster.started(machine.store, term, self.log, machine.excused)
        self._commits_up_to(node.commit_index)

    def _role(self, role: Role, term: int) -> None:
        before = self._before
        if before is not None and before.role is Role.LEADER and (role, before.term) == (Role.FOLLOWER, term):
            self._marks.reach("leader stepped down without contact to a quorum")
        if role is Role.LEADER:
            self._stage.elected(self.machine, term)
            self._cluster.elected(self.machine.store, term, self.log)
        self.check("a change of role")

    def _serves(self, term: int) -> None:
        self._cluster.serves(self.machine.store, term, self.node.applied_index, self.log)
        self.check("a begin of service")

    def _committed(self, index: int) -> None:
        node, machine = self.node, self.machine
        first = self._commit_checked + 1
        if self._commits_up_to(index) and node.replicator.leader is not None and node.role is Role.LEADER:
            voters = node.elector.voters
            durable = sum(1 for voter in voters if self._stage.machines[voter].has_durably(self.log, index))
            self._cluster.leader_commits(machine.store, node.term, index, self.log, durable, len(voters))
            if first in self.log and self.log[first].term < node.term:
                self._marks.reach("entries of an older term committed by a newer one")
        self._stage.batches.committed(machine, index)
        self.check("a commit")

    def _commits_up_to(self, index: int) -> bool:
        first = max(self._commit_checked + 1, self.node.log.first_index)
        if index < first:
            return False
        self._cluster.commits(self.machine.store, first, index, self.log)
        self._commit_checked = index
        return True

    # What the node does

    def _appended(self, batch: Batch) -> None:
        offset = 0
        for index, size in enumerate(batch.sizes, batch.first):
            entry = self.log[index] = entry_of(unpack_header(batch.data, offset))
            self._cluster.appended(self.machine.store, index, entry)
            chronicle = self._stage.chronicle
            chronicle.note(index, entry.term, memoryview(batch.data)[offset : offset + size])
            before = self.log.get(index - 1)
            if before is not None:
                self._cluster.dated(
                    self.machine.store,
                    index,
                    chronicle.store_time(index, entry.term),
                    chronicle.store_time(index - 1, before.term),
                )
            self._stage.appended(self.machine, entry)
            offset += size

    def _truncates(self, index: int) -> None:
        cuts = index in self.log
        self._cut(index)
        if cuts:
            self._stage.cuts(self.machine)

    def _cut(self, index: int) -> None:
        node = self.node
        self._cluster.cut(self.machine.store, index, self.log)
        if index <= node.commit_index:
            raise InvariantViolated(
                f"{self.machine.name} cuts entry {index}, {node.commit_index} is committed"
            )
        last = max(self.log, default=-1)
        for gone in range(index, last + 1):
            del self.log[gone]
        self.machine.durable.cut(index)

    def _replaced(self, base: LogBase) -> None:
        """Note that a snapshot replaces the log. Check that this loses no committed entry."""
        committed = self._cluster.committed
        differs = (index for index in range(base.index + 1) if self.log.get(index) != committed.get(index))
        self._cut(next(differs, base.index + 1))
        self.machine.begins(base)
        self._stage.installs(self.machine)

    def _sends(self, peer: str, message: Message) -> None:
        store = self.machine.store
        if isinstance(message, VoteRequest):
            if message.transfer:
                self._marks.reach("stood because the leader said so")
            if not message.pre:
                vote = self._term_is_durable(message.term, self.machine.name)
                self._cluster.voted(store, message.term, vote, self.log)
                self._cluster.told_term(store, message.term)
        elif isinstance(message, VoteResponse):
            if message.result is VoteResult.ACCEPT and not message.pre:
                vote = self._term_is_durable(message.asked_term, peer)
                self._cluster.voted(store, message.asked_term, vote, self.log)
                self._cluster.told_term(store, message.asked_term)
            elif message.pre and message.result is VoteResult.REJECT_ALREADY_HAS_LEADER:
                self._marks.reach("pre-vote refused by stickiness")
        elif isinstance(message, _TELLS_TERM):
            if message.term > self._term_on_disk:
                self._term_is_durable(message.term, None)
            self._cluster.told_term(store, message.term)
            if isinstance(message, PushResponse) and message.code is Code.SUCCESS:
                self._promises(message.durable)

    def _promises(self, index: int) -> None:
        if index >= 0:
            self._cluster.promises(self.machine.store, index, self.log, self.machine.holds(index))

    def _term_is_durable(self, term: int, candidate: str | None) -> str:
        """Check that `term`, and the vote for `candidate` if it is given, are durable. Returns the vote on
        the disk: the candidate's id, perhaps with a slash and its incarnation after it."""
        # Term and vote are on the disk before anybody hears of them (Raft figure 2).
        self._cluster.count("term and vote are durable before they are told")
        state = self.machine.disk_store.hard_state()
        vote = "" if state is None or state.vote is None else state.vote
        told = candidate is None or (state and state.term == term and vote.partition("/")[0] == candidate)
        if state is None or state.term < term or not told:
            raise InvariantViolated(
                f"{self.machine.name} tells of term {term} and vote {candidate}, its disk holds {state}"
            )
        self._term_on_disk = state.term
        return vote
