"""`scripts/cluster`: start, stop, look at and break a broker group on this machine.

The same as `dledger up`, `down`, `status`, `kill-leader` and `restart`, for a checkout without an environment
and with exit codes of its own; `--dir` must be said.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dledger.commands.group_actions import Wish, bring_back, bring_up, kill_and_wait
from dledger.commands.group_status import NothingSeen, status_lines
from dledger.local.cluster import (
    DEFAULT_BASE_PORT,
    START_LIMIT_S,
    ClusterError,
    LocalCluster,
    ProcessError,
)

OK, FAILED, USAGE, NOT_RUNNING = 0, 1, 2, 3
PORTS = """\
ports, from the base port B: NameServer B; broker number i (0, 1, ...) takes B + 10 (i + 1) for clients, the
next one for its peers, the one after for HTTP (/health, /metrics). Three brokers need B to B + 32.

"""
EXIT_CODES = """\
exit codes:
  0  done (status: at least one process of the group runs)
  1  failed, with the reason on standard error
  2  wrong arguments
  3  nothing runs (status, kill-leader)
"""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/cluster",
        description="A NameServer and a broker group of real processes on loopback. `dledger up` and its "
        "companions do the same where dledger is installed.",
        epilog=PORTS + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--dir", required=True, type=Path, help="directory of the group")
        sub.add_argument("--json", action="store_true", help="one JSON object on standard output")
        return sub

    start = command("start", "Write the configuration, start what does not run, wait until a leader serves.")
    start.add_argument("--nodes", type=int, help="brokers (default 3)")
    start.add_argument("--base-port", type=int, help=f"first port of the group (default {DEFAULT_BASE_PORT})")
    start.add_argument("--group", metavar="NAME", help="the brokerName (default broker-a)")
    start.add_argument(
        "--namesrv", metavar="ADDR", help="register with this NameServer of another group, and start none"
    )
    start.add_argument("--segment-mb", type=int, help="size of a log segment in MiB (default 64)")
    start.add_argument("--timeout", type=float, default=START_LIMIT_S, help="seconds to wait for a leader")
    start.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="further line of every broker's configuration",
    )
    command("stop", "Stop all processes: SIGTERM, after 10 s SIGKILL.")
    command("status", "Who runs, who leads, how far each node is.")
    kill = command("kill-leader", "SIGKILL the broker that leads.")
    kill.add_argument(
        "--wait", action="store_true", help="wait until another node leads, and say how long it took"
    )
    restart = command(
        "restart",
        "Start what is down again; if nothing is, restart all brokers, one after another, leader last.",
    )
    restart.add_argument("--node", help="restart this one only, as n0")
    return parser.parse_args(argv)


def print_status(cluster: LocalCluster, as_json: bool) -> int:
    status = cluster.status()
    print(json.dumps(status) if as_json else "\n".join(status_lines(status)))
    return OK if cluster.running() else NOT_RUNNING


def start(arguments: argparse.Namespace) -> int:
    wish = Wish(
        nodes=arguments.nodes,
        base_port=arguments.base_port,
        group=arguments.group,
        namesrv=arguments.namesrv,
        segment_mb=arguments.segment_mb,
        settings=tuple(arguments.set),
    )
    cluster, started = bring_up(arguments.dir, wish, arguments.timeout, environment=False)
    if not arguments.json:
        print(f"started {', '.join(started)}" if started else "runs already")
    return print_status(cluster, arguments.json)


def stop(cluster: LocalCluster, as_json: bool) -> int:
    outcome = cluster.stop()
    if as_json:
        print(json.dumps(outcome))
    else:
        for name, what in outcome.items():
            print(f"{name}: {what}")
    return OK


def kill_leader(cluster: LocalCluster, wait: bool, as_json: bool) -> int:
    result: dict[str, Any] = kill_and_wait(cluster, wait)
    if as_json:
        print(json.dumps(result))
    else:
        print(f"killed {result['killed']} (pid {result['pid']})")
        if wait:
            print(f"{result['leader']} leads after {result['seconds']:.3f} s")
    return OK


def restart(cluster: LocalCluster, node: str | None, as_json: bool) -> int:
    done = bring_back(cluster, node)
    if not as_json:
        print(f"restarted and caught up: {', '.join(done)}")
    return print_status(cluster, as_json)


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "start":
        return start(arguments)
    cluster = LocalCluster.open(arguments.dir)
    if arguments.command == "stop":
        return stop(cluster, arguments.json)
    if arguments.command == "kill-leader":
        return kill_leader(cluster, arguments.wait, arguments.json)
    if arguments.command == "restart":
        return restart(cluster, arguments.node, arguments.json)
    return print_status(cluster, arguments.json)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    try:
        return run(arguments)
    except NothingSeen:
        print("scripts/cluster: nothing runs", file=sys.stderr)
        return NOT_RUNNING
    except (ClusterError, ProcessError, OSError) as error:
        print(f"scripts/cluster: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
