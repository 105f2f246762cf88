"""`dledger broker -c FILE [-p]`: the outer shell.

Exit codes: 0 stopped in good order; 1 could not start or was cut short; 2 wrong arguments or configuration;
70 the store needs repair or replacement; 71 a bug was caught; 78 the group's configuration does not fit
(dledger.errors). A supervisor should not restart after 70, 71 or 78.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import sys
import time
from dataclasses import replace
from functools import partial

from dledger.broker.app import main
from dledger.broker.audit.shipping import check_installed
from dledger.broker.broker import Broker
from dledger.broker.config import IGNORED, PROPERTIES, BrokerConfig, effective_properties, load_config
from dledger.broker.config import ConfigError as BadProperty
from dledger.errors import NodeFailed
from dledger.node.node import Node
from dledger.remoting.properties_file import ConfigError, Property
from dledger.remoting.shell import (
    EXIT_BAD_CONFIG,
    announce,
    complain,
    parse_arguments,
    read_properties,
    run_program,
    set_up_logging,
)
from dledger.runtime.env import Env, production_env
from dledger.runtime.program import settle
from dledger.runtime.tls import PeerTls


def configure(properties: list[Property]) -> tuple[BrokerConfig, list[str]]:
    """Settings and warnings; ConfigError names file, line and key."""
    known = {name.lower(): name for name in [*PROPERTIES, *sorted(IGNORED)]}
    values: dict[str, str] = {}
    where: dict[str, str] = {}
    for item in properties:
        if item.key in where:
            raise ConfigError(f"{item.where}: the key {item.key!r} was already set at {where[item.key]}")
        near = (
            [] if item.key in known.values() else difflib.get_close_matches(item.key.lower(), known, 1, 0.85)
        )
        if near:
            raise ConfigError(f"{item.where}: unknown key {item.key!r} (did you mean {known[near[0]]!r}?)")
        where[item.key] = item.where
        values[item.key] = item.value
    try:
        config, unknown = load_config(values)
    except BadProperty as error:
        place = f"{where[error.key]}: " if error.key in where else ""
        raise ConfigError(f"{place}{error}") from error
    return config, [f"{where[key]}: unknown key {key!r} is ignored" for key in unknown]


def run(env: Env, config: BrokerConfig) -> int:
    """Run until a signal or a failure; the exit code."""
    failures: list[NodeFailed] = []
    try:
        tls = PeerTls(config.peer_tls, env.log) if config.peer_tls is not None else None
    except OSError as error:
        return complain(f"tls.peer files cannot be used: {error}", EXIT_BAD_CONFIG)
    if config.digest_ship_path:
        try:
            check_installed(config.digest_ship_path)
        except BadProperty as error:
            return complain(str(error), EXIT_BAD_CONFIG)
    if config.http_port:
        importlib.import_module("dledger.broker.http.server")  # aiohttp takes long to load: not on the loop

    def ready(broker: Broker) -> None:
        settle()
        servers = f" and name server is {';'.join(config.namesrv_addr)}" if config.namesrv_addr else ""
        name = f"{config.broker_name}, {config.client_addr}"
        announce(f"The broker[{name}] boot success. serializeType=JSON{servers}")

    async def start(stop: asyncio.Event) -> None:
        try:
            await main(env, config, stop, on_ready=ready, make_node=partial(Node, tls=tls))
        except NodeFailed as failure:
            env.log.error("the node ended", reason=failure.reason, exit_code=failure.exit_code)
            failures.append(failure)

    code = run_program(env, start)
    env.workers.close()
    if failures:
        return complain(failures[0].reason, failures[0].exit_code)
    return code


def shell(argv: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    arguments = parse_arguments("broker", "A RocketMQ-compatible broker on a replicated log.", argv)
    env = production_env("broker")
    try:
        properties = read_properties(env, arguments.config_file) if arguments.config_file else []
        config, warnings = configure(properties)
        if arguments.print_config:
            for key, value in effective_properties(config).items():
                announce(f"{key}={value}")
            return 0
        set_up_logging(config.log_dir or None, "broker.log")
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)
    for warning in warnings:
        env.log.warning(warning)
    return run(env, replace(config, utc_offset_s=time.localtime().tm_gmtoff))


if __name__ == "__main__":
    sys.exit(shell())
