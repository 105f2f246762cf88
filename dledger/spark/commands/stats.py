"""`dledger spark stats STORE`: statistics of topics."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.spark.commands.command import Command, Context, Outcome, add_master
from dledger.spark.commands.source_arguments import EPILOG, add_source, source_of
from dledger.spark.commands.words import positive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    add_source(parser)
    parser.add_argument(
        "--bucket", metavar="SECONDS", type=positive, help="of one point of the series (default: what suits)"
    )
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """The job."""
    async with context.spark("dledger-stats", arguments.master, short=False) as spark:
        return await context.job(spark, "statistics", lambda: _statistics(spark, context, arguments))


def _statistics(spark: SparkSession, context: Context, arguments: argparse.Namespace) -> Outcome:
    from dledger.spark.jobs.statistics import statistics

    return statistics(spark, source_of(arguments), bucket_s=arguments.bucket, say=context.progress.say)


COMMAND = Command(
    name="stats",
    summary="statistics of topics: rates, sizes, keys, tags, latencies",
    epilog=f"exit codes: 0 done, 4 could not run.\n{EPILOG}",
    add_arguments=add_arguments,
    run=run,
    reports=True,
)
