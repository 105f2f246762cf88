"""Rows of a report as a Parquet file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from dledger.audit.report_files import Records

_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
RUN = ("run", "timestamp")
"""Name and type of the additional first column. With it, the reports of many runs in one directory are one
table."""


def parquet_bytes(records: Records, now_ms: int) -> bytes:
    """Make the bytes of the file. `now_ms` is the time of the run, in ms since the epoch."""
    columns = (RUN, *records.columns)
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    rows = [(now_ms, *row) for row in records.rows]
    arrays = [pa.array([row[number] for row in rows], type=field.type) for number, field in enumerate(schema)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
