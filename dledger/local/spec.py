"""The settings of a group on this machine, and the ports that follow from them.

Ports, from the base port B (default 9876):

- The NameServer has B. A group that uses other NameServers does not use B.
- Broker number i (0, 1, ...) has B + 10 (i + 1) for clients, the next port for its peers, and the one after
  that for HTTP. Like RocketMQ's brokers it also has the port two below B + 10 (i + 1): the VIP channel.

A group of three needs B ... B + 32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.formats.addresses import split_addresses
from dledger.local.ports import CLAIM, HOST, claim, port_taken

MIB = 1024 * 1024
DEFAULT_BASE_PORT = 9876
DEFAULT_SEGMENT_SIZE = 64 * MIB
DEFAULT_POOL_SEGMENTS = 2
STATE_BYTES = 32 * MIB
"""Initial disk space for the index, queues, small files and logs of one node, in bytes."""
PORTS_PER_NODE = 10
MAX_NODES = 9
LAST_BASE_PORT = 30000
"""Highest base port in the search for free ports. From port 32768 on the system uses ports for outgoing
connections."""


class ClusterError(Exception):
    """Raised for a problem with the group; the text says what to do."""


@dataclass(frozen=True)
class ClusterSpec:
    """The settings of a group. `broker` holds additional properties for every broker's configuration file."""

    nodes: int = 3
    base_port: int = DEFAULT_BASE_PORT
    group: str = "broker-a"
    cluster: str = "DefaultCluster"
    segment_size: int = DEFAULT_SEGMENT_SIZE
    pool_segments: int = DEFAULT_POOL_SEGMENTS
    flush: str = "SYNC_FLUSH"
    broker: dict[str, str] = field(default_factory=dict)
    namesrv: str = ""
    """Addresses of other NameServers that the group uses, as `host:port;host:port`. If empty, the group
    has its own NameServer."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ClusterError(f"{self.nodes} nodes: give a number from 1 to {MAX_NODES}")
        if not 1 <= self.base_port <= 65535 - PORTS_PER_NODE * (self.nodes + 1):
            raise ClusterError(f"base port {self.base_port}: the group's ports would not fit below 65536")
        try:
            split_addresses(self.namesrv)
        except ValueError as error:
            raise ClusterError(f"NameServer address {error}") from error

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ids of the nodes: `n0`, `n1`, ..."""
        return tuple(f"n{number}" for number in range(self.nodes))

    @property
    def namesrv_port(self) -> int:
        """Port of the group's own NameServer."""
        return self.base_port

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """Addresses of all NameServers that the brokers register with, `host:port` each."""
        return split_addresses(self.namesrv) or (f"{HOST}:{self.namesrv_port}",)

    def port(self, node: str) -> int:
        """Return the port of a node for clients."""
        return self.base_port + PORTS_PER_NODE * (int(node[1:]) + 1)

    def raft_port(self, node: str) -> int:
        """Return the port of a node for its peers."""
        return self.port(node) + 1

    def http_port(self, node: str) -> int:
        """Return the port of a node for `/health` and `/metrics`."""
        return self.port(node) + 2

    def ports(self) -> dict[int, str]:
        """Return all ports, each with its use, except the ports of the VIP channel; a broker can run
        without that channel."""
        ports = {} if self.namesrv else {self.namesrv_port: "NameServer"}
        for node in self.node_ids:
            ports |= self.ports_of(node)
        return ports

    def ports_of(self, node: str) -> dict[int, str]:
        """Return the ports of one broker, each with its use."""
        return {
            self.port(node): f"clients of {node}",
            self.raft_port(node): f"peers of {node}",
            self.http_port(node): f"HTTP of {node}",
        }

    def all_ports(self) -> list[int]:
        """Return all ports, including those of the VIP channel."""
        return [*self.ports(), *(self.port(node) - 2 for node in self.node_ids)]

    def disk_wanted(self) -> int:
        """Disk space in bytes that the group uses before the first segment is full. The pools of prepared
        segments are included."""
        return self.nodes * (self.segment_size * (1 + self.pool_segments) + STATE_BYTES)


def find_base_port(nodes: int = 3, start: int = DEFAULT_BASE_PORT, step: int = CLAIM) -> int:
    """Find the first base port from `start` on for which all ports of a group are free, and claim these
    ports. Raises ClusterError if there is none."""
    for base in range(start, LAST_BASE_PORT, step):
        ports = ClusterSpec(nodes=nodes, base_port=base).all_ports()
        if not any(port_taken(port) for port in ports) and claim(ports):
            return base
    raise ClusterError(f"no free range of ports for {nodes} nodes between {start} and {LAST_BASE_PORT}")
