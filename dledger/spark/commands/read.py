"""`dledger spark read STORE`: print the first rows of a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import Command, Context, Outcome
from dledger.spark.commands.source_arguments import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Outcome:
    """Run the job that reads the rows."""
    async with context.spark("dledger-read", arguments.master) as spark:
        return await context.job(spark, "read", lambda: _read(spark, arguments))


def _read(spark: SparkSession, arguments: Options) -> Outcome:
    from dledger.spark.jobs.reading import read_rows

    return read_rows(
        spark,
        source_of(arguments),
        arguments.view,
        where=arguments.where,
        order_by=arguments.order_by,
        limit=arguments.limit,
    )


COMMAND = Command("read", run)
