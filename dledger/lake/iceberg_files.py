"""Removes old snapshots of an Iceberg table, and files that no snapshot needs. pyiceberg removes no files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

KEPT_MS = 7 * 24 * 3600 * 1000
"""How long old snapshots stay, in ms before the newest one, so that a query or a job that began with one of
them can end. Files that no snapshot names are removed when they are older than this: those of killed
writers, and those of snapshots that were removed."""

_FOLDERS = ("data", "metadata")
"""The folders of a table that are looked through. Others below its location may belong to somebody else."""


def remove_old(table: Table, kept_ms: int = KEPT_MS) -> int:
    """Remove snapshots that are older than `kept_ms` before the newest one, and unneeded files of that age.
    Return the number of files that were removed.

    Raises what pyiceberg and the file system raise; CommitFailedException if another writer was faster.
    """
    newest = table.current_snapshot()
    if newest is None:
        return 0
    before_ms = newest.timestamp_ms - kept_ms
    if any(one.timestamp_ms < before_ms for one in table.snapshots() if one is not newest):
        table.maintenance.expire_snapshots().older_than(
            datetime.fromtimestamp(before_ms / 1000, UTC)
        ).commit()
        table.refresh()
    storage, root = storage_of(table), path_of(table, table.location()).rstrip("/")
    found = [
        one
        for folder in _FOLDERS
        for one in storage.get_file_info(
            pafs.FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True)
        )
    ]
    old = {
        one.path
        for one in found
        if one.type == pafs.FileType.File
        and one.mtime_ns is not None
        and one.mtime_ns < before_ms * 1_000_000
    }
    if not old:
        return 0
    unneeded = old - {path_of(table, location) for location in _needed(table)}
    for path in sorted(unneeded):
        storage.delete_file(path)
    return len(unneeded)


def _needed(table: Table) -> Iterator[str]:
    """Yield the locations of all files that a snapshot, or the table itself, needs. Some come twice."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    read: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def storage_of(table: Table) -> pafs.FileSystem:
    """Return the file system that a table is in."""
    scheme, netloc, _ = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    return PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc)


def path_of(table: Table, location: str) -> str:
    """Return the path of a location in the file system of a table."""
    return PyArrowFileIO.parse_location(location, table.io.properties)[2]
