"""Decisions by policies of RocketMQ's ACL 2.0 (AclAuthorizationHandler). All functions are pure.

A resource is for example `Topic:orders`, `Group:readers` or `Cluster:DefaultCluster`. An entry of a policy
names one resource, a prefix (`Topic:orders*`), all resources of a kind (`Topic:*`) or everything (`*`). An
entry matches a request if it fits the resource, the action and the client's address. Of several entries that
match, the most specific one decides. The order is: the full name, the longest prefix, the kind, everything.
Entries in a user's policy "Default" are used only if no entry in the policy "Custom" matches. If no entry
matches at all, access is denied.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from dledger.formats.state import MAX_RESOURCE, MAX_SOURCE, AclEntry, ActionName

ANYTHING = "*"
KINDS = ("Cluster", "Namespace", "Topic", "Group")
"""Kinds of resources that entries may name. No request needs an action on a namespace, because a namespace is
only a prefix of the names of topics and groups."""
CUSTOM, DEFAULT = "Custom", "Default"

_Address = tuple[int, int]
"""The IP version, and the address as a number."""


class Action:
    """Actions on a resource, as bits. They are plain numbers because they are part of the key under which a
    decision is looked up for each send."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64


ACTIONS: Mapping[ActionName, int] = {
    "All": 127,
    "Pub": Action.PUB,
    "Sub": Action.SUB,
    "Create": Action.CREATE,
    "Update": Action.UPDATE,
    "Delete": Action.DELETE,
    "Get": Action.GET,
    "List": Action.LIST,
}
"""Maps the name of an action in a policy to its bits."""


def resource_of(text: str) -> str:
    """Return the stored form of a resource, in which the kind is written as RocketMQ writes it. Raises
    ValueError if the text is not a resource."""
    text = text.strip()
    if len(text) > MAX_RESOURCE:
        raise ValueError(f"the resource has {len(text)} characters; the limit is {MAX_RESOURCE}")
    if text == ANYTHING:
        return text
    kind, colon, name = text.partition(":")
    known = {one.lower(): one for one in KINDS}.get(kind.lower())
    if known is None or not colon:
        raise ValueError(
            f"the resource {text!r}: expected * or {', '.join(KINDS)} with a name, as Topic:orders"
        )
    if not name or ANYTHING in name[:-1]:
        raise ValueError(f"the resource {text!r}: expected a name, its beginning with a * behind it, or *")
    return f"{known}:{name}"


def action_of(text: str) -> ActionName:
    """Return the stored form of an action. Raises ValueError if the text is not an action."""
    known = {one.lower(): one for one in ACTIONS}.get(text.strip().lower())
    if known is None:
        raise ValueError(f"the action {text!r}: expected {', '.join(ACTIONS)}")
    return known


def source_of(text: str) -> str:
    """Check that a text is an IP address or a network, and return it without blanks around it. Raises
    ValueError if it is neither."""
    text = text.strip()
    if len(text) > MAX_SOURCE:
        raise ValueError(f"the source address has {len(text)} characters; the limit is {MAX_SOURCE}")
    _network(text)
    return text


def address_of(host: str) -> _Address | None:
    """Parse the address of a client. Returns None if it is not an IP address. An IPv4 address in IPv6 form
    counts as IPv4."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version, int(address)


def _network(text: str) -> tuple[int, int, int]:
    """Return the IP version of a network, and its first and last address as numbers. Raises ValueError if the
    text is not a network."""
    network = ipaddress.ip_network(text, strict=False)
    first = int(network.network_address)
    return network.version, first, first + (1 << network.max_prefixlen - network.prefixlen) - 1


class _Entry:
    __slots__ = ("_networks", "actions", "allow", "sources")

    def __init__(self, row: AclEntry) -> None:
        self.actions = 0
        for name in row.actions:
            self.actions |= ACTIONS[name]
        self.allow = row.allow
        self.sources = row.sources
        self._networks: list[tuple[int, int, int]] = []

    def fits(self, actions: int, address: _Address | None) -> bool:
        if not self.actions & actions:
            return False
        if not self.sources:
            return True
        if not self._networks:  # parsed at the first use: each takes 5 microseconds
            self._networks = list(map(_network, self.sources))
        return address is not None and any(
            version == address[0] and first <= address[1] <= last for version, first, last in self._networks
        )


class _Policy:
    """The entries of one policy, which are found by their resource."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        """Maps a resource, as the entry names it, to its entry. Entries that name a prefix are in `_begins`
        instead, under the prefix without the `*`."""
        self._begins: dict[str, _Entry] = {}
        self._lengths: list[int] = []
        """Lengths of the prefixes in `_begins`, the longest first."""

    def add(self, row: AclEntry) -> None:
        name = row.resource.partition(":")[2]
        if name.endswith(ANYTHING) and name != ANYTHING:
            self._begins[row.resource[:-1]] = _Entry(row)
            self._lengths = sorted({len(one) for one in self._begins}, reverse=True)
        else:
            self._entries[row.resource] = _Entry(row)

    def most_specific(self, resource: str) -> Iterator[_Entry]:
        entries = self._entries
        found = entries.get(resource)
        if found is not None:
            yield found
        for length in self._lengths:
            if length <= len(resource):
                found = self._begins.get(resource[:length])
                if found is not None:
                    yield found
        found = entries.get(resource[: resource.index(":") + 1] + ANYTHING)
        if found is not None:
            yield found
        found = entries.get(ANYTHING)
        if found is not None:
            yield found


class Policies:
    """The policies of one user."""

    def __init__(self, rows: Iterable[AclEntry]) -> None:
        self._of = {CUSTOM: _Policy(), DEFAULT: _Policy()}
        self.by_address: bool = False
        """Whether any entry depends on the client's address."""
        for row in rows:
            self._of[row.policy].add(row)
            self.by_address = self.by_address or bool(row.sources)

    def decide(self, resource: str, actions: int, host: str) -> bool | None:
        """Return whether a client with the address `host` may perform at least one of `actions` on a
        resource. None if no entry matches."""
        address = address_of(host) if self.by_address else None
        for policy in self._of.values():
            for entry in policy.most_specific(resource):
                if entry.fits(actions, address):
                    return entry.allow
        return None
