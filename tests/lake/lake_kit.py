"""Logs, tables filled from them, and ways to change a table by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dledger.formats.state import TopicConfig
from dledger.formats.state.births import TopicBirth
from dledger.formats.state.deletions import TopicDeletion
from dledger.lake.batches import Batch, Start, batches
from dledger.lake.log_reading import StoreLog, link_before
from dledger.lake.opening import Place, make_table
from dledger.lake.rows import SCHEMA
from dledger.lake.tables import About, TopicTable
from dledger.lake.writer import TableWriter
from dledger.spark.stores import open_replicas
from tests.audit.store_builder import Log, sample_log, write_store

Row = dict[str, Any]
ABOUT = About(("orders",))


class Group:
    """A store that holds a log, and the table that is filled from it."""

    def __init__(
        self, directory: Path, log: Log | None = None, about: About = ABOUT, format: str = "delta"
    ) -> None:
        self.log = sample_log(300) if log is None else log
        self.about = about
        self.store = directory / "n0"
        self.format = format
        self.place = str(directory / "table")
        self.births: dict[str, int] = {}
        self._written = 0

    def write(self) -> StoreLog:
        """Write the log as it is now into the store directory."""
        if self._written != len(self.log.entries):
            self._written = len(self.log.entries)
            self.store = self.store.with_name(f"n{self._written}")
            write_store(self.log, self.store)
        (replica,) = open_replicas([str(self.store)])
        return StoreLog(replica, read_bytes=4096)

    def table(self) -> TopicTable:
        """The table as it is now; made if there is none."""
        return make_table(Place(self.format, self.place, {}), self.about)

    def writer(self, table: TopicTable | None = None, batch_bytes: int = 2_000) -> TableWriter:
        """A writer that commits many batches."""
        births = self.births
        return TableWriter(table or self.table(), self.write(), lambda first: births, batch_bytes=batch_bytes)

    def batches(self, batch_bytes: int = 2_000, last: int | None = None) -> list[Batch]:
        """What a writer would add to a new table, up to an entry."""
        log, births = self.write(), self.births
        state = log.state()
        state = state if last is None else state._replace(committed=last)
        start = Start(births, link_before(log, 0, state.begin))
        return [*batches(log, self.about, state, start, state.committed, batch_bytes)]

    def fill(self) -> TopicTable:
        """Add everything that the log has to the table."""
        self.writer().catch_up()
        return self.table()


def rows_of(table: TopicTable) -> list[Row]:
    """All rows, in order of the log."""
    table.refresh()
    batches = list(table.scan(SCHEMA.names))
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["log_index"])


def sent(log: Log, topics: Sequence[str] = ("orders",)) -> Iterator[tuple[str, int, int]]:
    """Topic, queue and number of messages of each queue of a log, as its ConsumeQueues have them."""
    for (topic, queue), units in sorted(log.queues.items()):
        if topic in topics:
            yield topic, queue, len(units)


def counts(rows: Sequence[Row]) -> Mapping[tuple[str, int], list[int]]:
    """The offsets in each queue, in order of the log."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["queue"]), []).append(row["offset"])
    return found


def make_topic(log: Log, name: str = "orders") -> int:
    """Make a topic. Returns the position that is its life."""
    born = log.pos
    log.system(TopicConfig(name, 1, 1, 6).op())
    log.system(TopicBirth(name, born).op())
    return born


def delete_topic(log: Log, name: str = "orders") -> None:
    """Delete a topic."""
    log.system(TopicDeletion(name, log.pos).op())
    for key in [key for key in log.queues if key[0] == name]:
        del log.queues[key]
