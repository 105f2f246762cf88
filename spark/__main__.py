"""Command line: `python -m spark audit STORE STORE STORE`. See `--help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

from audit.report import Report, failed
from audit.shell import COULD_NOT_RUN, add_audit_arguments, exit_4_on_crash
from runtime import Env, Lane
from runtime.env import production_env
from runtime.publish import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_INTERVAL_S = 0.2
EPILOG = """exit codes: 0 clean (information only), 1 warnings, 2 errors, 3 critical, 4 could not run.
STORE is the storePathRootDir of a node; running nodes may be audited. One store is verified, several are
verified and compared by content. The same audit without Spark: python -m audit."""


def parser() -> argparse.ArgumentParser:
    """Arguments."""
    top = argparse.ArgumentParser(prog="python -m spark", description="Spark jobs over log stores.")
    commands = top.add_subparsers(dest="command", required=True)
    audit = commands.add_parser(
        "audit",
        help="check the replicas of a group and compare them",
        description="Check the stores of a group and compare them by content, as a Spark job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument("stores", metavar="STORE", nargs="+", help="storePathRootDir of a node")
    add_audit_arguments(audit)
    audit.add_argument(
        "--report", metavar="FILE", help="also write the report there: JSON if it ends in .json"
    )
    audit.add_argument("--master", help="Spark master (default: all cores of this machine)")
    return top


async def main(env: Env, arguments: argparse.Namespace) -> Report:
    """Start Spark, run the job in a worker, show progress meanwhile, write the report file."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    shown = sys.stderr.isatty()
    if shown:
        print("\rstarting Spark ...", end="", file=sys.stderr, flush=True)
    try:
        spark = await env.workers.run(Lane.DISK, start, arguments.master)
    except CannotStart as error:
        return failed(str(error), "CANNOT_RUN").timed(loop.time() - began)
    try:
        job = env.workers.run(Lane.DISK, run_job, spark, env, arguments.stores, arguments.lag_warning)
        while not job.done():
            await asyncio.wait([job], timeout=PROGRESS_INTERVAL_S)
            if shown:
                print(f"\r{progress(spark)}", end="", file=sys.stderr, flush=True)
        report = job.result().timed(loop.time() - began)
    finally:
        await env.workers.run(Lane.DISK, spark.stop)
        if shown:
            print(file=sys.stderr)
    if arguments.report:
        as_json = arguments.report.endswith(".json")
        text = json.dumps(report.as_json()) if as_json else "\n".join(report.lines())
        await publish(env.files, env.workers, Lane.DISK, arguments.report, text.encode() + b"\n")
    return report


class CannotStart(Exception):
    """No Spark: no pyspark, no Java, or it does not come up."""


def start(master: str | None) -> SparkSession:
    """A session for a short job. Blocking."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyspark.errors import PySparkException

        from spark.java import NoJava
        from spark.session import session
    except ImportError as error:
        raise CannotStart(f"{error}: pip install 'dledger[spark]'") from error
    try:
        return session("dledger-audit", master, short=True)
    except (NoJava, PySparkException, Py4JError, OSError) as error:
        raise CannotStart(str(error)) from error


def run_job(spark: SparkSession, env: Env, stores: list[str], lag_warning: int) -> Report:
    """Blocking."""
    from spark.audit_job import audit_stores

    return audit_stores(spark, env.files, stores, lag_warning=lag_warning)


def progress(spark: SparkSession) -> str:
    """Tasks of the running stages, as one line."""
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    done = sum(stage.numCompletedTasks for stage in stages)
    total = sum(stage.numTasks for stage in stages)
    return f"audit: {done} of {total} tasks".ljust(40) if total else "audit: planning".ljust(40)


def run(argv: list[str] | None = None) -> int:
    """The whole command; the exit code of the process."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as wrong:
        return COULD_NOT_RUN if wrong.code else 0
    arguments.stores = [os.path.abspath(store) for store in arguments.stores]
    env = production_env("spark")
    try:
        report = asyncio.run(main(env, arguments))
    except OSError as error:
        print(f"python -m spark audit: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    finally:
        env.workers.close()
    if arguments.json:
        print(json.dumps(report.as_json()))
    else:
        print("\n".join(report.lines()))
    return report.exit_code


if __name__ == "__main__":
    exit_4_on_crash()
    sys.exit(run())
