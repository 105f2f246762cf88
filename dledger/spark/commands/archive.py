"""`dledger spark archive STORE --to DIR`: write the messages of topics to Parquet files, by topic and day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import Command, Context, Outcome
from dledger.spark.commands.source_arguments import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Outcome:
    """Run the archive job."""
    async with context.spark("dledger-archive", arguments.master, short=False) as spark:
        return await context.job(spark, "archive", lambda: _archive(spark, context, arguments))


def _archive(spark: SparkSession, context: Context, arguments: Options) -> Outcome:
    from dledger.spark.jobs.archive import archive

    return archive(
        spark,
        context.env.files,
        source_of(arguments),
        arguments.to,
        batch_bytes=arguments.batch_mb * 1024 * 1024,
        batch_messages=arguments.batch_messages,
        stored_before_ms=arguments.stored_before,
        say=context.progress.say,
    )


COMMAND = Command("archive", run)
