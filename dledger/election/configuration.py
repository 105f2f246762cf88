"""Configurations of a group and the steps between them (safety.md S18, S19; decision 0005). Pure.

A configuration names every member by id, with its address, the *incarnation* (identity) of its store, and its
role. Only voters count; a learner receives the log. Two configurations that follow one another differ in at
most one voter. Then any majority of the first shares a node with any majority of the second. So no two
leaders can be elected or commit independently (Raft dissertation 4.1). `single_step` is that rule. Every
function that makes a new configuration obeys it, and the leader checks it once more before it appends.

A voter is the pair (id, incarnation). Replacing a dead voter by an empty store under the same id therefore
takes *two* steps: the id becomes a learner (the old incarnation leaves the voters), and is promoted with the
new incarnation when it has caught up. Suppose that it were one step and that the old disk came back. Then {a,
b, c1} and {a, b, c2} would have the majorities {b, c1} and {a, c2}, which share no node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from typing import Any

import msgpack

from dledger.formats.addresses import split_address

VERSION = 2
MAX_MEMBERS = 64
MAX_ID = 32


class ConfigurationRefused(ValueError):
    """The change is not possible. The text says why, and what to do."""


class MemberRole(Enum):
    """The role of a member. Only a voter votes and counts towards a quorum."""

    VOTER = "voter"
    LEARNER = "learner"


@dataclass(frozen=True)
class Member:
    """One member, as a configuration entry of the log records it."""

    incarnation: str
    """Incarnation of the member's store. It is "" for a learner, which may have any store because it does not
    count."""
    address: str = ""
    """host:port of the member's peer port; "" means the address in dLegerPeers."""
    role: MemberRole = MemberRole.VOTER
    stays: bool = False
    """Whether a learner stays one: it is not promoted automatically."""


@dataclass(frozen=True)
class Configuration:
    """The members of the group. Immutable: the methods return a changed copy, or raise
    ConfigurationRefused."""

    members: Mapping[str, Member] = field(default_factory=dict)
    preferred: tuple[str, ...] | None = None
    """Ids of the nodes that should lead, in the order in which they are tried. None means that each node's
    own setting decides."""

    @property
    def voters(self) -> tuple[str, ...]:
        """Ids of the voters, sorted."""
        return tuple(sorted(n for n, member in self.members.items() if member.role is MemberRole.VOTER))

    @property
    def learners(self) -> tuple[str, ...]:
        """Ids of the learners, sorted."""
        return tuple(sorted(n for n, member in self.members.items() if member.role is MemberRole.LEARNER))

    @property
    def recorded(self) -> bool:
        """Whether the configuration was written as version 2, in which every member has an address. Then all
        members can read version 2."""
        return all(member.address for member in self.members.values())

    def names(self, node: str, incarnation: str) -> bool:
        """Whether this node with this incarnation of its store is a voter."""
        member = self.members.get(node)
        return member is not None and member.role is MemberRole.VOTER and member.incarnation == incarnation

    def digest(self) -> str:
        """Digest of the content. Equal configurations have equal digests, whatever entry or snapshot they
        come from."""
        return sha256(encode_configuration(self)).hexdigest()[:16]

    def with_learner(self, node: str, address: str, *, stays: bool) -> Configuration:
        """Add a new member as a learner, which receives the log and does not vote."""
        check_node(node, address)
        if node in self.members:
            raise ConfigurationRefused(f"{node} is already a member: remove it first")
        if len(self.members) >= MAX_MEMBERS:
            raise ConfigurationRefused(f"a group has at most {MAX_MEMBERS} members")
        taken = [other for other, member in sorted(self.members.items()) if member.address == address]
        if taken:
            raise ConfigurationRefused(f"{address} is the address of {taken[0]}")
        return self._with(node, Member("", address, MemberRole.LEARNER, stays))

    def with_voter(self, node: str, incarnation: str) -> Configuration:
        """Turn a learner into a voter. Only its store with this incarnation counts."""
        member = self.members.get(node)
        if member is None:
            raise ConfigurationRefused(f"{node} is not a member: add it first")
        if member.role is MemberRole.VOTER:
            raise ConfigurationRefused(f"{node} is already a voter")
        if not incarnation:
            raise ConfigurationRefused(
                f"{node} is not connected, so it is not known which store it has: start it first"
            )
        return self._with(node, Member(incarnation, member.address))

    def demoted(self, node: str) -> Configuration:
        """Turn a voter whose store is lost into a learner. This is the first step of its replacement."""
        member = self.members.get(node)
        if member is None or member.role is not MemberRole.VOTER:
            raise ConfigurationRefused(f"{node} is not a voter")
        return self._with(node, Member("", member.address, MemberRole.LEARNER))._checked()

    def without(self, node: str) -> Configuration:
        """Remove a member."""
        if node not in self.members:
            raise ConfigurationRefused(
                f"{node} is not a member; the members are {', '.join(sorted(self.members))}"
            )
        rest = {other: member for other, member in self.members.items() if other != node}
        preferred = self.preferred and tuple(other for other in self.preferred if other != node)
        return Configuration(rest, preferred)._checked()

    def preferring(self, nodes: tuple[str, ...] | None) -> Configuration:
        """Keep the members, and replace the list of preferred leaders."""
        for node in nodes or ():
            if node not in self.members:
                raise ConfigurationRefused(
                    f"{node} is not a member; the members are {', '.join(sorted(self.members))}"
                )
        return replace(self, preferred=nodes)

    def same_members(self, before: Configuration) -> bool:
        """Whether the members are unchanged, so that at most the preferred leaders differ. (The first
        configuration after version 1 also adds the addresses.)"""
        return (
            self.members
            == before.addressed({node: member.address for node, member in self.members.items()}).members
        )

    def addressed(self, addresses: Mapping[str, str]) -> Configuration:
        """Add addresses where the configuration has none because it has version 1."""
        return replace(
            self,
            members={
                node: member if member.address else replace(member, address=addresses.get(node, ""))
                for node, member in self.members.items()
            },
        )

    def _with(self, node: str, member: Member) -> Configuration:
        return replace(self, members={**self.members, node: member})

    def _checked(self) -> Configuration:
        if not self.voters:
            raise ConfigurationRefused(
                "the last voter cannot be removed: a group without voters cannot elect a leader"
            )
        return self


def founding(members: Mapping[str, str]) -> Configuration:
    """Return the configuration with which a group was formed. All its members are voters; `members` maps ids
    to incarnations."""
    return Configuration({node: Member(incarnation) for node, incarnation in members.items()})


def single_step(before: Configuration, after: Configuration) -> bool:
    """Whether at most one voter, as the pair (id, incarnation), joins or leaves. If so, every majority of one
    configuration shares a node with every majority of the other."""
    old = {(node, before.members[node].incarnation) for node in before.voters}
    new = {(node, after.members[node].incarnation) for node in after.voters}
    return len(old ^ new) <= 1


def check_node(node: str, address: str) -> None:
    """Raise ConfigurationRefused for an id or address that dLegerPeers could not contain."""
    if not (node[:1].isalpha() and node[1:].isdigit() and node.isascii() and len(node) <= MAX_ID):
        raise ConfigurationRefused(f"{node[:MAX_ID]!r}: a node id is one letter with digits, such as n0")
    try:
        split_address(address)
    except ValueError as error:
        raise ConfigurationRefused(str(error)) from error


# The body of a configuration entry: canonical msgpack (sorted keys, no floats; S10).


def encode_configuration(configuration: Configuration) -> bytes:
    """Encode as version 2. Equal configurations have equal bytes."""
    members: dict[str, dict[str, Any]] = {}
    for node in sorted(configuration.members):
        member = configuration.members[node]
        value: dict[str, Any] = {
            "address": member.address,
            "incarnation": member.incarnation,
            "role": member.role.value,
        }
        if member.stays:
            value["stays"] = True
        members[node] = value
    body: dict[str, Any] = {"members": members}
    if configuration.preferred is not None:
        body["preferred"] = list(configuration.preferred)
    body["version"] = VERSION
    packed: bytes = msgpack.packb(body, use_bin_type=True)
    return packed


def decode_configuration(body: bytes | memoryview) -> Configuration | None:
    """Decode what `encode_configuration` encodes, and also version 1 ({"members": {id: incarnation}}).

    Returns None if the body has neither version. A node that cannot read a configuration cannot continue.
    """
    try:
        value = msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None
    version = value.get("version", 1) if isinstance(value, dict) else None
    if version not in (1, VERSION):
        return None
    members = value.get("members")
    if not isinstance(members, dict) or not 0 < len(members) <= MAX_MEMBERS:
        return None
    decoded: dict[str, Member] = {}
    for node, item in members.items():
        member = _decode_member(item)
        if not isinstance(node, str) or member is None:
            return None
        decoded[node] = member
    preferred = value.get("preferred")
    if preferred is None:
        return Configuration(decoded)
    if not isinstance(preferred, list) or not all(isinstance(node, str) for node in preferred):
        return None
    return Configuration(decoded, tuple(preferred))


def _decode_member(item: object) -> Member | None:
    if isinstance(item, str):
        return Member(item)
    if not isinstance(item, dict):
        return None
    incarnation, address, role = item.get("incarnation"), item.get("address"), item.get("role")
    if not isinstance(incarnation, str) or not isinstance(address, str):
        return None
    if role not in (MemberRole.VOTER.value, MemberRole.LEARNER.value):
        return None
    return Member(incarnation, address, MemberRole(role), item.get("stays") is True)
