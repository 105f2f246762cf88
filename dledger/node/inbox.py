"""What peers and clients say to a node, and in which order it is handled.

While term and vote are on their way to the disk, and while a cut runs, messages are held back and handled
afterwards in the order in which they came (architecture rule 3).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from dledger.election import effects as election
from dledger.election.identity import Hello
from dledger.members.reconfiguration import Changes
from dledger.messages import (
    REPLIES,
    Append,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    InstallResponse,
    InstallSnapshot,
    Message,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
)
from dledger.node.powerloss import KEPT_KEY, META_KEY, encode_end
from dledger.node.requests import ClientRequests
from dledger.node.status import NodeFace
from dledger.peers.links import PeerConnection
from dledger.peers.wire import Frame
from dledger.runtime import Log

_PUSHES = (Compare, Truncate, Append, Commit)
_READS = (ReadIndexRequest, ReadIndexResponse)
_INSTALLS = (InstallSnapshot, InstallResponse)
_FROM_ANYONE = (*_PUSHES, Heartbeat, TimeoutNow, VoteRequest, PushResponse, *_READS, *_INSTALLS)
"""Handled whoever sends them: a leader or candidate may be a voter by an entry that this node lacks (see
dledger/members/config_log.py), and a learner's answers move its window. Other answers count only from a
named voter."""
MAX_HELD = 10_000
"""Peer messages held back while term and vote are saved; with one more its connection is closed. Who sends
relies on a connection that loses nothing while it stands: no question is asked twice over the same one."""


class Conversation(NodeFace):
    """The node as its peers meet it."""

    changes: Changes
    _requests: ClientRequests
    _say: Log
    _lost_power: bool
    _held: deque[tuple[PeerConnection | None, str, Message]]
    _holds: int
    _identity_wake: asyncio.Event

    @abstractmethod
    def perform(self, effects: list[election.Effect]) -> None:
        """Perform election effects in order."""

    @abstractmethod
    def _schedule_tick(self) -> None:
        """The elector's deadline may be another."""

    def my_hello(self) -> Hello:
        """The hello to send now."""
        return Hello(
            self.config.group,
            self.config.self_id,
            self.identity.incarnation,
            self.identity.cluster,
            self.config.protocol_min,
            self.config.protocol_max,
            self.config.segment_size,
            self.config.sync_flush,
            self.identity.members,
            self._meta(),
            self.config.lease_promise_ms,
            self.membership.config_index(),
            self._members.current.digest(),
            self.config.state_version,
        )

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Ids of those who may connect, given who asks."""
        return self.membership.welcome(hello)

    def addresses(self) -> Mapping[str, str]:
        """Peer ports of the members, this node included."""
        return self._members.addresses(self.commit_index)

    def elsewhere(self, peer: str) -> tuple[str, str] | None:
        """Where else than at its recorded address a peer may be, and which store alone may answer there."""
        return self._members.elsewhere(peer)

    def _meta(self) -> dict[str, str]:
        meta = dict(self.config.meta)
        if self._lost_power or self.elector.may_vote:
            key = META_KEY if self._lost_power else KEPT_KEY
            meta[key] = encode_end(self.log.last_term, self.log.last_index)
        return meta

    def on_hello(self, hello: Hello) -> None:
        """A peer introduced itself."""
        self._versions.heard(hello)
        self._identity_wake.set()

    def on_peer_up(self, peer: str) -> None:
        """Requests reach the peer."""
        self._repairer.lost(peer)  # what was asked over an older connection, whose end may come later
        self._repairer.damage()
        if self._replicator.leader is not None:
            counts = self.membership.acknowledges(peer)
            self._replicator.perform(self._replicator.leader.peer_up(peer, counts))

    def on_peer_down(self, peer: str) -> None:
        """The dialled connection to the peer is gone."""
        if peer == self.leader_id:
            self._say.info("connection to the leader lost", leader=peer)
        self._repairer.lost(peer)
        if self._replicator.leader is not None:
            self._replicator.perform(self._replicator.leader.peer_down(peer))
            self.snapshots.sender.forget_if_idle(self._replicator.leader)
        self._leadership.progressed()

    def on_refused(self, peer: str) -> None:
        """Nobody listens at the peer's address: its process is gone (S17)."""
        if peer == self.leader_id:
            self._say.info("the leader's process is gone: nobody listens", leader=peer)
        self.perform(self.elector.leader_refused(peer, self._loop.time()))
        self._schedule_tick()

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """A request of the DLedger client protocol."""
        self._requests.handle(connection, frame)

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """A message from a peer; held back while term and vote are being saved."""
        if isinstance(message, REPLIES):
            if connection.dialled is None:
                return
            self.changes.heard(peer, self._loop.time())
        if isinstance(message, (RepairRequest, RepairResponse)):
            self._repairer.receive(peer, message)  # needs no role, no term and no vote
            return
        if not isinstance(message, _FROM_ANYONE) and not self.membership.counts(connection.hello):
            if isinstance(message, HeartbeatResponse) and peer in self._members.current.learners:
                self.elector.peer_health[peer] = message.health  # to be shown
            return  # votes and answers count only from a recorded incarnation
        if isinstance(message, VoteRequest) and connection.hello is not None:
            # A vote is for a store: two stores with one id must not both get it (S18).
            message = replace(message, candidate=f"{peer}/{connection.hello.incarnation}")
        if self._holds:
            if len(self._held) < MAX_HELD:
                self._held.append((connection, peer, message))
            else:
                connection.close(f"more than {MAX_HELD} messages are held back")  # the next one begins anew
        else:
            self._handle(peer, message)
        self._schedule_tick()

    def _handle(self, peer: str, message: Message) -> None:
        now = self._loop.time()
        elector = self.elector
        if isinstance(message, PushResponse):
            self._on_push_response(peer, message, now)
        elif isinstance(message, _READS):
            self._reads.receive(peer, message)
        elif isinstance(message, InstallResponse):
            if message.term > elector.term:
                self.perform(elector.higher_term(message.term, now))
            elif message.term == elector.term:
                self.snapshots.receive(peer, message)
        elif isinstance(message, (*_PUSHES, InstallSnapshot)):
            if message.term < elector.term:
                self._replicator.refuse(peer, elector.term)
                return
            self.perform(elector.leader_contact(message.leader, message.term, now))
            if self._holds:
                self._held.appendleft((None, peer, message))  # the new term goes to disk first
            elif isinstance(message, InstallSnapshot):
                self.snapshots.receive(peer, message)
            elif not self.snapshots.defers(peer, message):
                self._replicator.receive(peer, message, self.commit_index)
        else:
            self.perform(elector.receive(peer, message, now))

    def _on_push_response(self, peer: str, message: PushResponse, now: float) -> None:
        if message.term > self.elector.term:
            self.perform(self.elector.higher_term(message.term, now))
            return
        leader = self._replicator.leader
        if leader is None or message.term != leader.term:
            return
        counts = self.membership.acknowledges(peer)
        if counts:
            self.elector.peer_active(peer, now)
        leader.peer_counts(peer, counts)
        self._replicator.perform(leader.response(peer, message))
        self._leadership.progressed()

    def hold(self) -> Callable[[], None]:
        """Hold back peer messages and ticks until the returned function is called."""
        self._holds += 1

        def release() -> None:
            self._holds -= 1
            while self._held and not self._holds:
                connection, peer, message = self._held.popleft()
                if connection is None or not connection.closed or not isinstance(message, REPLIES):
                    self._handle(peer, message)  # who answers on the next connection may be another store
            self._schedule_tick()

        return release

    def again(self, peer: str, message: Message) -> None:
        """Handle a message once more before everything held back."""
        self._held.appendleft((None, peer, message))
