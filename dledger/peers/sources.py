"""The rule of a port without TLS: from which addresses members may connect, and which clients may change the
group.

Without certificates anybody who reaches the port can claim to be a member. So a peer's hello is accepted only
from an address of a member. These addresses come from `dLegerPeers`, from the configuration in the log, or
from other members (for a member that was added while this node was away).

A client may ask from anywhere, but requests that change the group are accepted from these addresses only.
This machine counts as the node's own administration, and `peerAllowedSources` names further addresses. With
TLS the certificates decide, and this module does nothing.

Messages do not wait for names to be resolved. Only a hello from an unknown address waits, until all names
have been looked up again and the members were asked. This happens at most once per `LOOK_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Protocol

from dledger.config import NodeConfig
from dledger.formats.addresses import split_address
from dledger.peers.dialling import Dialler
from dledger.peers.links import PeerConnection
from dledger.peers.wire import HELLO, Frame
from dledger.runtime import Env

LOOK_PAUSE_S = 1.0
"""Smallest time, in seconds, between two rounds of looking up names and asking members. Strangers cannot make
a node do it more often."""
LOOK_LIMIT_S = 1.0
"""Time-out, in seconds, of looking up a name, and of asking a member."""
MAX_TOLD = 64
"""Largest number of addresses kept that only other members report and that no configuration here names."""
MAX_ANSWER = 64 * 1024
"""Limit, in bytes, of the answer of a member."""
ANYBODY = "*"
"""Value in `peerAllowedSources` that allows all addresses."""
EVERYWHERE = ("0.0.0.0", "::")
"""Listening addresses that mean all addresses of a machine."""
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Connections(Protocol):
    """The node's connections, as this module uses them."""

    def addresses(self) -> Mapping[str, str]:
        """Return the peer ports of the members, by id."""

    def admit(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Continue with the hello, because its address belongs to a member."""

    def turn_away(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Refuse the hello, because its address belongs to no member."""


class Sources:
    """The source rule of one node. If `guarded` is False (with TLS, or by the setting), every address is
    allowed."""

    def __init__(self, env: Env, config: NodeConfig, connections: Connections, *, tls: bool) -> None:
        self._log = env.log.child("sources")
        self._config = config
        self._connections = connections
        self.guarded: bool = not tls and ANYBODY not in config.allowed_sources
        self._allowed = [ipaddress.ip_network(text) for text in config.allowed_sources if text != ANYBODY]
        self._found: dict[str, tuple[IpAddress, ...]] = {}
        """Maps a member's name to the addresses that it had when it was last looked up."""
        self._told: dict[str, None] = {}
        self._unsure: dict[PeerConnection, Mapping[str, object]] = {}
        self._wake = asyncio.Event()
        self._wake.set()
        self._hurry = asyncio.Event()

    def admits(self, host: str) -> bool:
        """Whether this is the address of a member or of this machine, or an allowed address, as far as this
        node knows."""
        if not self.guarded:
            return True
        source = read_ip(host)
        if source is None:
            return False
        known = {address for name in self._hosts() for address in self._addresses(name)}
        return source.is_loopback or source in known or any(source in network for network in self._allowed)

    def decide(self, connection: PeerConnection, hello: Mapping[str, object]) -> None:
        """Admit a peer's hello if its address is known; otherwise look names up first."""
        if self.admits(connection.host):
            self._connections.admit(connection, hello)
        else:
            self._unsure[connection] = hello
            self._wake.set()

    def look(self) -> None:
        """Look names up, because a client came from an unknown address: it may run on a member whose name has
        a new address."""
        self._wake.set()

    def members_changed(self) -> None:
        """Look up at once a name that was never looked up, so that a new member is accepted."""
        if self.guarded and any(read_ip(host) is None and host not in self._found for host in self._hosts()):
            self._wake.set()
            self._hurry.set()

    async def run(self) -> None:
        """Look names up when a connection waits for it, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            if not self.guarded:
                continue
            waiting, self._unsure = self._unsure, {}
            await self._resolve()
            if any(not connection.closed and not self.admits(connection.host) for connection in waiting):
                await self._ask()
            for connection, hello in waiting.items():
                if connection.closed:
                    continue
                if self.admits(connection.host):
                    self._connections.admit(connection, hello)
                else:
                    self._connections.turn_away(connection, hello)
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_PAUSE_S):
                await self._hurry.wait()
        except TimeoutError:
            return

    def _hosts(self) -> Iterable[str]:
        named = self._connections.addresses().values()
        for address in dict.fromkeys([*named, *self._config.peers.values(), *self._told]):
            try:
                yield split_address(address)[0]
            except ValueError:
                continue  # a log may contain an invalid address already

    def _addresses(self, host: str) -> tuple[IpAddress, ...]:
        literal = read_ip(host)
        return self._found.get(host, ()) if literal is None else (literal,)

    async def _resolve(self) -> None:
        hosts = [host for host in dict.fromkeys(self._hosts()) if read_ip(host) is None]
        answers = await asyncio.gather(*(look_up(host) for host in hosts))
        # A name that cannot be looked up now keeps its previous addresses.
        found = {
            host: answer or self._found.get(host, ()) for host, answer in zip(hosts, answers, strict=True)
        }
        self._found = found

    async def _ask(self) -> None:
        """Ask the members for the addresses that they know: a member may have been added while this node was
        away."""
        mine = self._config.self_id
        places = [address for node, address in self._connections.addresses().items() if node != mine]
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._hear(places), name="ask-members")
            news = group.create_task(self._hurry.wait(), name="members-changed")
            # A newer configuration may contain the node that waits, and an asked member may not answer.
            await asyncio.wait((asking, news), return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
            news.cancel()
        await self._resolve()

    async def _hear(self, places: Iterable[str]) -> None:
        answers = await asyncio.gather(*(ask(place, self._config.group) for place in places))
        told = dict.fromkeys(address for answer in answers for address in answer)
        self._told = dict.fromkeys(list(told)[:MAX_TOLD])


async def look_up(host: str) -> tuple[IpAddress, ...]:
    """Return the addresses of a name. Empty if the name cannot be looked up."""
    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, 0)
    except (OSError, UnicodeError):  # a time-out, too
        return ()
    read = (read_ip(str(info[4][0])) for info in found)
    return tuple(dict.fromkeys(address for address in read if address is not None))


async def ask(place: str, group: str) -> tuple[str, ...]:
    """Return the addresses of members that the member at `place` reports to a client. Empty if it does not
    answer."""
    answer: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()

    def on_frame(connection: PeerConnection, frame: Frame) -> None:
        if not answer.done():
            header = frame.header() if frame.number == HELLO else {}
            told = header.get("addresses") if isinstance(header, dict) else {}
            found = told.values() if isinstance(told, dict) else ()
            answer.set_result(tuple(address for address in found if isinstance(address, str)))

    def on_lost(connection: PeerConnection) -> None:
        if not answer.done():
            answer.set_result(())

    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            dialler = Dialler(place, None, LOOK_LIMIT_S)
            connection = await dialler.connect(
                lambda: PeerConnection(on_frame, on_lost, MAX_ANSWER, dialled=place)
            )
            try:
                connection.send_frame(HELLO, {"client": True, "group": group})
                return await answer
            finally:
                connection.abort()
    except OSError:  # a time-out, too
        return ()


def read_ip(text: str) -> IpAddress | None:
    """Parse an IP address without its zone. An IPv4 address that is embedded in IPv6 becomes IPv4. None for a
    host name."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


async def own_places(own: str, peers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses at which the others find this node, whose peer port is `own`. Empty if they are
    not known: this machine may not know its own name, or may resolve it to its loopback address although
    other nodes are on other machines.
    """
    found = await _places(own)
    if found and all(address.is_loopback for address in found):
        others = await asyncio.gather(*map(_places, peers.values()))
        if any(not address.is_loopback for other in others for address in other):
            return ()
    return tuple(map(str, found))


async def _places(address: str) -> tuple[IpAddress, ...]:
    host = split_address(address)[0]
    literal = read_ip(host)
    return await look_up(host) if literal is None else (literal,)
