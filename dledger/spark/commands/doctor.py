"""`dledger spark doctor [STORE ...]`: check that this machine and the executors have everything that Spark
needs."""

from __future__ import annotations

import asyncio
from functools import partial

from dledger.runtime import Lane
from dledger.runtime.options import Options
from dledger.spark.commands.command import PROGRESS_INTERVAL_S, Command, Context
from dledger.spark.doctor import Diagnosis, examine


async def run(context: Context, arguments: Options) -> Diagnosis:
    """Run all checks of the doctor in a worker thread."""
    progress = context.progress
    progress.say("doctor")
    look = partial(
        examine,
        arguments.master,
        arguments.stores,
        start_spark=not arguments.no_spark,
        progress=lambda name: progress.say(f"doctor: {name} checked"),
    )
    looking = context.env.workers.run(Lane.DISK, look)
    while not looking.done():
        progress.show()
        await asyncio.wait([looking], timeout=PROGRESS_INTERVAL_S)
    progress.clear()
    return looking.result()


COMMAND = Command("doctor", run)
