"""`scripts/cluster`: start, stop, look at and break a broker group on this machine (dledger/local)."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dledger.local.cluster import (
    DEFAULT_BASE_PORT,
    MIB,
    START_LIMIT_S,
    ClusterError,
    ClusterSpec,
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
        description="A NameServer and a broker group of real processes on loopback.",
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
        "Start brokers that are down again; if none is, restart all, one after another, leader last.",
    )
    restart.add_argument("--node", help="restart this one only, as n0")
    return parser.parse_args(argv)


def print_status(cluster: LocalCluster, as_json: bool) -> int:
    status = cluster.status()
    if as_json:
        print(json.dumps(status))
    else:
        print_table(status)
    return OK if cluster.running() else NOT_RUNNING


def print_table(status: dict[str, Any]) -> None:
    for server in status["namesrv"]:
        print(f"namesrv {server['addr']}  pid {server['pid'] or '-'}")
    for group in status["groups"]:
        print(f"group {group['name']}  leader {group['leader'] or '-'}")
        columns = ("id", "role", "term", "end_index", "committed_index", "pid", "addr", "store")
        rows = [columns, *(tuple(_cell(node[name]) for name in columns) for node in group["nodes"])]
        widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
        for row in rows:
            print(
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            )


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def start(arguments: argparse.Namespace) -> int:
    asked: dict[str, Any] = {"nodes": arguments.nodes, "base_port": arguments.base_port}
    asked["segment_size"] = arguments.segment_mb * MIB if arguments.segment_mb else None
    asked["broker"] = dict(item.partition("=")[::2] for item in arguments.set) or None
    known = LocalCluster.open(arguments.dir).spec if LocalCluster.known(arguments.dir) else ClusterSpec()
    spec = replace(known, **{name: value for name, value in asked.items() if value is not None})
    cluster = LocalCluster.create(arguments.dir, spec)
    started = cluster.start(arguments.timeout)
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
    if not cluster.running():
        raise NothingRunsError
    killed = cluster.kill_leader()
    result: dict[str, Any] = {"killed": killed.node, "pid": killed.pid}
    if wait:
        result["leader"], result["seconds"] = cluster.time_to_leader()
    if as_json:
        print(json.dumps(result))
    else:
        print(f"killed {result['killed']} (pid {result['pid']})")
        if wait:
            print(f"{result['leader']} leads after {result['seconds']:.3f} s")
    return OK


class NothingRunsError(ClusterError):
    """There is nothing to break."""


def restart(cluster: LocalCluster, node: str | None, as_json: bool) -> int:
    if cluster.namesrv_pid() is None:
        cluster.start_namesrv()
    if node is None and (down := cluster.down()):
        for name in down:
            cluster.start_node(name)
        cluster.wait_caught_up(nodes=down)
        done = down
    else:
        done = [node] if node else cluster.followers_first()
        for name in done:
            cluster.restart_node(name)
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
    except NothingRunsError:
        print("scripts/cluster: nothing runs", file=sys.stderr)
        return NOT_RUNNING
    except (ClusterError, ProcessError, OSError) as error:
        print(f"scripts/cluster: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
