"""`dledger spark read STORE`: rows of a view, for a look."""

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
    parser.add_argument("--view", default="messages", help="view of the data source (default %(default)s)")
    parser.add_argument(
        "--where", metavar="SQL", default="", help="condition, as \"topic = 'orders' and offset > 9\""
    )
    parser.add_argument("--order-by", metavar="COLUMN", default="", help="sort by this column")
    parser.add_argument("--limit", metavar="N", type=positive, default=20, help="rows (default %(default)s)")
    add_master(parser)


async def run(context: Context, arguments: argparse.Namespace) -> Outcome:
    """The job."""
    async with context.spark("dledger-read", arguments.master) as spark:
        return await context.job(spark, "read", lambda: _read(spark, arguments))


def _read(spark: SparkSession, arguments: argparse.Namespace) -> Outcome:
    from dledger.spark.jobs.reading import read_rows

    return read_rows(
        spark,
        source_of(arguments),
        arguments.view,
        where=arguments.where,
        order_by=arguments.order_by,
        limit=arguments.limit,
    )


COMMAND = Command(
    name="read",
    summary="rows of a view: messages, entries, queues, state ...",
    epilog=f"exit codes: 0 done, 4 could not run.\n{EPILOG}",
    add_arguments=add_arguments,
    run=run,
)
