"""What the writer and the audit need of a table, whatever its format is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from dledger.lake.certificates import Certificate, TopicLife

VERSION = 1
"""Version of the columns and of the certificates. A table of another version is refused."""


class TableError(Exception):
    """A table cannot be used: it is missing, is not one of ours, or does not fit what was asked."""


class TableChanged(Exception):
    """Another writer has added rows since the position was read. Nothing was added."""


@contextmanager
def translated(
    place: str, conflicts: type[Exception], failures: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Turn the errors of a format's library into TableChanged (`conflicts`) and TableError (`failures`)."""
    try:
        yield
    except conflicts as error:
        raise TableChanged(f"{place}: {error}") from error
    except failures as error:
        raise TableError(f"{place}: {type(error).__name__}: {error}") from error


class About(NamedTuple):
    """What is fixed when a table is made. `schema` is the JSON Schema of bodies (`typed`), empty if they are
    not typed."""

    topics: tuple[str, ...]
    schema: str = ""
    version: int = VERSION

    def check(self, asked: About, place: str) -> None:
        """Raises TableError if this table was made for something else than `asked`."""
        if self.topics != asked.topics:
            there, wanted = ", ".join(self.topics), ", ".join(asked.topics)
            raise TableError(
                f"{place} is a table of the topics {there}, not {wanted}: give another place or, for "
                "Iceberg, another name with --option table=NAMESPACE.TABLE"
            )
        if asked.schema not in ("", self.schema):
            raise TableError(
                f"{place} has another schema of bodies, which cannot be changed: give another place"
            )

    def encoded(self) -> str:
        """Return this as JSON."""
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def decode(cls, content: str, place: str) -> About:
        """Inverse of `encoded`. Raises TableError for another version."""
        found = json.loads(content)
        if found["version"] != VERSION:
            raise TableError(
                f"{place} has version {found['version']} of the columns, and this program writes version "
                f"{VERSION}: use the release that made it"
            )
        return cls(tuple(found["topics"]), found["schema"])

    @property
    def partitions(self) -> list[str]:
        """The columns by which the table is partitioned."""
        return ["day"] if len(self.topics) == 1 else ["topic", "day"]


class Entries(NamedTuple):
    """Entries `first` to `last` of the log with the id `cluster`."""

    cluster: str
    first: int
    last: int


class TableFile(NamedTuple):
    """A file of rows that no version of the table names yet. `path` is relative to the table, or a URI, as
    the format needs it; `size` is in bytes. `partition` has the values of the partition columns, `lowest` and
    `highest` the least and greatest values of some columns. `modified_ms`: when it was written, in ms since
    the epoch."""

    path: str
    size: int
    rows: int
    partition: dict[str, str]
    modified_ms: int
    lowest: dict[str, int]
    highest: dict[str, int]


class FileWriter(Protocol):
    """Writes files of a table that are added to it later (`TopicTable.add_files`). It can be pickled, and be
    used where the table itself is not opened."""

    def write(self, rows: pa.Table, name: str) -> list[TableFile]:
        """Write rows into new files, one for each partition. Their names begin with `name`, which no other
        file's may. Raises TableError."""


Lost = Callable[[str, str], None]
"""Called for a file of a table that is missing or damaged, with its path and the reason."""


class TopicTable(Protocol):
    """A table of messages. Methods raise TableError."""

    @property
    def place(self) -> str:
        """Where the table is, for texts."""

    @property
    def about(self) -> About:
        """What is fixed for this table."""

    def refresh(self) -> None:
        """Read the newest state of the table."""

    def position(self, cluster: str) -> int | None:
        """Return the index of the next entry of this log that is to be added, as of the last `refresh`. None
        if nothing of this log was added yet."""

    def begin(self, cluster: str) -> int | None:
        """Return the index of the first entry of this log that was added; None if nothing was."""

    def certify(self, *certified: Certificate) -> None:
        """Add certificates. They must be there before the rows that they are about."""

    def add(self, rows: pa.Table, certificate: Certificate) -> None:
        """Add the rows of a range of the log, and move the position behind it, in one transaction. Raises
        TableChanged if the position is not the beginning of the range, or was moved since the last
        `refresh`."""

    def file_writer(self) -> FileWriter:
        """Return what writes files for `add_files`."""

    def add_files(self, files: Sequence[TableFile], certificate: Certificate) -> None:
        """Like `add`, with rows that were written by `file_writer`."""

    def certificates(self, cluster: str | None = None) -> list[Certificate]:
        """Return the certificates of one log, or of all, in any order. Some may be about entries that were
        not added, as a certificate is written before its rows."""

    def replace_certificates(self, certificates: Sequence[Certificate]) -> None:
        """Replace all certificates. Raises TableChanged if one was added since `certificates` was called
        last."""

    def logs(self) -> list[str]:
        """Return the ids of the logs from which rows were added."""

    @property
    def uuid(self) -> str:
        """The id that the format gave to the table; a copy of the table has the same."""

    def scan(
        self, columns: Sequence[str], entries: Entries | None = None, lost: Lost | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows, or of those of some entries, in any order. If a file is
        missing or damaged, call `lost` and leave it out; without `lost` raise TableError."""

    def delete_lives(self, lives: Sequence[TopicLife]) -> None:
        """Remove the rows of these lives of topics. Raises TableChanged if another commit came between."""

    def compact(self) -> int:
        """Write small files together into larger ones, and remove files that no version needs. Return the
        number of files that were replaced."""

    def count(self) -> int:
        """Return the number of rows."""
