"""What somebody can do to a table by hand, with the tools of its format and without `dledger lake`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from dledger.lake.rows import SCHEMA
from tests.lake.lake_kit import Group

Row = dict[str, Any]


class Hand(Protocol):
    """Changes a table, and its table of certificates."""

    place: str

    def delete(self, where: str) -> None:
        """Delete rows."""

    def append(self, rows: pa.Table) -> None:
        """Add rows."""

    def rows(self) -> list[Row]:
        """All rows."""

    def certificates(self) -> list[Row]:
        """All certificates."""

    def replace_certificates(self, rows: list[Row]) -> None:
        """Replace all certificates."""

    def lose_certificates(self) -> None:
        """Remove the table of certificates."""

    def go_back(self, commits: int) -> None:
        """Make the state of some commits ago the present one."""


def change(hand: Hand, where: str, how: Callable[[Row], Row], matches: Callable[[Row], bool]) -> None:
    """Replace rows by changed ones."""
    changed = [how(row) for row in hand.rows() if matches(row)]
    hand.delete(where)
    hand.append(pa.Table.from_pylist(changed, SCHEMA))


class DeltaHand:
    """Changes a table of Delta Lake (`Hand`)."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._beside = f"{place}/_dledger/certificates"

    def delete(self, where: str) -> None:
        DeltaTable(self.place).delete(where)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.place, rows, mode="append")

    def rows(self) -> list[Row]:
        return DeltaTable(self.place).to_pyarrow_table().select(SCHEMA.names).to_pylist()

    def certificates(self) -> list[Row]:
        return DeltaTable(self._beside).to_pyarrow_table().to_pylist()

    def replace_certificates(self, rows: list[Row]) -> None:
        schema = DeltaTable(self._beside).to_pyarrow_table().schema
        write_deltalake(self._beside, pa.Table.from_pylist(rows, schema), mode="overwrite")

    def lose_certificates(self) -> None:
        shutil.rmtree(f"{self.place}/_dledger")

    def go_back(self, commits: int) -> None:
        table = DeltaTable(self.place)
        table.restore(table.version() - commits)


class IcebergHand:
    """Changes a table of Iceberg (`Hand`)."""

    def __init__(self, place: str, name: str = "dledger.orders") -> None:
        self.place, self._name = place, name
        root = Path(place).absolute()
        self._catalog: Catalog = load_catalog(
            "dledger", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}"
        )

    def table(self, behind: str = "") -> Table:
        return self._catalog.load_table(self._name + behind)

    def delete(self, where: str) -> None:
        self.table().delete(where)

    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)

    def rows(self) -> list[Row]:
        return self.table().scan().to_arrow().cast(SCHEMA).to_pylist()

    def certificates(self) -> list[Row]:
        return self.table("_certificates").scan().to_arrow().to_pylist()

    def replace_certificates(self, rows: list[Row]) -> None:
        table = self.table("_certificates")
        table.overwrite(pa.Table.from_pylist(rows, table.scan().to_arrow().schema))

    def lose_certificates(self) -> None:
        self.replace_certificates([])

    def go_back(self, commits: int) -> None:
        table = self.table()
        snapshot = table.current_snapshot()
        for _ in range(commits):
            assert snapshot is not None and snapshot.parent_snapshot_id is not None
            snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        assert snapshot is not None
        self._set(table, snapshot.snapshot_id)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo afterwards what is changed meanwhile."""
        known = [(behind, self.table(behind).current_snapshot()) for behind in ("", "_certificates")]
        try:
            yield
        finally:
            for behind, snapshot in known:
                assert snapshot is not None
                self._set(self.table(behind), snapshot.snapshot_id)

    def _set(self, table: Table, snapshot_id: int) -> None:
        table.manage_snapshots().set_current_snapshot(snapshot_id).commit()


@contextmanager
def copied(group: Group, directory: Path) -> Iterator[Hand]:
    """A hand at a copy of the group's table, or at the table itself, whose changes are undone."""
    if group.format == "delta":
        place = str(directory / "copy")
        shutil.copytree(group.place, place)
        yield DeltaHand(place)
        return
    hand = IcebergHand(group.place)
    with hand.undone():
        yield hand
