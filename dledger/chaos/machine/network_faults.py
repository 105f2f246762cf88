"""Faults of the network: methods of `world.network`. Partitions are methods of `World` (faults.py).

Machines are given by name. A fault between two machines holds for both directions unless `directed` is set.
Each fault writes one line of kind `fault` to the trace, and is counted in `world.faults`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dledger.chaos.machine.link import Link
from dledger.chaos.machine.settings import SECOND

if TYPE_CHECKING:
    import random

    from dledger.chaos.machine.node import Node
    from dledger.chaos.machine.tcp import Endpoint
    from dledger.chaos.machine.world import World
    from dledger.runtime.env import Env

_MAX_LATENCY_S = 3600.0  # a higher latency is probably a mistake in the unit
_MAX_GARBAGE = 4096
_STRANGER = 62_499  # number that no machine of a world has: 10.0.249.250


class NetworkFaults:
    """The faults of the network, as a base class of `Network`."""

    world: World
    links: dict[tuple[str, str], Link]
    _random: random.Random
    _stranger: Node | None = None

    def link(self, source: Node, target: Node) -> Link:
        """The link for one direction between two machines."""
        raise NotImplementedError

    def _fault(self, a: str, b: str, kind: str, detail: str, directed: bool) -> None:
        pair = f"{a}>{b}" if directed else f"{a}<>{b}"
        self.world.fault(a, kind, f"{pair} {detail}".rstrip())

    def _links(self, a: str, b: str, directed: bool) -> list[Link]:
        one, other = self.world.nodes[a], self.world.nodes[b]
        return [self.link(one, other)] if directed else [self.link(one, other), self.link(other, one)]

    # -- links ---------------------------------------------------------------------------------------

    def delay(
        self, a: str, b: str, latency_s: float | tuple[float, float] | None, *, directed: bool = False
    ) -> None:
        """Let packets take `latency_s` seconds one way. With a pair (low, high), each packet takes a random
        time between the two. None restores the usual latency."""
        links = self._links(a, b, directed)
        if latency_s is None:
            self.world.note(a, "latency", f"{a}{'>' if directed else '<>'}{b} as usual")
            for link in links:
                link.latency_ns = link.usual_latency_ns
            return
        low, high = latency_s if isinstance(latency_s, tuple) else (latency_s, latency_s)
        if not 0 <= low <= high <= _MAX_LATENCY_S:
            raise ValueError(f"a latency of {low} to {high} s")
        self._fault(a, b, "link_delay", f"{low * 1000:g} to {high * 1000:g} ms", directed)
        for link in links:
            link.latency_ns = (round(low * SECOND), round(high * SECOND))

    def loss(self, a: str, b: str, share: float, *, directed: bool = False) -> None:
        """Lose this share of the packets (0 to 0.95). A lost packet is sent again, and later packets wait for
        it."""
        if not 0 <= share <= 0.95:
            raise ValueError(f"a loss of {share}")
        if share:
            self._fault(a, b, "link_loss", f"{share:g}", directed)
        else:
            self.world.note(a, "loss", f"{a}{'>' if directed else '<>'}{b} none")
        for link in self._links(a, b, directed):
            link.set_loss(share)

    def bandwidth(self, a: str, b: str, bytes_per_s: float | None, *, directed: bool = False) -> None:
        """Limit the bandwidth of each direction, in bytes a second, for all connections together. None ends
        the limit."""
        if bytes_per_s is None:
            self.world.note(a, "bandwidth", f"{a}{'>' if directed else '<>'}{b} any")
        else:
            self._fault(a, b, "link_bandwidth", f"{bytes_per_s:g} B/s", directed)
        for link in self._links(a, b, directed):
            link.set_bandwidth(bytes_per_s)

    def silence(self, a: str, b: str, *, directed: bool = False) -> None:
        """Let handshakes succeed, but hold all data that programs on `a` send to `b` (and, unless `directed`
        is set, on `b` to `a`), until `World.heal`.

        This simulates a proxy that accepts connections and never answers. The kernels acknowledge packets, so
        only programs can notice.
        """
        self._fault(a, b, "silence", "", directed)
        for link in self._links(a, b, directed):
            link.silent = True

    def mend(self) -> None:
        """End all delays, losses and limits of bandwidth. Partitions and silence are ended by
        `World.heal`."""
        self.world.note("network", "mend", "")
        for _, link in sorted(self.links.items()):
            link.latency_ns = link.usual_latency_ns
            link.set_loss(0.0)
            link.set_bandwidth(None)

    # -- connections ---------------------------------------------------------------------------------

    def _connections(self, a: str, b: str | None) -> list[Endpoint]:
        """The ends at `a` of its connections (only those with `b`, if it is given), in the order in which
        they were made."""
        process = self.world.nodes[a].process
        if process is None:
            return []
        return [end for end in process.endpoints.values() if b in (None, end.flow.target.name) and end.peer]

    def reset(self, a: str, b: str | None = None) -> None:
        """Send RST to both ends of all connections of `a` (only those with `b`, if it is given)."""
        ends = self._connections(a, b)
        self.world.fault(a, "reset", f"{b or 'all'}, {len(ends)} connections")
        for end in ends:
            assert end.peer is not None
            end.peer.on_reset(None)
            end.on_reset(None)

    def forget(self, a: str, b: str | None = None) -> None:
        """Let the kernel of `a` forget its connections (only those with `b`, if it is given). The programs on
        `a` get ETIMEDOUT.

        The other ends are half open: they notice nothing until they send something and get RST.
        """
        ends = self._connections(a, b)
        self.world.fault(a, "half_open", f"{b or 'all'}, {len(ends)} connections")
        for end in ends:
            end.vanish(errno.ETIMEDOUT)

    def strand(self, a: str, b: str | None = None) -> None:
        """Let nothing more arrive on the present connections of `a` (only those with `b`, if it is given), on
        either side, for ever.

        This simulates a firewall that lost its table. New connections work.
        """
        ends = self._connections(a, b)
        self.world.fault(a, "strand", f"{b or 'all'}, {len(ends)} connections")
        for end in ends:
            assert end.peer is not None
            end.flow.stranded = end.peer.flow.stranded = True

    # -- strangers -----------------------------------------------------------------------------------

    def garbage(self, node: str, port: int, data: bytes | None = None, hold_s: float = 1.0) -> None:
        """Let a foreign client connect to the machine, send this data (or random bytes), and close after
        `hold_s` seconds."""
        if data is None:
            data = self._random.randbytes(self._random.randint(1, _MAX_GARBAGE))
        self.world.fault(node, "garbage", f"port {port}, {len(data)} bytes")
        self._visit(node, port, data, hold_s, 1)

    def crowd(self, node: str, port: int, count: int, hold_s: float = 1.0) -> None:
        """Open `count` connections of foreign clients at once. They send nothing, and are closed after
        `hold_s` seconds."""
        self.world.fault(node, "crowd", f"port {port}, {count} connections")
        self._visit(node, port, b"", hold_s, count)

    def _visit(self, node: str, port: int, data: bytes, hold_s: float, count: int) -> None:
        stranger = self._stranger
        if stranger is None:
            stranger = self._stranger = self.world.foreign_node("stranger", _STRANGER)
        visit = partial(_visit, host=self.world.nodes[node].address, port=port, data=data, hold_s=hold_s)

        async def main(env: Env) -> None:
            async with asyncio.TaskGroup() as visits:
                for number in range(count):
                    visits.create_task(visit(), name=f"visit-{number}")

        self.world.run_beside(stranger, main, may_raise=())


async def _visit(host: str, port: int, data: bytes, hold_s: float) -> None:
    loop = asyncio.get_running_loop()
    make: Callable[[], asyncio.Protocol] = asyncio.Protocol
    try:
        transport, _ = await loop.create_connection(make, host, port)
    except OSError:
        return
    transport.write(data)
    await asyncio.sleep(hold_s)
    transport.close()
    await asyncio.sleep(hold_s)
