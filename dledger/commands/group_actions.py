"""Actions on a group of this machine: start it with the requested settings, kill its leader, start its
stopped brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dledger.commands.group_status import NothingSeen
from dledger.local import wire
from dledger.local.cluster import START_LIMIT_S, ClusterError, LocalCluster
from dledger.local.ports import CLAIM, HOST, port_taken
from dledger.local.spec import DEFAULT_BASE_PORT, MIB, ClusterSpec, find_base_port
from dledger.runtime.environment_variables import NAMESRV_ADDR, namesrv_addr
from dledger.runtime.settings import ConfigError, Property
from dledger.runtime.settings import name as parse_name

SERVER_PACKAGES = {
    "aiohttp": "aiohttp",
    "lark": "lark",
    "numpy": "numpy",
    "prometheus_client": "prometheus_client",
    "yaml": "pyyaml",
}
"""Maps a module to the package of the extra `server` that contains it. A broker does not start without
these packages."""
ANSWER_LIMIT_S = 5.0
"""How long to wait, in seconds, for followers to answer after the leader serves. After that the state is
shown as it is."""
_LOOPBACK = "this group runs on the loopback address; for several machines use `dledger broker -c`"
DECIDED = MappingProxyType(
    {
        "brokerName": "use --group",
        "dLegerGroup": "use --group",
        "brokerClusterName": "use --cluster",
        "dLegerPeers": "it follows from --nodes and --base-port",
        "dLegerSelfId": "it follows from --nodes",
        "listenPort": "it follows from --base-port",
        "httpPort": "it follows from --base-port",
        "namesrvAddr": "use --namesrv",
        "storePathRootDir": "it is always below --dir",
        "logDir": "it is always below --dir",
        "mapedFileSizeCommitLog": "use --segment-mb",
        "enableDLegerCommitLog": "it is always true here",
        "brokerIP1": _LOOPBACK,
        "bindAddress": _LOOPBACK,
    }
)
"""Properties that `--set` refuses, because they would contradict an option or the layout of the directory."""
SEGMENT_MB = (9, 1024 * 1024)
"""Smallest and largest size of a log segment, in MiB: a segment holds a message of the largest size."""


@dataclass(frozen=True)
class Wish:
    """The settings that a user asks for. A setting that is None keeps the value that it has in the
    directory; in a new group it gets the default."""

    nodes: int | None = None
    base_port: int | None = None
    group: str | None = None
    cluster: str | None = None
    namesrv: str | None = None
    segment_mb: int | None = None
    settings: tuple[str, ...] = ()
    """`KEY=VALUE` lines for every broker, in addition to those of an earlier start. `KEY=` removes a line."""


def _silent(text: str) -> None:
    """Report nothing; the default of the parameters `tell`."""


def bring_up(
    directory: Path,
    wish: Wish,
    timeout_s: float = START_LIMIT_S,
    tell: Callable[[str], None] = _silent,
    *,
    environment: bool = True,
) -> tuple[LocalCluster, list[str]]:
    """Start the group, and wait until NameServers list its leader. Returns the group and the names of the
    processes that were started.

    Everything that can be checked is checked before anything is written or started. Raises ClusterError,
    whose text says what to do. If `environment` is set, a new group registers with the NameServers of
    NAMESRV_ADDR, unless `wish` names others.
    """
    check_installed()
    spec, origin = _spec(directory, wish, environment)
    cluster = LocalCluster.planned(directory, spec)
    _check_ports(cluster)
    cluster.check_disk()
    _check_properties(cluster)
    if spec.namesrv:
        _check_namesrv(cluster, origin)
    cluster.write()
    started = cluster.start(timeout_s, tell)
    cluster.wait_answering(ANSWER_LIMIT_S)
    return cluster, started


def kill_and_wait(cluster: LocalCluster, wait: bool) -> dict[str, Any]:
    """Kill the leader with SIGKILL. If `wait` is set, wait for the next leader, and also return its id and
    the seconds until it leads.

    Raises NothingSeen if no process runs, and ClusterError if `wait` is set and no majority is left that
    could elect a leader.
    """
    if not cluster.running():
        raise NothingSeen(f"no process of a group runs in {cluster.directory}")
    killed = cluster.kill_leader(limit_s=0)
    result: dict[str, Any] = {"killed": killed.node, "pid": killed.pid}
    down = cluster.down()
    if wait and 2 * len(down) >= cluster.spec.nodes:
        raise ClusterError(
            f"killed {killed.node} (pid {killed.pid}); {', '.join(down)} of {cluster.spec.nodes} "
            "down: no majority is left that could elect a leader, so run `dledger restart`"
        )
    if wait:
        result["leader"], result["seconds"] = cluster.time_to_leader(killed)
    return result


def bring_back(
    cluster: LocalCluster,
    node: str | None,
    limit_s: float = START_LIMIT_S,
    tell: Callable[[str], None] = _silent,
) -> list[str]:
    """Start all processes of the group that are down. If `node` is given, restart only that broker. If
    nothing is down, restart all brokers, one after another, the leader last.

    Returns the names of the started processes, after the started brokers have caught up. A NameServer of
    another group is not touched.
    """
    if not cluster.running() and node is None:
        cluster.start(limit_s, tell)
        return list(cluster.spec.node_ids)
    down = cluster.down()
    cluster.check_ports()
    server = [] if cluster.spec.namesrv or cluster.namesrv_pid() is not None else ["namesrv"]
    if server:
        cluster.start_namesrv()
    if node is None and (down or server):
        done = server + down
        tell(f"starting {', '.join(done)}")
        for name in down:
            cluster.start_node(name)
        cluster.wait_caught_up(limit_s, down)
    else:
        done = [node] if node else cluster.followers_first()
        for name in done:
            tell(f"restarting {name}")
            cluster.restart_node(name, limit_s)
    if not cluster.down():
        cluster.wait_ready(limit_s, tell)
    return done


def check_installed() -> None:
    """Raise ClusterError if packages that a broker needs are missing; its text says what to install."""
    missing = [package for module, package in SERVER_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ClusterError(f"the command needs {', '.join(missing)}: pip install 'dledger[server]'")


def _segment_size(segment_mb: int) -> int:
    """In bytes. ClusterError for a size that brokers refuse (mapedFileSizeCommitLog)."""
    if not SEGMENT_MB[0] <= segment_mb <= SEGMENT_MB[1]:
        raise ClusterError(f"--segment-mb {segment_mb}: give {SEGMENT_MB[0]} to {SEGMENT_MB[1]} MiB")
    return segment_mb * MIB


def _spec(directory: Path, wish: Wish, environment: bool) -> tuple[ClusterSpec, str]:
    """Return the requested settings of the group, and the name of the option or variable that named its
    NameServers."""
    known = LocalCluster.known(directory)
    spec = LocalCluster.open(directory).spec if known else ClusterSpec()
    asked: dict[str, Any] = {
        "nodes": wish.nodes,
        "base_port": wish.base_port,
        "group": _named("--group", wish.group),
        "cluster": _named("--cluster", wish.cluster),
        "segment_size": None if wish.segment_mb is None else _segment_size(wish.segment_mb),
        "broker": _settings(spec.broker, wish.settings),
    }
    spec = replace(spec, **{name: value for name, value in asked.items() if value is not None})
    namesrv, origin = wish.namesrv, "--namesrv"
    if namesrv is None and not known and environment:
        namesrv, origin = namesrv_addr(), NAMESRV_ADDR
        if _is_own(namesrv, spec) and not port_taken(spec.namesrv_port):
            namesrv = ""  # the address that clients are told anyway, and nobody is there yet
    elif namesrv is not None and known and not spec.namesrv and _is_own(namesrv, spec):
        namesrv = None
    if namesrv:
        spec = replace(spec, namesrv=namesrv.strip())
        if not known and wish.base_port is None:
            spec = replace(spec, base_port=find_base_port(spec.nodes, DEFAULT_BASE_PORT + CLAIM))
    return spec, origin


def _is_own(namesrv: str, spec: ClusterSpec) -> bool:
    """Return whether this is the address of the group's own NameServer."""
    return namesrv.strip() in (f"{HOST}:{spec.namesrv_port}", f"localhost:{spec.namesrv_port}")


def _named(option: str, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return parse_name(value)
    except ValueError as error:
        raise ClusterError(f"{option} {error}") from error


def _settings(before: dict[str, str], given: Sequence[str]) -> dict[str, str]:
    settings = dict(before)
    for item in given:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals:
            raise ClusterError(f"--set {item}: expected KEY=VALUE, a property of a broker")
        decided = {one.lower(): (one, why) for one, why in DECIDED.items()}.get(key.lower())
        if decided is not None:
            raise ClusterError(f"--set {decided[0]}: {decided[1]}")
        settings[key] = value
    return {key: value for key, value in settings.items() if value}


def _check_properties(cluster: LocalCluster) -> None:
    """Raise ClusterError for settings that a broker would refuse or does not know."""
    # Imported late: `--help` does not need the broker's modules, and the extra may be missing.
    settings = import_module("dledger.broker.config").SETTINGS
    properties = cluster.broker_properties(cluster.spec.node_ids[0])
    said = {"mapedFileSizeCommitLog": "--segment-mb"} | dict.fromkeys(cluster.spec.broker, "--set")
    lines = [Property(key, value, said.get(key, "a broker's settings")) for key, value in properties.items()]
    try:
        _, warnings = settings.load(lines)
    except ConfigError as error:
        raise ClusterError(str(error)) from error
    if warnings:
        listed = ": docs/reference/settings.md lists all settings"
        raise ClusterError(re.sub(" is ignored$", listed, warnings[0]))


def _check_ports(cluster: LocalCluster) -> None:
    """Raise ClusterError for ports that are taken. If a NameServer has the port, the text also says how to
    use that NameServer."""
    try:
        cluster.check_ports()
    except ClusterError as error:
        address = cluster.namesrv_addr
        if cluster.spec.namesrv or cluster.running():
            raise
        try:
            known = wire.registered(address)
        except wire.NoAnswer:
            raise error from None
        groups = f", which knows {', '.join(known)}" if known else ""
        raise ClusterError(
            f"{error}; or register with the NameServer there{groups}: --namesrv {address} --group NAME"
        ) from error


def _check_namesrv(cluster: LocalCluster, origin: str) -> None:
    """Raise ClusterError if the NameServer that the group is to use does not answer, or knows another
    group of the same name."""
    spec, silent, answered = cluster.spec, [], False
    for address in spec.namesrv_addresses:
        try:
            known = wire.registered(address)
        except wire.NoAnswer as error:
            silent.append(str(error))
            continue
        answered = True
        own = {cluster.addr(node) for node in spec.node_ids}
        strange = sorted(set(known[spec.group].addresses.values()) - own) if spec.group in known else []
        if strange:
            raise ClusterError(
                f"NameServer {address} already has a group {spec.group} (at {', '.join(strange)}): "
                "choose another name with --group"
            )
    if answered:
        return
    without = "without --namesrv" if origin == "--namesrv" else f"with {origin} unset"
    raise ClusterError(
        f"no NameServer answers ({'; '.join(silent)}), as {origin} says: start it first; {without} a "
        "new group starts its own NameServer"
    )
