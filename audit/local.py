"""The audit in this process, without Spark: `verify` one replica, `compare` the replicas of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from audit.compare import LAG_WARNING_ENTRIES, analyse, split_blocks
from audit.digests import differing, merge
from audit.drilling import Drilling
from audit.findings import Row
from audit.layout import SegmentTask, StoreError
from audit.replicas import ReplicaSource, ReplicaView, StoreSource, drill, look_at
from audit.report import Report, failed
from runtime import Env, Lane

Progress = Callable[[int, int], None]
"""Called with (segments done, segments in all)."""


async def audit_stores(
    env: Env,
    paths: list[str],
    *,
    progress: Progress = lambda done, total: None,
    lag_warning: int = LAG_WARNING_ENTRIES,
) -> Report:
    """`audit_sources` over store directories, by paths or URLs."""
    try:
        sources = [StoreSource.at(path, env.files) for path in paths]
    except StoreError as error:
        return failed(str(error))
    return await audit_sources(env, sources, progress=progress, lag_warning=lag_warning)


async def audit_sources(
    env: Env,
    sources: Sequence[ReplicaSource],
    *,
    drill_sources: Sequence[ReplicaSource] | None = None,
    progress: Progress = lambda done, total: None,
    lag_warning: int = LAG_WARNING_ENTRIES,
) -> Report:
    """Verify each replica, and compare them when there are several. What cannot be read is a finding.

    Replicas are scanned side by side. `drill_sources`: where entries are read when `sources` have none, and
    were scanned at different times.
    """
    try:
        look = await env.workers.run(Lane.DISK, look_at, sources)
    except StoreError as error:
        return failed(str(error))
    drilling = None if drill_sources is None else Drilling(drill_sources)
    work = [(replica, replica.tasks()) for replica in look.replicas]
    total = sum(len(tasks) for _, tasks in work)
    done = 0

    async def scan(replica: ReplicaView, tasks: Sequence[SegmentTask]) -> list[Row]:
        nonlocal done
        rows: list[Row] = []
        for task in tasks:
            rows += await env.workers.run(Lane.DISK, _scan, replica, task)
            done += 1
            progress(done, total)
        return rows + await env.workers.run(Lane.DISK, _side, replica)

    progress(0, total)
    async with asyncio.TaskGroup() as group:
        scans = [
            group.create_task(scan(replica, tasks), name=f"scan {replica.name}") for replica, tasks in work
        ]
    others, blocks = split_blocks(row for each in scans for row in each.result())

    report = await env.workers.run(
        Lane.DISK,
        lambda: analyse(
            [*look.findings, *others],
            differing(merge(blocks)),
            drilling or partial(drill, look.replicas),
            lag_warning=lag_warning,
            same_time=drilling is None,
        ),
    )
    return drilling.completed(report) if drilling else report


def _scan(replica: ReplicaView, task: SegmentTask) -> list[Row]:
    return list(replica.reader.scan(task))


def _side(replica: ReplicaView) -> list[Row]:
    return list(replica.side())
