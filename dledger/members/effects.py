"""What the configuration means for this node: which nodes vote, get entries, are dialled and may connect.

`ConfigLog` knows the configurations. This module applies them to the elector, the replication of a leader and
the connections, whenever an entry brings one, a cut takes one back, or a commit makes one final.

A removed member is *leaving*: the leader keeps sending to it until it has the entry that removes it, so that
it learns of its removal and stays quiet. It is sent committed entries only. An uncommitted entry that it
alone kept would make its log longer than those of the others, and their election may need its vote if the
removal is undone.
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
"""Seconds for which a leader tries to notify a removed member of its removal."""


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
        """Members removed by this leadership that may not know it yet: index of the entry, time of removal,
        address."""
        self.dials: Dials = Dials(self._config.self_id, self._peers.dial)

    # Who

    @property
    def others(self) -> tuple[str, ...]:
        """Ids of all nodes that get entries and heartbeats of a leader, without this node."""
        known = dict.fromkeys([*self._members.current.members, *self.leaving])
        return tuple(sorted(node for node in known if node != self._config.self_id))

    @property
    def voters(self) -> tuple[str, ...]:
        """Voters as this store sees them. This node is left out if the configuration names another
        incarnation of it."""
        return self._members.voters_for(self._members.identity)

    def counts(self, hello: Hello | None) -> bool:
        """Whether this is a store that the configuration names as a voter (S18)."""
        return hello is not None and self._members.current.names(hello.node, hello.incarnation)

    def acknowledges(self, peer: str) -> bool:
        """Whether a peer's acknowledgements count towards a commit, judged by the node that answers on the
        dialled connection."""
        return self.counts(self._peers.dialled_hello(peer))

    def address(self, node: str) -> str | None:
        """Where a member's peer port is, as far as this node knows."""
        return self._peers.strayed().get(node) or self._members.address(node)

    def config_index(self) -> int:
        """Value for the hello: index of the configuration in force if it names this node, else -1."""
        named = self._config.self_id in self._members.current.members
        return self._members.index if named else -1

    def welcome(self, hello: Hello) -> Mapping[str, str]:
        """Nodes that may connect, given the hello of the one that asks."""
        known = self._members.welcome(hello, self._replicator.commit_index)
        return {**known, **{node: address for node, (_, _, address) in self.leaving.items()}}

    # What every voter can read

    def group_version(self) -> int:
        """Protocol version that all voters know; anything newer must not be written to the log yet."""
        return self._versions.group(self._members.voters)

    def may_write(self, kind: int) -> bool:
        """Whether all voters know this kind of entry."""
        return self._versions.may_write(kind, self._members.voters)

    def state_version(self) -> int:
        """Version of the state machine's operations that all voters read; newer operations must not be
        written yet."""
        return self._versions.state(self._members.voters)

    def may_cover(self) -> bool:
        """Whether all voters know CRCs that cover an entry's channel."""
        return self._versions.may_cover(self._members.voters)

    # Events

    def adopted(self, index: int, configuration: Configuration) -> None:
        """A configuration entry is in the log: it is in force from now on (S19)."""
        self._members.add(index, configuration)
        self.changed()

    def cut(self, last_index: int) -> None:
        """Entries above `last_index` were cut, and with them their configurations."""
        if self._members.cut(last_index):
            self.changed()

    def founded(self, identity: Identity) -> None:
        """The group was formed or joined: take over its identity."""
        self._members.found(identity)
        self.changed()

    def committed(self, before: int, index: int) -> None:
        """The commit index moved from `before` to `index`."""
        members = self._members
        entries = members.indexes[-2:]
        if any(before < entry <= index for entry in entries) or members.unsure.within(before + 1, index):
            self.connect()
            self._events.members_changed()

    def leave(self, node: str, index: int) -> None:
        """Mark a member as leaving: the entry at `index`, which is appended next, removes it."""
        now = asyncio.get_running_loop().time()
        self.leaving[node] = (index, now, self._members.address(node) or "")

    def settle(self) -> None:
        """Stop sending to removed members that know of their removal, or cannot be notified."""
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
        """Dial the peers that should be connected, and close connections that should not exist."""
        wanted = self._members.dialled(self._replicator.commit_index)
        wanted |= {node: address for node, (_, _, address) in self.leaving.items() if address}
        self.dials.want(dict(sorted(wanted.items())))
        self._peers.sources.members_changed()
        self._peers.prune(self._keeps)
        self._peers.tell_clients(self._members.addresses(self._replicator.commit_index))

    def _keeps(self, hello: Hello) -> bool:
        """Whether a connection may stay. A removed leader keeps its connections, as it still has to ask
        another node to stand."""
        return hello.node in self.welcome(hello) or hello.node == self._elector.leader_id
