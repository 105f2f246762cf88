"""Rows of a queue in several segments, put together in any way, tell what the single rows tell."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.audit.compare import analyse
from dledger.audit.findings import QueueFilesRow, QueueRow, QueueRunRow, ReplicaRow, Row, SegmentRow
from dledger.audit.queue_runs import QueueRuns, as_run, merged, promised
from tests.audit.engine import audit
from tests.audit.store_builder import sample_log, write_group

SIZE = 1000
ENTRIES = 10


@dataclass(frozen=True)
class Replica:
    """What the scans of a replica say: rows of each segment, and those beside."""

    row: ReplicaRow
    segments: tuple[tuple[SegmentRow, tuple[QueueRow, ...]], ...]
    files: tuple[QueueFilesRow, ...]

    def plain(self) -> list[Row]:
        """As segments yield them."""
        rows: list[Row] = [self.row, *self.files]
        for segment, queues in self.segments:
            rows += [segment, *queues]
        return rows

    def packed(self, cuts: list[int]) -> list[Row]:
        """As tasks yield them, of which each has the segments up to one of `cuts`."""
        rows: list[Row] = [self.row, *self.files, *(segment for segment, _ in self.segments)]
        for first, end in zip([0, *cuts], [*cuts, len(self.segments)], strict=True):
            runs = QueueRuns()
            for segment, queues in self.segments[first:end]:
                for queue in queues:
                    runs.add(promised(as_run(queue), segment.last_index, self.row.applied))
            rows += runs.rows()
        return rows


@st.composite
def replicas(draw: st.DrawFn, name: str) -> Replica:
    """Queues whose rows have gaps now and then, segments that are not whole, files that reach anywhere."""
    count = draw(st.integers(1, 7))
    committed = draw(st.integers(0, count * ENTRIES - 1))
    applied = draw(st.integers(-1, committed))
    ours = draw(st.integers(0, 1))
    row = ReplicaRow(name, f"/{name}", "g", "c", f"i{name}", 3, -1, committed, count, SIZE, 0, 0, ours, 1)
    row = row._replace(applied=applied, index_end=count * ENTRIES)
    offsets = dict.fromkeys((("a", 0), ("a", 1), ("b", 0)), 0)
    segments = []
    for number in range(count):
        first = number * ENTRIES
        stop = draw(st.sampled_from(("full", "full", "full", "damaged")))
        segment = SegmentRow(
            name, number * SIZE, first, first + ENTRIES - 1, 1, 1, ENTRIES, SIZE, (number + 1) * SIZE, stop,
            0, 0, 0, draw(st.sampled_from((0, 0, 0, 2))), (),
        )  # fmt: skip
        queues = []
        for (topic, queue_id), at in sorted(offsets.items()):
            held = draw(st.sampled_from((3, 1, 0)))
            if held and first <= committed:
                at += draw(st.sampled_from((0,) * 9 + (3,)))
                end = at + held - 1
                due = draw(st.sampled_from((-1, -1, at, end)))
                queues.append(QueueRow(name, number * SIZE, topic, queue_id, at, end, due))
                offsets[topic, queue_id] = end + 1
        segments.append((segment, tuple(queues)))
    files = []
    for (topic, queue_id), end in offsets.items():
        if draw(st.sampled_from((True, True, False))):
            high = max(0, end - draw(st.sampled_from((0, 1, 2, 3, 7))))
            low = draw(st.sampled_from((0, high // 2)))
            files.append(QueueFilesRow(name, topic, queue_id, low, high, draw(st.integers(0, count * SIZE))))
    return Replica(row, tuple(segments), tuple(files))


def test_neighbours_without_a_gap_become_one() -> None:
    rows = [QueueRow("n0", at, "t", 1, first, last, due) for at, first, last, due in (
        (0, 5, 9, -1), (2000, 10, 12, -1), (3000, 13, 20, 14), (4000, 22, 30, -1),
    )]  # fmt: skip
    runs = [
        promised(as_run(row), last_index, 29) for row, last_index in zip(rows, (9, 29, 39, 49), strict=True)
    ]
    one = QueueRunRow("n0", 0, 3000, "t", 1, 5, 20, before_last=12, due=14)
    assert list(merged(runs)) == [one, QueueRunRow("n0", 4000, 4000, "t", 1, 22, 30, -1)]
    assert list(merged(runs[:2])) == [QueueRunRow("n0", 0, 2000, "t", 1, 5, 12, before_last=9, due=12)]
    assert list(merged([*merged(runs[:1]), *merged(runs[1:])])) == list(merged(runs))
    assert list(merged([runs[1], runs[0]])) == [runs[1], runs[0]], "only what comes behind goes on"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_findings_do_not_depend_on_how_rows_were_put_together(data: st.DataObject) -> None:
    group = [data.draw(replicas(name)) for name in ("n0", "n1")]

    def report(rows: list[Row]) -> Any:
        found = analyse(rows, (), lambda ranges: (), lag_warning=1000)
        return found.as_json()

    plain = report([row for replica in group for row in replica.plain()])
    packed: list[Row] = []
    for replica in group:
        cuts = data.draw(st.lists(st.integers(1, max(1, len(replica.segments) - 1)), unique=True, max_size=3))
        packed += replica.packed(sorted(cut for cut in cuts if cut < len(replica.segments)))
    assert report(packed) == plain
    runs = [row for row in packed if isinstance(row, QueueRunRow)]
    whole = list(merged(sorted(runs, key=lambda run: (run.replica, run.topic, run.queue_id, run.segment))))
    others = [row for row in packed if not isinstance(row, QueueRunRow)]
    assert report([*others, *whole]) == plain
    gaps = sum(
        before.last_offset + 1 != after.first_offset
        for replica in group
        for key in {(row.topic, row.queue_id) for _, rows in replica.segments for row in rows}
        for mine in [
            [row for _, rows in replica.segments for row in rows if (row.topic, row.queue_id) == key]
        ]
        for before, after in pairwise(mine)
    )
    queues = len({run[:1] + run[3:5] for run in runs})
    assert len(whole) == queues + gaps


def test_stores_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is asked for before: that does not need the segments."""
    from dledger.audit import segment_places, store_directory

    listed: list[str] = []
    plain = segment_places.list_segments

    def counted(files: Any, directories: Any, *rest: Any) -> Any:
        listed.extend(directories)
        return plain(files, directories, *rest)

    monkeypatch.setattr(store_directory, "list_segments", counted)
    report = audit(write_group(sample_log(300), tmp_path))
    assert report.exit_code == 0
    assert len(listed) == len(set(listed)) == 3
