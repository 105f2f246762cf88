"""`dledger bench spark-audit --directory DIR`: how many seconds the audit on Spark takes, and how many
bytes it shuffles.

Uses the three replicas that `dledger bench audit` makes in DIR, and makes them if they are missing. Audits
them several times in one local Spark session: first without damage, then with more and more damaged
entries, spread over the log. For that, one replica is copied, and the copy is damaged and removed
afterwards. Shuffled bytes are those that Spark's own status store counts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dledger.audit.report import Report
from dledger.bench.audit import large_stores
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.store_files import parse_segment_name
from dledger.runtime.files import OsFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAMAGED = (0, 1, 100, 1000)
"""Number of damaged entries in each series of audits. In a log of 2 GB, the largest number puts damage
into every block of digests."""
_INTO_BODY = 8
"""Position, in an entry's body, of the byte in which a bit is flipped."""


def spark_audit(directory: str, megabytes: int, runs: int) -> dict[str, object]:
    """Run `runs` audits for each number of damaged entries; return the figures by name. `megabytes` is the
    size of the stores if they have to be made. Raises ImportError if pyspark is not installed."""
    from dledger.spark.session import session  # pyspark is an extra

    stores = large_stores(Path(directory), megabytes)
    began = time.perf_counter()
    spark = session("bench", "local[2]")
    result: dict[str, object] = {"session, s": round(time.perf_counter() - began, 2)}
    try:
        for count in DAMAGED:
            with tempfile.TemporaryDirectory(prefix="damaged-", dir=directory) as temporary:
                damaged = damaged_copy(stores[0], Path(temporary) / "n0", count) if count else stores[0]
                seconds, shuffled, report = audits(spark, [damaged, *stores[1:]], runs)
            if sum(found.code == "BIT_ROT" for found in report.findings) != count:
                raise SystemExit(f"bench: {len(report.findings)} findings, the first {report.findings[:1]}")
            result[f"{count} damaged, s"] = seconds
            result[f"{count} damaged, shuffled"] = shuffled
    finally:
        spark.stop()
    return result


def audits(spark: SparkSession, stores: list[Path], runs: int) -> tuple[list[float], int, Report]:
    """Run `runs` audits. Return the seconds of each, the number of bytes that the last one shuffled, and
    its report."""
    from dledger.spark.audit_job import audit_stores

    seconds = []
    for _ in range(runs):
        before, began = shuffle_bytes(spark), time.perf_counter()
        report = audit_stores(spark, OsFiles(), [str(store) for store in stores])
        seconds.append(round(time.perf_counter() - began, 2))
        shuffled = shuffle_bytes(spark) - before
    return seconds, shuffled, report


def shuffle_bytes(spark: SparkSession) -> int:
    """Return the number of bytes that all tasks of a local session have written for shuffles so far."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the status store is updated later than the tasks
    executors = context._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(number).totalShuffleWrite() for number in range(executors.size()))


def damaged_copy(store: Path, copy: Path, count: int) -> Path:
    """Make a copy of the store in which one bit is flipped in the bodies of `count` entries, at even
    distances. Returns the copy."""
    shutil.copytree(store, copy)
    (node,) = copy.glob("dledger-*")
    units = b"".join(path.read_bytes() for path in sorted((node / "index").iterdir()))
    entries = len(units.rstrip(b"\0")) // INDEX_UNIT_SIZE
    starts = sorted(
        (start, path)
        for path in (node / "data").iterdir()
        if (start := parse_segment_name(path.name)) is not None
    )
    for number in range(count):
        index = entries * (2 * number + 1) // (2 * count)
        _, pos, size, _, _ = INDEX_UNIT.unpack_from(units, index * INDEX_UNIT_SIZE)
        start, path = max(each for each in starts if each[0] <= pos)
        with path.open("r+b") as file:
            file.seek(pos - start + HEADER_SIZE + min(_INTO_BODY, size - HEADER_SIZE - 1))
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
    return copy
