"""`dledger spark replay --archive DIR --to-namesrv ADDR`: send the messages of an archive or of a log
again, to a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import Command, Context, Outcome
from dledger.spark.commands.source_arguments import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Outcome:
    """Run the replay job."""
    async with context.spark("dledger-replay", arguments.master, short=False) as spark:
        return await context.job(spark, "replay", lambda: _replay(spark, context, arguments))


def _replay(spark: SparkSession, context: Context, arguments: Options) -> Outcome:
    from dledger.spark.jobs.replay import replay

    return replay(
        spark,
        source_of(arguments),
        arguments.to_namesrv,
        to_topic=arguments.to_topic,
        stored_from_ms=arguments.stored_from,
        stored_before_ms=arguments.stored_before,
        resume=arguments.resume,
        create_queues=arguments.create_queues or 0,
        say=context.progress.say,
    )


COMMAND = Command("replay", run)
