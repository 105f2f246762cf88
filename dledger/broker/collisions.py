"""Finds settings of a broker that use one address or one directory for two purposes. With such settings the
broker could not start, or could never work. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.formats.addresses import split_address
from dledger.remoting.listening import Place, found_twice, is_loopback, listening_twice, within
from dledger.runtime.remote_files import is_url

if TYPE_CHECKING:
    from dledger.broker.config import BrokerConfig
    from dledger.config import NodeConfig

STORE_PARTS = ("config", "consumequeue", "importing", "index", "state", "timer")
"""Directories in `storePathRootDir` that belong to the broker. The directory of its node belongs to the store
as well."""


def collisions_of(config: BrokerConfig, node: NodeConfig) -> list[str]:
    """Return a text for each pair of settings that collide. The text begins with the name of one setting and
    names the other."""
    return [
        *listening_twice(listeners(config, node)),
        *found_twice(_found(config, node), _elsewhere(config)),
        *_directories(config, node),
    ]


def listeners(config: BrokerConfig, node: NodeConfig) -> list[Place]:
    """Return the places (setting, host and port) at which this broker listens."""
    _, port = split_address(node.peers[node.self_id])
    bind = node.peer_bind or node.bind_host
    found = [
        Place("listenPort", config.bind_address, config.listen_port),
        Place("dLegerPeers", bind, port),
    ]
    if config.http_port:
        found.append(Place("httpPort", config.http_address or config.bind_address, config.http_port))
    if config.vip_port is not None:
        found.append(Place("vipChannelEnabled (listenPort - 2)", config.bind_address, config.vip_port))
    return found


def _found(config: BrokerConfig, node: NodeConfig) -> list[Place]:
    """Return the places at which other programs find this broker. If `brokerIP1` is on loopback, the HTTP
    port is among them."""
    host, port = split_address(node.peers[node.self_id])
    found = [
        Place("listenPort", config.broker_ip, config.listen_port),
        Place(f"address for peers, dLegerPeers {node.self_id}", host, port),
    ]
    if config.http_port and is_loopback(config.broker_ip):
        found.append(Place("httpPort", config.broker_ip, config.http_port))
    return found


def _elsewhere(config: BrokerConfig) -> list[Place]:
    """Return the places at which this broker looks for its peers and NameServers."""
    others = [
        Place(f"dLegerPeers {node}", *split_address(address))
        for node, address in config.peers.items()
        if node != config.self_id
    ]
    return others + [Place("namesrvAddr", *split_address(address)) for address in config.namesrv_addr]


def _directories(config: BrokerConfig, node: NodeConfig) -> list[str]:
    """Return a text for each setting that puts other files into a directory of the store. This is refused,
    because the store removes files that it does not know."""
    parts = [f"{config.store_root}/{name}" for name in STORE_PARTS] + [node.node_dir]
    wanted = {"logDir": config.log_dir}
    if not is_url(config.digest_ship_path):
        wanted["digestShipPath"] = config.digest_ship_path
    return [
        f"{name} {path}: it lies in {part}, where storePathRootDir has files of the store: choose "
        "another path"
        for name, path in wanted.items()
        for part in parts
        if path and within(path, part)
    ]
