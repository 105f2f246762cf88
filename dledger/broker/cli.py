"""`dledger broker`: the command. Its options and exit codes are declared in `dledger.commands`."""

from __future__ import annotations

import asyncio
import importlib
import socket
import time
import traceback
from dataclasses import replace
from functools import partial

from dledger.broker.app import main
from dledger.broker.audit.shipping import check_installed
from dledger.broker.broker import Broker
from dledger.broker.collisions import listeners
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.errors import EXIT_BUG, NodeFailed
from dledger.formats.addresses import split_address
from dledger.node.node import Node
from dledger.remoting.address_server import load_http
from dledger.remoting.cli import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    announce,
    arguments_of,
    complain,
    configure,
    print_settings,
    run_program,
    set_up_logging,
)
from dledger.remoting.listening import is_anywhere
from dledger.runtime.env import Env, production_env
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.options import Options
from dledger.runtime.port_waits import PortInUse, WantedPort, is_here, wait_for_ports
from dledger.runtime.program import settle
from dledger.runtime.settings import ConfigError
from dledger.runtime.tls import PeerTls


def run(env: Env, config: BrokerConfig, source: SettingsSource) -> int:
    """Run the broker until a signal or a failure. Returns the exit code."""
    failures: list[NodeFailed] = []
    try:
        tls = PeerTls(config.peer_tls, env.log) if config.peer_tls is not None else None
        if tls is not None:
            env.reloads.add("TLS between peers", tls.reload)
    except OSError as error:
        return complain(f"tls.peer files cannot be used: {error}", EXIT_BAD_CONFIG)
    if config.digest_ship_path:
        try:
            check_installed(config.digest_ship_path)
        except ConfigError as error:
            return complain(str(error), EXIT_BAD_CONFIG)
    if config.address_server_url:
        load_http()  # it comes with the server
    if config.http_port:
        importlib.import_module("dledger.broker.http.server")  # here, because aiohttp takes long to load

    def ready(broker: Broker) -> None:
        settle()
        servers = f" and name server is {';'.join(config.namesrv_addr)}" if config.namesrv_addr else ""
        name = f"{config.broker_name}, {config.client_addr}"
        announce(f"The broker[{name}] boot success. serializeType=JSON{servers}")

    async def start(stop: asyncio.Event) -> None:
        try:
            await main(env, config, stop, on_ready=ready, make_node=partial(Node, tls=tls), source=source)
        except NodeFailed as failure:
            trace = "".join(traceback.format_exception(failure)) if failure.exit_code == EXIT_BUG else None
            more = {} if trace is None else {"trace": trace}
            env.log.error("the node ended", reason=failure.reason, exit_code=failure.exit_code, **more)
            failures.append(failure)

    code = run_program(env, start)
    env.workers.close()
    if failures:
        return complain(failures[0].reason, failures[0].exit_code)
    return code


def wanted_ports(config: BrokerConfig) -> list[WantedPort]:
    """Return the addresses and ports at which the broker will listen. The VIP channel is left out, because
    another program may use its port. Without TLS, the port for peers is at the node's own address, if that is
    an address of this machine (`PeerPort`)."""
    node = config.node_config()
    found = []
    for place in listeners(config, node):
        host = place.host
        if (
            place.setting == "dLegerPeers"
            and is_anywhere(host)
            and config.peer_tls is None
            and not node.peer_bind
        ):
            own = split_address(node.peers[node.self_id])[0]
            host = own if is_here(own) else host
        if not place.setting.startswith("vipChannel"):
            found.append(WantedPort(place.setting, host, place.port))
    return found


def ipv4_address(host: str) -> str:
    """Return the IPv4 address that the resolver of the system finds for a host, or an empty text if it finds
    none."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def program(options: Options, env: Env | None = None) -> int:
    """Run the command. Returns its exit code. Raises WrongUsage if the options are wrong. Without `env` the
    program uses the real world (`production_env`)."""
    arguments = arguments_of(options)
    env = env or production_env("broker")
    try:
        config, warnings, source = configure(env, SETTINGS, arguments)
        if print_settings(SETTINGS, config, arguments, warnings):
            return 0
        set_up_logging(config.log_dir or None, "broker.log", apart={"broker.core.stats": "stats.log"})
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)
    for warning in warnings:
        env.log.warning(warning)
    if config.open_address:
        env.log.warning(
            "every client that can connect may read, send, delete and change settings, as no "
            "accounts are required (aclEnable, authenticationEnabled). Keep this broker on a private "
            "network, or set bindAddress=127.0.0.1",
            address=config.open_address,
        )
    if config.lacks_store_ip:
        found = ipv4_address(config.broker_ip)
        if not found:
            text = f"brokerIP1: {config.broker_ip} cannot be resolved to an IPv4 address now"
            return complain(f"{text}, and message ids need one: set storeHostIP", EXIT_FAILED)
        config = replace(config, store_ip=found)
    try:
        wait_for_ports(wanted_ports(config))
    except PortInUse as error:
        env.log.error("ended", reason=error.strerror)
        return complain(str(error.strerror), EXIT_FAILED)
    node = config.node.at_utc_offset(time.localtime().tm_gmtoff)
    return run(env, replace(config, node=node), source)
