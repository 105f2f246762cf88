"""`dledger bench MODE`: arguments, gc, CPU time, output. Exit code 1: errors, or a limit not kept."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
from pathlib import Path

from dledger.bench.audit import audit
from dledger.bench.clients import clients
from dledger.bench.compare.load import LOADS
from dledger.bench.compare.run import SYSTEMS, Setting, compare, installed, markdown
from dledger.bench.compare.system import CompareError
from dledger.bench.consume import consume
from dledger.bench.core import measure
from dledger.bench.idle import idle
from dledger.bench.loaded import LoadFailed, loaded
from dledger.bench.produce import produce
from dledger.bench.report import Load, Tally
from dledger.bench.restart import restart
from dledger.bench.scale import scale
from dledger.bench.spark_audit import spark_audit
from dledger.bench.spark_read import spark_read
from dledger.bench.spark_write import spark_write
from dledger.bench.timers import timers
from dledger.bench.topics import topics
from dledger.client.errors import ClientError
from dledger.local.spec import ClusterError
from dledger.runtime.env import production_env
from dledger.runtime.environment_variables import add_namesrv, namesrv_addr
from dledger.runtime.signals import terminated_by_exception

GC_THRESHOLDS = (100_000, 50, 50)
"""Generations of the garbage collector during the run; objects made before it are frozen."""


def main(argv: list[str] | None = None) -> int:
    """Run one load and print its figures. SIGTERM also stops the groups that it started."""
    options = _parser().parse_args(argv)
    with terminated_by_exception():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    if options.mode == "core":
        return _show(measure(), "us", options.json)
    if options.mode == "idle":
        taken = idle(3, options.seconds or 20.0)
        _show(taken, "% of a core", options.json)
        return 1 if options.check and taken["worst"] > taken["limit"] else 0
    if options.mode == "topics":
        return _show(topics(options.topics), "ms", options.json)
    if options.mode == "clients":
        return _print(clients(options.clients, options.groups or 100, options.seconds or 10.0), options.json)
    if options.mode == "scale":
        return _print(
            scale(options.queues or 10_000, options.groups or 1000, options.seconds or 20.0), options.json
        )
    if options.mode == "timers":
        found = timers(options.messages or 100_000, options.rate, options.size, options.precision)
        return _print(found, options.json)
    if options.mode == "loaded":
        return _loaded(options)
    if options.mode == "compare":
        return _compare(options)
    if options.mode == "restart":
        return _restart(options)
    if options.mode == "audit":
        if options.directory is None:
            _parser().error("--directory is missing")
        return _show(audit(options.directory, options.megabytes), "", options.json)
    if options.mode == "spark-audit":
        if options.directory is None:
            _parser().error("--directory is missing")
        return _print(spark_audit(options.directory, options.megabytes, options.runs), options.json)
    if options.mode == "spark":
        return _print(
            spark_read(options.store, options.messages or 1_000_000, options.size, options.runs), options.json
        )
    if options.mode == "spark-sink":
        return _print(spark_write(options.messages or 200_000, options.size, options.runs), options.json)
    namesrv = options.namesrv or namesrv_addr()
    if not namesrv:
        _parser().error("--namesrv is missing: say where the NameServer is, or set NAMESRV_ADDR")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    seconds = options.seconds
    if options.mode == "produce" and seconds is None and options.messages is None:
        seconds = 10.0
    load = Load(
        namesrv=namesrv,
        topic=options.topic,
        size=options.size,
        window=options.window,
        batch=options.batch,
        seconds=seconds,
        messages=options.messages,
        connections=options.connections,
        queues=options.queues or 8,
        warmup_s=options.warmup,
    )
    run = produce if options.mode == "produce" else consume
    env = production_env("bench")
    try:
        result = asyncio.run(run(env, load, cpu_seconds, _Progress(sys.stderr.isatty()), settle_gc))
    except ClientError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        env.workers.close()
    result["gc"] = f"frozen after set-up, thresholds {'/'.join(map(str, GC_THRESHOLDS))}"
    _print(result, options.json)
    return 1 if result["errors"] else 0


def _loaded(options: argparse.Namespace) -> int:
    try:
        result = loaded(
            3, options.seconds or 120.0, size=options.size, window=options.window, batch=options.batch
        )
    except LoadFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    _print(result, options.json)
    return 0 if result["within"] else 1


def _restart(options: argparse.Namespace) -> int:
    place = options.directory and Path(options.directory)
    try:
        found = restart(options.gigabytes, options.size, options.nodes, place, _tell)
    except (ClusterError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return _print(found, options.json)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _compare(options: argparse.Namespace) -> int:
    names = options.systems.split(",") if options.systems else installed(options.rocketmq)
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        _parser().error(f"--systems: {', '.join(unknown)}: there are {', '.join(SYSTEMS)}")
    loads = options.loads.split(",") if options.loads else LOADS
    unknown = [load for load in loads if load not in LOADS]
    if unknown:
        _parser().error(f"--loads: {', '.join(unknown)}: there are {', '.join(LOADS)}")
    setting = Setting(
        nodes=options.nodes,
        size=options.size,
        seconds=options.seconds or 8.0,
        loads=loads,
        turns=options.turns,
        jars=options.rocketmq,
        directory=options.directory and Path(options.directory),
    )
    try:
        found = compare(names, setting, _tell)
    except (CompareError, ClusterError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if options.json else markdown(found))
    return 0


def _print(result: dict[str, object], as_json: bool) -> int:
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:26} {value}")
    return 0


def _show(result: dict[str, float], unit: str, as_json: bool) -> int:
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:64} {value:8.2f} {unit}")
    return 0


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    times = os.times()
    return times.user + times.system


def settle_gc() -> None:
    """Collect what set-up left behind, and keep the collector off what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class _Progress:
    """One line a second on a terminal."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._last = 0

    def __call__(self, tally: Tally) -> None:
        if self._wanted:
            count, self._last = tally.messages - self._last, tally.messages
            p99_ms = tally.latency.percentile_s(0.99) * 1000
            print(
                f"\r{tally.messages:>12} messages {count:>9}/s  p99 {p99_ms:.2f} ms  errors {tally.errors}",
                end="",
                file=sys.stderr,
                flush=True,
            )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: at least 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger bench", description="Load a running broker group; measure its parts."
    )
    parser.add_argument(
        "mode",
        choices=(
            "produce",
            "consume",
            "core",
            "idle",
            "loaded",
            "scale",
            "clients",
            "compare",
            "restart",
            "timers",
            "topics",
            "audit",
            "spark",
            "spark-audit",
            "spark-sink",
        ),
        help="core: microseconds of election and replication steps; idle: CPU time of an idle group "
        "(--seconds, default 20), with --check exit code 1 when a node takes more than 2 percent of a core; "
        "loaded: longest delays of the event loops in a group under load (--seconds, default 120; --window, "
        "--batch, --size), exit code 1 above a third of the election time-out; "
        "scale: what many queues and groups cost, against few: sends, memory, starts (--queues, default "
        "10000; --groups); "
        "clients: what connected clients cost that do nothing, against few (--clients, default 5000; "
        "--groups, default 100); "
        "compare: the same load on groups of other systems, those that are installed here, one after the "
        "other (--systems, --nodes, --loads, --size, --seconds, --turns, --rocketmq, --directory); "
        "restart: how long a group takes to start that has much in its log, after a clean stop and after a "
        "kill of all under load, with its files in the page cache and without (--gigabytes, --nodes, --size, "
        "--directory); "
        "timers: how late timer messages come, at a steady rate (--rate) and many due at one second "
        "(--messages, --size, --precision); "
        "topics: milliseconds that a change of one topic takes on the event loops (--topics); "
        "audit: speed and memory of the audit of large stores; "
        "spark: messages a second that Spark reads from a store (--messages, --size, --store, --runs); "
        "spark-audit: seconds of the audit on Spark, bytes that it shuffles (--directory, --runs); "
        "spark-sink: rows a second that Spark writes to three brokers (--messages, --size, --runs)",
    )
    add_namesrv(parser, "host:port of a NameServer, several with ';'")
    parser.add_argument("--topic", default="bench", help="created if it is missing (default: bench)")
    parser.add_argument("--size", type=_positive, default=1024, help="bytes of a body (default: 1024)")
    parser.add_argument("--window", type=_positive, default=256, help="requests under way (default: 256)")
    parser.add_argument("--batch", type=_positive, default=1, help="messages of one request (default: 1)")
    parser.add_argument("--seconds", type=float, help="end after this time (default of produce: 10)")
    parser.add_argument("--messages", type=_positive, help="end after this many")
    parser.add_argument("--rate", type=_positive, default=1000, help="messages a second (default: 1000)")
    parser.add_argument(
        "--precision", type=_positive, default=1000, help="timerPrecisionMs of the brokers (default: 1000)"
    )
    parser.add_argument("--connections", type=_positive, default=1, help="producers (default: 1)")
    parser.add_argument("--queues", type=_positive, help="of a new topic (default: 8)")
    parser.add_argument("--groups", type=_positive, help="of scale and clients")
    parser.add_argument("--clients", type=_positive, default=5000, help="of that mode (default: 5000)")
    parser.add_argument("--topics", type=_positive, default=50_000, help="of that mode (default: 50000)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds left out (default: 1)")
    parser.add_argument(
        "--directory", metavar="DIR", help="of stores: of audits they are made once, 2 GB, and stay"
    )
    parser.add_argument(
        "--megabytes", type=_positive, default=2000, help="of the stores, when made (default: 2000)"
    )
    parser.add_argument("--store", help="of spark: a store to read, written there if it is missing")
    parser.add_argument("--runs", type=_positive, default=5, help="of the modes of Spark (default: 5)")
    parser.add_argument("--systems", help=f"of compare, of {','.join(SYSTEMS)} (default: what is installed)")
    parser.add_argument("--rocketmq", metavar="DIR", type=Path, help="of compare: jars of Apache RocketMQ")
    parser.add_argument("--loads", help=f"of compare, of {','.join(LOADS)} (default: all)")
    parser.add_argument(
        "--nodes", type=int, choices=(3, 5), default=3, help="of compare and restart (default: 3)"
    )
    parser.add_argument(
        "--gigabytes", type=float, default=10.0, help="of restart: in the log of each node (default: 10)"
    )
    parser.add_argument("--turns", type=_positive, default=1, help="of compare (default: 1)")
    parser.add_argument("--check", action="store_true", help="of idle: exit code 1 above the limit")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
