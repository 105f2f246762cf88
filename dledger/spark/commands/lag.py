"""`dledger spark lag STORE`: how far consumer groups are behind, and were."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.audit.arguments import not_negative
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome, add_master
from dledger.spark.commands.source_arguments import EPILOG, add_source, servers_of, source_of
from dledger.spark.commands.words import positive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    add_source(parser, archive=False)
    parser.add_argument(
        "--consumer", metavar="GROUP", action="append", default=[], help="consumer group; may be repeated"
    )
    parser.add_argument(
        "--warn-above",
        metavar="N",
        type=not_negative,
        help="warn of queues that are more than N messages behind",
    )
    parser.add_argument(
        "--bucket", metavar="SECONDS", type=positive, help="of one point of the history (default: what suits)"
    )
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """Over stores the history, as a job; over brokers the present, without Spark."""
    if namesrv := servers_of(arguments):
        from dledger.spark.jobs.lag_live import lag_live

        _check_live(arguments)
        topics = tuple(topic.strip() for topic in (arguments.topics or "").split(",") if topic.strip())
        consumers = tuple(arguments.consumer)
        return await lag_live(
            context.env,
            namesrv,
            consumers=consumers,
            topics=topics,
            warn_above=arguments.warn_above,
        )
    async with context.spark("dledger-lag", arguments.master, short=False) as spark:
        return await context.job(spark, "lag", lambda: _history(spark, context, arguments))


def _check_live(arguments: argparse.Namespace) -> None:
    """CannotRun for what only counts over stores."""
    told = {
        "STORE": arguments.stores,
        "--option": arguments.option,
        "--bucket": arguments.bucket,
        "--master": arguments.master,
    }
    for name, value in told.items():
        if value:
            why = "has no effect with --namesrv: brokers are asked for the present, without Spark"
            raise CannotRun(f"{name} {why}; leave one of them out")


def _history(spark: SparkSession, context: Context, arguments: argparse.Namespace) -> Outcome:
    from dledger.spark.jobs.lag import lag_history

    return lag_history(
        spark,
        source_of(arguments),
        consumers=tuple(arguments.consumer),
        bucket_s=arguments.bucket,
        warn_above=arguments.warn_above,
        say=context.progress.say,
    )


COMMAND = Command(
    name="lag",
    summary="how far consumer groups are behind, and were",
    description="Over store directories: the lag of consumer groups over time, from the log itself, as far\n"
    "back as it goes. Over live brokers (--namesrv, with --consumer and --topics): the present.",
    epilog="exit codes: 0 done, 1 a queue is more than --warn-above behind, 4 could not run.\n" + EPILOG,
    add_arguments=add_arguments,
    run=run,
    reports=True,
    judges=True,
)
