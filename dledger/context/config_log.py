"""The configuration in force, and who may connect: entries of the log, effective at append, undone by a cut.

The configuration is the last configuration entry of the log (or the one of a snapshot, or the founding
members). Whether it is committed does not matter (safety.md S19, Raft dissertation 4.1). Why that is safe
here:

* **One step at a time.** Configurations that follow one another differ in at most one voter, where a voter is
  (id, incarnation); see `dledger.election.configuration`. So majorities of neighbours share a store.
* **No second before the first.** A leader appends a configuration only when it serves, that is when an entry
  of its own term is committed, and when the one before is committed (the fix of 2015). Then every
  configuration except the newest is superseded on a majority, and no forgotten one can elect a leader.
* **Which answers count.** A leader counts the acknowledgements, and a candidate the votes, of a peer only
  while it is connected as the incarnation that the counting node's newest configuration names as a voter
  (`names`).
  A wiped store draws a new incarnation, so it never counts as its former self, whatever its id. It counts
  again after it was demoted and promoted, which takes two entries. An earlier rule replaced an incarnation in
  one entry and did not count it before the commit. It needed the old disk never to come back, and could not
  let a group of one grow.
* **Which nodes vote.** Only the candidate's configuration matters for counting. So a voter answers
  every candidate, also one that its own, older configuration does not name. A learner answers too: it may
  have been promoted by an entry that it lacks. A vote is remembered with the incarnation that asked, so that
  two stores with one id cannot both have it.

Connections: a formed group accepts nodes that are named by a configuration from the last committed one on,
and nodes that show a configuration which is newer than that one. dLegerPeers counts until the first
configuration entry is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgpack

from dledger.config import NodeConfig
from dledger.election.configuration import (
    Configuration,
    decode_configuration,
    encode_configuration,
    founding,
)
from dledger.election.identity import Hello
from dledger.formats.store_files import Identity
from dledger.log.faulty import FaultyEntries


class ConfigLog:
    """The configurations that this node knows, oldest first."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.identity: Identity = Identity(config.group, config.self_id, "", config.segment_size)
        """Identity of this node's store; without an incarnation until the store is open."""
        self._founders = Configuration()
        self._base: tuple[int, Configuration] | None = None
        self._entries: list[tuple[int, Configuration]] = []
        self.unsure: FaultyEntries = FaultyEntries()
        """Entries that cannot be read and may be configurations (`dledger.members.config_search`)."""

    def open(
        self,
        identity: Identity,
        entries: list[tuple[int, Configuration]],
        base: tuple[int, bytes] | None = None,
        unsure: list[tuple[int, int]] | None = None,
    ) -> None:
        """`entries` are the log's (index, configuration), ascending. `base` is the result of `state_at` for
        the index of the snapshot at which the log starts."""
        self.found(identity)
        self._base = None
        self._entries = list(entries)
        for item in unsure or ():
            self.unsure.add(*item)
        if base is not None:
            self.restore(*base)

    def replaced(self, index: int, state: bytes) -> None:
        """A snapshot at `index` replaced the log: forget the configurations of the old log."""
        self._base = None
        self._entries = []
        self.unsure = FaultyEntries()
        if state:
            self.restore(index, state)

    def restore(self, index: int, state: bytes) -> None:
        """The log begins at a snapshot at `index`; `state` is the result of `state_at(index)`."""
        configuration = decode_configuration(state)
        if configuration is None:
            raise ValueError("the snapshot's configuration cannot be read")
        self._base = (index, configuration)
        self._entries = [entry for entry in self._entries if entry[0] > index]
        self.unsure.remove(0, index)

    def recall(self, index: int, configuration: Configuration) -> None:
        """Add a configuration that was found in entry `index`, which could not be read before."""
        if index not in self.indexes:
            self._entries = sorted([*self._entries, (index, configuration)], key=lambda entry: entry[0])

    def state_at(self, index: int) -> bytes | None:
        """The configuration after entry `index`, for a snapshot. It is equal on all nodes, and empty before
        the group was formed. None when it is not known."""
        for place, configuration in reversed(self._known()):
            if place <= index:
                if self.unsure.within(place + 1, index) is not None:
                    return None
                return encode_configuration(configuration) if configuration.members else b""
        return None

    def doubtful(self, last_index: int) -> bool:
        """Whether the configuration in force is uncertain, given where the log ends: an unreadable entry may
        be a newer configuration than the known ones."""
        return self.unsure.within(self.index + 1, last_index) is not None

    def found(self, identity: Identity) -> None:
        """The group was formed or joined: take over its identity."""
        self.identity = identity
        self._founders = founding(identity.members)

    # The configuration in force

    @property
    def current(self) -> Configuration:
        """The configuration in force; empty while the group is not formed."""
        return self._known()[-1][1]

    @property
    def index(self) -> int:
        """Index of the entry (or snapshot) that the configuration comes from; -1 for the founding members."""
        return self._known()[-1][0]

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the voters."""
        return self.current.voters

    def voters_for(self, identity: Identity) -> tuple[str, ...]:
        """Voters as this store sees them. This node is left out if the configuration names another
        incarnation of it."""
        current = self.current
        return tuple(
            node
            for node in current.voters
            if node != identity.node or current.names(node, identity.incarnation)
        )

    @property
    def noted(self) -> list[tuple[int, Configuration]]:
        """Configurations that must be kept when the log's first segments are removed: its configuration
        entries, ascending, and before them the configuration of the snapshot at which it begins."""
        return [*([] if self._base is None else [self._base]), *self._entries]

    @property
    def indexes(self) -> list[int]:
        """Indexes of the configuration entries in the log."""
        return [index for index, _ in self._entries]

    def pending(self, commit_index: int) -> bool:
        """Whether a configuration entry is not committed yet: then no other may follow (2015 erratum)."""
        return bool(self._entries) and self._entries[-1][0] > commit_index

    def add(self, index: int, configuration: Configuration) -> None:
        """Add a configuration entry that was appended."""
        self._entries.append((index, configuration))

    def cut(self, last_index: int) -> bool:
        """Remove configurations of entries above `last_index`, which were cut. True when the configuration,
        or what is uncertain, changed."""
        before = len(self._entries), self.unsure.count
        self._entries = [entry for entry in self._entries if entry[0] <= last_index]
        self.unsure.truncate(last_index + 1)
        return (len(self._entries), self.unsure.count) != before

    def doubts(self, last_index: int) -> Iterator[str]:
        """Reasons for doubt about the configuration, for /health."""
        if self.doubtful(last_index):
            ranges = ", ".join(f"{first}..{last}" for first, last in self.unsure)
            yield (
                f"this node does not stand for election: the entries {ranges[:200]} cannot be read "
                "and may hold the configuration; the nodes in dLegerPeers are asked for them"
            )

    def _known(self) -> list[tuple[int, Configuration]]:
        return [self._base or (-1, self._founders), *self._entries]

    # Connections

    def addresses(self, commit_index: int) -> dict[str, str]:
        """Addresses of all nodes to know, id -> address, this node included. Members of the last committed
        configuration stay until the next one is committed, because a configuration that is not committed may
        be undone."""
        known = self._known()
        static = dict(self._config.peers)
        named: dict[str, str] = {}
        for place, (index, configuration) in enumerate(known):
            if place + 1 < len(known) and known[place + 1][0] <= commit_index:
                continue
            if index < 0 or self.unsure:
                named.update(static)  # in doubt all nodes that may help to repair entries
            for node, member in sorted(configuration.members.items()):
                address = member.address or static.get(node, "")
                if address:
                    named[node] = address
        return dict(sorted(named.items()))

    def address(self, node: str) -> str | None:
        """Address at which a member listens, as far as this node knows."""
        member = self.current.members.get(node)
        return (member.address if member else "") or self._config.peers.get(node)

    def elsewhere(self, node: str) -> tuple[str, str] | None:
        """Another address at which a voter may be: the one in dLegerPeers, with the voter's store. There is
        none for a learner: its store is not recorded, so any process with its id could answer there."""
        member = self.current.members.get(node)
        address = self._config.peers.get(node, "")
        if member is None or not member.incarnation or not address or address == member.address:
            return None
        return address, member.incarnation

    def dialled(self, commit_index: int) -> dict[str, str]:
        """Peers to keep a connection to. A node that was removed from the group connects to none."""
        mine = self._config.self_id
        if self.removed(commit_index):
            return {}
        return {n: address for n, address in self.addresses(commit_index).items() if n != mine}

    def removed(self, commit_index: int) -> bool:
        """Whether a committed configuration entry does not include this node."""
        named = self._config.self_id in self.current.members or self.doubtful(commit_index)
        return 0 <= self.index <= commit_index and not named

    def welcome(self, hello: Hello, commit_index: int) -> Mapping[str, str]:
        """Nodes that may connect, given the hello of the one that asks (see the module)."""
        known = self.addresses(commit_index)
        # An uncommitted configuration may be from an abandoned branch: its index proves nothing.
        sure = max((index for index, _ in self._known() if index <= commit_index), default=-1)
        if hello.node not in known and hello.config_index > sure:
            known[hello.node] = ""
        return known

    def opening_body(self, term: int, leader: str) -> bytes:
        """Body of a term-opening entry; it records which protocol the leader speaks."""
        packed: bytes = msgpack.packb(
            {"leader": leader, "protocol": self._config.protocol_max, "term": term}, use_bin_type=True
        )
        return packed
