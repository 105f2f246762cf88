"""Finds conflicts between the settings of a server's ports and directories: two things cannot use the same
place. Pure: host names are not resolved, so two names of one machine count as the same only if they are
equal.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from dledger.formats.addresses import join_address

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Place(NamedTuple):
    """A host and port at which a server listens, or to which its clients or peers are told to connect."""

    setting: str
    """The setting that an operator changes to choose another host or port."""
    host: str
    port: int

    @property
    def shown_host(self) -> str:
        """The host, in the form in which messages show it."""
        return self.host or "all addresses"

    def __str__(self) -> str:
        return f"{self.setting} ({join_address(self.shown_host, self.port)})"


def ip_of(host: str) -> _IPAddress | None:
    """Return the IP address that a text means; `localhost` is one too. None for any other name."""
    if host.lower().rstrip(".") == "localhost":
        host = "127.0.0.1"
    if host and set(host) <= set("0."):
        host = "0.0.0.0"  # the system understands `0` so, too
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_anywhere(host: str) -> bool:
    """Whether the host means all addresses of a machine, which is good for listening but not for
    connecting."""
    ip = ip_of(host)
    return not host or host == "*" or (ip is not None and ip.is_unspecified)


def is_loopback(host: str) -> bool:
    """Whether the host is known to mean this machine."""
    ip = ip_of(host)
    return ip is not None and ip.is_loopback


def same_host(one: str, other: str) -> bool:
    """Whether two texts are known to mean the same address."""
    ips = ip_of(one), ip_of(other)
    if None in ips:
        return one.lower().rstrip(".") == other.lower().rstrip(".")
    return ips[0] == ips[1]


def meet(one: str, other: str) -> bool:
    """Whether listening on the same port at both hosts conflicts. It does if one of them means all addresses,
    or if they are the same."""
    families = {ip.version for host in (one, other) if (ip := ip_of(host)) is not None and host}
    if is_anywhere(one) or is_anywhere(other):
        return len(families) < 2
    return same_host(one, other)


def listening_twice(places: Sequence[Place]) -> list[str]:
    """Return one text for each pair of places on which a server cannot listen at the same time. Each text
    names both settings."""
    return [
        f"{one.setting} and {other.setting} both use port {one.port}, at {one.shown_host} and "
        f"{other.shown_host}: give one of them another port"
        for one, other in combinations(places, 2)
        if one.port == other.port and meet(one.host, other.host)
    ]


def found_twice(own: Iterable[Place], others: Iterable[Place]) -> list[str]:
    """Return one text for each of `others` whose address belongs to this server itself."""
    mine = list(own)
    return [
        f"{other} is also {one} of this server: give each server its own address"
        for other in others
        for one in mine
        if other.port == one.port and same_host(one.host, other.host)
    ]


def within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies in it. Only the texts are compared; links are not followed."""
    path, directory = normal(path), normal(directory)
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def normal(path: str) -> str:
    """Return the path in its shortest form: `./a//b/../c/` becomes `a/c`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."
