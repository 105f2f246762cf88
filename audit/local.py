"""The audit on one machine, without Spark: `verify` one store, `compare` the replicas of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from audit.compare import LAG_WARNING_ENTRIES, analyse, split_blocks
from audit.digests import differing, merge
from audit.findings import Row, SegmentRow
from audit.layout import Replica, SegmentTask, StoreError, open_stores, segment_tasks
from audit.report import Report, failed
from audit.scan import EntryRow, drill_segment, scan_segment, scan_side
from runtime import Env, Files, Lane

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with (segments done, segments in all)."""


async def audit_stores(
    env: Env,
    paths: list[str],
    *,
    progress: Progress = lambda done, total: None,
    lag_warning: int = LAG_WARNING_ENTRIES,
) -> Report:
    """Verify each store, and compare them when there are several. What cannot be read is a finding."""
    run = env.workers.run
    try:
        replicas = await run(Lane.DISK, open_stores, env.files, paths)
    except StoreError as error:
        return failed(str(error))
    tasks = [task for replica in replicas for task in segment_tasks(replica)]
    rows: list[Row] = []
    progress(0, len(tasks))
    for number, task in enumerate(tasks, 1):
        rows += await run(Lane.DISK, _all_of, scan_segment, env.files, task)
        progress(number, len(tasks))
    for replica in replicas:
        rows += await run(Lane.DISK, _all_of, scan_side, env.files, replica)
    others, blocks = split_blocks(rows)
    drill = LocalDrill(env, replicas, others)
    return await run(
        Lane.DISK, lambda: analyse(others, differing(merge(blocks)), drill, lag_warning=lag_warning)
    )


def _all_of(scan: Callable[[Files, T], Iterator[Row]], files: Files, what: T) -> list[Row]:
    return list(scan(files, what))


class LocalDrill:
    """Reads entries again where they lie (`compare.Drill`). Blocking."""

    def __init__(self, env: Env, replicas: list[Replica], rows: list[Row]) -> None:
        self._files = env.files
        segments = {(row.replica, row.segment): row for row in rows if isinstance(row, SegmentRow)}
        self._tasks: list[tuple[SegmentTask, SegmentRow]] = [
            (task, segments[task.replica, task.start])
            for replica in replicas
            for task in segment_tasks(replica)
            if (task.replica, task.start) in segments
        ]

    def __call__(self, ranges: list[tuple[int, int]]) -> Iterator[EntryRow]:
        for task, row in self._tasks:
            wanted = [span for span in ranges if span[0] <= row.last_index and span[1] >= row.first_index]
            if row.entries and wanted:
                yield from drill_segment(self._files, task, row.first_index, wanted)
