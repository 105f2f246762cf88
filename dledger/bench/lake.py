"""`dledger bench lake`: what a table of a topic costs.

1. A store of messages is put into a table, which is compacted. Then a query reads three columns of the
   table, and the same three of the same rows that pyarrow wrote with the same partitions, in turns.
2. A group on loopback takes as many messages as it can, in turns without a writer and with one that follows
   the topic (`dledger lake --follow`). This is done twice. "Apart": the writer has one core, and the group
   and its producer have the others, in both turns, so the difference is what the brokers do for the writer,
   as if it ran on a machine of its own. "Shared": all have all cores, and the writer has the lowest priority.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from dledger.bench.compare.system import cpu_s
from dledger.bench.spark_read import write_store
from dledger.lake.log_reading import StoreLog
from dledger.lake.opening import Place, make_table
from dledger.lake.rows import SCHEMA
from dledger.lake.tables import About
from dledger.lake.writer import TableWriter
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.spark.stores import open_replicas

COLUMNS = ("queue", "offset", "store_time")
TOPICS = tuple(f"topic-{number}" for number in range(4))
FOLLOWED = "Bench"
FOLLOW = ("--follow", "--every", "5")


def lake(kind: str, messages: int, size: int, runs: int, seconds: float) -> dict[str, object]:
    """Return the figures. `kind` is the format of the table, `seconds` how long each turn of the group takes;
    0 leaves the group out."""
    with tempfile.TemporaryDirectory(prefix="lake-") as directory:
        found = _query(Path(directory), kind, messages, size, runs)
    if not seconds:
        return found
    cores = os.sched_getaffinity(0)
    last = {max(cores)}
    for name, group, writer in (("apart", cores - last, last), ("shared", cores, cores)):
        if group:
            with tempfile.TemporaryDirectory(prefix="lake-") as directory, _on_cores(group):
                figures = _following(Path(directory), kind, size, runs, seconds, writer)
            found |= {f"{name}_{figure}": value for figure, value in figures.items()}
    return found


@contextmanager
def _on_cores(cores: Collection[int]) -> Iterator[None]:
    """Let this process, and those that it starts, use only these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _query(directory: Path, kind: str, messages: int, size: int, runs: int) -> dict[str, object]:
    store, place, plain = directory / "n0", str(directory / "table"), directory / "plain"
    write_store(store, messages, size)
    table = make_table(Place(kind, place, {}), About(TOPICS))
    began, cpu = time.perf_counter(), time.process_time()
    (replica,) = open_replicas([str(store)])
    TableWriter(table, StoreLog(replica), lambda first: {}).catch_up()
    filled, spent = time.perf_counter() - began, time.process_time() - cpu
    table.compact()
    table.refresh()
    rows = pa.Table.from_batches(table.scan(SCHEMA.names), SCHEMA)
    assert rows.num_rows == messages
    zstd = ds.ParquetFileFormat().make_write_options(compression="zstd")
    parts = ds.partitioning(pa.schema([SCHEMA.field(name) for name in table.about.partitions]), flavor="hive")
    ds.write_dataset(rows, plain, format="parquet", file_options=zstd, partitioning=parts)
    del rows
    written = ds.dataset(plain, partitioning=parts)
    reads = {"table": _reads_table(kind, place), "parquet": lambda: written.to_table(columns=list(COLUMNS))}
    times = _in_turns(reads, runs)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "rows": messages,
        "fill_rows_per_s": round(messages / filled),
        "fill_cpu_us_per_row": round(spent / messages * 1e6, 1),
        "query_table_ms": round(medians["table"] * 1000, 1),
        "query_parquet_ms": round(medians["parquet"] * 1000, 1),
        "query_ratio": round(medians["table"] / medians["parquet"], 2),
    }


def _reads_table(kind: str, place: str) -> Callable[[], pa.Table]:
    if kind == "delta":
        from deltalake import DeltaTable

        opened = DeltaTable(place).to_pyarrow_dataset()
        return lambda: opened.to_table(columns=list(COLUMNS))
    from dledger.lake.iceberg import IcebergTopicTable

    table = IcebergTopicTable.open(place)
    return lambda: pa.Table.from_batches(table.scan(COLUMNS))


def _in_turns(reads: dict[str, Callable[[], pa.Table]], runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in reads}
    for run in range(runs + 1):
        for name, read in reads.items():
            began = time.perf_counter()
            read()
            if run:  # the first one warms the page cache
                times[name].append(time.perf_counter() - began)
    return times


def _following(
    directory: Path, kind: str, size: int, runs: int, seconds: float, cores: Collection[int]
) -> dict[str, object]:
    """Return what a writer that uses these cores takes from a group that uses those of this process."""
    spec = ClusterSpec(base_port=find_base_port(), segment_size=64 * MIB)
    group = LocalCluster.create(directory / "group", spec)
    group.start()
    try:
        group.wait_leader()
        group.create_topic(FOLLOWED, 4)
        produce = partial(_produce, group.namesrv_addr, size, seconds)
        produce([])  # warm segments
        pids = [pid for node in spec.node_ids if (pid := group.pid(node)) is not None]
        alone: list[tuple[float, float]] = []
        followed: list[tuple[float, float]] = []
        for _ in range(runs):
            alone.append(produce(pids))
            command = [sys.executable, "-m", "dledger", "lake", FOLLOWED, "--to", str(directory / "table")]
            options = ["--format", kind, "--namesrv", group.namesrv_addr]
            writing = ["nice", "-n", "19", *command, *options]
            with _on_cores(cores):
                # The writer first adds what was sent while it was away: a follower does not do that.
                subprocess.run(writing, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
                writer = subprocess.Popen([*writing, *FOLLOW], stderr=subprocess.DEVNULL)
            try:
                followed.append(produce(pids))
            finally:
                writer.terminate()
                writer.wait()
    finally:
        group.stop()
    return {
        "alone_per_s": [round(rate) for rate, _ in alone],
        "followed_per_s": [round(rate) for rate, _ in followed],
        "follow_ratio": round(_ratio(followed, alone, 0), 3),
        "broker_us_alone": round(_median(alone, 1), 1),
        "broker_us_followed": round(_median(followed, 1), 1),
        "broker_ratio": round(_ratio(followed, alone, 1), 3),
    }


def _median(turns: Sequence[tuple[float, float]], column: int) -> float:
    return statistics.median(turn[column] for turn in turns)


def _ratio(
    followed: Sequence[tuple[float, float]], alone: Sequence[tuple[float, float]], column: int
) -> float:
    """The median of the ratios of neighbouring turns. A machine that gets slower during the measurement
    changes both turns of a pair alike."""
    pairs = zip(followed, alone, strict=True)
    return statistics.median(one[column] / other[column] for one, other in pairs)


def _produce(namesrv: str, size: int, seconds: float, pids: list[int]) -> tuple[float, float]:
    """Run `bench produce` in another process; return messages a second, and microseconds of these processes
    for a message."""
    cpu = cpu_s(pids)
    options = {"namesrv": namesrv, "topic": FOLLOWED, "seconds": seconds, "size": size, "window": 256}
    command = [sys.executable, "-m", "dledger.bench", "produce", "--json"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return float(found["rate"]), (cpu_s(pids) - cpu) / found["messages"] * 1e6
