"""`dledger bench spark-plans`: what planning large reads costs the driver, without Spark.

Writes a store whose files are nearly empty but as many as in a large one: segments of 1 GiB with one message
each, and ConsumeQueues. Each plan is made in a process of its own, which reports its time, the memory that
planning added to it, and the plan: how many tasks, and how many bytes Spark sends for them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, MAGIC, Kind, encode_entry
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

SEGMENT_SIZE = 1 << 30
UNITS = 100
"""Number of messages in each queue, evenly spread over the segments."""
QUEUES = 8
"""Number of queues of each topic."""
TIME_MS = 1_700_000_000_000
MIB_KIB = 1024


def spark_plans(segments: int, queues: int, partitions: int) -> dict[str, object]:
    """Make each plan once for a store of so many segments and queues; `partitions` is the option
    minPartitions. Returns the figures by plan."""
    with tempfile.TemporaryDirectory(prefix="plans-") as temporary:
        store = Path(temporary) / "n0"
        write_listing(store, segments, queues)
        context = multiprocessing.get_context("spawn")
        found: dict[str, object] = {}
        for name in PLANS:
            with context.Pool(1) as pool:
                found[name] = pool.apply(_measured, (name, str(store), partitions))
        return found


def _measured(name: str, store: str, partitions: int) -> dict[str, object]:
    """Make a plan in this process and return its figures."""
    plan = PLANS[name](store, str(partitions))
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    tasks = list(plan())
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "tasks": len(tasks),
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu, 2),
        "added_mib": round((after.ru_maxrss - before.ru_maxrss) / MIB_KIB),
        "sent_mib": round(sum(len(pickle.dumps(task)) for task in tasks) / (MIB_KIB * MIB_KIB), 1),
    }


Plan = Callable[[], Iterable[Any]]


def _batch(store: str, partitions: str | None = None) -> Plan:
    from dledger.spark.options import parse
    from dledger.spark.views import directory_view

    given = {"path": store} | ({} if partitions is None else {"minPartitions": partitions})
    return directory_view(parse(given, "batch")).plan


def _stream(store: str, partitions: str) -> Plan:
    from dledger.spark.log_streams import DirectoryQueues
    from dledger.spark.options import parse
    from dledger.spark.streaming import PlainStreamReader

    options = {"path": store, "minPartitions": partitions, "startingOffsets": "earliest"}
    parsed = parse(options, "stream")
    reader = PlainStreamReader(parsed, DirectoryQueues(parsed))
    return lambda: reader.partitions(reader.initialOffset(), reader.latestOffset())


def _audit(store: str, partitions: str) -> Plan:
    from dledger.audit.replicas import StoreSource, look_at
    from dledger.spark.audit_source import AuditReader, scan_options

    def plan() -> Iterable[Any]:
        return AuditReader(scan_options(look_at([StoreSource.at(store)]))).partitions()

    return plan


PLANS: dict[str, Callable[[str, str], Plan]] = {
    "batch": lambda store, partitions: _batch(store),
    "batch with minPartitions": _batch,
    "stream of queues": _stream,
    "audit": _audit,
}
"""Maps the name of a plan to a function that prepares it. What that function imports is not measured."""


def write_listing(store: Path, segments: int, queues: int) -> None:
    """Write a store of this number of segments and queues, in which every segment begins with a message."""
    directory = store / "dledger-n0"
    (directory / "data").mkdir(parents=True)
    (directory / "index").mkdir()
    index = bytearray()
    for number in range(segments):
        start = number * SEGMENT_SIZE
        record = encode_record(
            topic="topic-0",
            body=b"x",
            properties="",
            queue_id=0,
            queue_offset=number,
            physical_offset=start + HEADER_SIZE,
            born_timestamp=TIME_MS + number,
            store_timestamp=TIME_MS + number,
        )
        entry = encode_entry(number, 1, start, record, 0, Kind.MESSAGE, covered=True)
        # As if the entry filled its segment, so that plans see the bytes of a full log.
        size = SEGMENT_SIZE if number < segments - 1 else len(entry)
        index += INDEX_UNIT.pack(MAGIC, start, size, number, 1)
        with (directory / "data" / segment_name(start)).open("wb") as file:
            file.write(entry)
            file.truncate(SEGMENT_SIZE)
    last = segments - 1
    (directory / "index" / segment_name(0)).write_bytes(index)
    state = ReplicatedState()
    for number in range(queues):
        topic = f"topic-{number // QUEUES}"
        if number % QUEUES == 0:
            state.apply(pack_op(TopicConfig(topic, QUEUES, QUEUES, 6).op()))
        bounds = state.bounds(topic, number % QUEUES)
        bounds.next, bounds.first_position = UNITS, 0
        place = store / "consumequeue" / topic / str(number % QUEUES)
        place.mkdir(parents=True)
        starts = (segments * unit // UNITS * SEGMENT_SIZE for unit in range(UNITS))
        units = b"".join(UNIT.pack(start + HEADER_SIZE, len(record), 0) for start in starts)
        (place / segment_name(0)).write_bytes(units)
    (store / STATE_DIR).mkdir()
    snapshot = pack_snapshot(last, start + len(entry), state, 1)
    (store / STATE_DIR / SNAPSHOT_FILE).write_bytes(snapshot)
    who = Identity("g0", "n0", "incarnation-n0", SEGMENT_SIZE, "c0", {"n0": "incarnation-n0"})
    (directory / "identity").write_bytes(encode_json(who))
    slots = encode_slot(1, HardState(1, "n0")) + encode_slot(2, HardState(1, "n0"))
    (directory / "hardstate").write_bytes(slots)
    (directory / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(last, last)))
