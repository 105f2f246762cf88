"""Merges the rows of a queue in consecutive segments into one row, called a run, if there is no gap between
them. Pure.

Rows may be merged in any order and place (by a task for its segments, then for all of a queue). The result is
the same, and `audit.coverage` finds the same faults in it as in the rows of single segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dledger.audit.findings import QueueRow, QueueRunRow


def as_run(row: QueueRow) -> QueueRunRow:
    """Make a run from the row of one segment."""
    return QueueRunRow(
        replica=row.replica,
        segment=row.segment,
        last_segment=row.segment,
        topic=row.topic,
        queue_id=row.queue_id,
        first_offset=row.first_offset,
        last_offset=row.last_offset,
        before_last=-1,
        due=row.due,
    )


def promised(run: QueueRunRow, last_index: int, applied: int) -> QueueRunRow:
    """Return a run with `due` set to its last message if the broker has promised all units of the run,
    according to `applied` (`ReplicaRow`). Rows that were made earlier may have a smaller `due`. `last_index`
    is the last entry of the run's last segment."""
    return run._replace(due=run.last_offset) if last_index <= applied else run


def merged(runs: Iterable[QueueRunRow]) -> Iterator[QueueRunRow]:
    """Merge adjacent runs. The runs of one queue must come together, by segment."""
    open_run: QueueRunRow | None = None
    for run in runs:
        if open_run is None:
            open_run = run
        elif _goes_on(open_run, run):
            open_run = open_run._replace(
                last_segment=run.last_segment,
                last_offset=run.last_offset,
                before_last=max(open_run.last_offset, run.before_last),
                due=max(open_run.due, run.due),
            )
        else:
            yield open_run
            open_run = run
    if open_run is not None:
        yield open_run


def _goes_on(run: QueueRunRow, following: QueueRunRow) -> bool:
    same = (run.replica, run.topic, run.queue_id) == (
        following.replica,
        following.topic,
        following.queue_id,
    )
    return same and run.last_segment < following.segment and run.last_offset + 1 == following.first_offset


class QueueRuns:
    """Collects runs of several segments of any replicas one after another, and merges those that continue
    each other.

    Segments of one replica must come in the order of its log.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str, int], list[QueueRunRow]] = {}

    def add(self, run: QueueRunRow) -> None:
        """Add the next run of its queue."""
        mine = self._runs.setdefault((run.replica, run.topic, run.queue_id), [])
        mine[-1:] = merged([*mine[-1:], run])

    def rows(self) -> Iterator[QueueRunRow]:
        """Yield the runs by replica and queue, then by segment."""
        for key in sorted(self._runs):
            yield from self._runs[key]
