"""Applies the configuration to this node: which nodes vote, get entries, are connected and may connect.

`ConfigLog` knows the configurations. This module applies them to the elector, to the replication of a leader
and to the connections. It does so whenever an entry brings a configuration, a cut of the log removes one, or
a commit makes one final.

A removed member is *leaving*. The leader keeps sending to it until it has the entry that removes it. So the
member learns of its removal, and does not stand for election any more. It is sent committed entries only. If
it alone kept an uncommitted entry, its log would be longer than those of the others. And if the removal were
undone, an election of the others might need its vote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.election.configuration import Configuration
from dledger.election.identity import Hello
from dledger.formats.store_files import Identity
from dledger.peers.dials import Dials

LEAVING_S = 10.0
"""Time, in seconds, for which a leader tries to notify a removed member of its removal."""


class MemberEffects:
    """Applies the configuration on one node."""

    def __init__(self, context: NodeContext, events: NodeEvents) -> None:
        self._say = context.env.log.child(f"members.{context.config.self_id}")
        self._config = context.config
        self._members = context.members
        self._versions = context.versions
        self._peers = context.peers
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._events = events
        self.leaving: dict[str, tuple[int, float, str]] = {}
        """Members that this leader removed and that may not know it yet. Maps an id to the index of the
        entry, the time of removal, and the address."""
        self.dials: Dials = Dials(self._config.self_id, self._peers.dial)

    # Who

    @property
    def others(self) -> tuple[str, ...]:
        """Ids of all other nodes that get entries and heartbeats of a leader."""
        known = dict.fromkeys([*self._members.current.members, *self.leaving])
        return tuple(sorted(node for node in known if node != self._config.self_id))

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the voters, as this store sees them. This node is left out if the configuration names
        another incarnation of it."""
        return self._members.voters_for(self._members.identity)

    def counts(self, hello: Hello | None) -> bool:
        """Whether the sender of this hello has a store that the configuration names as a voter (S18)."""
        return hello is not None and self._members.current.names(hello.node, hello.incarnation)

    def acknowledges(self, peer: str) -> bool:
        """Whether a peer's acknowledgements count towards a commit. The peer is the node that answers on the
        connection which this node made."""
        return self.counts(self._peers.dialled_hello(peer))

    def address(self, node: str) -> str | None:
        """Return the address of a member's peer port, as far as this node knows."""
        return self._peers.strayed().get(node) or self._members.address(node)

    def config_index(self) -> int:
        """Index for the hello: that of the configuration in force if it names this node, otherwise -1."""
        named = self._config.self_id in self._members.current.members
        return self._members.index if named else -1

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Return the nodes that may connect, given the hello of the node that asks. Maps an id to an
        address."""
        known = self._members.welcome(hello, self._replicator.commit_index)
        return {**known, **{node: address for node, (_, _, address) in self.leaving.items()}}

    # What every voter can read

    def group_version(self) -> int:
        """Protocol version that all voters know. Anything that needs a newer version must not be written to
        the log yet."""
        return self._versions.group(self._members.voters)

    def may_write(self, kind: int) -> bool:
        """Whether all voters know this kind of entry."""
        return self._versions.may_write(kind, self._members.voters)

    def state_version(self) -> int:
        """Newest version of the state machine's operations that all voters can read. Newer operations must
        not be written yet."""
        return self._versions.state(self._members.voters)

    def may_cover(self) -> bool:
        """Whether all voters know CRCs that cover an entry's channel."""
        return self._versions.may_cover(self._members.voters)

    # Events

    def adopted(self, index: int, configuration: Configuration) -> None:
        """Note that a configuration entry is in the log, so that the configuration is in force from now on
        (S19)."""
        self._members.add(index, configuration)
        self.changed()

    def cut(self, last_index: int) -> None:
        """Note that entries above `last_index` were cut, and with them their configurations."""
        if self._members.cut(last_index):
            self.changed()

    def founded(self, identity: Identity) -> None:
        """Note that the group was formed or joined, and take over its identity."""
        self._members.found(identity)
        self.changed()

    def committed(self, before: int, index: int) -> None:
        """Note that the commit index moved from `before` to `index`."""
        members = self._members
        entries = members.indexes[-2:]
        if any(before < entry <= index for entry in entries) or members.unsure.within(before + 1, index):
            self.connect()
            self._events.members_changed()

    def leave(self, node: str, index: int) -> None:
        """Mark a member as leaving. The entry at `index`, which is appended next, removes it."""
        now = asyncio.get_running_loop().time()
        self.leaving[node] = (index, now, self._members.address(node) or "")

    def settle(self) -> None:
        """Stop sending to those removed members that know of their removal, or could not be notified in
        time."""
        leader = self._replicator.leader
        now = asyncio.get_running_loop().time()
        for node, (index, since, _) in list(self.leaving.items()):
            progress = leader.progress.get(node) if leader else None
            told = progress is not None and progress.stored >= index
            if told or not self._peers.connected(node) or now - since > LEAVING_S:
                self._say.info("member has left", node=node, told=told)
                del self.leaving[node]
                self.changed()

    def changed(self) -> None:
        """Apply the configuration to the elector, the replication and the connections."""
        self._say.info("members", voters=self._members.voters, learners=self._members.current.learners)
        now = asyncio.get_running_loop().time()
        self._elections.perform(self._elector.set_members(self.voters, self.others, now))
        leader = self._replicator.leader
        if leader is not None:
            before = list(leader.progress)
            self._replicator.perform(
                leader.set_members(self._members.voters, self.others, tuple(self.leaving))
            )
            for peer in self.others:
                leader.peer_counts(peer, self.acknowledges(peer))
                if peer not in before and self._peers.connected(peer):
                    self._replicator.perform(leader.peer_up(peer, self.acknowledges(peer)))
        self.connect()
        self._events.members_changed()

    def connect(self) -> None:
        """Connect to the peers that should be connected, and close the connections that should not exist."""
        wanted = self._members.dialled(self._replicator.commit_index)
        wanted |= {node: address for node, (_, _, address) in self.leaving.items() if address}
        self.dials.want(dict(sorted(wanted.items())))
        self._peers.sources.members_changed()
        self._peers.prune(self._keeps)
        self._peers.tell_clients(self._members.addresses(self._replicator.commit_index))

    def _keeps(self, hello: Hello) -> bool:
        """Whether a connection may stay. A leader that was removed keeps its connections, because it still
        has to ask another node to stand."""
        return hello.node in self.welcome(hello) or hello.node == self._elector.leader_id
