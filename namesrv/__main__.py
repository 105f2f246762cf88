"""`dledger namesrv [-c FILE] [-p]`: the outer shell of a NameServer."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys

from dledger.namesrv.config import NamesrvConfig, load
from dledger.namesrv.service import NameServer, main
from dledger.remoting.properties_file import ConfigError, format_config
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


def configure(env: Env, config_file: str | None) -> NamesrvConfig:
    """The effective settings. kvConfig.json lies next to the configuration file, or where RocketMQ has it."""
    properties = read_properties(env, config_file) if config_file else []
    config = load(properties)
    if config.kvConfigPath is None:
        home = os.path.join(os.path.expanduser("~"), "namesrv")
        directory = os.path.dirname(os.path.abspath(config_file)) if config_file else home
        config = dataclasses.replace(config, kvConfigPath=os.path.join(directory, "kvConfig.json"))
    return config


def run(argv: list[str] | None = None) -> int:
    """Parse, configure, run; the exit code."""
    arguments = parse_arguments("namesrv", "RocketMQ-compatible NameServer", argv)
    env = production_env("namesrv")
    try:
        config = configure(env, arguments.config_file)
        if arguments.print_config:
            announce(format_config(config).rstrip("\n"))
            return 0
        set_up_logging(config.logDir, "namesrv.log")
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)

    def ready(nameserver: NameServer) -> None:
        settle()
        where = ", ".join(f"{host}:{port}" for host, port in nameserver.server.addresses)
        env.log.info("boot success", address=where, pid=env.pid)
        announce(f"The Name Server boot success. address={where} pid={env.pid}")

    async def start(stop: asyncio.Event) -> None:
        await main(env, config, stop, ready)

    try:
        return run_program(env, start)
    finally:
        env.workers.close()


if __name__ == "__main__":
    sys.exit(run())
