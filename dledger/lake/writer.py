"""Adds the messages of topics to a table, each exactly once, in order of the log.

The table itself holds the position in the log up to which it is filled, and one transaction moves it together
with the rows. So a writer that is killed goes on where the table says. If two writers run by mistake, the one
that commits second fails, reads the new position and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dledger.lake.certificates import MAX_CERTIFICATES, Certificate, compacted, digest_of, series
from dledger.lake.log_reading import Link, Log, LogGone, LogState, link_before, windows
from dledger.lake.rows import SCHEMA, Births, TableRows
from dledger.lake.tables import TableChanged, TableError, TopicTable
from dledger.lake.typed import TypedBodies

BATCH_BYTES = 128 * 1024 * 1024
"""Size of the rows, in bytes, at which a batch is committed. So the writer needs a few times this memory."""
BATCH_ENTRIES = 1_000_000
"""Largest number of entries of one batch, of any topic. So the position moves on also where a log has few
messages of the topics."""
TIDY_COMMITS = 100
"""Number of commits after which a writer looks whether certificates are to be merged."""
CONFLICTS = 20
"""How often in a row a batch is read again because another writer was faster, before the writer gives up."""


@dataclass(frozen=True)
class Progress:
    """How far a table is filled. `rows` is the number of rows that this writer has added."""

    group: str
    rows: int
    next_index: int
    committed: int


@dataclass(frozen=True)
class Batch:
    """The rows of a range of the log."""

    rows: pa.Table
    certificate: Certificate


class TableWriter:
    """Fills a table from the log of one broker group.

    `births_at` returns the births of the topics before an entry. It is asked only when the table has nothing
    of this log yet.
    """

    def __init__(
        self,
        table: TopicTable,
        log: Log,
        births_at: Callable[[int], Births],
        *,
        report: Callable[[Progress], None] = lambda progress: None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._table, self._log, self._births_at = table, log, births_at
        self._report, self._batch_bytes = report, batch_bytes
        self._typed = TypedBodies(table.about.schema) if table.about.schema else None
        self._rows = 0
        self._last: Certificate | None = None
        """The certificate of the newest batch that this writer added."""
        self._untidy = TIDY_COMMITS

    def catch_up(self) -> int:
        """Add everything that is committed now. Return the number of rows that were added.

        Raises TableError, LogGone if entries that the table needs are gone, LogDamaged, StoreError or
        ClientError.
        """
        state = self._log.state()
        if not state.cluster:
            raise TableError(f"{self._log.name}: the log has no id yet, or is one of Apache RocketMQ")
        before, conflicts = self._rows, 0
        while True:
            self._table.refresh()
            position = self._table.position(state.cluster)
            first = state.begin if position is None else position
            if first < state.begin:
                raise LogGone(
                    f"{self._table.place} needs entry {first}, and the log of {state.group} begins with "
                    f"entry {state.begin}, as retention deleted those before: fill a new table, or take the "
                    "missing entries from a backup"
                )
            if first > state.committed + 1:
                raise TableError(
                    f"{self._table.place} holds entries up to {first - 1}, and the log of {state.group} ends "
                    f"with entry {state.committed}: it is older than the table, or was restored from a backup"
                )
            if first > state.committed:
                break
            try:
                for batch in self._batches(state, first, is_new=position is None):
                    self._table.certify(batch.certificate)
                    self._table.add(batch.rows, batch.certificate)
                    self._last, conflicts = batch.certificate, 0
                    self._untidy += 1
                    self._rows += batch.rows.num_rows
                    end = batch.certificate.last + 1
                    self._report(Progress(state.group, self._rows, end, state.committed))
                    self._table.refresh()
            except TableChanged:
                conflicts += 1
                if conflicts > CONFLICTS:
                    raise
        if self._rows > before and self._untidy >= TIDY_COMMITS:
            self._tidy()
            self._untidy = 0
        return self._rows - before

    def _batches(self, state: LogState, first: int, *, is_new: bool) -> Iterator[Batch]:
        """Yield the batches from entry `first` to the last committed one. `is_new`: whether the table has
        nothing of this log yet."""
        if is_new:
            births, link = self._births_at(first), link_before(self._log, first, state.begin)
        else:  # so that a log which does not continue the table is found
            before = self._certificate_before(state.cluster, first)
            births, link = dict(before.births_after), Link(first - 1, -1, before.chain_last)
        rows = TableRows(self._table.about.topics, state.cluster, state.group, births)
        pending = _Pending(link, dict(rows.births), self._typed)
        for window in windows(self._log, link, state.committed):
            pending.batches += rows.of_window(window)
            end = window.columns.entry(len(window.columns) - 1)
            pending.end = Link(end.index, end.term, end.chain)
            if pending.is_full(self._batch_bytes) or end.index == state.committed:
                yield pending.batch(state.cluster, state.group, rows.births)
                pending = _Pending(pending.end, dict(rows.births), self._typed)

    def _certificate_before(self, cluster: str, first: int) -> Certificate:
        """Return the certificate that ends before entry `first`. Raises TableError."""
        known = [] if self._last is None else [self._last]
        if not known or known[0].last + 1 != first:
            known = self._table.certificates(cluster)
        for one in known:
            if one.last + 1 == first:
                return one
        raise TableError(
            f"{self._table.place}: the table ends before entry {first}, and no certificate ends there, so "
            "somebody removed it: run the audit of the table"
        )

    def _tidy(self) -> None:
        """Merge certificates if there are many."""
        found = self._table.certificates()
        if len(found) <= MAX_CERTIFICATES:
            return
        logs = sorted({one.cluster for one in found})
        most = MAX_CERTIFICATES // len(logs)
        kept = []
        for log in logs:
            end = self._table.position(log) or 0
            mine = [one for one in found if one.cluster == log]
            kept += compacted(series(mine, end), most)
            kept += [one for one in mine if one.last >= end]  # their rows may come yet
        try:
            self._table.replace_certificates(kept)
        except TableChanged:
            return  # the next one tries again


class _Pending:
    """Rows that are not committed yet."""

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
            for field, column in zip(self.typed.fields, self.typed.columns(_bodies(rows)), strict=True):
                rows = rows.append_column(field, column)
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


def _bodies(rows: pa.Table) -> Iterator[bytes]:
    for chunk in rows.column("body").chunks:
        yield from chunk.to_pylist()
