"""`dledger spark doctor [STORE ...]`: what Spark needs, and whether it is there."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from dledger.runtime import Lane
from dledger.runtime.remote_files import absolute
from dledger.spark.commands.command import PROGRESS_INTERVAL_S, Command, Context, add_master
from dledger.spark.doctor import Diagnosis, examine

EPILOG = """exit codes: 0 all is well, 1 warnings: it works but not well, 2 errors: jobs will fail,
4 wrong arguments. With --master the executors of that cluster are looked at, too.
STORE: also whether it is seen from everywhere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    parser.add_argument(
        "stores", metavar="STORE", nargs="*", type=absolute, help="storePathRootDir of a node"
    )
    add_master(parser)
    parser.add_argument("--no-spark", action="store_true", help="look at this machine only; start no session")


async def run(context: Context, arguments: argparse.Namespace) -> Diagnosis:
    """All checks, in a worker."""
    progress = context.progress
    progress.say("doctor")
    look = partial(
        examine,
        arguments.master,
        arguments.stores,
        start_spark=not arguments.no_spark,
        progress=lambda name: progress.say(f"doctor: {name} looked at"),
    )
    looking = context.env.workers.run(Lane.DISK, look)
    while not looking.done():
        progress.show()
        await asyncio.wait([looking], timeout=PROGRESS_INTERVAL_S)
    progress.clear()
    return looking.result()


COMMAND = Command(
    name="doctor",
    summary="say what Spark needs on this machine and on a cluster, and what is missing",
    description="Look for all that Spark needs: Java, Python, packages, memory, disk; then run a small job.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    run=run,
)
