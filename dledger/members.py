"""Configurations of the group as entries of the log (safety.md S19): effective at append, undone by a cut."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from dledger.config import NodeConfig
from dledger.election.membership import voters_of
from dledger.wire import PROTOCOL_MAX
from formats.record import CorruptRecord, decode_record
from formats.store_files import Identity

MAX_MEMBERS = 64


class Members:
    """The configuration in force: the group's founding members, or the last configuration entry."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._founders: dict[str, str] = {}
        self._entries: list[tuple[int, dict[str, str]]] = []

    def open(self, identity: Identity, entries: list[tuple[int, dict[str, str]]]) -> None:
        """`entries`: (index, members) of the configuration entries in the log, ascending."""
        self._founders = dict(identity.members)
        self._entries = list(entries)

    def found(self, identity: Identity) -> None:
        """The group was formed or joined."""
        self._founders = dict(identity.members)

    @property
    def current(self) -> dict[str, str]:
        """Node id -> incarnation of the voters; empty while the group is not formed."""
        return self._entries[-1][1] if self._entries else self._founders

    @property
    def voters(self) -> tuple[str, ...]:
        """Voting node ids. This node counts itself only under its own incarnation (see `is_voter`)."""
        return voters_of(self.current)

    def voters_for(self, identity: Identity) -> tuple[str, ...]:
        """Voting node ids as this store sees them: without itself when another incarnation is named."""
        current = self.current
        if current.get(identity.node) == identity.incarnation:
            return voters_of(current)
        return tuple(node for node in voters_of(current) if node != identity.node)

    def config_at(self, index: int) -> tuple[int, bytes] | None:
        """Place and body of the configuration entry in force at `index`; None for the founding members."""
        for at, members in reversed(self._entries):
            if at <= index:
                return at, self.encode(members)
        return None

    def rebase(self, index: int, config: tuple[int, bytes] | None) -> None:
        """The log begins behind entry `index` now, with this configuration in force there."""
        later = [entry for entry in self._entries if entry[0] > index]
        self._entries = [*base_entries(config), *later]

    @property
    def indexes(self) -> list[int]:
        """Indexes of the configuration entries in the log."""
        return [index for index, _ in self._entries]

    def pending(self, commit_index: int) -> bool:
        """Whether a configuration entry is not committed yet: no other may follow (2015 erratum)."""
        return bool(self._entries) and self._entries[-1][0] > commit_index

    def established(self, commit_index: int, opening_index: int) -> dict[str, str]:
        """Whose acknowledgements a leader counts: an entry that it appended itself, once it is committed.

        Counting the new incarnation at append could commit the entry with it alone, and a voter without the
        entry would not know its vote.
        """
        for index, members in reversed(self._entries):
            if index <= commit_index or index < opening_index:
                return members
        return self._founders

    def add(self, index: int, members: dict[str, str]) -> None:
        """A configuration entry was appended."""
        self._entries.append((index, members))

    def cut(self, last_index: int) -> bool:
        """Entries above `last_index` are gone; True when the configuration changed by that."""
        before = len(self._entries)
        self._entries = [entry for entry in self._entries if entry[0] <= last_index]
        return len(self._entries) != before

    def encode(self, members: Mapping[str, str]) -> bytes:
        """Body of a configuration entry."""
        return _pack({"members": dict(sorted(members.items()))})

    def opening_body(self, term: int, leader: str) -> bytes:
        """Body of a term-opening entry; says which protocol the leader speaks."""
        return _pack({"leader": leader, "protocol": PROTOCOL_MAX, "term": term})


def decode_config(record: bytes | memoryview) -> dict[str, str] | None:
    """Members from the body of a configuration entry (a CommitLog record); None when it is none."""
    try:
        return decode_members(decode_record(record).body)
    except CorruptRecord:
        return None


def base_entries(config: tuple[int, bytes] | None) -> list[tuple[int, dict[str, str]]]:
    """A snapshot's configuration as `Members.open` takes it."""
    members = None if config is None else decode_members(config[1])
    return [] if config is None or members is None else [(config[0], members)]


def decode_members(body: bytes) -> dict[str, str] | None:
    """Inverse of `Members.encode`; None when it is none."""
    try:
        value = msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None
    members = value.get("members") if isinstance(value, dict) else None
    if not isinstance(members, dict) or not 0 < len(members) <= MAX_MEMBERS:
        return None
    if not all(isinstance(node, str) and isinstance(item, str) for node, item in members.items()):
        return None
    return members


def _pack(value: dict[str, object]) -> bytes:
    """Canonical msgpack: keys sorted, no floats (S10)."""
    packed: bytes = msgpack.packb(dict(sorted(value.items())), use_bin_type=True)
    return packed
