"""The shell (the part with I/O) of replication. It performs the effects that the pure parts decide on, on the
log and on the connections.

As a leader it makes frames from `SendAppend`: from memory if the entries are recent, otherwise with data that
a worker reads from the disk. As a follower it checks, cuts, stores and acknowledges. The node passes messages
to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from dledger.config import NodeConfig
from dledger.errors import InvariantBroken
from dledger.flight.recorder import FlightRecorder
from dledger.formats.entry import CorruptEntry, entry_pos
from dledger.log.incoming import Run, check_run
from dledger.log.reading import Rotten
from dledger.log.store import LogStore
from dledger.messages import Append, Code, Commit, Compare, PushResponse, Truncate
from dledger.peers.cold_pushes import ColdPushes, Throttle
from dledger.peers.held import HeldMessages
from dledger.peers.peers import Peers
from dledger.replication import follower as follower_core
from dledger.replication import leader as leader_core
from dledger.replication.follower import FollowerReplication, Push
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication
from dledger.runtime import Env

NEAR_ENTRIES = 64
"""The throttle is not checked for a peer that lacks no more entries than this."""
COMMIT_NOTICE_S = 0.01
"""Time, in seconds, that the news of a commit waits for a push that can carry it. After that it is sent in a
frame of its own. A producer that sends one message after the other needs no such frames, because each push
reports the commit of the message before."""
CHAIN_STRIKES = 3
"""Number of frames in a row that must contradict the chain CRC of this node's log before the log counts as
corrupt."""


class ReplicatorEvents(Protocol):
    """Events of the `Replicator` about the log; implemented by `dledger.node.node.Node`."""

    def committed(self, before: int, index: int) -> None:
        """Note that the commit index is now `index`. It was `before`, which may be equal."""

    def config_appended(self, index: int, body: bytes) -> None:
        """Note that a configuration entry was appended to the log (`body` holds the bytes of its record)."""

    def log_cut(self, last_index: int) -> None:
        """Note that the log was cut and ends at `last_index`."""

    def fail(self, error: BaseException) -> None:
        """Note that a callback failed, so the node ends."""


class Installs(Protocol):
    """Snapshots that a leader sends to peers which are behind its log; implemented in `dledger.snapshots`."""

    def offer(self) -> Offer | None:
        """Return the snapshot for a peer that is behind this log."""

    def send_install(self, leader: LeaderReplication, effect: leader_core.SendInstall) -> None:
        """Send a piece of the snapshot."""

    def no_snapshot(self, peer: str) -> None:
        """Note that a peer needs a snapshot, and that no available one would help it."""

    def forget(self) -> None:
        """Drop the pieces of snapshots that wait to be sent, because the leadership ended."""


class Replicator:
    """The replication of one node. `leader` is set while this node leads, `follower` while it follows a known
    leader."""

    def __init__(
        self,
        env: Env,
        config: NodeConfig,
        log: LogStore,
        peers: Peers,
        held: HeldMessages,
        events: ReplicatorEvents,
        recorder: FlightRecorder,
    ) -> None:
        self._env = env
        self._recorder = recorder
        self._log = log
        self._peers = peers
        self._held = held
        self._events = events
        self.commit_index: int = -1
        """Index up to which entries of this log are known to be committed."""
        self.leader: LeaderReplication | None = None
        self.follower: FollowerReplication | None = None
        self.throttle: Throttle = Throttle(config, log)
        self.cold: ColdPushes = ColdPushes(self.throttle, self._read_cold, self._push_cold, self._is_live)
        self._cuts: deque[tuple[str, Push, int, int, Callable[[], None]]] = deque()
        self._cut_wake = asyncio.Event()
        self._untold: dict[str, None] = {}
        """Peers that must still be notified of a commit: with a push, or otherwise by `_tell_commits`."""
        self._telling = False
        self.corrupt_frames: int = 0
        self._trusted = True
        self._chain_struck = -1
        self._chain_strikes = 0
        self.installs: Installs | None = None

    # Both

    def trust(self, trusted: bool) -> None:
        """Set whether this store's acknowledgements count from now on. Those of a store that must be refilled
        do not (S9)."""
        self._trusted = trusted
        if self.follower is not None and trusted:
            self.follower.trust(True)

    def known_committed(self, index: int) -> None:
        """Take over the commit index from the store or a snapshot. Nobody is notified."""
        self.commit_index = max(self.commit_index, index)

    def _commit_to(self, index: int) -> None:
        """Mark entries up to `index` as committed, but none beyond the end of this node's log."""
        before = self.commit_index
        self.commit_index = max(before, min(index, self._log.last_index))
        self._events.committed(before, self.commit_index)

    # Leader

    def lead(self, leader: LeaderReplication) -> None:
        """Begin a leadership."""
        self.follower = None
        self.leader = leader

    def stop_leading(self) -> None:
        """End the leadership, and drop the pushes of which nothing was sent yet."""
        self.leader = None
        self._untold = {}
        self._peers.forget_pushes()
        if self.installs is not None:
            self.installs.forget()

    def offer(self) -> Offer | None:
        """Return the snapshot for a peer that is behind this log."""
        return None if self.installs is None else self.installs.offer()

    def perform(self, effects: list[leader_core.Effect]) -> None:
        """Perform effects of the pure part of the leader."""
        leader = self.leader
        if leader is None:
            return
        for effect in effects:
            if isinstance(effect, leader_core.SendAppend):
                self._send_append(leader, effect)
            elif isinstance(effect, leader_core.Committed):
                self._commit_to(effect.index)
            elif isinstance(effect, leader_core.SendCommit):
                if self.cold.waits(effect.peer):
                    self.cold.add(leader, effect)
                else:
                    self._tell_soon(effect.peer)
            elif isinstance(effect, leader_core.SendCompare):
                self._peers.send(
                    effect.peer,
                    Compare(
                        leader.term, leader.self_id, effect.index, effect.entry_term, leader.commit_index
                    ),
                )
            elif isinstance(effect, leader_core.SendTruncate):
                self._peers.send(
                    effect.peer,
                    Truncate(
                        leader.term, leader.self_id, effect.index, effect.entry_term, leader.commit_index
                    ),
                )
            elif self.installs is None:
                continue
            elif isinstance(effect, leader_core.SendInstall):
                self.installs.send_install(leader, effect)
            else:
                self.installs.no_snapshot(effect.peer)

    def _tell_soon(self, peer: str) -> None:
        self._untold[peer] = None
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_later(COMMIT_NOTICE_S, self._tell_commits)

    def _tell_commits(self) -> None:
        self._telling = False
        self.tell_commits()

    def tell_commits(self) -> None:
        """Notify all peers now that still have to be notified of a commit."""
        leader = self.leader
        untold, self._untold = self._untold, {}
        if leader is None:
            return
        try:
            for peer in untold:
                self._peers.send(peer, Commit(leader.term, leader.self_id, leader.commit_index))
        except Exception as error:
            self._events.fail(error)  # a loop callback has no caller (rule 7)

    def _send_append(self, leader: LeaderReplication, effect: leader_core.SendAppend) -> None:
        far = self._log.last_index - effect.first > NEAR_ENTRIES
        if self.cold.waits(effect.peer) or (far and self.throttle.holds(leader, effect.peer)):
            self.cold.add(leader, effect)
            return
        data = self._log.range_bytes(effect.first, effect.last)
        if data is None:
            self.cold.add(leader, effect)
            return
        self._push(leader, effect, data)

    def _push(
        self,
        leader: LeaderReplication,
        effect: leader_core.SendAppend,
        data: bytes | memoryview,
        last: int | None = None,
    ) -> None:
        message = Append(
            leader.term,
            leader.self_id,
            effect.first - 1,
            effect.prev_term,
            effect.first,
            effect.last if last is None else last,
            entry_pos(data),
            leader.commit_index,
            data,
        )
        self._untold.pop(effect.peer, None)
        self._peers.send(effect.peer, message)

    async def _read_cold(
        self, leader: LeaderReplication, effect: leader_core.SendAppend
    ) -> tuple[bytes, int] | None:
        try:
            data, last = await self._log.read_range(effect.first, effect.last)
        except Rotten:
            self._pause(leader, effect)  # never send corrupt data: resume when it is repaired or removed
            return None
        except OSError as error:
            self._log.put_off(error, effect.first, effect.last)
            self._pause(leader, effect)  # paused peers are tried again at intervals
            return None
        if leader.withholds(effect.peer, last):
            self._pause(leader, effect)  # the rest of a client batch: resume when it is committed
            return None
        return data, last

    def _pause(self, leader: LeaderReplication, effect: leader_core.SendAppend) -> None:
        if leader.wants(effect):
            leader.pause(effect.peer)

    def _push_cold(
        self,
        leader: LeaderReplication,
        effect: leader_core.SendAppend | leader_core.SendCommit,
        data: bytes,
        last: int,
    ) -> None:
        if isinstance(effect, leader_core.SendAppend):
            self._push(leader, effect, data, last)
        else:
            self._peers.send(effect.peer, Commit(leader.term, leader.self_id, leader.commit_index))

    def _is_live(
        self, leader: LeaderReplication, effect: leader_core.SendAppend | leader_core.SendCommit
    ) -> bool:
        if self.leader is not leader or not self._peers.connected(effect.peer):
            return False
        return leader.wants(effect) if isinstance(effect, leader_core.SendAppend) else True

    def resume_paused(self) -> None:
        """Try peers again whose disk was full, or that need entries which were corrupt here."""
        if self.leader is not None:
            self.perform(self.leader.resume_paused())

    # Follower

    def follow(self, term: int) -> None:
        """Begin a new term: forget what was agreed with the leader of an earlier term."""
        if self.follower is not None and self.follower.term != term:
            self.follower = None

    def receive(self, peer: str, push: Push) -> None:
        """Handle a push of the current leader in the current term."""
        follower = self.follower
        if follower is None or follower.term != push.term or follower.leader != push.leader:
            follower = self._recorder.make_follower(push.term, push.leader, self._log)
            follower.trust(self._trusted)
            self.follower = follower
        self._perform_follower(peer, push, follower.receive(push, self.commit_index))

    def durable_moved(self) -> None:
        """Note that the durable index moved. Acknowledge it to the leader; if this node leads, count it for
        itself."""
        if self.leader is not None:
            self.perform(self.leader.local_durable())
        elif self.follower is not None:
            for effect in self.follower.durable_moved():
                if isinstance(effect, follower_core.Respond):
                    self._peers.send(self.follower.leader, effect.response)

    def installed(self, leader: str, index: int) -> None:
        """Note that a snapshot of this leader at `index` replaced the log."""
        self.known_committed(index)
        if self.follower is not None and self.follower.leader == leader:
            self.follower.installed(index)

    def refuse(self, peer: str, term: int) -> None:
        """Answer a push of an older term."""
        self._peers.send(peer, PushResponse(term, Code.EXPIRED_TERM, -1, -1, self._log.last_index))

    def _perform_follower(self, peer: str, push: Push, effects: list[follower_core.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, follower_core.StoreEntries):
                if isinstance(push, Append):
                    self._store(peer, push)
            elif isinstance(effect, follower_core.Respond):
                self._peers.send(peer, self._explained(push, effect.response))
            elif isinstance(effect, follower_core.CommitTo):
                self._commit_to(effect.index)
            else:
                self._cuts.append((peer, push, effect.index, self._log.resets, self._held.hold()))
                self._cut_wake.set()

    def _explained(self, push: Push, response: PushResponse) -> PushResponse:
        """Return the response with code DISK_FULL if it agrees but must wait for the disk, and the disk is
        full, because the wait may take long. Otherwise return it unchanged."""
        agreed = isinstance(push, Compare) and response.code is Code.SUCCESS and push.index > response.stored
        if agreed and not self._log.can_store(self._log.end_pos):
            return replace(response, code=Code.DISK_FULL)
        return response

    def _store(self, peer: str, push: Append) -> None:
        """Check the entries of a frame, then append those that are new."""
        follower = self.follower
        log = self._log
        if follower is None:
            return
        if not log.can_store(push.pos):  # first, because entries that are refused need no check
            self._peers.send(peer, follower.disk_full().response)
            return
        continues = push.first == log.last_index + 1
        try:
            run = check_run(
                bytes(push.data),
                push.first,
                push.last,
                push.pos,
                push.prev_term,
                push.term,
                log.last_chain if continues else None,
            )
        except CorruptEntry as error:
            if continues and error.reason == "chain CRC differs" and error.index == push.first:
                self._suspect_chain(push, error)
            self.corrupt_frames += 1
            self._env.log.error("damaged push frame dropped", peer=peer, error=error)
            self._peers.send(
                peer, PushResponse(push.term, Code.INCONSISTENT_STATE, follower.matched, -1, log.last_index)
            )
            return
        if continues:
            self._append_run(run, push.first)
            self._perform_follower(peer, push, follower.stored(push.last))
            return
        self._overlap(peer, push, run, follower)

    def _suspect_chain(self, push: Append, error: CorruptEntry) -> None:
        """Count a frame whose entries do not continue the chain CRC of this node's log. Either the frame was
        damaged, or this node has other content for an (index, term), which is corruption (S16)."""
        self._chain_strikes = self._chain_strikes + 1 if self._chain_struck == push.prev_index else 1
        self._chain_struck = push.prev_index
        if self._chain_strikes >= CHAIN_STRIKES:
            raise InvariantBroken(
                f"entry {push.prev_index} has the same term as the leader's ({push.prev_term}) but "
                f"different content: {error}"
            ) from error

    def _overlap(self, peer: str, push: Append, run: Run, follower: FollowerReplication) -> None:
        effects = follower.overlap(run.first, run.terms, self.commit_index)
        for effect in effects:
            if isinstance(effect, follower_core.StoreEntries):
                before = effect.first - 1
                own = self._log.last_chain
                if before >= run.first and own is not None and run.chains[before - run.first] != own:
                    raise InvariantBroken(
                        f"entry {before} has the same term as the leader's but different content"
                    )
                self._append_run(run, effect.first)
            else:
                self._perform_follower(peer, push, [effect])
                return
        if not effects:
            own = self._log.vouched_chain(run.last)
            if own is not None and own != run.chains[-1]:
                raise InvariantBroken(
                    f"entry {run.last} has the same term as the leader's but different content"
                )
        self._perform_follower(peer, push, follower.stored(push.last))
        self.durable_moved()

    def _append_run(self, run: Run, first: int) -> None:
        for batch in run.batches(first):
            self._log.join(batch)  # written when everything that came with it was read (`Inbox.on_read`)
        for index in run.configs:
            if index >= first:
                self._events.config_appended(index, run.body(index))

    async def run_cuts(self) -> None:
        """Cut conflicting suffixes of the log, one at a time. After each cut handle its push again."""
        while True:
            await self._cut_wake.wait()
            self._cut_wake.clear()
            while self._cuts:
                peer, push, index, resets, release = self._cuts.popleft()
                self._env.log.warning(
                    "cutting off entries that conflict with the leader",
                    first=index,
                    last=self._log.last_index,
                )
                if await self._log.truncate(index, resets):  # else an install replaced the log
                    self._events.log_cut(self._log.last_index)
                self._held.again(peer, push)
                release()
