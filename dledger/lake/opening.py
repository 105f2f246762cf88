"""Opens a table by its format and place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dledger.lake.tables import About, TopicTable

CATALOG_FILE = "catalog.db"
"""Name of the SQLite file of a catalog of Iceberg that is a directory."""


@dataclass(frozen=True)
class Place:
    """Where a table is. `format` is delta, iceberg, or empty if the place says which. `options` are those of
    the storage, or of the catalog for Iceberg."""

    format: str
    to: str
    options: Mapping[str, str]

    @property
    def is_iceberg(self) -> bool:
        """Whether it is a table of Iceberg."""
        if self.format:
            return self.format == "iceberg"
        return os.path.exists(os.path.join(self.to, CATALOG_FILE)) or self.to.startswith(
            ("http://", "https://")
        )


def open_table(place: Place) -> TopicTable:
    """Open a table that exists. Raises TableError."""
    if place.is_iceberg:
        from dledger.lake.iceberg import IcebergTopicTable

        return IcebergTopicTable.open(place.to, place.options)
    from dledger.lake.delta import DeltaTopicTable

    return DeltaTopicTable.open(place.to, place.options)


def make_table(place: Place, about: About) -> TopicTable:
    """Open a table, or make it if there is none. Raises TableError."""
    if place.is_iceberg:
        from dledger.lake.iceberg import IcebergTopicTable

        return IcebergTopicTable.make(place.to, about, place.options)
    from dledger.lake.delta import DeltaTopicTable

    return DeltaTopicTable.make(place.to, about, place.options)
