"""How far consumer groups are behind: the result of the lag jobs, as a table, JSON, rows and a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dledger.audit import html
from dledger.audit.findings import Severity
from dledger.audit.html import Markup
from dledger.audit.report_files import Records
from dledger.audit.text_table import text_table
from dledger.spark.jobs.times import moment, span_text

MAX_CHARTS = 100
"""Largest number of charts on a page. There is one per consumer group and topic, those with the largest
lag first."""
COLUMNS = (
    ("kind", "string"),
    ("time", "timestamp"),
    ("consumer", "string"),
    ("broker", "string"),
    ("topic", "string"),
    ("queue", "bigint"),
    ("end", "bigint"),
    ("consumed", "bigint"),
    ("lag", "bigint"),
)
"""Columns of the report as Parquet. `kind` is `now` (the present lag, without a time) or `history`."""


class QueueLag(NamedTuple):
    """The lag of one consumer group in one queue. `end`: offset that the next message gets; `consumed`:
    offset at which the group resumes.

    `behind_ms`: how long the message at that offset has been waiting for the group, with the precision of
    a bucket; -1 if not known.
    """

    consumer: str
    broker: str
    topic: str
    queue: int
    end: int
    consumed: int
    lag: int
    behind_ms: int = -1


class LagPoint(NamedTuple):
    """The lag of one consumer group in one queue at the end of a bucket of time. It is valid until the
    next point. `time_ms`: end of the bucket, in ms since the epoch."""

    time_ms: int
    consumer: str
    broker: str
    topic: str
    queue: int
    end: int
    consumed: int
    lag: int


class _Total(NamedTuple):
    """The lag of a consumer group in a topic, summed over its queues."""

    consumer: str
    topic: str
    queues: int
    lag: int
    worst: QueueLag
    behind_ms: int


@dataclass(frozen=True)
class Lag:
    """The present lag and its history. A group that is more than `warn_above` messages behind in one queue
    is a warning; with None there are no warnings."""

    now: list[QueueLag]
    history: list[LagPoint] = field(default_factory=list, repr=False)
    bucket_s: int = 0
    warn_above: int | None = None

    @property
    def late(self) -> list[QueueLag]:
        """The queues in which a group is more than `warn_above` messages behind."""
        if self.warn_above is None:
            return []
        return [one for one in self.now if one.lag > self.warn_above]

    @property
    def exit_code(self) -> int:
        """Exit code: 1 if the lag of a queue is above `warn_above`, else 0."""
        return 1 if self.late else 0

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "verdict": "warnings" if self.late else "clean",
            "exit_code": self.exit_code,
            "lag": sum(one.lag for one in self.now),
            "now": [one._asdict() for one in self.now],
            "bucket_s": self.bucket_s,
            "history": [point._asdict() for point in self.history],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people: one for each consumer group and topic."""
        totals = self._totals()
        if not totals:
            yield "no consumer group has committed an offset"
            return
        rows = [
            ("consumer", "topic", "queues", "lag", "behind", "worst queue", "its lag", "its offset", "end")
        ]
        for one in totals:
            worst = one.worst
            place = f"{worst.broker}/{worst.queue}" if worst.broker else str(worst.queue)
            behind = span_text(one.behind_ms) if one.behind_ms >= 0 else "-"
            rows.append(
                (one.consumer, one.topic, str(one.queues), html.number(one.lag), behind, place,
                 html.number(worst.lag), html.number(worst.consumed), html.number(worst.end))
            )  # fmt: skip
        yield from text_table(rows, right=(2, 3, 4, 6, 7, 8))
        yield f"lag: {html.number(sum(one.lag for one in self.now))} messages" + (
            f", {len(self.late)} queues more than {self.warn_above} behind"
            if self.warn_above is not None
            else ""
        )

    def page(self, when: str) -> str:
        """Return the report as one self-contained HTML page."""
        severity = Severity.WARNING if self.late else Severity.INFO
        total = sum(one.lag for one in self.now)
        groups = len({one.consumer for one in self.now})
        sentence = f"{html.number(total)} messages have been stored and not yet consumed."
        facts = [f"{groups} consumer groups", f"{len(self.now)} queues", when]
        word = (
            f"{len(self.late)} queues too far behind"
            if self.late
            else f"{html.number(total)} messages behind"
        )
        parts = [html.banner(severity, sentence, facts, word)]
        totals = self._totals()
        rows: list[list[html.Cell]] = [
            [one.consumer, one.topic, one.queues, one.lag,
             span_text(one.behind_ms) if one.behind_ms >= 0 else None, one.worst.lag,
             f"{one.worst.broker} {one.worst.queue}".strip()]
            for one in totals
        ]  # fmt: skip
        headings = ("consumer group", "topic", "queues", "lag", "behind", "worst queue's lag", "worst queue")
        parts.append(html.section("Now", html.table(headings, rows)))
        if self.history:
            charts = [self._chart(one) for one in totals[:MAX_CHARTS]]
            note = (
                f"Messages behind, all queues of a topic together, every {span_text(self.bucket_s * 1000)}."
            )
            parts.append(html.section("History", html.join(charts), note))
        footer = "Lag: the offset of the next new message minus the committed offset of the group."
        return html.page("Consumer lag", parts, footer=footer)

    def records(self) -> Records:
        """Return the present lag and the history as rows of a table."""
        rows: list[tuple[object, ...]] = [("now", None, *one[:7]) for one in self.now]
        rows += [("history", *point) for point in self.history]
        return Records(COLUMNS, rows)

    def _totals(self) -> list[_Total]:
        """Return the totals by consumer group and topic, those with the largest lag first."""
        by_topic: dict[tuple[str, str], list[QueueLag]] = {}
        for one in self.now:
            by_topic.setdefault((one.consumer, one.topic), []).append(one)
        totals = [
            _Total(
                consumer,
                topic,
                len(queues),
                sum(one.lag for one in queues),
                max(queues, key=lambda one: one.lag),
                max(one.behind_ms for one in queues),
            )
            for (consumer, topic), queues in sorted(by_topic.items())
        ]
        return sorted(totals, key=lambda total: -total.lag)

    def _chart(self, of: _Total) -> Markup:
        """Draw the lag of a consumer group in a topic over time, summed over the queues."""
        width = self.bucket_s * 1000
        points = [point for point in self.history if (point.consumer, point.topic) == (of.consumer, of.topic)]
        if not points:
            return Markup("")
        first, last = min(p.time_ms for p in points), max(p.time_ms for p in self.history)
        steps: dict[int, int] = {}  # time -> by how much the sum changes
        stands: dict[tuple[str, int], int] = {}
        for point in sorted(points):
            queue = (point.broker, point.queue)
            steps[point.time_ms] = steps.get(point.time_ms, 0) + point.lag - stands.get(queue, 0)
            stands[queue] = point.lag
        values, labels, lag = [], [], 0
        for at in range(first, last + width, width):
            lag += steps.get(at, 0)
            values.append(lag)
            labels.append(f"{moment(at)}: {html.number(lag)} behind")
        said = f"{moment(first)} to {moment(last)} UTC, at most {html.number(max(values))}"
        heading = Markup(f"<h3>{html.text(of.consumer)} on {html.text(of.topic)}</h3>")
        return html.join([heading, html.bars(values, labels), Markup(f'<p class="note">{said}</p>')])
