"""Tables of Delta Lake (https://github.com/delta-io/delta/blob/master/PROTOCOL.md), with the package
`deltalake`.

Each batch is one commit, which also sets the position in the log as a transaction identifier of Delta: its
application is `dledger:<id of the log>`, its version the index of the next entry. A commit fails if another
one has set the same application's version since the table was read. So two writers cannot both add a batch.

The certificates are a small Delta table below `_dledger/certificates`. Readers of the table, and its
clean-up, leave names with a leading `_` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dledger.lake import certificates
from dledger.lake.certificates import Certificate
from dledger.lake.rows import table_schema
from dledger.lake.tables import About, Entries, TableChanged, TableError

_ABOUT = "dledger.about"
_APPLICATION = "dledger:"
_BESIDE = "_dledger/certificates"
_WRITER = WriterProperties(compression="ZSTD", compression_level=3)


class DeltaTopicTable:
    """A table of Delta Lake (`tables.TopicTable`)."""

    def __init__(self, table: DeltaTable, options: Mapping[str, str], about: About) -> None:
        self.about = about
        self._table = table
        self._options = dict(options)

    @classmethod
    def open(cls, place: str, options: Mapping[str, str] | None = None) -> DeltaTopicTable:
        """Open a table that exists. `options` are those of the storage, as `deltalake` names them. Raises
        TableError."""
        try:
            table = DeltaTable(place, storage_options=dict(options or {}))
        except TableNotFoundError as error:
            raise TableError(f"{place}: there is no Delta table: make it with `dledger lake`") from error
        except (DeltaError, OSError, ValueError) as error:
            raise TableError(f"{place}: {error}") from error
        return cls(table, options or {}, _about(place, table))

    @classmethod
    def make(cls, place: str, about: About, options: Mapping[str, str] | None = None) -> DeltaTopicTable:
        """Open a table, or make it if there is none. Raises TableError if it is made for other topics."""
        stored = dict(options or {})
        try:
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
        except (DeltaError, OSError, ValueError) as error:
            raise TableError(f"{place}: {error}") from error
        found = cls(table, stored, _about(place, table))
        found.about.check(about, found.place)
        return found

    @property
    def place(self) -> str:
        return str(self._table.table_uri)

    def refresh(self) -> None:
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error

    def position(self, cluster: str) -> int | None:
        found: int | None = self._table.transaction_version(_APPLICATION + cluster)
        return found

    def certify(self, certificate: Certificate) -> None:
        try:
            self._certify([certificate], "append")
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error

    def add(self, rows: pa.Table, certificate: Certificate) -> None:
        about = {"dledger.first": certificate.first, "dledger.last": certificate.last}
        transaction = Transaction(_APPLICATION + certificate.cluster, certificate.last + 1)
        try:
            write_deltalake(
                self._table,
                rows,
                mode="append",
                writer_properties=_WRITER,
                commit_properties=CommitProperties(
                    {name: str(value) for name, value in about.items()}, app_transactions=[transaction]
                ),
            )
        except CommitFailedError as error:
            raise TableChanged(f"{self.place}: {error}") from error
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error

    def certificates(self, cluster: str | None = None) -> list[Certificate]:
        beside = self._beside()
        if beside is None:
            return []
        try:
            found = certificates.from_table(beside.to_pyarrow_table())
        except (DeltaError, OSError, ValueError, KeyError) as error:
            raise TableError(f"{self.place}: its certificates cannot be read: {error}") from error
        return [one for one in found if cluster in (None, one.cluster)]

    def replace_certificates(self, certificates: Sequence[Certificate]) -> None:
        try:
            self._certify(certificates, "overwrite")
        except CommitFailedError as error:
            raise TableChanged(f"{self.place}: {error}") from error
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error

    def logs(self) -> list[str]:
        return sorted({one.cluster for one in self.certificates() if self.position(one.cluster) is not None})

    def scan(self, columns: Sequence[str], entries: Entries | None = None) -> Iterator[pa.RecordBatch]:
        wanted = None
        if entries is not None:
            index = pc.field("log_index")
            lives = pc.starts_with(pc.field("life"), f"{entries.cluster}.")
            wanted = lives & (index >= entries.first) & (index <= entries.last)
        yield from self._table.to_pyarrow_dataset().to_batches(columns=list(columns), filter=wanted)

    def delete_lives(self, lives: Sequence[str]) -> None:
        listed = ", ".join(f"'{life}'" for life in lives)
        try:
            self._table.delete(f"life in ({listed})")
        except CommitFailedError as error:
            raise TableChanged(f"{self.place}: {error}") from error
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error

    def compact(self) -> int:
        try:
            self._table.update_incremental()
            replaced = int(self._table.optimize.compact()["numFilesRemoved"])
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
            self._table.vacuum(dry_run=False, full=True)
        except CommitFailedError as error:
            raise TableChanged(f"{self.place}: {error}") from error
        except (DeltaError, OSError) as error:
            raise TableError(f"{self.place}: {error}") from error
        return replaced

    def count(self) -> int:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        return int(pc.sum(actions.column("num_records")).as_py() or 0)

    def _certify(self, found: Sequence[Certificate], mode: Any) -> None:
        place = f"{self.place.rstrip('/')}/{_BESIDE}"
        table = certificates.to_table(found)
        write_deltalake(place, table, mode=mode, storage_options=self._options or None)

    def _beside(self) -> DeltaTable | None:
        place = f"{self.place.rstrip('/')}/{_BESIDE}"
        try:
            return DeltaTable(place, storage_options=self._options or None)
        except TableNotFoundError:
            return None


def _about(place: str, table: DeltaTable) -> About:
    content = table.metadata().configuration.get(_ABOUT)
    if content is None:
        raise TableError(f"{place} is a Delta table that `dledger lake` did not make: give another place")
    return About.decode(content, place)
