"""The network of a trial: which process reaches which, and how well.

A *link* leads from one host to another, in one direction. The hosts are the nodes, the NameServer
(`namesrv`), and `clients`: the process of the trial with all its client programs. There are two kinds of
networks with this interface. `namespaces` gives each host a network namespace of its own, which needs root.
`proxy` relays all connections in the process of the trial; it can also delay, hold, drop and reset them.

Whatever happens to the links, the trial always sees the `/health` of each node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dledger.local.placement import NAMESRV, Placement

CLIENTS = "clients"
"""Name of the host of all client programs."""


class Network(Protocol):
    """All links between the hosts of a trial. Methods block, and may be called from any thread."""

    kind: str
    """How the network is made, as a word for the result: `namespaces` or `proxy`."""

    @property
    def broker_settings(self) -> Mapping[str, str]:
        """Properties that the brokers need in this network."""

    def place(self) -> Placement:
        """Where the processes of the group run, and at which addresses they are found."""

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from one host to another any more. Packets vanish without an error, so connections
        stay open, and what was sent arrives after the cut is over."""

    def join(self, source: str, target: str) -> None:
        """End a cut of this link."""

    def heal(self) -> None:
        """End everything that is wrong with any link."""

    def close(self) -> None:
        """Remove the network. The processes of the group have ended before."""


class ProxiedNetwork(Network, Protocol):
    """A network that can do more than cut a link."""

    def delay(self, source: str, target: str, ms: int, jitter_ms: int = 0) -> None:
        """Let data arrive `ms` milliseconds later, and up to `jitter_ms` more, in order. 0 ends the delay."""

    def rate(self, source: str, target: str, bytes_per_s: int) -> None:
        """Let no more than this pass. 0 ends the limit."""

    def drop(self, source: str, target: str) -> None:
        """Accept data and connections, and lose them: the sender's system acknowledges what never arrives.
        When `restore` ends this, connections that lost data are reset."""

    def restore(self, source: str, target: str) -> None:
        """End a drop of this link."""

    def flaky(self, source: str, target: str, seed: int, resets: float, holds: float) -> None:
        """Reset a connection with probability `resets` for each piece of data, and hold a piece of data back
        with probability `holds`. 0 for both ends this."""

    def reset(self, source: str, target: str) -> int:
        """Reset all connections that one host has opened to another. Returns how many there were."""


def hosts_of(nodes: Sequence[str]) -> tuple[str, ...]:
    """All hosts of a trial."""
    return (CLIENTS, NAMESRV, *nodes)
