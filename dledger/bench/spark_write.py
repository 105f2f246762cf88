"""`dledger bench spark-sink`: how many rows a second Spark's sink writes to a group of three real brokers.

Starts the group on loopback in a temporary directory. Writes with one task and with two, and each time
with one and with four requests of a task in flight (`maxInFlight`). Brokers and Spark share the machine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

QUEUES = 8
TASKS = (1, 2)
IN_FLIGHT = (1, 4)


def spark_write(rows: int, size: int, runs: int) -> dict[str, object]:
    """Return the rows a second of each run, by number of tasks and `maxInFlight`. The first run of each
    combination is left out. Raises ImportError if pyspark is not installed."""
    from dledger.spark.session import session  # pyspark is an extra

    spark = session("bench", f"local[{max(TASKS)}]")
    ways = [(tasks, most) for tasks in TASKS for most in IN_FLIGHT]
    found: dict[str, list[int]] = {_name(*way): [] for way in ways}
    try:
        with tempfile.TemporaryDirectory(prefix="sink-") as directory:
            spec = ClusterSpec(base_port=find_base_port(3), segment_size=64 * MIB)
            group = LocalCluster.create(Path(directory) / "group", spec)
            group.start()
            try:
                group.create_topic("Sink", QUEUES)
                for run in range(runs + 1):
                    for tasks, most in ways:
                        frame = spark.range(0, rows, 1, tasks).selectExpr(
                            f"rpad(string(id), {size}, 'x') value"
                        )
                        writer = frame.write.format("dledger").option("servers", group.namesrv_addr)
                        began = time.perf_counter()
                        writer.options(topic="Sink", maxInFlight=str(most)).mode("append").save()
                        if run:
                            found[_name(tasks, most)].append(round(rows / (time.perf_counter() - began)))
            finally:
                group.stop()
    finally:
        spark.stop()
    return {"rows": rows, "bytes": size, **found}


def _name(tasks: int, most: int) -> str:
    return f"tasks_{tasks}_in_flight_{most}"
