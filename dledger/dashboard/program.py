"""`dledger dashboard`: serves the dashboard until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError, ClientOptions
from dledger.dashboard.server import Dashboard
from dledger.dashboard.watching import Watching
from dledger.local.default_group import local_namesrv, no_address
from dledger.runtime.environment_variables import namesrv_addr
from dledger.runtime.options import Options, WrongUsage

HOST = "127.0.0.1"
"""Where the dashboard listens: only this machine, because nobody has to log in."""
DEFAULT_NAME = "cluster"
"""Name of a cluster in addresses of pages, if the command line gives none."""
MAX_CLUSTERS = 16
RESERVED = ("static",)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class CannotListen(Exception):
    """Raised if the port of the dashboard cannot be opened."""


def run(options: Options) -> int:
    """Serve until a signal comes. Exit code 0 after a signal; 1 if the port is in use. Raises WrongUsage for
    addresses that make no sense."""
    clusters = clusters_of(options.namesrv)
    try:
        return asyncio.run(_serve(clusters, options.port))
    except CannotListen as error:
        print(f"dledger dashboard: {error}: give another --port", file=sys.stderr)
        return 1


def clusters_of(given: Sequence[str]) -> dict[str, str]:
    """The NameServers of each cluster by its name. Each text is `host:port;host:port`, or `NAME=` before it.
    Without any, they come from the environment, or from the group of this directory. Raises WrongUsage."""
    texts = list(given) or [text for text in (namesrv_addr() or local_namesrv(),) if text]
    if not texts:
        raise WrongUsage(no_address("-n"))
    if len(texts) > MAX_CLUSTERS:
        raise WrongUsage(f"{len(texts)} clusters: give at most {MAX_CLUSTERS}")
    found: dict[str, str] = {}
    for text in texts:
        name, equals, addresses = text.partition("=")
        name, addresses = (name, addresses) if equals else (DEFAULT_NAME, text)
        if not _NAME.fullmatch(name):
            raise WrongUsage(
                f"-n {text}: the name of a cluster begins with a letter or a digit, and has only letters, "
                "digits and . _ -"
            )
        if name in RESERVED:
            raise WrongUsage(f"-n {text}: no cluster can have this name here: choose another")
        if not addresses:
            raise WrongUsage(f"-n {text}: give the addresses of NameServers after the name")
        if name in found:
            raise WrongUsage(f"-n {text}: there are two clusters {name}: give each a name, NAME=host:port")
        found[name] = addresses
    return found


async def _serve(clusters: dict[str, str], port: int) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        watched = []
        for name, addresses in clusters.items():
            client = ClientOptions(namesrv_timeout_s=3.0, request_timeout_s=5.0, failover_timeout_s=5.0)
            try:
                admin = await stack.enter_async_context(AsyncAdminClient(addresses, client))
            except ClientError as error:
                raise WrongUsage(f"-n {addresses}: {error}") from error
            watched.append(Watching(name, admin))
        dashboard = Dashboard(watched)
        try:
            opened = await dashboard.start(HOST, port)
        except OSError as error:
            raise CannotListen(error.strerror) from error
        stack.push_async_callback(dashboard.close)
        print(f"http://{HOST}:{opened}/ (Ctrl-C ends it)", flush=True)
        async with asyncio.TaskGroup() as tasks:
            followers = [tasks.create_task(one.run(), name=f"watch-{one.name}") for one in watched]
            await ended.wait()
            for follower in followers:
                follower.cancel()
    return 0
