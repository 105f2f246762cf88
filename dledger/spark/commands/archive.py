"""`dledger spark archive STORE --to DIR`: topics to Parquet, by topic and day."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dledger.runtime.remote_files import absolute
from dledger.spark.commands.command import Command, Context, Outcome, add_master
from dledger.spark.commands.source_arguments import EPILOG, add_source, source_of
from dledger.spark.commands.words import positive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this command."""
    add_source(parser, archive=False)
    parser.add_argument(
        "--to", metavar="DIR", required=True, type=absolute, help="the archive; made if it is not there"
    )
    parser.add_argument(
        "--batch-mb",
        metavar="N",
        type=positive,
        default=4096,
        help="MiB of log in a batch (default %(default)s)",
    )
    parser.add_argument(
        "--batch-messages",
        metavar="N",
        type=positive,
        default=2_000_000,
        help="messages in a batch from live brokers (default %(default)s)",
    )
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """The archive job."""
    async with context.spark("dledger-archive", arguments.master, short=False) as spark:
        return await context.job(spark, "archive", lambda: _archive(spark, context, arguments))


def _archive(spark: SparkSession, context: Context, arguments: argparse.Namespace) -> Outcome:
    from dledger.spark.jobs.archive import archive

    return archive(
        spark,
        context.env.files,
        source_of(arguments),
        arguments.to,
        batch_bytes=arguments.batch_mb * 1024 * 1024,
        batch_messages=arguments.batch_messages,
        say=context.progress.say,
    )


COMMAND = Command(
    name="archive",
    summary="archive topics to Parquet, by topic and day",
    description="Archive topics to Parquet, by topic and day. Run it again (from a timer) to go on where it\n"
    "ended: every committed message gets into the files exactly once, whenever it is killed.",
    epilog=f"exit codes: 0 archived, 1 some was deleted by retention before, 4 could not run.\n{EPILOG}",
    add_arguments=add_arguments,
    run=run,
)
