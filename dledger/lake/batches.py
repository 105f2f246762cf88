"""Reads ranges of the log as rows of a table, each with its certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from dledger.lake.certificates import Certificate, digest_of
from dledger.lake.log_reading import Link, Log, LogGone, LogState, link_before, windows
from dledger.lake.rows import SCHEMA, Births, TableRows
from dledger.lake.tables import About, TableError, TopicTable
from dledger.lake.typed import TypedBodies

BATCH_BYTES = 128 * 1024 * 1024
"""Size of the rows, in bytes, at which a batch is committed. So the writer needs a few times this memory."""
BATCH_ENTRIES = 1_000_000
"""Largest number of entries of one batch, of any topic. So the position moves on also where a log has few
messages of the topics."""


@dataclass(frozen=True)
class Batch:
    """The rows of a range of the log."""

    rows: pa.Table
    certificate: Certificate


class Start(NamedTuple):
    """What must be known of the log before the first entry that is read: the births of topics (`rows.Births`)
    and the link to the entry before it."""

    births: Births
    link: Link

    @property
    def first(self) -> int:
        """Index of the first entry that is read."""
        return self.link.index + 1


def log_state(log: Log) -> LogState:
    """Return what a log holds now. Raises TableError if it has no id, StoreError or ClientError."""
    state = log.state()
    if not state.cluster:
        raise TableError(f"{log.name}: the log has no id yet, or is one of Apache RocketMQ")
    return state


def first_missing(table: TopicTable, state: LogState) -> int:
    """Return the index of the first entry of this log that the table does not have. Raises LogGone if the log
    does not hold it any more, or TableError if the log ends before it."""
    position = table.position(state.cluster)
    first = state.begin if position is None else position
    if first < state.begin:
        raise LogGone(
            f"{table.place} needs entry {first}, and the log of {state.group} begins with entry "
            f"{state.begin}, as retention deleted those before: fill a new table, or take the missing "
            "entries from a backup"
        )
    if first > state.committed + 1:
        raise TableError(
            f"{table.place} holds entries up to {first - 1}, and the log of {state.group} ends with entry "
            f"{state.committed}: it is older than the table, or was restored from a backup"
        )
    return first


def start_at(
    table: TopicTable, log: Log, state: LogState, first: int, births_at: Callable[[int], Births]
) -> Start:
    """Return what is known before entry `first`: from the table, so that a log which does not continue it is
    found; or from the log and `births_at`, if the table has nothing of this log yet. Raises TableError,
    StoreError or ClientError."""
    if table.position(state.cluster) is None:
        return Start(births_at(first), link_before(log, first, state.begin))
    for one in table.certificates(state.cluster):
        if one.last + 1 == first:
            return start_after(one)
    raise TableError(
        f"{table.place}: the table ends before entry {first}, and no certificate ends there, so somebody "
        "removed it: run the audit of the table"
    )


def start_after(certificate: Certificate) -> Start:
    """Return what is known behind the range of a certificate."""
    return Start(dict(certificate.births_after), Link(certificate.last, -1, certificate.chain_last))


def batches(
    log: Log, about: About, state: LogState, start: Start, last: int, batch_bytes: int = BATCH_BYTES
) -> Iterator[Batch]:
    """Yield the batches behind `start` up to entry `last`, which is committed. Raises LogDamaged, LogGone,
    StoreError, ClientError, or spark.messages.CorruptMessage."""
    typed = TypedBodies(about.schema) if about.schema else None
    rows = TableRows(about.topics, state.cluster, state.group, start.births)
    pending = _Pending(start.link, dict(rows.births), typed)
    for window in windows(log, start.link, last):
        pending.batches += rows.of_window(window)
        end = window.columns.entry(len(window.columns) - 1)
        pending.end = Link(end.index, end.term, end.chain)
        if pending.is_full(batch_bytes) or end.index == last:
            yield pending.batch(state.cluster, state.group, rows.births)
            pending = _Pending(pending.end, dict(rows.births), typed)


class _Pending:
    """Rows that are not a batch yet."""

    def __init__(self, before: Link, births: Births, typed: TypedBodies | None) -> None:
        self.before = self.end = before
        self.births, self.typed = births, typed
        self.batches: list[pa.RecordBatch] = []

    def is_full(self, most: int) -> bool:
        entries = self.end.index - self.before.index
        return entries >= BATCH_ENTRIES or sum(batch.nbytes for batch in self.batches) >= most

    def batch(self, cluster: str, group: str, births_after: Births) -> Batch:
        rows = pa.Table.from_batches(self.batches, SCHEMA)
        rows = rows.sort_by([("topic", "ascending"), ("queue", "ascending"), ("offset", "ascending")])
        if self.typed is not None:
            rows = self.typed.appended(rows)
        certificate = Certificate(
            cluster,
            group,
            self.before.index + 1,
            self.end.index,
            self.before.chain,
            self.end.chain,
            rows.num_rows,
            digest_of(rows),
            self.births,
            dict(births_after),
        )
        return Batch(rows, certificate)
