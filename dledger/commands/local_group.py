"""`dledger up`, `status`, `kill-leader`, `restart` and `down`: a group of real processes on this machine.

The module `group_actions` does their work, and `group_status` makes their output; `scripts/cluster` uses
both modules, too.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dledger.commands.declaring import Command
from dledger.commands.exit_codes import INTERRUPTED, LOCAL_GROUP
from dledger.commands.further_groups import bring_up_all, find_group, groups_of, look_at_all
from dledger.commands.group_actions import Wish, bring_back, kill_and_wait
from dledger.commands.group_status import (
    ERRORS,
    FINE,
    NOT_SEEN,
    NothingSeen,
    Seen,
    look_at_namesrv,
)
from dledger.commands.terminal import plain
from dledger.local import wire
from dledger.local.cluster import START_LIMIT_S, ClusterError, LocalCluster, NoGroup, ProcessError
from dledger.local.default_group import DIRECTORY, DIRECTORY_VARIABLE
from dledger.runtime.environment_variables import NAMESRV_ADDR, namesrv_addr

STATUS_LIMIT_S = 3.0
"""How long `status --peers` waits for each node."""


# What the commands share


def _command(summary: str) -> Callable[[Callable[..., int]], click.Command]:
    """Make a click command with `--dir` and `--json` from a function that returns the exit code, or raises an
    error."""

    def make(function: Callable[..., int]) -> click.Command:
        @wraps(function)
        def run(**options: Any) -> None:
            as_json = options["as_json"]
            try:
                code = function(**options)
            except (NoGroup, NothingSeen) as error:
                code = _failed(str(error), as_json, NOT_SEEN)
            except (ClusterError, ProcessError, OSError) as error:
                code = _failed(str(error), as_json, ERRORS)
            except KeyboardInterrupt:
                code = _failed("interrupted", as_json, INTERRUPTED)
            sys.exit(code)

        name = function.__name__.replace("_", "-")
        command = click.command(name, cls=Command, codes=LOCAL_GROUP, short_help=summary)
        return command(_directory(_json(run)))

    return make


_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    envvar=DIRECTORY_VARIABLE,
    show_default=True,
    show_envvar=True,
    help="Directory of the group.",
)


def _failed(text: str, as_json: bool, code: int) -> int:
    name = click.get_current_context().info_name
    print(f"dledger {name}: {text}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": text}))
    return code


def _tell(text: str) -> None:
    """Print what the command is waiting for, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"... {text}", file=sys.stderr, flush=True)


def _show(seen: Seen, as_json: bool) -> int:
    if as_json:
        print(json.dumps(seen.as_json()))
    else:
        print(plain("\n".join([*seen.lines, *(f"! {problem}" for problem in seen.problems)])))
    return seen.code


def _program() -> str:
    """Return what a user types for this command: its bare name if the shell finds it."""
    if shutil.which("dledger"):
        return "dledger"
    called = sys.argv[0]
    return shlex.quote(called) if os.path.basename(called) == "dledger" else f"{sys.executable} -m dledger"


def _place() -> str:
    """Return the option `--dir` that the user's next command needs; empty if that command finds the
    directory without the option."""
    context = click.get_current_context()
    if context.get_parameter_source("directory") is not ParameterSource.COMMANDLINE:
        return ""
    return f" --dir {shlex.quote(str(context.params['directory']))}"


# The commands


@_command("start a group, or the parts of it that are down")
@click.option("--groups", type=int, help="Number of groups, 1 to 16, behind one NameServer. [default: 1]")
@click.option("--nodes", type=int, help="Number of brokers of each group, 1 to 9. [default: 3]")
@click.option("--base-port", type=int, help="First port. [default: 9876; with --namesrv the next free range]")
@click.option("--group", metavar="NAME", help="Name of the group (brokerName). [default: broker-a]")
@click.option(
    "--cluster", metavar="NAME", help="Name of the cluster (brokerClusterName). [default: DefaultCluster]"
)
@click.option(
    "--namesrv",
    metavar="ADDR",
    help=f"Register with these NameServers, host:port;host:port, and start none. [default: {NAMESRV_ADDR}; "
    "else a NameServer is started]",
)
@click.option("--segment-mb", type=int, help="Size of a log segment in MiB, at least 9. [default: 64]")
@click.option("--timeout", type=float, default=START_LIMIT_S, show_default=True, help="Seconds to wait.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A property for every broker.")
def up(directory: Path, as_json: bool, groups: int | None, timeout: float, **options: Any) -> int:
    """Start a group on this machine and wait until it serves: a NameServer and three brokers, or those of
    them that do not run.

    What was asked for is kept in the directory: `dledger up` alone starts the same groups again.

    \b
    Several groups behind one NameServer, each with a leader and cores of its own:
      dledger up --groups 3
    The same, in a directory of its own:
      dledger up --group broker-b --dir g2 --namesrv 127.0.0.1:9876

    \b
    Ports, from the base port B:
      B                  NameServer
      B + 10 (i + 1)     broker number i (0, 1, ...), for clients
      the two after it   its peers, and HTTP (/health, /metrics)
      two below it       the VIP channel of RocketMQ's clients
    Three brokers need B to B + 32, further groups the next free ranges of 100.
    """
    found, started = bring_up_all(directory, Wish(**options), groups, timeout, _tell)
    cluster, seen = found[0], look_at_all(found)
    notes = [note for one in found for note in [*one.notes, one.ephemeral_note()] if note]
    for note in notes:
        print(f"! {note}", file=sys.stderr)
    if as_json:
        return _show(Seen({**seen.found, "started": started}, [], seen.problems), as_json)
    print("\n".join([f"started {', '.join(started)}" if started else "is already running", "", *seen.lines]))
    for problem in seen.problems:
        print(f"! {problem}")
    print("\n".join(_next_steps(cluster)))
    return FINE


def _next_steps(cluster: LocalCluster) -> list[str]:
    program, place, address = _program(), _place(), cluster.namesrv_addr
    steps = [
        (f"{program} status{place}", "show the leader, and how far each node is"),
        (f"{program} bench produce --namesrv {shlex.quote(address)} --seconds 5", "send something"),
        (f"{program} kill-leader --wait{place}", "kill the leader (SIGKILL); another node takes over"),
        (f"{program} restart{place}", "start it again"),
        (f"{program} down{place}", "stop; the data stays"),
    ]
    width = max(len(command) for command, _ in steps)
    shown = str(cluster.directory)
    return [
        "",
        f'clients  Producer("my-service", "{address}"), or export {NAMESRV_ADDR}={shlex.quote(address)}',
        f"files    {os.path.join(shown, '')}: conf/, logs/, store/",
        "",
        "try:",
        *(f"  {command.ljust(width)}   # {why}" for command, why in steps),
    ]


@_command("show the leader, and how far each node is, of a group on this machine or of any cluster")
@click.option("--peers", help="Ask these nodes, written as in dLegerPeers: n0-host:port;n1-host:port;...")
@click.option(
    "--namesrv", metavar="ADDR", help=f"Ask these NameServers, host:port. [default: {NAMESRV_ADDR}]"
)
@click.option("--group", metavar="NAME", help="Only the group with this name; with --namesrv or --peers.")
@click.option("--timeout", type=float, help="With --peers: seconds to wait. [default: 3]")
@click.option("--tls-cert", metavar="FILE", help="With --peers: PEM certificate, if the group uses TLS.")
@click.option("--tls-key", metavar="FILE", help="With --peers: PEM key of the certificate.")
@click.option(
    "--tls-ca", metavar="FILE", help="With --peers: PEM certificate of the authority that signed all nodes."
)
def status(directory: Path, as_json: bool, peers: str | None, namesrv: str | None, **options: Any) -> int:
    """Show a group in one of three ways.

    \b
    --dir      a group of this machine: processes, roles, indexes
    --peers    the nodes of a group anywhere, by their peers' ports
    --namesrv  what NameServers know: groups, leaders, followers

    Without any of these: the group in the directory if there is one, else the NameServers of NAMESRV_ADDR.
    """
    context = click.get_current_context()
    source = context.get_parameter_source("directory")
    chosen = [name for name, value in (("--peers", peers), ("--namesrv", namesrv)) if value is not None]
    if source is ParameterSource.COMMANDLINE:
        chosen.append("--dir")
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)}: give one of them")
    for name, value in options.items():
        if value is not None and peers is None and (name != "group" or chosen == ["--dir"]):
            where = "--namesrv or --peers" if name == "group" else "--peers"
            raise click.UsageError(f"--{name.replace('_', '-')} can only be used with {where}")
    if peers is not None:
        return _status_of_peers(peers, as_json, options)
    # A group in the directory takes precedence over a variable that a shell may have had for long.
    if not chosen and source is ParameterSource.DEFAULT and not LocalCluster.known(directory):
        namesrv = namesrv_addr() or None
    if namesrv is not None:
        return _show(look_at_namesrv(namesrv, options["group"]), as_json)
    if options["group"] is not None:
        raise click.UsageError("--group can only be used with --namesrv or --peers")
    return _show(look_at_all(groups_of(directory)), as_json)


def _status_of_peers(peers: str, as_json: bool, options: dict[str, Any]) -> int:
    from dledger.commands.log import run  # imported late: it loads the whole client of the log
    from dledger.runtime.options import Options

    timeout = STATUS_LIMIT_S if options["timeout"] is None else options["timeout"]
    asked = {"command": "status", "peers": peers, "json": as_json, "timeout": timeout}
    return run(Options(**{**options, **asked}))


@_command("kill the broker that leads (SIGKILL)")
@click.option("--wait", is_flag=True, help="Wait until another node leads, and print how long it took.")
@click.option("--group", metavar="NAME", help="Name of the group. [default: the first]")
def kill_leader(directory: Path, as_json: bool, wait: bool, group: str | None) -> int:
    """Kill the broker that leads with SIGKILL."""
    cluster = find_group(directory, group)
    killed = kill_and_wait(cluster, wait)
    if as_json:
        print(json.dumps(killed))
        return FINE
    print(f"killed {killed['killed']} (pid {killed['pid']})")
    if wait:
        print(f"{killed['leader']} leads after {killed['seconds']:.3f} s")
    print(f"bring it back: {_program()} restart{_place()}")
    return FINE


@_command("start the parts that are down; if none is, restart all of them, the leader last")
@click.option("--node", metavar="ID", help="Only this node, such as n0, of the first group or of --group.")
@click.option("--group", metavar="NAME", help="Only this group. [default: all]")
@click.option(
    "--timeout", type=float, default=START_LIMIT_S, show_default=True, help="Seconds to wait for each."
)
def restart(directory: Path, as_json: bool, node: str | None, group: str | None, timeout: float) -> int:
    """Start all processes that are down, and wait until the brokers have caught up. If none is down,
    restart all brokers, one after another, the leader last."""
    only = find_group(directory, group) if node or group else None
    groups = groups_of(directory) if only is None else [only]
    incomplete = [one for one in groups if one.down() or not (one.spec.namesrv or one.namesrv_pid())]
    groups = incomplete or groups
    done = []
    for one in groups:
        prefix = "" if one.directory == directory.resolve() else f"{one.spec.group}/"
        done += [prefix + name for name in bring_back(one, node, timeout, _tell)]
    seen = look_at_all(groups_of(directory))
    if as_json:
        return _show(Seen({**seen.found, "restarted": done}, [], seen.problems), as_json)
    print(f"restarted and caught up: {', '.join(done)}")
    _show(seen, as_json)
    return FINE


@_command("stop a group; its data stays")
def down(directory: Path, as_json: bool) -> int:
    """Stop all processes of the groups in a directory with SIGTERM, and after 30 s with SIGKILL.

    The data stays, and `dledger up` starts the groups with it again. A NameServer that another group
    started is not stopped.
    """
    groups = groups_of(directory)
    others = _others_behind(groups)
    outcome: dict[str, str] = {}
    for one in reversed(groups):  # the NameServer last
        prefix = "" if one is groups[0] else f"{one.spec.group}/"
        outcome |= {prefix + name: what for name, what in one.stop().items()}
    if as_json:
        print(json.dumps(outcome))
        return FINE
    for name, what in outcome.items():
        print(f"{name}: {what}")
    if others:
        print(
            f"! {', '.join(others)} also registered with this NameServer: clients do not find it "
            "until the NameServer runs again"
        )
    return FINE


def _others_behind(groups: list[LocalCluster]) -> list[str]:
    """Return the groups of other directories that lose their NameServer when these groups stop."""
    cluster = groups[0]
    if cluster.namesrv_pid() is None:
        return []
    try:
        known = wire.registered_anywhere(cluster.spec.namesrv_addresses)
    except wire.NoAnswer:  # clients cannot find these groups now either
        return []
    return sorted(set(known) - {one.spec.group for one in groups})
