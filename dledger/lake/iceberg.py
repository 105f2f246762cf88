"""Tables of Apache Iceberg, with the package `pyiceberg`.

Each batch is one commit, which adds the rows and sets the position in the log as a property of the table:
its name is `dledger.next.<id of the log>`, its value the index of the next entry. The commit demands that the
current snapshot is the one that was read, so of two writers that read the same position one fails. A batch
without rows also makes a snapshot, as the demand is about snapshots.

The certificates are a table of their own beside the table, with the same name and `_certificates` behind it.

A catalog is needed. If `to` is a directory, the catalog is a SQLite file in it, and the tables are below it.
If it is a URL with http, it is a REST catalog. Otherwise it is the name of a catalog in the configuration of
pyiceberg.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.table import DataScan, Table, Transaction
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError

from dledger.lake import certificates
from dledger.lake.certificates import CERTIFICATES, Certificate, TopicLife
from dledger.lake.iceberg_files import path_of, remove_old, storage_of
from dledger.lake.iceberg_lists import keep_nulls
from dledger.lake.opening import CATALOG_FILE
from dledger.lake.parquet_files import UNREADABLE, check_storage, write_files
from dledger.lake.rows import table_schema
from dledger.lake.tables import About, Entries, Lost, TableChanged, TableError, TableFile, translated
from dledger.runtime.remote_files import files_for

keep_nulls()
NAMESPACE = "dledger"
_EPOCH = date(1970, 1, 1)
_ABOUT = "dledger.about"
_NEXT = "dledger.next."
_BEGIN = "dledger.begin."
COMPACT_BYTES = 512 * 1024 * 1024
"""Size, in bytes of files, above which a partition is left as it is when a table is compacted."""
COMPACT_FILES = 4
"""Number of files of a partition below which it is left as it is."""
_CONFLICTS = 10
"""How often a certificate is added again because somebody else added one."""
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.retry.num-retries": "0",
}


class IcebergTopicTable:
    """A table of Iceberg (`tables.TopicTable`)."""

    def __init__(self, place: str, catalog: Catalog, table: Table, about: About) -> None:
        self.place, self.about = place, about
        self._catalog, self._table = catalog, table
        self._known: Table | None = None
        """The table of certificates as it was when it was read."""

    @classmethod
    def open(cls, to: str, options: Mapping[str, str] | None = None) -> IcebergTopicTable:
        """Open a table that exists. `options` are those of the catalog, and `table`, the name of the table as
        NAMESPACE.TABLE; it may be left out if the catalog has one table of ours. Raises TableError."""
        catalog, name = _catalog(to, options or {})
        with _translated(to):
            name = name or _only_table(to, catalog)
            if not catalog.table_exists(name):
                raise TableError(f"{to}: there is no Iceberg table {name}: make it with `dledger lake`")
            table = catalog.load_table(name)
        return cls(f"{to} {name}", catalog, table, _about(f"{to} {name}", table))

    @classmethod
    def make(cls, to: str, about: About, options: Mapping[str, str] | None = None) -> IcebergTopicTable:
        """Open a table, or make it if there is none. Raises TableError if it is made for other topics."""
        if _is_directory(to):
            files_for(to).mkdir(os.path.abspath(to))
        catalog, name = _catalog(to, options or {})
        name = name or f"{NAMESPACE}.{'_'.join(about.topics)}"
        content = about.encoded()
        with _translated(to):
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            if not catalog.table_exists(name):
                _create(
                    catalog,
                    name,
                    table_schema(about),
                    {_ABOUT: content},
                    about.partitions,
                )
            if not catalog.table_exists(_beside(name)):
                _create(catalog, _beside(name), CERTIFICATES, {}, [])
            table = catalog.load_table(name)
        found = cls(f"{to} {name}", catalog, table, _about(f"{to} {name}", table))
        found.about.check(about, found.place)
        return found

    def refresh(self) -> None:
        with _translated(self.place):
            self._table.refresh()

    def position(self, cluster: str) -> int | None:
        found = self._table.properties.get(_NEXT + cluster)
        return None if found is None else int(found)

    def begin(self, cluster: str) -> int | None:
        found = self._table.properties.get(_BEGIN + cluster)
        return None if found is None else int(found)

    def certify(self, *certified: Certificate) -> None:
        rows = certificates.to_table(certified)
        for left in reversed(range(_CONFLICTS)):
            try:
                with _translated(self.place):
                    self._certificate_table().append(rows)
                return
            except TableChanged:
                if not left:
                    raise

    def add(self, rows: pa.Table, certificate: Certificate) -> None:
        with self._moved(certificate) as (transaction, about):
            transaction.append(rows, snapshot_properties=about)

    def file_writer(self) -> IcebergFileWriter:
        directory = f"{self._table.location().rstrip('/')}/data/"
        return IcebergFileWriter(directory, dict(self._table.io.properties), tuple(self.about.partitions))

    def add_files(self, files: Sequence[TableFile], certificate: Certificate) -> None:
        with self._moved(certificate) as (transaction, about):
            if files:
                paths = [one.path for one in files]
                transaction.add_files(paths, snapshot_properties=about, check_duplicate_files=False)
            else:  # a snapshot also without rows, as the demand is about snapshots
                transaction.append(table_schema(self.about).empty_table(), snapshot_properties=about)

    @contextmanager
    def _moved(self, certificate: Certificate) -> Iterator[tuple[Transaction, dict[str, str]]]:
        """Give a transaction, and the properties of its snapshot; it also moves the position behind the range
        of a certificate."""
        following = str(certificate.last + 1)
        position = self.position(certificate.cluster)
        if position not in (None, certificate.first):
            raise TableChanged(f"{self.place}: it is filled up to entry {position} by now")
        moved = {_NEXT + certificate.cluster: following}
        if position is None:
            moved[_BEGIN + certificate.cluster] = str(certificate.first)
        with _translated(self.place), self._table.transaction() as transaction:
            yield (
                transaction,
                {"dledger.first": str(certificate.first), "dledger.last": str(certificate.last)},
            )
            transaction.set_properties(moved)

    def certificates(self, cluster: str | None = None) -> list[Certificate]:
        with _translated(f"{self.place}: certificates"):
            if not self._catalog.table_exists(self._beside):
                return []
            self._known = self._certificate_table()
            found = certificates.from_table(self._known.scan().to_arrow())
        return [one for one in found if cluster in (None, one.cluster)]

    def replace_certificates(self, certified: Sequence[Certificate]) -> None:
        with _translated(self.place):
            (self._known or self._certificate_table()).overwrite(certificates.to_table(certified))
            self._known = None

    def logs(self) -> list[str]:
        return sorted(name.removeprefix(_NEXT) for name in self._table.properties if name.startswith(_NEXT))

    @property
    def uuid(self) -> str:
        return str(self._table.metadata.table_uuid)

    def scan(
        self, columns: Sequence[str], entries: Entries | None = None, lost: Lost | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = "true"
        if entries is not None:
            indexes = f"log_index >= {entries.first} and log_index <= {entries.last}"
            wanted = f"life like '{entries.cluster}.%' and {indexes}"
        whole = table_schema(self.about)
        schema = pa.schema([whole.field(name) for name in columns])
        with _translated(self.place):
            chosen = self._table.scan(row_filter=wanted, selected_fields=tuple(columns))
            found = chosen.to_arrow_batch_reader() if lost is None else self._file_by_file(chosen, lost)
            for batch in found:
                yield from pa.Table.from_batches([batch]).select(list(columns)).cast(schema).to_batches()

    def _file_by_file(self, scan: DataScan, lost: Lost) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a scan; leave out files that are missing or damaged."""
        read = ArrowScan(
            scan.table_metadata, scan.io, scan.projection(), scan.row_filter, scan.case_sensitive
        )
        for task in scan.plan_files():
            try:
                yield from read.to_record_batches([task])
            except UNREADABLE as error:
                path = task.file.file_path
                check_storage(storage_of(self._table), path_of(self._table, path))
                lost(path, f"{error}")

    def delete_lives(self, lives: Sequence[TopicLife]) -> None:
        where = " or ".join(f"(topic = '{one.topic}' and life = '{one.life}')" for one in lives)
        with _translated(self.place):
            self._table.refresh()
            self._table.delete(where)

    def compact(self) -> int:
        """Rewrite one partition after the other, each in one commit, if it has several files and fits into
        memory (`COMPACT_BYTES`). pyiceberg has no compaction of its own."""
        replaced = 0
        with _translated(self.place):
            self._table.refresh()
            for where, files in _partitions_of(self._table, self.about.partitions):
                rows = self._table.scan(row_filter=where).to_arrow()
                order = [(name, "ascending") for name in ("topic", "queue", "log_index")]
                self._table.overwrite(rows.sort_by(order), overwrite_filter=where)
                replaced += files
            remove_old(self._table)
            remove_old(self._certificate_table())
        return replaced

    def count(self) -> int:
        snapshot = self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary.additional_properties.get("total-records", 0))

    def _certificate_table(self) -> Table:
        return self._catalog.load_table(self._beside)

    @property
    def _beside(self) -> str:
        return _beside(".".join(self._table.name()))


@dataclass(frozen=True)
class IcebergFileWriter:
    """Writes files of a table of Iceberg (`tables.FileWriter`). `directory` is a URI, and `options` are those
    of the storage."""

    directory: str
    options: dict[str, str]
    partitions: tuple[str, ...]

    def write(self, rows: pa.Table, name: str) -> list[TableFile]:
        with _translated(self.directory):
            scheme, netloc, path = PyArrowFileIO.parse_location(self.directory, self.options)
            storage = PyArrowFileIO(self.options).fs_by_scheme(scheme, netloc)
            found = write_files(storage, path + name, rows, self.partitions, keep=True)
            return [one._replace(path=self.directory + one.path.removeprefix(path)) for one in found]


def _is_directory(to: str) -> bool:
    return not to.startswith(("http://", "https://")) and ("/" in to or os.path.isdir(to) or "." in to)


def _catalog(to: str, options: Mapping[str, str]) -> tuple[Catalog, str]:
    """Return the catalog, and the name of the table in the options, if any. Raises TableError."""
    given = dict(options)
    name = given.pop("table", "")
    if to.startswith(("http://", "https://")):
        given = {"type": "rest", "uri": to} | given
    elif _is_directory(to):
        root = os.path.abspath(to)
        if not os.path.isdir(root):
            raise TableError(f"{to}: there is no Iceberg catalog: make it with `dledger lake`")
        given = {
            "type": "sql",
            "uri": f"sqlite:///{root}/{CATALOG_FILE}",
            "warehouse": f"file://{root}",
        } | given
    elif "type" not in given and "uri" not in given and Config().get_catalog_config(to) is None:
        raise TableError(
            f"{to}: the configuration of pyiceberg has no catalog of this name; for a directory write ./{to}"
        )
    with _translated(to):
        return load_catalog(to if "type" not in given else NAMESPACE, **given), name


def _create(
    catalog: Catalog, name: str, schema: pa.Schema, properties: Mapping[str, str], partitions: Sequence[str]
) -> None:
    with (
        catalog.create_table_transaction(
            name, schema=schema, properties={**_PROPERTIES, **properties}
        ) as made,
        made.update_spec() as spec,
    ):
        for column in partitions:
            spec.add_identity(column)


def _beside(name: str) -> str:
    return f"{name}_certificates"


def _only_table(to: str, catalog: Catalog) -> str:
    spaces = catalog.list_namespaces()
    mine = [space for space in spaces if space == (NAMESPACE,)]
    found = [".".join(name) for space in mine or spaces for name in catalog.list_tables(space)]
    ours = [name for name in found if not name.endswith("_certificates")]
    if len(ours) != 1:
        there = f"has the tables {', '.join(sorted(ours))}" if ours else "has no table of ours"
        raise TableError(
            f"the catalog {to} {there}: name one with --option table=NAMESPACE.TABLE "
            "(dledger.read: table_options)"
        )
    return ours[0]


def _about(place: str, table: Table) -> About:
    content = table.properties.get(_ABOUT)
    if content is None:
        raise TableError(f"{place} is an Iceberg table that `dledger lake` did not make: give another name")
    return About.decode(content, place)


def _partitions_of(table: Table, columns: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield a filter and the number of files of each partition that is to be rewritten."""
    parts: dict[tuple[object, ...], list[int]] = {}
    for task in table.scan().plan_files():
        values = tuple(task.file.partition[number] for number in range(len(columns)))
        parts.setdefault(values, []).append(task.file.file_size_in_bytes)
    for values, sizes in parts.items():
        if len(sizes) >= COMPACT_FILES and sum(sizes) <= COMPACT_BYTES:
            shown = [_shown(column, value) for column, value in zip(columns, values, strict=True)]
            yield " and ".join(shown), len(sizes)


def _shown(column: str, value: object) -> str:
    text = str(_EPOCH + timedelta(days=value)) if isinstance(value, int) else str(value)
    return f"{column} = '{text}'"


_ERRORS = (
    OSError,
    ValueError,
    pa.ArrowException,
    SQLAlchemyError,
    *(one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
)
"""Errors of catalogs, of the storage, and of files that are not as they should be. pyiceberg's have no common
base."""


_translated = partial(translated, conflicts=exceptions.CommitFailedException, failures=_ERRORS)
