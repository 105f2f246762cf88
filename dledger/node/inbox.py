"""Passes messages of peers and clients to the parts of a node that handle them, in order.

While term and vote are being saved, and while the log is being cut, messages have to wait. They are handled
afterwards in the order in which they came (`dledger.peers.held`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.election.identity import Hello
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
from dledger.node.clocks import META_KEY
from dledger.node.parts import NodeParts
from dledger.node.requests import ClientRequests
from dledger.peers.links import PeerConnection
from dledger.peers.wire import Frame

_PUSHES = (Compare, Truncate, Append, Commit)
_LEADERS = (*_PUSHES, Heartbeat, InstallSnapshot)
"""Types of messages that a leader sends. If this node follows the leader, it takes over the leader's term."""
_READS = (ReadIndexRequest, ReadIndexResponse)
_INSTALLS = (InstallSnapshot, InstallResponse)
_FROM_ANYONE = (*_PUSHES, Heartbeat, TimeoutNow, VoteRequest, PushResponse, *_READS, *_INSTALLS)
"""Types of messages that are handled from any sender; other messages count only from a voter of the known
configuration.

This node may lack the entry that makes a leader or a candidate a voter (see dledger/context/config_log.py).
And a learner's answers move the window of what is sent to it."""


def far_ahead(peer: str, term: int, mine: int) -> str:
    """Return the error text about a term that is too high to come from elections."""
    return (
        f"{peer} reports term {term}, but this node is at term {mine}: elections cannot have raised "
        f"it so far. If {peer} has that term in its store, stop it and run `dledger recover "
        "--reset-term` there"
    )


def leaps(peer: str, term: int, mine: int) -> str:
    """The log text about a leader's term that this node checks with the leader before it follows."""
    return (
        f"{peer} claims to lead in term {term}, and this node is at term {mine}: it checks this with {peer}"
    )


class Inbox:
    """Receives the events of a node's connections (implements `dledger.peers.peers.PeerEvents`)."""

    def __init__(
        self, context: NodeContext, parts: NodeParts, requests: ClientRequests, events: NodeEvents
    ) -> None:
        self._say = context.env.log.child(f"node.{context.config.self_id}")
        self._members = context.members
        self._versions = context.versions
        self._held = context.held
        self._log = context.log
        self._peers = context.peers
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._parts = parts
        self._requests = requests
        self._events = events

    # Connections

    def my_hello(self) -> Hello:
        """Return the hello to send now."""
        return self._parts.trust.hello()

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Return the nodes that may connect, given the hello of the node that asks."""
        return self._parts.membership.welcome(hello)

    def addresses(self) -> Mapping[str, str]:
        """Return the peer ports of the members, this node included."""
        return self._members.addresses(self._replicator.commit_index)

    def elsewhere(self, peer: str) -> tuple[str, str] | None:
        """Return another address than the recorded one, at which a peer may be, and the only store that may
        answer there."""
        return self._members.elsewhere(peer)

    def on_hello(self, hello: Hello) -> None:
        """Note that a peer introduced itself."""
        self._versions.heard(hello)
        if self._peers.dialled_hello(hello.node) is hello:  # else anybody could send a member's clock
            now_ms = asyncio.get_running_loop().time() * 1000
            self._parts.health.clocks.hello(hello.node, hello.meta.get(META_KEY), now_ms)
        self._parts.joining.wake()

    def on_peer_up(self, peer: str) -> None:
        """Note that requests can be sent to the peer from now on."""
        parts, leader = self._parts, self._replicator.leader
        parts.repairer.lost(peer)  # requests on an older connection, whose end may come later
        parts.repairer.damage()
        if leader is not None:
            self._replicator.perform(leader.peer_up(peer, parts.membership.acknowledges(peer)))

    def on_peer_down(self, peer: str) -> None:
        """Note that the connection that this node made to the peer is gone."""
        parts, leader = self._parts, self._replicator.leader
        if peer == self._elector.leader_id:
            self._say.info("connection to the leader lost", leader=peer)
        parts.repairer.lost(peer)
        if leader is not None:
            self._replicator.perform(leader.peer_down(peer))
            parts.snapshots.sender.forget_if_idle(leader)
        parts.leadership.progressed()

    def on_refused(self, peer: str) -> None:
        """Note that no process listens at the peer's address. This proves that the peer's process is gone
        (S17)."""
        if peer == self._elector.leader_id:
            self._say.info("the process of the leader has ended: its port is closed", leader=peer)
        now = asyncio.get_running_loop().time()
        self._elections.perform(self._elector.leader_refused(peer, now))
        self._elections.schedule()

    # Messages

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None:
        """Handle a request of the DLedger client protocol."""
        self._requests.handle(connection, frame)

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """Accept a message from a peer. It has to wait while term and vote are being saved."""
        parts = self._parts
        term = getattr(message, "term", -1)
        if not self._elector.may_follow(term):
            self._peers.refuse(connection, "term", far_ahead(peer, term, self._elector.term))
            return
        if isinstance(message, _LEADERS) and self._elector.leaps(term):
            # A message that is not handled gets no answer, so the leader dials again and repeats it.
            now = asyncio.get_running_loop().time()
            if self._peers.connected(peer):
                self._elections.perform(self._elector.ask_term(peer, now))
            elif not self._held.holding:
                # A leader that joined while this node was away: its address comes with what it sends.
                self._elections.perform(self._elector.step_towards(term, now))
            self._peers.refuse(connection, "term", leaps(peer, term, self._elector.term))
            return
        if isinstance(message, REPLIES):
            if connection.dialled is None:
                return
            parts.reconfiguration.heard(peer, asyncio.get_running_loop().time())
        if isinstance(message, (RepairRequest, RepairResponse)):
            parts.repairer.receive(peer, message)  # needs no role, no term and no vote
            return
        if isinstance(message, HeartbeatResponse) or (
            isinstance(message, Heartbeat) and self._leads(peer, term)
        ):
            now_ms = asyncio.get_running_loop().time() * 1000
            parts.health.clocks.heard(peer, message.clock_ms, now_ms)
        if not isinstance(message, _FROM_ANYONE) and not parts.membership.counts(connection.hello):
            if isinstance(message, HeartbeatResponse) and peer in self._members.current.learners:
                self._elector.peer_feels(peer, message.health)  # to be shown
            return  # votes and answers count only from a recorded incarnation
        if isinstance(message, VoteRequest) and connection.hello is not None:
            # A vote belongs to a store: two stores with one id must not both get it (S18).
            message = replace(message, candidate=f"{peer}/{connection.hello.incarnation}")
        if self._held.holding:
            self._held.add(connection, peer, message)
        else:
            self.handle(peer, message)
        self._elections.schedule()
        self._events.stepped()

    def _leads(self, peer: str, term: int) -> bool:
        """Whether this node follows this peer as the leader of this term."""
        return term == self._elector.term and peer == self._elector.leader_id

    def on_read(self) -> None:
        """Write the entries of all messages that arrived together, in one go (architecture rule 4)."""
        self._log.flush()

    def handle(self, peer: str, message: Message) -> None:
        """Handle a message when its turn has come."""
        now = asyncio.get_running_loop().time()
        elector, snapshots = self._elector, self._parts.snapshots
        if isinstance(message, PushResponse):
            self._on_push_response(peer, message, now)
        elif isinstance(message, _READS):
            if isinstance(message, ReadIndexResponse):  # perhaps the answer to `ask_term`
                self._elections.perform(elector.higher_term(message.term, now))
            self._parts.reads.receive(peer, message)
        elif isinstance(message, InstallResponse):
            if message.term > elector.term:
                self._elections.perform(elector.higher_term(message.term, now))
            elif message.term == elector.term:
                snapshots.receive(peer, message)
        elif isinstance(message, (*_PUSHES, InstallSnapshot)):
            if message.term < elector.term:
                self._replicator.refuse(peer, elector.term)
                return
            self._elections.perform(elector.leader_contact(message.leader, message.term, now))
            if self._held.holding:
                self._held.again(peer, message)  # the new term is saved first
            elif isinstance(message, InstallSnapshot):
                snapshots.receive(peer, message)
            elif not snapshots.defers(peer, message):
                self._replicator.receive(peer, message)
        else:
            self._elections.perform(elector.receive(peer, message, now))

    def _on_push_response(self, peer: str, message: PushResponse, now: float) -> None:
        if message.term > self._elector.term:
            self._elections.perform(self._elector.higher_term(message.term, now))
            return
        leader = self._replicator.leader
        if leader is None or message.term != leader.term:
            return
        counts = self._parts.membership.acknowledges(peer)
        if counts:
            self._elector.peer_active(peer, now)
        leader.peer_counts(peer, counts)
        self._replicator.perform(leader.response(peer, message))
        self._parts.leadership.progressed()
