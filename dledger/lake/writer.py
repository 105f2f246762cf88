"""Adds the messages of topics to a table, each exactly once, in order of the log.

The table itself holds the position in the log up to which it is filled, and one transaction moves it together
with the rows. So a writer that is killed goes on where the table says. If two writers run by mistake, the one
that commits second fails, reads the new position and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dledger.lake.batches import (
    BATCH_BYTES,
    Batch,
    Start,
    batches,
    first_missing,
    log_state,
    start_after,
    start_at,
)
from dledger.lake.certificates import MAX_CERTIFICATES, Certificate, compacted, series
from dledger.lake.log_reading import Log, LogState
from dledger.lake.rows import Births
from dledger.lake.tables import TableChanged, TopicTable
from dledger.lake.typed import unfit

TIDY_COMMITS = 100
"""Number of commits after which a writer looks whether certificates are to be merged."""
CONFLICTS = 20
"""How often in a row a batch is read again because another writer was faster, before the writer gives up."""


@dataclass(frozen=True)
class Progress:
    """How far a table is filled. `rows` is the number of rows that this writer has added, and `unfit` how
    many of them have a body that does not fit the schema."""

    group: str
    rows: int
    next_index: int
    committed: int
    unfit: int = 0


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
        self._rows = self._unfit = 0
        self._last: Certificate | None = None
        """The certificate of the newest batch that this writer added."""
        self._untidy = TIDY_COMMITS

    def catch_up(self) -> int:
        """Add everything that is committed now. Return the number of rows that were added.

        Raises TableError, LogGone if entries that the table needs are gone, LogDamaged, StoreError or
        ClientError.
        """
        before, conflicts = self._rows, 0
        end: int | None = None
        while True:
            self._table.refresh()
            state = log_state(self._log)  # after the table, so that the log is not older than the table
            first = first_missing(self._table, state)
            end = state.committed if end is None else end  # a log under load has no other end
            if first > end:
                break
            state = state._replace(committed=end)
            try:
                for batch in self._batches(state, first):
                    self._table.certify(batch.certificate)
                    self._table.add(batch.rows, batch.certificate)
                    self._last, conflicts = batch.certificate, 0
                    self._untidy += 1
                    self._rows += batch.rows.num_rows
                    self._unfit += unfit(batch.rows)
                    following = batch.certificate.last + 1
                    self._report(Progress(state.group, self._rows, following, end, self._unfit))
                    self._table.refresh()
            except TableChanged:
                conflicts += 1
                if conflicts > CONFLICTS:
                    raise
        if self._rows > before and self._untidy >= TIDY_COMMITS:
            self._tidy()
            self._untidy = 0
        return self._rows - before

    def _batches(self, state: LogState, first: int) -> Iterator[Batch]:
        """Yield the batches from entry `first` to the last committed one."""
        return batches(
            self._log, self._table.about, state, self._start(state, first), state.committed, self._batch_bytes
        )

    def _start(self, state: LogState, first: int) -> Start:
        if self._last is not None and self._last.last + 1 == first:
            return start_after(self._last)
        return start_at(self._table, self._log, state, first, self._births_at)

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
