"""`dledger spark stats STORE`: report statistics of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import Command, Context, Outcome
from dledger.spark.commands.source_arguments import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Outcome:
    """Run the statistics job."""
    async with context.spark("dledger-stats", arguments.master, short=False) as spark:
        return await context.job(spark, "statistics", lambda: _statistics(spark, context, arguments))


def _statistics(spark: SparkSession, context: Context, arguments: Options) -> Outcome:
    from dledger.spark.jobs.statistics import statistics

    return statistics(spark, source_of(arguments), bucket_s=arguments.bucket, say=context.progress.say)


COMMAND = Command("stats", run, reports=True)
