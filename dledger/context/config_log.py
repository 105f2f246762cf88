"""The configuration in force, and which nodes may connect. A configuration is an entry of the log. It takes
effect when it is appended, and is undone when the log is cut.

The configuration in force is the last configuration entry of the log. If there is none, it is that of the
snapshot at which the log begins, or the founding members. Whether the entry is committed does not matter
(safety.md S19, Raft dissertation 4.1). This is safe for these reasons:

* **One step at a time.** Configurations that follow one another differ in at most one voter, where a voter is
  (id, incarnation); see `dledger.election.configuration`. So any majority of one configuration and any
  majority of the next have a store in common.
* **No second before the first.** A leader appends a configuration only if an entry of its own term is
  committed, and if the configuration before is committed (the fix of 2015). So a majority has replaced every
  configuration except the newest, and a node that still has an old configuration cannot become leader with
  it.
* **Which answers count.** An *incarnation* is one life of a store. A leader counts the acknowledgements of a
  peer only while the peer is connected as the incarnation that is a voter in the leader's newest
  configuration (`names`). A candidate counts votes by the same rule. A wiped store gets a new, random
  incarnation. So it does not count as the former store, although it has the same node id. It counts again
  after it was demoted and promoted, which takes two entries. (An earlier rule replaced an incarnation in one
  entry, and did not count it before that entry was committed. With that rule the old disk must never come
  back, and a group of one node could not grow.)
* **Which nodes vote.** Only the candidate's configuration matters for counting. So a voter answers every
  candidate, even if its own configuration is older and does not name the candidate. A learner answers, too,
  because an entry that it does not have yet may have promoted it. A node saves its vote together with the
  incarnation of the candidate, so that two stores with the same id cannot both get the vote.

Connections: a formed group accepts nodes that are members of the last committed configuration or of a later
one. It also accepts nodes whose hello shows that they have a configuration newer than the last committed one.
Until the first configuration entry is known, the members are those in dLegerPeers.
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
        """Identity of this node's store. It has no incarnation until the store is open."""
        self._founders = Configuration()
        self._base: tuple[int, Configuration] | None = None
        self._entries: list[tuple[int, Configuration]] = []
        self.unsure: FaultyEntries = FaultyEntries()
        """Entries that cannot be read and that may hold configurations (`dledger.members.config_search`)."""

    def open(
        self,
        identity: Identity,
        entries: list[tuple[int, Configuration]],
        base: tuple[int, bytes] | None = None,
        unsure: list[tuple[int, int]] | None = None,
    ) -> None:
        """Take over what was found when the store was opened.

        `entries` are the (index, configuration) of the log, ascending. `base` holds the index of the snapshot
        at which the log begins, and the result of `state_at` for it. `unsure` are ranges of entries that
        cannot be read and may hold configurations.
        """
        self.found(identity)
        self._base = None
        self._entries = list(entries)
        for item in unsure or ():
            self.unsure.add(*item)
        if base is not None:
            self.restore(*base)

    def replaced(self, index: int, state: bytes) -> None:
        """Note that a snapshot at `index` replaced the log, so that the configurations of the old log are
        void."""
        self._base = None
        self._entries = []
        self.unsure = FaultyEntries()
        if state:
            self.restore(index, state)

    def restore(self, index: int, state: bytes) -> None:
        """Note that the log begins at a snapshot at `index`. `state` is the result of `state_at(index)`."""
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
        """The encoded configuration that is in force after entry `index`, for a snapshot. It is equal on all
        nodes, and empty before the group was formed. None if it is not known."""
        for place, configuration in reversed(self._known()):
            if place <= index:
                if self.unsure.within(place + 1, index) is not None:
                    return None
                return encode_configuration(configuration) if configuration.members else b""
        return None

    def doubtful(self, last_index: int) -> bool:
        """Whether the configuration in force is uncertain for a log that ends with `last_index`. It is
        uncertain if an entry that cannot be read may hold a newer configuration than the known ones."""
        return self.unsure.within(self.index + 1, last_index) is not None

    def found(self, identity: Identity) -> None:
        """Take over the identity of the group, because the group was formed, or this node joined it."""
        self.identity = identity
        self._founders = founding(identity.members)

    # The configuration in force

    @property
    def current(self) -> Configuration:
        """The configuration in force; empty while the group is not formed."""
        return self._known()[-1][1]

    @property
    def index(self) -> int:
        """Index of the entry (or snapshot) that the configuration in force comes from; -1 for the founding
        members."""
        return self._known()[-1][0]

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the voters."""
        return self.current.voters

    def voters_for(self, identity: Identity) -> tuple[str, ...]:
        """The voters, as seen by the store with this identity. Its node is left out if the configuration
        names another incarnation of that node."""
        current = self.current
        return tuple(
            node
            for node in current.voters
            if node != identity.node or current.names(node, identity.incarnation)
        )

    @property
    def noted(self) -> list[tuple[int, Configuration]]:
        """The configurations that must be kept when the first segments of the log are removed. They are those
        in entries of the log, ascending, and before them the configuration of the snapshot at which the log
        begins."""
        return [*([] if self._base is None else [self._base]), *self._entries]

    @property
    def indexes(self) -> list[int]:
        """Indexes of the configuration entries in the log."""
        return [index for index, _ in self._entries]

    def pending(self, commit_index: int) -> bool:
        """Whether there is a configuration entry that is not committed yet. Then no other one may be appended
        (2015 erratum)."""
        return bool(self._entries) and self._entries[-1][0] > commit_index

    def add(self, index: int, configuration: Configuration) -> None:
        """Add a configuration entry that was appended."""
        self._entries.append((index, configuration))

    def cut(self, last_index: int) -> bool:
        """Remove the configurations in entries above `last_index`, which were cut from the log. Returns True
        if the configuration in force may have changed, or the set of entries that cannot be read."""
        before = len(self._entries), self.unsure.count
        self._entries = [entry for entry in self._entries if entry[0] <= last_index]
        self.unsure.truncate(last_index + 1)
        return (len(self._entries), self.unsure.count) != before

    def doubts(self, last_index: int) -> Iterator[str]:
        """Reasons to doubt the configuration in force, as texts for /health."""
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
        """Maps a node id to its address, for all nodes that this node has to know (including itself). Members
        of the last committed configuration stay in the dict until the next one is committed, because an
        uncommitted configuration may be undone."""
        known = self._known()
        static = dict(self._config.peers)
        named: dict[str, str] = {}
        for place, (index, configuration) in enumerate(known):
            if place + 1 < len(known) and known[place + 1][0] <= commit_index:
                continue
            if index < 0 or self.unsure:
                named.update(static)  # if in doubt, all nodes that may help to repair entries
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
        """Another address at which a voter may be reached, with the incarnation of the voter's store; None if
        there is none. The address is the one in dLegerPeers, if the configuration has a different one.

        A learner has no such address. Its incarnation is not recorded, so any process with its id could
        answer at that address.
        """
        member = self.current.members.get(node)
        address = self._config.peers.get(node, "")
        if member is None or not member.incarnation or not address or address == member.address:
            return None
        return address, member.incarnation

    def dialled(self, commit_index: int) -> dict[str, str]:
        """Maps a node id to its address, for the peers that this node keeps a connection to. It is empty
        after this node was removed from the group."""
        mine = self._config.self_id
        if self.removed(commit_index):
            return {}
        return {n: address for n, address in self.addresses(commit_index).items() if n != mine}

    def removed(self, commit_index: int) -> bool:
        """Whether the configuration in force is committed and does not name this node."""
        named = self._config.self_id in self.current.members or self.doubtful(commit_index)
        return 0 <= self.index <= commit_index and not named

    def welcome(self, hello: Hello, commit_index: int) -> Mapping[str, str]:
        """Maps the ids of nodes that may connect to their addresses. `hello` is from the node that asks to
        connect (see the module)."""
        known = self.addresses(commit_index)
        # An uncommitted configuration may be from an abandoned branch: its index proves nothing.
        sure = max((index for index, _ in self._known() if index <= commit_index), default=-1)
        if hello.node not in known and hello.config_index > sure:
            known[hello.node] = ""
        return known

    def opening_body(self, term: int, leader: str) -> bytes:
        """Body of the entry that opens a term. It records which protocol version the leader speaks."""
        packed: bytes = msgpack.packb(
            {"leader": leader, "protocol": self._config.protocol_max, "term": term}, use_bin_type=True
        )
        return packed
