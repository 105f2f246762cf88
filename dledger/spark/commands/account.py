"""`dledger spark account STORE --acknowledged FILE`: check that produced = stored = consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.options import Options
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome
from dledger.spark.commands.source_arguments import servers_of, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dledger.spark.jobs.accounting import ConsumerOffsets


async def run(context: Context, arguments: Options) -> Outcome:
    """Run the accounting job. If the source is live brokers, ask them for the offsets of the consumer
    groups first."""
    if arguments.consumed and not arguments.consumer:
        raise CannotRun("--consumed needs consumer groups to compare with: name them with --consumer")
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
    spark: SparkSession, context: Context, arguments: Options, asked: ConsumerOffsets | None
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


COMMAND = Command("account", run, reports=True, judges=True)
