"""Fills the beginning of a table from an archive of `dledger spark archive`, with messages that the log does
not have any more.

Only an archive that was made from store directories can be used, since its rows have their index in the log.
Its messages are taken up to the first entry that the log still has; from there on the log itself is read, so
that as much as possible is compared with the log's checksums. Each batch of the archive becomes one
transaction of the table, with a certificate without chain values, as an archive has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger.audit.shipped_scans import unescape
from dledger.formats.life import Life
from dledger.lake.batches import BATCH_BYTES
from dledger.lake.certificates import Certificate, row_hashes, total
from dledger.lake.log_reading import LogState
from dledger.lake.rows import SCHEMA, VIEW, Births
from dledger.lake.tables import TableError, TableFile, TopicTable
from dledger.lake.typed import TypedBodies, unfit
from dledger.runtime.env import new_id
from dledger.runtime.files import Files
from dledger.spark.jobs.archive_files import LOG, ArchivedFile, ArchiveFiles, Batch
from dledger.spark.jobs.errors import JobError

READ_ROWS = 8192
"""Number of rows that are read of a file of the archive at a time."""


class Added(NamedTuple):
    """How many rows were added to a table, and how many of them have a body that does not fit its schema."""

    rows: int = 0
    unfit: int = 0


def fill_from_archive(table: TopicTable, files: Files, root: str, state: LogState, births: Births) -> Added:
    """Add the messages of an archive that come before the first entry of this log. `births` are those of the
    topics before that entry. Return how many rows were added: none if the table has some of this log.

    Raises TableError if the archive does not fit, or does not reach up to the log.
    """
    table.refresh()
    if table.position(state.cluster) is not None:
        return Added()
    ranges = list(_ranges(table, files, root, state))
    if ranges and ranges[-1].last + 1 < state.begin:
        raise TableError(
            f"{root} ends with entry {ranges[-1].last} of {state.group}, and the log begins with entry "
            f"{state.begin}: what is between is in neither of them"
        )
    added: list[Added] = []
    for one in ranges:
        after = _births(table, one.batch, state.group) | (births if one is ranges[-1] else {})
        added.append(_add(table, root, state, one, after))
    return Added(sum(one.rows for one in added), sum(one.unfit for one in added))


class _Range(NamedTuple):
    """The entries `first` to `last` of a log, which are in one batch of the archive. `before`: the births
    before them; None if no batch before says."""

    batch: Batch
    first: int
    last: int
    before: Births | None


def _births(table: TopicTable, batch: Batch, group: str) -> Births:
    """Return the births of the table's topics that a batch recorded."""
    lives = {topic: Life.parse(life).born for topic, life in batch.lives[group].items()}
    return {topic: born for topic, born in lives.items() if topic in table.about.topics}


def _ranges(table: TopicTable, files: Files, root: str, state: LogState) -> Iterator[_Range]:
    archive = ArchiveFiles(files, root)
    try:
        records = [archive.read(number) for number in archive.numbers()]
    except (OSError, JobError) as error:
        raise TableError(f"{root} is no archive of `dledger spark archive`: {error}") from error
    mine = [one for one in records if one.group == state.group]
    if not records:
        raise TableError(f"{root} is no archive of `dledger spark archive`, or an empty one")
    if not mine:
        there = ", ".join(sorted({one.group for one in records}))
        raise TableError(f"{root} is an archive of {there}, not of {state.group}")
    position: int | None = None
    before: Births | None = None
    for one in mine:
        _check(table, root, state, one)
        end = one.positions[state.group][LOG]
        first = position if position is not None else _first_index(root, _files_of(table, one))
        if first is not None and first < min(end, state.begin):
            yield _Range(one, first, min(end, state.begin) - 1, before)
        if first is not None:
            position, before = end, _births(table, one, state.group)


def _check(table: TopicTable, root: str, state: LogState, one: Batch) -> None:
    if LOG not in one.positions[state.group]:
        raise TableError(
            f"{root} was archived from live brokers, so its rows have no index in the log: a table can be "
            "filled only from an archive of store directories"
        )
    if one.cluster != state.cluster:
        raise TableError(f"{root} is an archive of another log than that of {state.group}")
    if one.skipped:
        (_, first, last), *_ = one.skipped
        raise TableError(
            f"{root} lacks the entries {first} to {last} of {state.group}, which retention had deleted"
        )
    if state.group not in one.lives:
        raise TableError(
            f"{root} was made by an earlier version, which did not record the lives of topics: archive again"
        )
    chosen = dict(one.selection)
    names = chosen.pop("subscribe", None)
    chosen.pop("includeSystemTopics", None)
    missing = set(table.about.topics) - set((names or ",".join(table.about.topics)).split(","))
    if missing or chosen:
        what = ", ".join(f"{name}={value}" for name, value in one.selection.items())
        raise TableError(f"{root} has only the messages of {what}")


def _files_of(table: TopicTable, batch: Batch) -> list[tuple[str, ArchivedFile]]:
    """Return the files of the table's topics, with their topics."""
    found = [(unescape(one.path.partition("/")[0].removeprefix("topic=")), one) for one in batch.files]
    return [(topic, one) for topic, one in found if topic in table.about.topics]


def _first_index(root: str, files: Sequence[tuple[str, ArchivedFile]]) -> int | None:
    found: list[int] = []
    for _, one in files:
        try:
            read = pq.read_table(f"{root}/{one.path}", columns=["logIndex"], partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{root}/{one.path} cannot be read: {error}") from error
        found.append(pc.min(read.column("logIndex")).as_py())
    return min(found, default=None)


def _add(table: TopicTable, root: str, state: LogState, wanted: _Range, after: Births) -> Added:
    """Add the rows of one range."""
    writer, name = table.file_writer(), new_id()
    typed = TypedBodies(table.about.schema) if table.about.schema else None
    written: list[TableFile] = []
    digest = count = bad = 0
    oldest: Births = {}
    for number, rows in enumerate(_rows(table, root, state, wanted)):
        digest = total([digest, *row_hashes(rows)])
        count += rows.num_rows
        for row in rows.group_by(["topic", "life"]).aggregate([]).to_pylist():
            born = Life.parse(row["life"]).born
            oldest[row["topic"]] = min(born, oldest.get(row["topic"], born))
        if typed is not None:
            rows = typed.appended(rows)
            bad += unfit(rows)
        written += writer.write(rows, f"part-{name}-{number}")
    before = oldest if wanted.before is None else wanted.before
    certificate = Certificate(
        state.cluster, state.group, wanted.first, wanted.last, -1, -1, count, digest, before, after
    )
    table.certify(certificate)
    table.add_files(written, certificate)
    table.refresh()
    return Added(count, bad)


def _rows(table: TopicTable, root: str, state: LogState, wanted: _Range) -> Iterator[pa.Table]:
    """Yield the rows of a range, in tables of at most about BATCH_BYTES."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for topic, one in _files_of(table, wanted.batch):
        path, seen = f"{root}/{one.path}", 0
        try:
            file = pq.ParquetFile(path)
            for batch in file.iter_batches(READ_ROWS):
                seen += batch.num_rows
                row = _row(batch, topic, state)
                index = row.column("log_index")
                if pc.min(index).as_py() < wanted.first:
                    raise TableError(f"{path} has entries before {wanted.first}, which it should not have")
                pending.append(row.filter(pc.less_equal(index, wanted.last)))
                size += row.nbytes
                if size >= BATCH_BYTES:
                    yield pa.Table.from_batches(pending, SCHEMA)
                    pending, size = [], 0
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{path}: {error}") from error
        if seen != one.rows:
            raise TableError(f"{path} has {seen} rows, and the record of the archive says {one.rows}")
    if any(batch.num_rows for batch in pending):
        yield pa.Table.from_batches(pending, SCHEMA)


def _row(batch: pa.RecordBatch, topic: str, state: LogState) -> pa.RecordBatch:
    """Return rows of the archive as rows of the table."""
    count = batch.num_rows
    found = {
        name: batch.column(source).cast(SCHEMA.field(name).type)
        for name, source in VIEW.items()
        if source != "topic"
    }
    found["topic"] = pa.repeat(pa.scalar(topic, pa.string()), count)
    found["broker_group"] = pa.repeat(pa.scalar(state.group, pa.string()), count)
    unknown = pa.scalar(str(Life(state.cluster, 0)), pa.string())
    found["life"] = pc.fill_null(batch.column("life").cast(pa.string()), unknown)
    found["day"] = found["store_time"].cast(pa.timestamp("us")).cast(pa.date32())
    return pa.RecordBatch.from_arrays([found[name] for name in SCHEMA.names], schema=SCHEMA)
