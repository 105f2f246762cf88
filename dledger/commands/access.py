"""Makes clients of a running group, and runs stand-alone nodes, from the options of a command line.

This module creates network clients, TLS contexts and processes, so the simulator does not run it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace

from dledger.commands.standalone import SETTINGS, StandaloneConfig, main
from dledger.config import parse_peers
from dledger.errors import NodeFailed
from dledger.formats.addresses import split_address
from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient
from dledger.remoting.cli import announce, set_up_logging
from dledger.remoting.listening import is_anywhere
from dledger.runtime import Env
from dledger.runtime.log_writer import flush_logs, say
from dledger.runtime.options import Options
from dledger.runtime.port_waits import PortInUse, WantedPort, is_here, wait_for_ports
from dledger.runtime.program import run_until_signal, settle
from dledger.runtime.properties_file import read_properties
from dledger.runtime.settings import ConfigError, Property
from dledger.runtime.tls import PeerTls, TlsFiles

TLS_PROPERTIES = (
    ("cert", "tls.peer.certPath"),
    ("key", "tls.peer.keyPath"),
    ("ca", "tls.peer.trustCertPath"),
)
"""Pairs of texts: what follows `--tls-` in the name of an option of `dledger serve`, and the property that
this option sets."""


def open_client(env: Env, args: Options) -> DLedgerClient:
    """Make a client from the options that `dledger.commands.declared.log.access` declares. Raises
    ConfigError if an option is wrong, and OSError if the TLS files cannot be read."""
    files = (args.tls_cert, args.tls_key, args.tls_ca)
    if any(files) and not all(files):
        raise ConfigError("--tls-cert, --tls-key and --tls-ca must be given together")
    tls = PeerTls(TlsFiles(*files), env.log) if all(files) else None
    return DLedgerClient(env, parse_peers(args.peers), args.timeout, group=args.group, tls=tls)


def serve(env: Env, args: Options, utc_offset_s: int) -> int:
    """Run the stand-alone nodes; returns the exit code. `utc_offset_s` is the offset of local time from
    UTC, in seconds."""
    set_up_logging(None, "")
    try:
        config = _configured(env, args)
        config = replace(config, node=config.node.at_utc_offset(utc_offset_s))
        tls = PeerTls(config.peer_tls, env.log) if config.peer_tls is not None else None
        if tls is not None:
            env.reloads.add("TLS between peers", tls.reload)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"serve: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"serve: TLS files cannot be used: {error}", file=sys.stderr)
        return 2
    own, port = split_address(config.peers[config.self_id])
    bind = config.node.peer_bind or config.bind_host
    try:
        wait_for_ports([WantedPort("dLegerPeers", own if is_anywhere(bind) and is_here(own) else bind, port)])
    except PortInUse as error:
        print(f"serve: {error.strerror}", file=sys.stderr)
        return 1
    failures: list[NodeFailed] = []

    def ready(nodes: list[Node]) -> None:
        settle()
        names = ", ".join(node.config.group for node in nodes)
        announce(f"dledger ready: {config.self_id} of {names} at {config.peers[config.self_id]}")

    async def start(stop: asyncio.Event) -> None:
        failures.extend(await main(env, config, stop, tls=tls, on_ready=ready))

    try:
        run_until_signal(start, env.pauses, env.reloads)
    except NodeFailed as error:
        failures.append(error)
    except asyncio.CancelledError:
        _say("stopped before the shutdown was complete")
        return 1
    finally:
        env.workers.close()
    for failure in failures:
        _say(failure.reason)
    return max((failure.exit_code for failure in failures), default=0)


def _say(text: str) -> None:
    flush_logs()
    with suppress(OSError):
        say(f"serve: {text}")


def _configured(env: Env, args: Options) -> StandaloneConfig:
    """Return the settings of the nodes. Raises ConfigError, which names the wrong property; if the
    property is in a file, it also names the file and the line."""
    options = {
        "dLegerGroup": ";".join(args.group or []),
        "dLegerSelfId": args.id,
        "dLegerPeers": args.peers,
        "storePathRootDir": args.store,
        "bindAddress": args.bind,
        "mapedFileSizeCommitLog": args.segment_size,
        **{key: getattr(args, f"tls_{name}") for name, key in TLS_PROPERTIES},
    }
    lines = read_properties(env.files, args.config) if args.config else []
    config, _ = SETTINGS.load(lines, [Property(key, value) for key, value in options.items() if value])
    return config
