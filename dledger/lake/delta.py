"""Tables of Delta Lake (https://github.com/delta-io/delta/blob/master/PROTOCOL.md), with the package
`deltalake`.

Each batch is one commit, which also sets the position in the log as a transaction identifier of Delta: its
application is `dledger:<id of the log>`, its version the index of the next entry. A commit fails if another
one has set the same application's version since the table was read. So two writers cannot both add a batch.

The certificates are a small Delta table below `_dledger/certificates`. Readers of the table, and its
clean-up, leave names with a leading `_` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from dledger.lake import certificates
from dledger.lake.certificates import Certificate, TopicLife
from dledger.lake.parquet_files import UNREADABLE, check_storage, write_files
from dledger.lake.rows import table_schema
from dledger.lake.tables import About, Entries, Lost, TableChanged, TableError, TableFile, translated

_ABOUT = "dledger.about"
_APPLICATION = "dledger:"
_BEGIN = "dledger.begin."
_BESIDE = "_dledger/certificates"
_ERRORS = (DeltaError, OSError, ValueError, KeyError)
_translated = partial(translated, conflicts=CommitFailedError, failures=_ERRORS)
_WRITER = WriterProperties(compression="ZSTD", compression_level=3)


class DeltaTopicTable:
    """A table of Delta Lake (`tables.TopicTable`)."""

    def __init__(self, table: DeltaTable, options: Mapping[str, str], about: About) -> None:
        self.about = about
        self._table = table
        self._options = dict(options)
        self._known: DeltaTable | None = None
        """The table of certificates as it was when it was read."""

    @classmethod
    def open(cls, place: str, options: Mapping[str, str] | None = None) -> DeltaTopicTable:
        """Open a table that exists. `options` are those of the storage, as `deltalake` names them. Raises
        TableError."""
        try:
            table = DeltaTable(place, storage_options=dict(options or {}))
        except TableNotFoundError as error:
            raise TableError(f"{place}: there is no Delta table: make it with `dledger lake`") from error
        except _ERRORS as error:
            raise TableError(f"{place}: {error}") from error
        return cls(table, options or {}, _about(place, table))

    @classmethod
    def make(cls, place: str, about: About, options: Mapping[str, str] | None = None) -> DeltaTopicTable:
        """Open a table, or make it if there is none. Raises TableError if it is made for other topics."""
        stored = dict(options or {})
        with _translated(place):
            if not DeltaTable.is_deltatable(place, storage_options=stored):
                DeltaTable.create(
                    place,
                    table_schema(about),
                    mode="ignore",
                    partition_by=about.partitions,
                    storage_options=stored,
                )
            table = DeltaTable(place, storage_options=stored)
            if table.version() == 0 and _ABOUT not in table.metadata().configuration:
                if pa.schema(table.schema().to_arrow()).names != table_schema(about).names:
                    raise TableError(
                        f"{place} is a Delta table that `dledger lake` did not make: give another place"
                    )
                content = about.encoded()
                table.alter.set_table_properties({_ABOUT: content}, raise_if_not_exists=False)
        found = cls(table, stored, _about(place, table))
        found.about.check(about, found.place)
        return found

    @property
    def place(self) -> str:
        return str(self._table.table_uri)

    def refresh(self) -> None:
        with _translated(self.place):
            self._table.update_incremental()

    def position(self, cluster: str) -> int | None:
        found: int | None = self._table.transaction_version(_APPLICATION + cluster)
        return found

    def begin(self, cluster: str) -> int | None:
        found = self._table.metadata().configuration.get(_BEGIN + cluster)
        return None if found is None or self.position(cluster) is None else int(found)

    def certify(self, *certified: Certificate) -> None:
        with _translated(self.place):
            write_deltalake(
                self._beside_place,
                certificates.to_table(certified),
                mode="append",
                storage_options=self._options or None,
            )

    def add(self, rows: pa.Table, certificate: Certificate) -> None:
        with self._moved(certificate) as commit:
            write_deltalake(
                self._table, rows, mode="append", writer_properties=_WRITER, commit_properties=commit
            )

    def file_writer(self) -> DeltaFileWriter:
        return DeltaFileWriter(self.place, self._options, tuple(self.about.partitions))

    def add_files(self, files: Sequence[TableFile], certificate: Certificate) -> None:
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size, one.partition, one.modified_ms, True, _statistics(one))
            for one in files
        ]
        with self._moved(certificate) as commit:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self._table.schema(),
                partition_by=self.about.partitions,
                commit_properties=commit,
            )

    @contextmanager
    def _moved(self, certificate: Certificate) -> Iterator[CommitProperties]:
        """Give the properties of the commit that moves the position behind the range of a certificate."""
        about = {"dledger.first": certificate.first, "dledger.last": certificate.last}
        transaction = Transaction(_APPLICATION + certificate.cluster, certificate.last + 1)
        position = self.position(certificate.cluster)
        if position not in (None, certificate.first):
            raise TableChanged(f"{self.place}: it is filled up to entry {position} by now")
        with _translated(self.place):
            if position is None:
                begin = {_BEGIN + certificate.cluster: str(certificate.first)}
                self._table.alter.set_table_properties(begin, raise_if_not_exists=False)
            yield CommitProperties(
                {name: str(value) for name, value in about.items()}, app_transactions=[transaction]
            )

    def certificates(self, cluster: str | None = None) -> list[Certificate]:
        self._known = self._beside()
        if self._known is None:
            return []
        with _translated(f"{self.place}: certificates"):
            found = certificates.from_table(self._known.to_pyarrow_table())
        return [one for one in found if cluster in (None, one.cluster)]

    def replace_certificates(self, replaced: Sequence[Certificate]) -> None:
        with _translated(self.place):
            write_deltalake(
                self._known if self._known is not None else self._beside_place,
                certificates.to_table(replaced),
                mode="overwrite",
                storage_options=self._options or None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            self._known = None

    def logs(self) -> list[str]:
        known = [name.removeprefix(_BEGIN) for name in self._table.metadata().configuration]
        return sorted(name for name in known if self.position(name) is not None)

    @property
    def uuid(self) -> str:
        return str(self._table.metadata().id)

    def scan(
        self, columns: Sequence[str], entries: Entries | None = None, lost: Lost | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = None
        if entries is not None:
            index = pc.field("log_index")
            lives = pc.starts_with(pc.field("life"), f"{entries.cluster}.")
            wanted = lives & (index >= entries.first) & (index <= entries.last)
        with _translated(self.place):
            dataset = self._table.to_pyarrow_dataset()
            if lost is None:
                yield from dataset.to_batches(columns=list(columns), filter=wanted)
                return
            for file in dataset.get_fragments(filter=wanted):
                try:
                    yield from file.to_batches(schema=dataset.schema, columns=list(columns), filter=wanted)
                except UNREADABLE as error:
                    check_storage(file.filesystem, file.path)
                    lost(file.path, f"{error}")

    def delete_lives(self, lives: Sequence[TopicLife]) -> None:
        where = " or ".join(f"(topic = '{one.topic}' and life = '{one.life}')" for one in lives)
        with _translated(self.place):
            self._table.delete(where)

    def compact(self) -> int:
        with _translated(self.place):
            self._table.update_incremental()
            replaced = int(self._table.optimize.compact()["numFilesRemoved"])
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
            self._table.vacuum(dry_run=False, full=True)
            beside = self._beside()
            if beside is not None:
                beside.optimize.compact()
                beside.create_checkpoint()
                beside.vacuum(dry_run=False, full=True)
        return replaced

    def count(self) -> int:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        return int(pc.sum(actions.column("num_records")).as_py() or 0)

    @property
    def _beside_place(self) -> str:
        return f"{self.place.rstrip('/')}/{_BESIDE}"

    def _beside(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._beside_place, storage_options=self._options or None)
        except TableNotFoundError:
            return None


@dataclass(frozen=True)
class DeltaFileWriter:
    """Writes files of a table of Delta Lake (`tables.FileWriter`)."""

    place: str
    options: dict[str, str]
    partitions: tuple[str, ...]

    def write(self, rows: pa.Table, name: str) -> list[TableFile]:
        with _translated(self.place):
            storage = pafs.PyFileSystem(DeltaStorageHandler(self.place, self.options or None))
            return write_files(storage, name, rows, self.partitions, keep=False)


def _statistics(file: TableFile) -> str:
    """Return the statistics of a file as the protocol has them, so that queries can leave it unread."""
    found = {"numRecords": file.rows, "minValues": file.lowest, "maxValues": file.highest}
    return json.dumps(found | {"nullCount": dict.fromkeys(file.lowest, 0)})


def _about(place: str, table: DeltaTable) -> About:
    content = table.metadata().configuration.get(_ABOUT)
    if content is None:
        raise TableError(f"{place} is a Delta table that `dledger lake` did not make: give another place")
    return About.decode(content, place)
