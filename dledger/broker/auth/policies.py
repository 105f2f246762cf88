"""Decisions by policies of RocketMQ's ACL 2.0 (AclAuthorizationHandler). Pure.

A resource is `Topic:orders`, `Group:readers`, `Cluster:DefaultCluster`; an entry of a policy names one, or by
`Topic:orders*` those whose names begin so, by `Topic:*` all of a kind, by `*` everything. Of the entries that
fit resource, action and address, the most specific decides: the name itself, then the longest beginning, the
kind, everything. Entries of a user's policy "Custom" go before those of "Default", which count where none of
the former fits. Where none fits at all, the answer is no.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from dledger.formats.state import MAX_RESOURCE, MAX_SOURCE, AclEntry, ActionName

ANYTHING = "*"
KINDS = ("Cluster", "Namespace", "Topic", "Group")
"""Of resources. Nothing here asks for a namespace: names of topics and groups have it in front."""
CUSTOM, DEFAULT = "Custom", "Default"

_Address = tuple[int, int]
"""Version of IP, and the address as a number."""


class Action:
    """Bits of what is done to a resource. Plain numbers: they are part of a key that each send looks for."""

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
"""Bits by the names that policies have for them."""


def resource_of(text: str) -> str:
    """A resource of a policy as it is kept: its kind as RocketMQ writes it. ValueError for what is none."""
    text = text.strip()
    if len(text) > MAX_RESOURCE:
        raise ValueError(f"a resource of {len(text)} characters: at most {MAX_RESOURCE}")
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
    """An action as it is kept. ValueError for what is none."""
    known = {one.lower(): one for one in ACTIONS}.get(text.strip().lower())
    if known is None:
        raise ValueError(f"the action {text!r}: expected {', '.join(ACTIONS)}")
    return known


def source_of(text: str) -> str:
    """An address or a network. ValueError for what is none."""
    text = text.strip()
    if len(text) > MAX_SOURCE:
        raise ValueError(f"a source address of {len(text)} characters: at most {MAX_SOURCE}")
    _network(text)
    return text


def address_of(host: str) -> _Address | None:
    """Of a client; an IPv4 address in IPv6 counts as IPv4."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version, int(address)


def _network(text: str) -> tuple[int, int, int]:
    """Version, first and last address."""
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
        if not self._networks:  # not before they are asked for: each takes 5 microseconds
            self._networks = list(map(_network, self.sources))
        return address is not None and any(
            version == address[0] and first <= address[1] <= last for version, first, last in self._networks
        )


class _Policy:
    """The entries of one policy, found by what they mean."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        """By resource as it is written, without the * of a beginning in `_begins`."""
        self._begins: dict[str, _Entry] = {}
        self._lengths: list[int] = []
        """Of `_begins`, the longest first."""

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
    """Those of one user."""

    def __init__(self, rows: Iterable[AclEntry]) -> None:
        self._of = {CUSTOM: _Policy(), DEFAULT: _Policy()}
        self.by_address: bool = False
        """Whether some entry asks where a client is."""
        for row in rows:
            self._of[row.policy].add(row)
            self.by_address = self.by_address or bool(row.sources)

    def decide(self, resource: str, actions: int, host: str) -> bool | None:
        """Whether one of `actions` may be done to a resource from an address; None where no entry fits."""
        address = address_of(host) if self.by_address else None
        for policy in self._of.values():
            for entry in policy.most_specific(resource):
                if entry.fits(actions, address):
                    return entry.allow
        return None
