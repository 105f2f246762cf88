"""Fills a table in parts that are read at the same time, for example by the tasks of a Spark job.

Each part is a range of the log. A task reads it, checks CRCs and chain as the writer does, writes files that
no version of the table names yet, and returns their names and the certificate of the part. Then one process
adds the files of all parts to the table, in one transaction that also moves the position (`tables`). So what
a task wrote that was killed, or ran twice, is in no table; `--compact` removes such files when they are old.

A part begins within the log, so it must be told which lives the topics have there. Therefore the parts are
read twice: first only for entries that make or delete a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

from dledger.formats.entry import unpack_header
from dledger.lake.batches import BATCH_BYTES, Start, batches, first_missing, log_state, start_at
from dledger.lake.certificates import Certificate
from dledger.lake.log_reading import Log, LogPlace, LogState, link_before, windows
from dledger.lake.rows import Births, TableRows
from dledger.lake.tables import About, FileWriter, TableChanged, TableError, TableFile, TopicTable
from dledger.lake.writer import CONFLICTS, Progress
from dledger.runtime.env import new_id

PART_BYTES = 256 * 1024 * 1024
"""Approximate size of a part, in bytes of the log."""
WAVE_PARTS = 64
"""Largest number of parts whose files are added in one transaction. So a job that is killed loses at most
these."""


@dataclass(frozen=True)
class Part:
    """The range `first` to `last` of a log, and what a task needs to know of it. `births` are those of the
    topics before entry `first`. `start` is given for the first part: there the table says how the log must go
    on."""

    place: LogPlace
    about: About
    state: LogState
    first: int
    last: int
    start: Start | None = None
    births: Births | None = None


class Written(NamedTuple):
    """What a task wrote for a part."""

    files: list[TableFile]
    certificate: Certificate


Task = Callable[[Part], Any]
Run = Callable[[Task, Sequence[Part]], list[Any]]
"""Runs a function for each part, at the same time and perhaps in other processes, and returns the results in
the same order."""


@contextmanager
def _opened(part: Part) -> Iterator[Log]:
    """Open the log of a part. Raises TableError if it is another one here than where the part was planned."""
    with part.place.open() as log:
        cluster = log.state().cluster
        if cluster != part.state.cluster:
            raise TableError(
                f"{log.name}: this task finds the log {cluster}, and the job is about {part.state.cluster}: "
                "tasks must reach the store or the brokers under the same names as the driver"
            )
        yield log


def births_in(part: Part) -> Births:
    """Return the births that change in a part, as they are at its end (a task)."""
    changed: Births = {}
    rows = TableRows(part.about.topics, part.state.cluster, part.state.group, {})
    with _opened(part) as log:
        link = part.start.link if part.start else link_before(log, part.first, part.state.begin)
        for window in windows(log, link, part.last):
            changed |= rows.births_in(window)
    return changed


def write_part(part: Part, files: FileWriter, batch_bytes: int = BATCH_BYTES) -> Written:
    """Read a part and write its rows into files (a task)."""
    written: list[TableFile] = []
    certificates: list[Certificate] = []
    attempt = new_id()  # a task may run twice at the same time
    with _opened(part) as log:
        start = part.start
        if start is None:
            assert part.births is not None
            start = Start(part.births, link_before(log, part.first, part.state.begin))
        for batch in batches(log, part.about, part.state, start, part.last, batch_bytes):
            if batch.rows.num_rows:
                written += files.write(batch.rows, f"part-{attempt}-{len(certificates)}")
            certificates.append(batch.certificate)
    return Written(written, reduce(Certificate.merged, certificates))


class PartsWriter:
    """Fills a table from the log of one broker group, in parts (see the module). `run` runs the tasks."""

    def __init__(
        self,
        table: TopicTable,
        log: Log,
        births_at: Callable[[int], Births],
        run: Run,
        *,
        report: Callable[[Progress], None] = lambda progress: None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._table, self._log, self._births_at, self._run = table, log, births_at, run
        self._report, self._part_bytes = report, part_bytes

    def catch_up(self) -> int:
        """Add everything that is committed now. Return the number of rows that were added. Raises what
        `TableWriter.catch_up` does, and what `run` does."""
        added = conflicts = 0
        end: int | None = None
        while True:
            self._table.refresh()
            state = log_state(self._log)  # after the table, so that the log is not older than the table
            first = first_missing(self._table, state)
            end = state.committed if end is None else end  # a log under load has no other end
            if first > end:
                return added
            state = state._replace(committed=end)
            start = start_at(self._table, self._log, state, first, self._births_at)
            written = self._write(self._wave(state, start))
            certificates = [one.certificate for one in written]
            certificate = reduce(Certificate.merged, certificates)
            self._check_end(certificate)
            self._table.certify(*certificates)
            try:
                self._table.add_files([file for one in written for file in one.files], certificate)
            except TableChanged:
                conflicts += 1
                if conflicts > CONFLICTS:
                    raise
                continue
            added, conflicts = added + certificate.rows, 0
            self._report(Progress(state.group, added, certificate.last + 1, end))

    def _wave(self, state: LogState, start: Start) -> list[Part]:
        """Divide what follows into parts of about the same size."""
        entries = state.committed - start.first + 1
        size = self._log.chunk(state.committed).position - self._log.chunk(start.first).position
        step = max(1, entries * self._part_bytes // max(size, 1))
        firsts = range(start.first, state.committed + 1, step)[:WAVE_PARTS]
        whole = Part(self._log.place, self._table.about, state, start.first, state.committed)
        parts = [replace(whole, first=first, last=min(first + step - 1, state.committed)) for first in firsts]
        return [replace(parts[0], start=start, births=start.births), *parts[1:]]

    def _check_end(self, certificate: Certificate) -> None:
        """Raise TableError if the tasks read another log than this process."""
        header = unpack_header(self._log.chunk(certificate.last).data)
        if header.chain_crc != certificate.chain_last:
            raise TableError(
                f"{self._log.name}: the tasks read another log than this process: they must reach the store "
                "or the brokers under the same names"
            )

    def _write(self, parts: list[Part]) -> list[Written]:
        births = dict(parts[0].births or {})
        known: list[Part] = []
        for part, changed in zip(parts, self._run(births_in, parts) if len(parts) > 1 else [{}], strict=True):
            known.append(replace(part, births=dict(births)))
            births |= changed
        written: list[Written] = self._run(partial(write_part, files=self._table.file_writer()), known)
        for one, following in pairwise(one.certificate for one in written):
            if not following.follows(one):
                raise TableError(f"{one.range} and {following.range} do not continue each other: try again")
        return written
