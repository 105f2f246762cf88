"""Identities of nodes, forming a new group, and joining a group that exists (safety.md S18). Pure.

When a store is made, it chooses a random *incarnation*. So a node whose disk was wiped comes back with
another identity. The group's configuration maps node ids to incarnations; only the named incarnation votes
and counts.

* A *fresh* node (one that has no cluster id yet) forms a group only if it sees all configured peers, and all
  of them are fresh. All of them compute the same cluster id from the same incarnations, so the id need not be
  announced.
* A fresh node that meets a group takes over the group's cluster id. If the group was formed with this very
  incarnation (the node only missed the moment), the node is a member. Otherwise it is a learner until the
  leader commits a configuration that names its incarnation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.formats.store_files import Identity

_MAX_TEXT = 512
_MAX_NAME = 128
"""Limit, in bytes, of a node id and of an incarnation. Both must fit into the part of the file that stores a
vote."""
_MAX_ITEMS = 64
"""Largest number of members, and of entries of `meta`, in a hello."""
_MAX_NUMBER = 1 << 40


class HelloRefused(Exception):
    """The other side may not connect. The text says why and what to do; `cause` is a constant for metrics."""

    def __init__(self, text: str, cause: str = "malformed hello") -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Hello:
    """First message on every peer connection, in both directions."""

    group: str
    node: str
    incarnation: str
    cluster: str
    """Id of the group's log; empty while the node is fresh, that is, has joined no group yet."""
    protocol_min: int
    protocol_max: int
    segment_size: int
    sync_flush: bool
    members: Mapping[str, str] = field(default_factory=dict)
    """The configuration with which the group was formed. Maps a node id to an incarnation."""
    meta: Mapping[str, str] = field(default_factory=dict)
    lease_ms: int = 0
    """Time, in ms, for which a voter votes for nobody else after it has heard from a leader, if the group
    allows lease reads; otherwise 0."""
    config_index: int = -1
    """Index of this node's newest configuration entry, if that entry names this node; otherwise -1.

    A receiver whose log is behind learns from this index that this node may be a member although the receiver
    does not know it yet. If this node's log begins at a snapshot and has no configuration entry,
    `config_index` is the index of the snapshot."""
    config_digest: str = ""
    """Digest of the configuration's content; empty from older programs."""
    state_version: int = 1
    """Newest version of operations that the state machine above the log can read; 1 from older programs."""
    secret: str | None = field(default="", repr=False)
    """Key with which the peer signs its requests to this process (`dledger.peers.proofs`). Only the side that
    opened the connection sends a key; from the other side it is empty. None from older programs, which do not
    sign. Never shown or stored."""

    def shows_newer(self, mine: Hello) -> bool:
        """Whether the hello shows a configuration that is newer than that in `mine`. Comparing the index
        alone is not enough. Logs begin at different snapshots, and a later snapshot gives the same
        configuration a higher index."""
        differs = not self.config_digest or self.config_digest != mine.config_digest
        return self.config_index > mine.config_index and differs


def encode_hello(hello: Hello) -> dict[str, Any]:
    """Encode as a msgpack map; older nodes ignore unknown keys."""
    return {
        "group": hello.group,
        "node": hello.node,
        "incarnation": hello.incarnation,
        "cluster": hello.cluster,
        "protocol": [hello.protocol_min, hello.protocol_max],
        "segment_size": hello.segment_size,
        "sync_flush": hello.sync_flush,
        "members": dict(hello.members),
        "meta": dict(hello.meta),
        "lease_ms": hello.lease_ms,
        "configuration": hello.config_index + 1,
        "configuration_digest": hello.config_digest,
        "state_version": hello.state_version,
        "secret": hello.secret or "",
    }


def decode_hello(value: object) -> Hello:
    """Decode what `encode_hello` encodes. Raises HelloRefused if it is malformed."""
    if not isinstance(value, dict):
        raise HelloRefused("the hello is not a map: is this the peer port of a node (dLegerPeers)?")
    try:
        protocol = value["protocol"]
        return Hello(
            group=_text(value["group"], "group"),
            node=_name(value["node"], "node"),
            incarnation=_name(value["incarnation"], "incarnation"),
            cluster=_text(value["cluster"], "cluster"),
            protocol_min=_number(protocol[0], "protocol"),
            protocol_max=_number(protocol[1], "protocol"),
            segment_size=_number(value["segment_size"], "segment_size"),
            sync_flush=bool(value["sync_flush"]),
            lease_ms=_number(value.get("lease_ms", 0), "lease_ms"),
            members=_texts(value.get("members", {}), "members", _name),
            meta=_texts(value.get("meta", {}), "meta"),
            config_index=_number(value.get("configuration", 0), "configuration") - 1,
            config_digest=_text(value.get("configuration_digest", ""), "configuration_digest"),
            state_version=_number(value.get("state_version", 1), "state_version"),
            secret=_text(value["secret"], "secret") if "secret" in value else None,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise HelloRefused(f"the hello is malformed: {error!r}") from error


def _text(item: object, name: str) -> str:
    if not isinstance(item, str) or len(item) > _MAX_TEXT:
        raise HelloRefused(f"the hello is malformed: {name} is not a text of at most {_MAX_TEXT} characters")
    return item


def _name(item: object, name: str) -> str:
    if not isinstance(item, str) or len(item.encode(errors="replace")) > _MAX_NAME:
        raise HelloRefused(f"the hello is malformed: {name} is not a text of at most {_MAX_NAME} bytes")
    return item


def _number(item: object, name: str) -> int:
    if not isinstance(item, int) or not 0 <= item <= _MAX_NUMBER:
        raise HelloRefused(f"the hello is malformed: {name} is not a number from 0 to {_MAX_NUMBER}")
    return item


def _texts(items: object, name: str, check: Callable[[object, str], str] = _text) -> dict[str, str]:
    if not isinstance(items, dict) or len(items) > _MAX_ITEMS:
        raise HelloRefused(f"the hello is malformed: {name} is not a map of at most {_MAX_ITEMS} texts")
    return {check(key, name): check(item, name) for key, item in items.items()}


def check_hello(mine: Hello, other: Hello, configured: Mapping[str, str]) -> int:
    """Check whether this peer may connect. Return the protocol version to use. Raises HelloRefused if the
    peer may not connect (S9, S18)."""
    if other.group != mine.group:
        raise HelloRefused(
            f"this is group {mine.group!r}, not {other.group!r}: check dLegerGroup and dLegerPeers", "group"
        )
    if other.node == mine.node:
        raise HelloRefused(f"two nodes use the id {mine.node}: check dLegerSelfId", "same id")
    # Checked before membership: else an operator would add the member, and its store would still be refused.
    if mine.cluster and other.cluster and mine.cluster != other.cluster:
        raise HelloRefused(
            f"{other.node} belongs to cluster {other.cluster}, this node to {mine.cluster}: "
            "the stores were not made by the same group",
            "cluster",
        )
    if other.node not in configured:
        raise HelloRefused(
            f"{other.node} is not a member of group {mine.group} ({', '.join(sorted(configured))}): "
            "it was removed, or must be added first (dledger member add)",
            "unknown peer",
        )
    for name, cause, own, theirs in (
        ("mapedFileSizeCommitLog", "mapedFileSizeCommitLog", mine.segment_size, other.segment_size),
        ("flushDiskType SYNC_FLUSH", "flushDiskType", mine.sync_flush, other.sync_flush),
        ("the promise of lease reads in ms", "lease reads", mine.lease_ms, other.lease_ms),
    ):
        if own != theirs:
            raise HelloRefused(
                f"{name} is {own} on {mine.node} and {theirs} on {other.node}: it must be the same",
                cause,
            )
    version = min(mine.protocol_max, other.protocol_max)
    if version < max(mine.protocol_min, other.protocol_min):
        raise HelloRefused(
            f"no common peer protocol: {mine.node} speaks {mine.protocol_min}-{mine.protocol_max}, "
            f"{other.node} {other.protocol_min}-{other.protocol_max}",
            "version",
        )
    return version


def check_certificate(other: Hello, names: Sequence[str]) -> None:
    """Check that the certificate names this node: "n0", or "n0.<group>". Raises HelloRefused if it does
    not."""
    wanted = (other.node, f"{other.node}.{other.group}")
    if not any(name in wanted for name in names):
        shown = ", ".join(names) or "nobody"
        raise HelloRefused(
            f"the certificate is issued to {shown}, not to {wanted[0]} or {wanted[1]}", "certificate"
        )


def cluster_id(members: Mapping[str, str]) -> str:
    """Return the id of the group that these incarnations form. Every member computes the same id."""
    text = "\n".join(f"{node} {incarnation}" for node, incarnation in sorted(members.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def form_or_join(
    identity: Identity,
    configured: Mapping[str, str],
    hellos: Mapping[str, Hello],
    founders: Mapping[str, Hello],
) -> Identity | None:
    """Return the identity that a fresh node gets after the hellos seen so far; None while it must wait.

    `hellos` holds the last hello of each peer that is connected now. `founders` holds only hellos of the
    processes that answer at the peers' addresses. A group is formed of the latter only. So if two processes
    have the same id, all nodes count the same process.
    """
    if identity.cluster:
        return None
    for node in sorted(hellos):
        hello = hellos[node]
        if hello.cluster:
            return replace(identity, cluster=hello.cluster, members=dict(hello.members))
    if any(node != identity.node and node not in founders for node in configured):
        return None
    members = {node: hello.incarnation for node, hello in founders.items()}
    members[identity.node] = identity.incarnation
    return replace(identity, cluster=cluster_id(members), members=members)
