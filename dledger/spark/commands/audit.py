"""`dledger spark audit STORE STORE STORE`: check the replicas of a group and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dledger.audit.arguments import KeepError, keep_of
from dledger.audit.local import audit_sources
from dledger.audit.report import Report, failed
from dledger.runtime import Env, Lane
from dledger.runtime.options import Options
from dledger.spark.commands.command import CannotRun, Command, Context
from dledger.spark.places import BadPlace, Group, NoAnswer, groups_to_audit, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def run(context: Context, arguments: Options) -> Report:
    """Run the audit. If it cannot run, the report says so."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        if arguments.engine == "local" and arguments.master is not None:
            raise BadPlace("--master needs --engine spark: remove --master or --engine local")
        groups = await context.env.workers.run(Lane.DISK, _groups, context.env, arguments)
        audit = audit_locally if arguments.engine == "local" else audit_on_spark
        report = joined(groups, await audit(context, groups, arguments))
    except NoAnswer as error:
        report = failed(str(error))
    except (BadPlace, CannotRun, KeepError) as error:
        report = failed(str(error), "CANNOT_RUN")
    return report.timed(loop.time() - began)


def _groups(env: Env, arguments: Options) -> list[Group]:
    """Return the groups that the arguments name. Blocking. Raises BadPlace, NoAnswer or KeepError."""
    now_ms = env.wall.now_ms()
    if arguments.keep is not None and arguments.digests is not None:
        raise KeepError("give either --keep or --digests: digests are scans that brokers kept themselves")
    if arguments.keep is not None and arguments.max_age is not None:
        raise KeepError(
            "give either --keep or --max-age: --keep reuses only its own scans, and has --rescan-hours"
        )
    if arguments.same_time and arguments.digests is not None:
        raise BadPlace(
            "give either --same-time or --digests: each broker shipped its digests at its own time"
        )
    keep = keep_of(arguments, env.files, now_ms)
    groups = groups_to_audit(arguments, now_ms)
    if keep is None:
        return groups
    return [replace(group, sources=tuple(map(keep.source, group.sources))) for group in groups]


async def audit_locally(context: Context, groups: Sequence[Group], arguments: Options) -> list[Report]:
    """Make one report for each group, in this process."""

    def progress(group: Group, done: int, total: int) -> None:
        context.progress.say(f"audit {group.name}".rstrip())
        context.progress.show(f"{done} of {total} segments")

    try:
        return [
            await audit_sources(
                context.env,
                group.sources,
                drill_sources=group.drill_sources,
                progress=partial(progress, group),
                lag_warning=arguments.lag_warning,
                same_time=arguments.same_time,
            )
            for group in groups
        ]
    finally:
        context.progress.clear()


async def audit_on_spark(context: Context, groups: Sequence[Group], arguments: Options) -> list[Report]:
    """Make one report for each group, with jobs of one Spark session."""
    options = {"lag_warning": arguments.lag_warning, "same_time": arguments.same_time}
    async with context.spark("dledger-audit", arguments.master) as spark:
        return [
            await context.job(spark, f"audit {group.name}".rstrip(), partial(_audit, spark, group, **options))
            for group in groups
        ]


def _audit(spark: SparkSession, group: Group, lag_warning: int, same_time: bool) -> Report:
    """Audit one group with Spark. Blocking."""
    from dledger.spark.audit_job import audit_sources

    return audit_sources(
        spark,
        group.sources,
        drill_sources=group.drill_sources,
        lag_warning=lag_warning,
        same_time=same_time,
    )


COMMAND = Command("audit", run, reports=True, judges=True)
