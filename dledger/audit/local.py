"""The audit on this machine, without Spark: `verify` checks one replica, `compare` the replicas of a
group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dledger.audit.compare import analyse, split_blocks
from dledger.audit.defaults import LAG_WARNING_ENTRIES
from dledger.audit.digests import differing, merge
from dledger.audit.drilling import Drilling
from dledger.audit.findings import Row
from dledger.audit.replicas import (
    ReplicaSource,
    ReplicaView,
    SegmentReader,
    StoreSource,
    claims_at,
    drill,
    entry_of,
    look_at,
)
from dledger.audit.report import Report, failed
from dledger.audit.store_directory import SegmentTask, StoreError
from dledger.runtime import Env, Lane
from dledger.runtime.processes import ProcessWorkers

if TYPE_CHECKING:
    from dledger.audit.kept import Keep  # needs pyarrow

Progress = Callable[[int, int], None]
"""Function that is called with (number of segments done, number of segments in all)."""
ALONE_BELOW_BYTES = 192 * 1024 * 1024
"""Size, in bytes, below which stores are scanned by this process alone, because the scan ends before other
processes could start."""


async def audit_stores(
    env: Env,
    paths: list[str],
    *,
    keep: Keep | None = None,
    progress: Progress = lambda done, total: None,
    lag_warning: int = LAG_WARNING_ENTRIES,
    same_time: bool = False,
    processes: ProcessWorkers | None = None,
    alone_below: int = ALONE_BELOW_BYTES,
) -> Report:
    """Audit store directories, given by paths or URLs, with `audit_sources`."""
    try:
        stores = [StoreSource.at(path, env.files) for path in paths]
    except StoreError as error:
        return failed(str(error))
    return await audit_sources(
        env,
        [keep.source(store) for store in stores] if keep else stores,
        progress=progress,
        lag_warning=lag_warning,
        same_time=same_time,
        processes=processes,
        alone_below=alone_below,
    )


async def audit_sources(
    env: Env,
    sources: Sequence[ReplicaSource],
    *,
    drill_sources: Sequence[ReplicaSource] | None = None,
    progress: Progress = lambda done, total: None,
    lag_warning: int = LAG_WARNING_ENTRIES,
    same_time: bool = False,
    processes: ProcessWorkers | None = None,
    alone_below: int = ALONE_BELOW_BYTES,
) -> Report:
    """Verify each replica, and compare them if there are several. What cannot be read becomes a finding.

    * `processes`: segments are scanned in these. If the segments have less than `alone_below` bytes in all,
      or without `processes`, threads of this process scan them, which gives the same report. Raises OSError
      if a process died.
    * `drill_sources`: where to read entries if `sources` have none and were scanned at different times.
    * `same_time`: the directories belong to stopped or running nodes, and are not copies of different times
      (`audit.compare.Group`).
    """
    try:
        claims = await env.workers.run(Lane.DISK, claims_at, sources)
        look = await env.workers.run(Lane.DISK, look_at, sources)
    except StoreError as error:
        return failed(str(error))
    drilling = None if drill_sources is None else Drilling(drill_sources)
    work = [(replica, replica.tasks()) for replica in look.replicas]
    total = sum(len(tasks) for _, tasks in work)
    done = 0
    if processes is not None and sum(task.size for _, tasks in work for task in tasks) < alone_below:
        processes = None

    async def scan(reader: SegmentReader, task: SegmentTask) -> list[Row]:
        nonlocal done
        if processes is not None:
            rows = await processes.run(_scan, reader, task)
        else:
            rows = await env.workers.run(Lane.DISK, _scan, reader, task)
        done += 1
        progress(done, total)
        return rows

    async def side(replica: ReplicaView) -> list[Row]:
        return await env.workers.run(Lane.DISK, _side, replica)

    progress(0, total)
    try:
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(part, name=f"scan {replica.name}")
                for replica, tasks in work
                for part in (*(scan(replica.reader, task) for task in tasks), side(replica))
            ]
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    others, blocks = split_blocks(row for part in parts for row in part.result())

    report = await env.workers.run(
        Lane.DISK,
        lambda: analyse(
            [*look.findings, *others],
            differing(merge(blocks)),
            drilling or partial(drill, look.replicas),
            lag_warning=lag_warning,
            same_time=same_time,
            shipped=drilling is not None,
            claims=claims,
            read_entry=drilling.entry if drilling else partial(entry_of, look.replicas),
        ),
    )
    return drilling.completed(report) if drilling else report


def _scan(reader: SegmentReader, task: SegmentTask) -> list[Row]:
    return list(reader.scan(task))


def _side(replica: ReplicaView) -> list[Row]:
    return list(replica.side())
