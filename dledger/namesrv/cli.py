"""The process of `dledger namesrv`. Its options are declared in `dledger.commands`."""

from __future__ import annotations

import asyncio
import dataclasses
import os

from dledger.namesrv.config import SETTINGS, NamesrvConfig
from dledger.namesrv.service import NameServer, main
from dledger.remoting import cli
from dledger.remoting.cli import EXIT_BAD_CONFIG, EXIT_FAILED, Arguments, announce, complain
from dledger.remoting.exposure import open_address
from dledger.runtime.env import Env, production_env
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.options import Options
from dledger.runtime.port_waits import PortInUse, WantedPort, wait_for_ports
from dledger.runtime.program import settle
from dledger.runtime.settings import ConfigError


def configure(env: Env, arguments: Arguments) -> tuple[NamesrvConfig, list[str], SettingsSource]:
    """Read the settings. Returns them with the warnings and with their source. By default kvConfig.json is in
    the directory of the configuration file, or without such a file in RocketMQ's directory."""
    config, warnings, source = cli.configure(env, SETTINGS, arguments)
    if config.kv_path is None:
        home = os.path.join(os.path.expanduser("~"), "namesrv")
        file = arguments.config_file
        directory = os.path.dirname(os.path.abspath(file)) if file else home
        config = dataclasses.replace(config, kv_path=os.path.join(directory, "kvConfig.json"))
    return config, warnings, source


def run(options: Options) -> int:
    """Configure a NameServer and run it; returns the exit code. Raises WrongUsage for wrong options."""
    arguments = cli.arguments_of(options)
    env = production_env("namesrv")
    try:
        config, warnings, source = configure(env, arguments)
        if cli.print_settings(SETTINGS, config, arguments, warnings):
            return 0
        cli.set_up_logging(config.log_dir, "namesrv.log")
        for warning in warnings:
            env.log.warning(warning)
        if address := open_address(config.bind_address, config.listen_port, config.tls):
            env.log.warning(
                "every client that can connect may register brokers and change routes, as a "
                "NameServer has no accounts. Keep it on a private network, require client "
                "certificates (tls.server.need.client.auth), or set bindAddress=127.0.0.1",
                address=address,
            )
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)

    try:
        if config.listen_port:
            wanted = [WantedPort("listenPort", config.bind_address, config.listen_port)]
            if config.http_port:
                wanted.append(WantedPort("httpPort", config.http_address, config.http_port))
            wait_for_ports(wanted)
    except PortInUse as error:
        env.log.error("ended", reason=error.strerror)
        return complain(str(error.strerror), EXIT_FAILED)

    def ready(nameserver: NameServer) -> None:
        settle()
        where = ", ".join(f"{host}:{port}" for host, port in nameserver.server.addresses)
        env.log.info("boot success", address=where, pid=env.pid)
        announce(f"The Name Server boot success. address={where} pid={env.pid}")

    async def start(stop: asyncio.Event) -> None:
        await main(env, config, stop, ready, source)

    try:
        return cli.run_program(env, start)
    finally:
        env.workers.close()
