"""`dledger spark replay --archive DIR --to-namesrv ADDR`: messages back into a topic."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.spark.commands.command import Command, Context, Outcome, add_master
from dledger.spark.commands.source_arguments import EPILOG, add_source, source_of
from dledger.spark.commands.words import moment_ms, positive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    add_source(parser)
    parser.add_argument("--to-namesrv", metavar="ADDR", required=True, help="NameServers of the target")
    parser.add_argument("--to-topic", metavar="TOPIC", default="", help="default: the topic of each message")
    parser.add_argument(
        "--stored-from",
        metavar="TIME",
        type=moment_ms,
        help="stored at or after (UTC): 2026-11-21 or 2026-11-21T15:30:00",
    )
    parser.add_argument("--stored-before", metavar="TIME", type=moment_ms, help="stored before")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the target has from an earlier replay"
    )
    parser.add_argument(
        "--create-queues", metavar="N", type=positive, default=0, help="make a missing topic, with N queues"
    )
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """The job."""
    async with context.spark("dledger-replay", arguments.master, short=False) as spark:
        return await context.job(spark, "replay", lambda: _replay(spark, context, arguments))


def _replay(spark: SparkSession, context: Context, arguments: argparse.Namespace) -> Outcome:
    from dledger.spark.jobs.replay import replay

    return replay(
        spark,
        source_of(arguments),
        arguments.to_namesrv,
        to_topic=arguments.to_topic,
        stored_from_ms=arguments.stored_from,
        stored_before_ms=arguments.stored_before,
        resume=arguments.resume,
        create_queues=arguments.create_queues,
        say=context.progress.say,
    )


COMMAND = Command(
    name="replay",
    summary="send messages of an archive or a log into a topic",
    description="Send messages of an archive or a log into a topic of live brokers, each queue in order.\n"
    "At least once: after a failure run it again with --resume.",
    epilog=f"exit codes: 0 all sent and acknowledged, 4 could not run, or not to its end.\n{EPILOG}",
    add_arguments=add_arguments,
    run=run,
)
