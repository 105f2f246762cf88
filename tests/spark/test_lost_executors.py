"""Executors that are killed in the middle of an audit and of a stream, on a cluster of a master and two
workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.bench.audit import large_stores
from tests.audit.engine import audit
from tests.audit.store_builder import sample_log, write_store
from tests.spark.views_kit import places_of

if TYPE_CHECKING:
    from tests.spark.standalone import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

KILLER = """
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from dledger.spark.session import session

MASTER, CHECKPOINT, *STORES = sys.argv[1:]
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.python.authenticate.socketTimeout": "120s",
}
spark = session("lost", MASTER, SETTINGS)
app = spark.sparkContext.applicationId


def executors():
    # The processes of this application's executors.
    found = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\\0") if place.name.isdigit() else []
        except OSError:
            continue
        if any(b"CoarseGrainedExecutorBackend" in word for word in words) and app.encode() in words:
            found.append(int(place.name))
    return found


def kill_when(ready):
    # Kill one executor as soon as ready() is true.
    while not ready():
        time.sleep(0.01)
    victims = executors()
    assert len(victims) == 2, victims
    os.kill(victims[0], signal.SIGKILL)


def in_the_middle():
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    return any(0 < stage.numCompletedTasks < stage.numTasks - 1 for stage in stages)
"""
"""Beginning of a program: a session on a cluster, and functions to kill an executor of it."""

AUDIT = """
from dledger.runtime.files import OsFiles
from dledger.spark.audit_job import audit_stores

killer = threading.Thread(target=kill_when, args=(in_the_middle,))
killer.start()
report = audit_stores(spark, OsFiles(), STORES)
killer.join()
print(json.dumps(report.as_json()))
spark.stop()
"""

STREAM = """
query = (
    spark.readStream.format("dledger")
    .options(path=STORES[0], startingOffsets="earliest", maxOffsetsPerTrigger="300", minPartitions="8")
    .load()
    .select("topic", "partition", "offset", "logIndex")
    .writeStream.format("parquet")
    .options(path=CHECKPOINT + "/rows", checkpointLocation=CHECKPOINT + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
kill_when(lambda: len(query.recentProgress) >= 2 or not query.isActive)
assert query.isActive, f"the stream ended before an executor was killed: {query.exception()}"
query.awaitTermination()
rows = spark.read.parquet(CHECKPOINT + "/rows").collect()
print(json.dumps(sorted(tuple(row) for row in rows)))
spark.stop()
"""


def on_cluster(program: str, directory: Path, stores: list[Path]) -> str:
    """Run a program on a cluster. Returns the last line that it prints."""
    from tests.spark.standalone import cluster, run

    with cluster(directory) as running:
        given: Cluster = running
        environ = {**given.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", KILLER + program, given.master, str(directory), *map(str, stores)]
        done = run(command, environ, directory)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_an_audit_whose_executor_is_lost_gives_the_same_report(tmp_path: Path) -> None:
    stores = large_stores(tmp_path / "stores", 300)
    theirs = json.loads(on_cluster(AUDIT, tmp_path, stores))
    assert {**theirs, "seconds": 0} == {**audit(stores).as_json(), "seconds": 0}


def test_a_stream_whose_executor_is_lost_loses_and_repeats_nothing(tmp_path: Path) -> None:
    log = sample_log(2500)
    store = write_store(log, tmp_path / "n0")
    found = json.loads(on_cluster(STREAM, tmp_path, [store]))
    assert [tuple(row) for row in found] == sorted(places_of(log))
