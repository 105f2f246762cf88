"""`dledger bench spark-sink`: how many rows a second Spark's sink writes to a group of three real brokers.

Starts the group on loopback in a temporary directory. Writes with one task and with two, and each time
with one and with four requests of a task in flight (`maxInFlight`). Then it writes with one task and four
requests in flight what `idColumn` and `exactlyOnce` cost. Brokers and Spark share the machine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

QUEUES = 8
TASKS = (1, 2)
IN_FLIGHT = (1, 4)
NAMED = {"idColumn": "number", "maxInFlight": "4"}
WAYS: dict[str, tuple[int, dict[str, str]]] = {
    **{
        f"tasks_{tasks}_in_flight_{most}": (tasks, {"maxInFlight": str(most), "dedupId": "false"})
        for tasks in TASKS
        for most in IN_FLIGHT
    },
    "tasks_1_with_ids": (1, NAMED),
    "tasks_1_exactly_once": (1, {**NAMED, "exactlyOnce": "true"}),
    "tasks_1_exactly_once_in_flight_8": (1, {**NAMED, "exactlyOnce": "true", "maxInFlight": "8"}),
}
"""Maps a name to the number of tasks and the options of the sink."""


def spark_write(rows: int, size: int, runs: int) -> dict[str, object]:
    """Return the rows a second of each run, by number of tasks and `maxInFlight`, and by the options for
    ids. The first run of each combination is left out. Raises ImportError if pyspark is not installed."""
    from dledger.spark.session import session  # pyspark is an extra

    spark = session("bench", f"local[{max(TASKS)}]")
    found: dict[str, list[int]] = {name: [] for name in WAYS}
    try:
        with tempfile.TemporaryDirectory(prefix="sink-") as directory:
            spec = ClusterSpec(base_port=find_base_port(3), segment_size=64 * MIB)
            group = LocalCluster.create(Path(directory) / "group", spec)
            group.start()
            try:
                group.create_topic("Sink", QUEUES)
                for run in range(runs + 1):
                    for name, (tasks, options) in WAYS.items():
                        columns = [f"rpad(string(id), {size}, 'x') value"]
                        if "idColumn" in options:
                            columns.append(f"concat('{name}:{run}:', id) number")
                        frame = spark.range(0, rows, 1, tasks).selectExpr(*columns)
                        writer = frame.write.format("dledger").option("servers", group.namesrv_addr)
                        began = time.perf_counter()
                        writer.options(topic="Sink", **options).mode("append").save()
                        if run:
                            found[name].append(round(rows / (time.perf_counter() - began)))
            finally:
                group.stop()
    finally:
        spark.stop()
    return {"rows": rows, "bytes": size, **found}
