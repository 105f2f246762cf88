"""`dledger spark account STORE --acknowledged FILE`: produced = stored = consumed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.runtime.remote_files import absolute
from dledger.spark.commands.command import EXIT_CODES, CannotRun, Command, Context, Outcome, add_master
from dledger.spark.commands.source_arguments import EPILOG, add_source, servers_of, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dledger.spark.jobs.accounting import ConsumerOffsets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    add_source(parser)
    parser.add_argument(
        "--acknowledged",
        metavar="FILE",
        required=True,
        type=absolute,
        help="JSON lines or Parquet: id, topic, queueId, queueOffset, brokerName of acknowledged messages",
    )
    parser.add_argument(
        "--consumer", metavar="GROUP", action="append", default=[], help="consumer group; may be repeated"
    )
    parser.add_argument(
        "--consumed",
        metavar="FILE",
        type=absolute,
        help="id (and consumer) of what was worked on",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="no message may be there without an acknowledgement, also before the first and after the last",
    )
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """The job; over brokers the offsets of consumers are asked for first."""
    if arguments.consumed and not arguments.consumer:
        raise CannotRun("--consumed is compared with consumer groups: name them with --consumer")
    asked: ConsumerOffsets | None = None
    namesrv = servers_of(arguments)
    if namesrv and arguments.consumer:
        from dledger.spark.jobs.consumer_offsets import offsets_of_lag
        from dledger.spark.jobs.lag_live import lag_live

        topics = tuple(topic.strip() for topic in (arguments.topics or "").split(",") if topic.strip())
        consumers = tuple(arguments.consumer)
        lag = await lag_live(context.env, namesrv, consumers=consumers, topics=topics)
        asked = offsets_of_lag(lag)
    async with context.spark("dledger-account", arguments.master, short=False) as spark:
        return await context.job(spark, "account", lambda: _account(spark, context, arguments, asked))


def _account(
    spark: SparkSession, context: Context, arguments: argparse.Namespace, asked: ConsumerOffsets | None
) -> Outcome:
    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.consumer_offsets import offsets_of_stores

    source = source_of(arguments).best()
    if arguments.consumer and asked is None:
        asked = offsets_of_stores(spark, source, tuple(arguments.consumer))
    return account(
        spark,
        source,
        arguments.acknowledged,
        offsets=asked,
        consumed=arguments.consumed or "",
        strict=arguments.strict,
        say=context.progress.say,
    )


COMMAND = Command(
    name="account",
    summary="produced = stored = consumed, message by message",
    description="Compare what a producer was told, what is in the log, and what consumer groups consumed.",
    epilog=f"{EXIT_CODES}\n{EPILOG}",
    add_arguments=add_arguments,
    run=run,
    reports=True,
    judges=True,
)
