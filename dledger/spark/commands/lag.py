"""`dledger spark lag STORE`: report how far consumer groups are behind, now and in the past."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome
from dledger.spark.commands.source_arguments import servers_of, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Outcome:
    """Report the lag. For stores, run the job that reads the history of the lag. For brokers, ask for the
    present lag, without Spark."""
    if namesrv := servers_of(arguments):
        from dledger.spark.access import OPTIONS, access_of
        from dledger.spark.jobs.lag_live import lag_live

        _check_live(arguments, OPTIONS)
        topics = tuple(topic.strip() for topic in (arguments.topics or "").split(",") if topic.strip())
        consumers = tuple(arguments.consumer)
        return await lag_live(
            context.env,
            namesrv,
            consumers=consumers,
            topics=topics,
            warn_above=arguments.warn_above,
            client=access_of(dict(arguments.option)).client(),
        )
    async with context.spark("dledger-lag", arguments.master, short=False) as spark:
        return await context.job(spark, "lag", lambda: _history(spark, context, arguments))


def _check_live(arguments: Options, accepted: Collection[str]) -> None:
    """Raises CannotRun for options that have an effect only for stores. Options of the data source that are
    `accepted` have one for brokers too."""
    told = {
        "STORE": arguments.stores,
        "--option": [name for name, _ in arguments.option if name not in accepted],
        "--bucket": arguments.bucket,
        "--master": arguments.master,
    }
    for name, value in told.items():
        if value:
            why = "has no effect with --namesrv: brokers are asked for the present, without Spark"
            raise CannotRun(f"{name} {why}; remove one of them")


def _history(spark: SparkSession, context: Context, arguments: Options) -> Outcome:
    from dledger.spark.jobs.lag import lag_history

    return lag_history(
        spark,
        source_of(arguments),
        consumers=tuple(arguments.consumer),
        bucket_s=arguments.bucket,
        warn_above=arguments.warn_above,
        say=context.progress.say,
    )


COMMAND = Command("lag", run, reports=True, judges=True)
