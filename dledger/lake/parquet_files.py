"""Parquet files of tables: those that are added to a table later, and those that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dledger.lake.tables import TableFile

NUMBERS = ("log_index", "log_term", "queue", "offset")
"""Columns whose least and greatest value are reported for each file."""


UNREADABLE = (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""What pyarrow raises for a file that is missing or damaged; OSError also if the storage fails."""
_CHUNK = 1024 * 1024


def check_storage(storage: pafs.FileSystem, path: str) -> None:
    """Return if a file that could not be read is missing, or if its bytes can be read: then it is damaged.
    Raises OSError if the storage fails."""
    info = storage.get_file_info(path)
    if info.type == pafs.FileType.NotFound or info.size == 0:
        return
    with storage.open_input_stream(path) as file:
        while file.read(_CHUNK):
            pass


def write_files(
    storage: pafs.FileSystem, prefix: str, rows: pa.Table, columns: Sequence[str], *, keep: bool
) -> list[TableFile]:
    """Write rows into new files, one for each value of the partition columns. Their paths begin with `prefix`
    and say nothing about partitions. `keep`: whether the files contain the partition columns."""
    found = []
    for number, (values, part) in enumerate(_partitions(rows, columns)):
        whole = part if keep else part.drop_columns(list(columns))
        path = f"{prefix}-{number}.zstd.parquet"
        with storage.open_output_stream(path) as file:
            pq.write_table(whole, file, compression="zstd", compression_level=3)
        info = storage.get_file_info(path)
        extremes = [pc.min_max(part.column(name)).as_py() for name in NUMBERS]
        found.append(
            TableFile(
                path,
                info.size,
                part.num_rows,
                values,
                info.mtime_ns // 1_000_000,
                {name: one["min"] for name, one in zip(NUMBERS, extremes, strict=True)},
                {name: one["max"] for name, one in zip(NUMBERS, extremes, strict=True)},
            )
        )
    return found


def _partitions(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """Yield the rows of each partition, with the values of the partition columns as texts."""
    for values in rows.group_by(list(columns)).aggregate([]).to_pylist():
        wanted = None
        for name, value in values.items():
            same = pc.equal(rows.column(name), pa.scalar(value, rows.schema.field(name).type))
            wanted = same if wanted is None else pc.and_(wanted, same)
        yield {name: str(value) for name, value in values.items()}, rows.filter(wanted)
