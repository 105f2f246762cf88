"""`dledger bench spark`: how many messages a second Spark reads from a store, with all default columns.

Writes a store of one replica (segments of 256 MiB, with index files, as a stopped node leaves it). Reads
the view `messages` with a local session several times into Spark's `noop` sink, which takes every row and
drops it. Reports seconds and CPU time of each run. The first run also starts the Python workers and warms
Java up.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import IO

from dledger.bench.big_store import made_once
from dledger.bench.memory import PROC, kind, tree
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    MIN_BLANK_SIZE,
    Kind,
    encode_entry,
    unpack_header,
)
from dledger.formats.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from dledger.formats.record import encode_record
from dledger.formats.state import ReplicatedState, TopicConfig, pack_op
from dledger.formats.state_file import SNAPSHOT_FILE, STATE_DIR, pack_snapshot
from dledger.formats.store_files import (
    Checkpoint,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
    segment_name,
)

SEGMENT_SIZE = 256 * 1024 * 1024
TOPICS = 4
QUEUES = 8
TIME_MS = 1_700_000_000_000


def spark_read(directory: str | None, messages: int, size: int, runs: int) -> dict[str, object]:
    """Read a store of `messages` messages, with bodies of `size` bytes, `runs` times; return the figures
    of each read.

    The store is made in `directory` unless it is there already; None means a temporary directory. Raises
    ImportError if pyspark is not installed.
    """
    if directory is not None:
        store = Path(directory)
        made_once(store, partial(write_store, store, messages, size))
        return _measure(store, runs)
    with tempfile.TemporaryDirectory(prefix="spark-") as temporary:
        store = Path(temporary) / "n0"
        write_store(store, messages, size)
        return _measure(store, runs)


def _measure(store: Path, runs: int) -> dict[str, object]:
    from dledger.spark.session import session  # pyspark is an extra

    spark = session("bench", "local[2]")
    try:
        frame = spark.read.format("dledger").option("path", str(store)).load()
        seconds, cpu = [], []
        for _ in range(runs):
            before, began = _cpu_by_kind(), time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            seconds.append(round(time.perf_counter() - began, 2))
            spent = {name: _cpu - before.get(name, 0.0) for name, _cpu in _cpu_by_kind().items()}
            java = spent.get("java", 0.0)
            cpu.append({"java": round(java, 2), "python": round(sum(spent.values()) - java, 2)})
        rows = frame.count()
    finally:
        spark.stop()
    return {
        "rows": rows,
        "columns": len(frame.columns),
        "seconds": seconds,
        "cpu_s": cpu,
        "first": round(rows / seconds[0]),
        "best": round(rows / min(seconds)),
        "median": round(rows / sorted(seconds)[len(seconds) // 2]),
        "rows_per_cpu_s": max(round(rows / sum(used.values())) for used in cpu),
    }


def _cpu_by_kind() -> dict[str, float]:
    """Return the user and system seconds of this process and all its descendants, by kind of process."""
    processes = tree(os.getpid())
    found: dict[str, float] = {}
    for pid, process in processes.items():
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        name = kind(process, processes)
        ticks = int(fields[11]) + int(fields[12])
        found[name] = found.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def write_store(store: Path, messages: int, size: int, segment_size: int = SEGMENT_SIZE) -> None:
    """Write a store of messages with keys, tags and unique ids. All entries are committed. It takes about
    15 microseconds per message."""
    directory = store / "dledger-n0"
    (directory / "data").mkdir(parents=True)
    (directory / "index").mkdir()
    noise = random.Random(1).randbytes(1 << 17)
    pos = chain = 0
    file: IO[bytes] | None = None
    with (directory / "index" / segment_name(0)).open("wb") as index:
        for number in range(messages):
            text = {UNIQ_KEY: f"7F0000010BAD18B4AAC2{number:012X}", "WAIT": "true"}
            text |= {KEYS: f"order-{number}"} | ({TAGS: "created"} if number % 2 else {})
            start = number * 7919 % (len(noise) - size)
            record = encode_record(
                topic=f"topic-{number % TOPICS}",
                body=noise[start : start + size],
                properties=encode_properties(text),
                queue_id=number // TOPICS % QUEUES,
                queue_offset=number // (TOPICS * QUEUES),
                physical_offset=pos + HEADER_SIZE,
                born_timestamp=TIME_MS + number // 3,
                store_timestamp=TIME_MS + number // 3 + 1,
            )
            room = segment_size - pos % segment_size
            if file is None or HEADER_SIZE + len(record) + MIN_BLANK_SIZE > room:
                if file is not None:
                    file.write(BLANK.pack(BLANK_MAGIC, room))
                    _close(file, segment_size)
                    pos += room
                    record = record[:28] + (pos + HEADER_SIZE).to_bytes(8, "big") + record[36:]
                file = (directory / "data" / segment_name(pos)).open("wb")
            entry = encode_entry(number, 1, pos, record, chain, Kind.MESSAGE, covered=True)
            chain = unpack_header(entry).chain_crc
            file.write(entry)
            index.write(INDEX_UNIT.pack(MAGIC, pos, len(entry), number, 1))
            pos += len(entry)
    if file is not None:
        _close(file, segment_size)
    last = messages - 1
    (store / STATE_DIR).mkdir()
    (store / STATE_DIR / SNAPSHOT_FILE).write_bytes(pack_snapshot(last, pos, _state(messages), 1))
    who = Identity("g0", "n0", "incarnation-n0", segment_size, "c0", {"n0": "incarnation-n0"})
    (directory / "identity").write_bytes(encode_json(who))
    (directory / "hardstate").write_bytes(
        encode_slot(1, HardState(1, "n0")) + encode_slot(2, HardState(1, "n0"))
    )
    (directory / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(last, last)))


def _state(messages: int) -> ReplicatedState:
    """Return the replicated state after the messages. Without it, each plan of a batch would read the whole
    log to find out which topics were deleted."""
    state = ReplicatedState()
    for topic in range(TOPICS):
        state.apply(pack_op(TopicConfig(f"topic-{topic}", QUEUES, QUEUES, 6).op()))
        for queue_id in range(QUEUES):
            first = queue_id * TOPICS + topic
            state.bounds(f"topic-{topic}", queue_id).next = len(range(first, messages, QUEUES * TOPICS))
    return state


def _close(file: IO[bytes], size: int) -> None:
    file.truncate(size)
    file.close()
