"""Read from the log the offsets that consumer groups committed. Each commit of offsets is an entry.

Spark finds the system entries, which brokers write for themselves (view `entries`). Tasks read their
bodies from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa
from pyspark.sql import functions as F

from dledger.audit.entries import BODY_DAMAGED, UNREADABLE
from dledger.audit.segment_places import SegmentPlaces
from dledger.audit.state_check import load_boundary
from dledger.audit.store_directory import Replica
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.record import CorruptRecord, decode_record
from dledger.formats.state import ReplicatedState, unpack_parts
from dledger.runtime.remote_files import files_for
from dledger.spark.columns import arrow_schema, ddl
from dledger.spark.jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = (
    ("index", "bigint"),
    ("time_ms", "bigint"),
    ("consumer", "string"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("reset", "int"),
)
"""Columns of the table of events, which has one row for each queue in a commit of offsets. `time_ms`:
store time; `offset`: where the group resumes; `reset`: 1 if the offset was set on purpose and may be lower
than before, else 0. Without a reset, the offset counts only if it is higher than the one before."""


def offset_events(
    spark: SparkSession, entries: DataFrame, replica: Replica, begins: Mapping[str, int]
) -> DataFrame:
    """Return the commits of offsets in the log of one replica. `entries`: the view `entries` of this
    replica. `begins`: maps a topic to the log offset of its last deletion; commits below it are left out.

    A task fails with JobError if a system entry is damaged or cannot be read, as the entry may have been a
    commit. An entry counts as good even if the chain of CRCs is broken there, or cannot be checked because
    the task begins there.
    """
    damage = F.col("damage")
    system = entries.where((F.col("kind") == int(Kind.SYSTEM)) | (damage.bitwiseAND(UNREADABLE) != 0))
    rotten = damage.bitwiseAND(BODY_DAMAGED | UNREADABLE) != 0
    read = partial(_read_events, replica.places, replica.segment_size, dict(begins))
    return system.select("pos", "size", "index", rotten.alias("rotten")).mapInArrow(read, ddl(EVENTS))


def _read_events(
    places: SegmentPlaces, segment_size: int, begins: Mapping[str, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(EVENTS)
    for batch in batches:
        rows = list(
            _events(places, segment_size, begins, zip(*(column.to_pylist() for column in batch), strict=True))
        )
        columns = list(zip(*rows, strict=True)) or [()] * len(EVENTS)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(
    places: SegmentPlaces,
    segment_size: int,
    begins: Mapping[str, int],
    entries: Iterable[tuple[int, int, int, bool]],
) -> Iterator[tuple[int, int, str, str, int, int, int]]:
    """Yield the events in the system entries, given as (pos, size, index, damaged). Raises OSError or
    JobError."""
    files = files_for(places.first)
    start, file = -1, None
    try:
        for pos, size, index, rotten in entries:
            if rotten:
                what = f"system entry {index} is damaged" if index >= 0 else "a segment cannot be read"
                raise JobError(
                    f"{places.first}: {what}, and it may be a commit: run the audit, or give another replica"
                )
            if file is None or pos - pos % segment_size != start:
                if file is not None:
                    file.close()
                start = pos - pos % segment_size
                file = files.open_read(places.path_of(start))
            data = file.pread(size - HEADER_SIZE, pos - start + HEADER_SIZE)
            yield from (event for event in decode_events(index, data) if pos >= begins.get(event[3], 0))
    finally:
        if file is not None:
            file.close()


def decode_events(index: int, record: bytes) -> Iterator[tuple[int, int, str, str, int, int, int]]:
    """Yield the events in one system entry. An entry of another kind, and a malformed entry, contain none
    (safety.md S13)."""
    try:
        found = decode_record(record)
        op = msgpack.unpackb(found.body, strict_map_key=False)
        if op["op"] in ("offsets", "reset"):
            for topic, queue, offset in op["offsets"]:
                time = found.store_timestamp
                yield index, time, op["group"], topic, queue, offset, int(op["op"] == "reset")
    except (CorruptRecord, ValueError, TypeError, KeyError, msgpack.UnpackException):
        return


def state_at_begin(replica: Replica) -> ReplicatedState:
    """Return the replicated state before the first entry of the replica's log. It is empty if nothing was
    deleted from the log. Raises OSError or JobError."""
    for manifest in replica.snapshots:
        if manifest.index == replica.base_index:
            boundary = load_boundary(files_for(replica.directory), replica.directory, manifest.pos)
            if boundary is None:
                text = f"{replica.directory}: the snapshot at {manifest.pos} cannot be trusted: "
                raise JobError(text + "repair this node, or give another replica of the group")
            return unpack_parts(boundary.parts)
    return ReplicatedState()
