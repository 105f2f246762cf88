"""The commands of `dledger bench`: run a measurement, set up garbage collection, print the result.

Their options are declared in `dledger.commands.declared.bench`. Exit code 1 means that there were errors,
or that a limit was exceeded. Each measurement is imported only when its command runs, because some need
packages that others do not need.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from dledger.bench.report import Load, Tally
from dledger.client.errors import ClientError
from dledger.local.cluster import ClusterError, ProcessError
from dledger.local.default_group import local_namesrv, no_address
from dledger.runtime.env import production_env
from dledger.runtime.environment_variables import namesrv_addr
from dledger.runtime.options import Options, WrongUsage
from dledger.runtime.signals import INTERRUPTED, terminated_by_exception

GC_THRESHOLDS = (100_000, 50, 50)
"""Thresholds of the three generations of Python's garbage collector during the run. Objects that were made
before the run are excluded from collections."""
NODES = 3
"""Number of nodes of the groups that a measurement starts."""


def run(options: Options) -> int:
    """Run the measurement that the options name; return the exit code. On SIGTERM the groups that the
    measurement started are stopped, too."""
    with terminated_by_exception():
        try:
            return MODES[options.mode](options)
        except (ClusterError, ProcessError) as error:  # from the group that is measured
            print(f"bench: {error}", file=sys.stderr)
            return 1


# A group that runs already


def _load(options: Options) -> int:
    """Run `produce` or `consume`."""
    namesrv = options.namesrv or namesrv_addr() or local_namesrv()
    if not namesrv:
        raise WrongUsage(no_address("--namesrv"))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    seconds = options.seconds
    producing = options.mode == "produce"
    if producing and seconds is None and options.messages is None:
        seconds = 10.0
    own = {"size", "connections", "queues", "warmup_s"} if producing else set()
    load = Load(
        namesrv=namesrv,
        topic=options.topic,
        window=options.window,
        batch=options.batch,
        seconds=seconds,
        messages=options.messages,
        **{name: getattr(options, name) for name in sorted(own)},
    )
    if producing:
        from dledger.bench.produce import produce as work
    else:
        from dledger.bench.consume import consume as work
    env = production_env("bench")
    try:
        result = asyncio.run(work(env, load, cpu_seconds, _Progress(sys.stderr.isatty()), settle_gc))
    except ClientError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        env.workers.close()
    result["gc"] = f"frozen after set-up, thresholds {'/'.join(map(str, GC_THRESHOLDS))}"
    _print(result, options)
    return 1 if result["errors"] else 0


# Groups that are started for it


def _idle(options: Options) -> int:
    from dledger.bench.idle import idle

    taken = idle(NODES, options.seconds)
    _show(taken, "% of a core", options)
    return 1 if options.check and taken["worst"] > taken["limit"] else 0


def _loaded(options: Options) -> int:
    from dledger.bench.loaded import LoadFailed, loaded

    try:
        result = loaded(NODES, options.seconds, size=options.size, window=options.window, batch=options.batch)
    except LoadFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    _print(result, options)
    return 0 if result["within"] else 1


def _scale(options: Options) -> int:
    from dledger.bench.scale import scale

    return _print(scale(options.queues, options.groups, options.seconds), options)


def _clients(options: Options) -> int:
    from dledger.bench.clients import clients

    return _print(clients(options.clients, options.groups, options.seconds), options)


def _timers(options: Options) -> int:
    from dledger.bench.timers import timers

    return _print(timers(options.messages, options.rate, options.size, options.precision), options)


def _restart(options: Options) -> int:
    from dledger.bench.restart import restart

    place = options.directory and Path(options.directory)
    try:
        found = restart(options.gigabytes, options.size, int(options.nodes), place, _tell)
    except OSError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return _print(found, options)


def _compare(options: Options) -> int:
    from dledger.bench.compare.load import LOADS
    from dledger.bench.compare.run import SYSTEMS, Setting, compare, installed, markdown
    from dledger.bench.compare.system import CompareError

    jars = options.rocketmq and Path(options.rocketmq)
    names = options.systems.split(",") if options.systems else installed(jars)
    loads = options.loads.split(",") if options.loads else LOADS
    for option, given, known in (("--systems", names, SYSTEMS), ("--loads", loads, LOADS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise WrongUsage(f"{option}: {', '.join(unknown)}: there are {', '.join(known)}")
    setting = Setting(
        nodes=int(options.nodes),
        size=options.size,
        seconds=options.seconds,
        loads=loads,
        turns=options.turns,
        jars=jars,
        directory=options.directory and Path(options.directory),
    )
    try:
        found = compare(names, setting, _tell)
    except CompareError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if options.json else markdown(found))
    return 0


# Without a group


def _core(options: Options) -> int:
    from dledger.bench.core import measure

    return _show(measure(), "us", options)


def _topics(options: Options) -> int:
    from dledger.bench.topics import topics

    return _show(topics(options.topics), "ms", options)


def _audit(options: Options) -> int:
    from dledger.bench.audit import audit

    return _show(audit(options.directory, options.megabytes), "", options)


def _spark_audit(options: Options) -> int:
    from dledger.bench.spark_audit import spark_audit

    return _print(spark_audit(options.directory, options.megabytes, options.runs), options)


def _spark(options: Options) -> int:
    from dledger.bench.spark_read import spark_read

    return _print(spark_read(options.store, options.messages, options.size, options.runs), options)


def _spark_plans(options: Options) -> int:
    from dledger.bench.spark_plans import spark_plans

    return _print(spark_plans(options.segments, options.queues, options.partitions), options)


def _spark_sink(options: Options) -> int:
    from dledger.bench.spark_write import spark_write

    return _print(spark_write(options.messages, options.size, options.runs), options)


def _lake(options: Options) -> int:
    from dledger.bench.lake import lake

    return _print(
        lake(options.format, options.messages, options.size, options.runs, options.seconds), options
    )


MODES: Mapping[str, Callable[[Options], int]] = MappingProxyType(
    {
        "produce": _load,
        "consume": _load,
        "core": _core,
        "idle": _idle,
        "loaded": _loaded,
        "scale": _scale,
        "clients": _clients,
        "compare": _compare,
        "restart": _restart,
        "timers": _timers,
        "topics": _topics,
        "audit": _audit,
        "spark": _spark,
        "spark-audit": _spark_audit,
        "spark-plans": _spark_plans,
        "spark-sink": _spark_sink,
        "lake": _lake,
    }
)


# What is printed


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(result: Mapping[str, object], options: Options) -> int:
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:26} {value}")
    return 0


def _show(result: Mapping[str, float], unit: str, options: Options) -> int:
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:64} {value:8.2f} {unit}")
    return 0


def cpu_seconds() -> float:
    """Return the user and system time of this process so far, in seconds."""
    times = os.times()
    return times.user + times.system


def settle_gc() -> None:
    """Collect the garbage of the set-up, and exclude the remaining objects from further collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class _Progress:
    """Shows one line per second on a terminal."""

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
