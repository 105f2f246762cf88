"""Check Spark itself: start a session, and run a small job that asks every executor what it finds."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator

from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from dledger.spark.doctor.check import Check, Status
from dledger.spark.doctor.probe import ProbeSource, versions
from dledger.spark.java import NoJava
from dledger.spark.session import PUSHDOWN, session

JOB_LIMIT_S = 60.0
"""Time limit of the job. A job that has not ended by then is cancelled, and the doctor reports that the
cluster gave it no executor."""


def look(master: str | None, stores: tuple[str, ...]) -> Iterator[Check]:
    """Start a session, or use the active one, and run the job."""
    began = time.monotonic()
    theirs = SparkSession.getActiveSession()
    try:
        spark = session("dledger-doctor", master, short=True)
    except (NoJava, PySparkException, Py4JError, OSError) as error:
        yield Check(
            "session",
            Status.ERROR,
            reason(error),
            "see the lines above; the lines of Spark itself are on standard error",
        )
        return
    try:
        yield started(spark, time.monotonic() - began)
        pushed = spark.conf.get(PUSHDOWN, "false")
        advice = "" if pushed == "true" else f"--conf {PUSHDOWN}=true: else everything is read"
        yield Check(
            "pushdown", Status.OK if pushed == "true" else Status.WARNING, f"{PUSHDOWN}={pushed}", advice
        )
        yield from executors(spark, stores)
    finally:
        if theirs is None:
            spark.stop()


def started(spark: SparkSession, seconds: float) -> Check:
    """The check that reports which Spark was started."""
    (row,) = spark.sql(
        "select java_method('java.lang.System', 'getProperty', 'java.version') as java, "
        "java_method('java.lang.System', 'getProperty', 'java.home') as home"
    ).collect()
    master = spark.conf.get("spark.master", "a Spark Connect server")
    text = f"Spark {spark.version} on Java {row.java} ({row.home}), {master}, ready after {seconds:.1f} s"
    return Check("session", Status.OK, text)


def executors(spark: SparkSession, stores: tuple[str, ...]) -> Iterator[Check]:
    """Run the job, and check what the processes that ran its tasks reported. Yields the results of the
    checks."""
    began = time.monotonic()
    stop = threading.Timer(JOB_LIMIT_S, spark.interruptAll)
    stop.daemon = True
    stop.start()
    try:
        rows = ask(spark, stores)
    except (PySparkException, Py4JError) as error:
        late = time.monotonic() - began >= JOB_LIMIT_S
        text = f"no answer in {JOB_LIMIT_S:.0f} s" if late else reason(error)
        yield Check("job", Status.ERROR, text, _NO_EXECUTOR if late else _advice(text))
        return
    finally:
        stop.cancel()
    hosts = sorted({row.host for row in rows})
    largest = max(row.peak_kib for row in rows) // 1024
    text = f"{len(rows)} tasks on {', '.join(hosts)} in {time.monotonic() - began:.1f} s"
    yield Check("job", Status.OK, f"{text}; an idle Python worker takes {largest} MiB")
    yield from alike(rows)
    yield from seen(rows, stores)


def ask(spark: SparkSession, stores: tuple[str, ...]) -> list[Row]:
    """Run the job and return one row per task. There are twice as many tasks as cores, so that every
    executor runs some."""
    tasks = 2 * int(spark.conf.get("spark.default.parallelism", "") or _cores(spark))
    spark.dataSource.register(ProbeSource)
    frame = spark.read.format(ProbeSource.name()).options(tasks=str(tasks), paths=json.dumps(stores))
    rows: list[Row] = frame.load().collect()
    return rows


def _cores(spark: SparkSession) -> int:
    """Return the number of cores of all executors; 2 if the session does not report it (Spark Connect)."""
    return spark.sparkContext.defaultParallelism if hasattr(spark, "_jsparkSession") else 2


def alike(rows: list[Row]) -> Iterator[Check]:
    """Check that the executors have the same versions as the driver."""
    ours = versions()
    odd = {}
    for row in rows:
        theirs = json.loads(row.versions)
        wrong = [f"{name} {theirs[name]} (here {ours[name]})" for name in ours if theirs[name] != ours[name]]
        if wrong:
            odd[row.host] = ", ".join(wrong)
    if odd:
        found = "; ".join(f"{host}: {text}" for host, text in sorted(odd.items()))
        advice = "use the same environment everywhere, see docs/reference/spark.md"
        yield Check("executors", Status.WARNING, found, advice)
    else:
        places = sorted({f"Python {row.python}, our packages from {row.packages}" for row in rows})
        yield Check("executors", Status.OK, "; ".join(places))


def seen(rows: list[Row], stores: tuple[str, ...]) -> Iterator[Check]:
    """Check that every executor sees the stores."""
    for path in stores:
        blind = sorted({f"{row.host}: {said}" for row in rows if (said := json.loads(row.paths)[path])})
        if blind:
            advice = (
                "every executor must see the path: use shared or object storage, see docs/reference/spark.md"
            )
            yield Check("store on executors", Status.ERROR, f"{path}: {'; '.join(blind)}", advice)
        else:
            yield Check("store on executors", Status.OK, f"{path}: visible to all executors")


_NO_EXECUTOR = "no executor took the job: check that the cluster has a free core and 1 GiB of memory for it"


def _advice(text: str) -> str:
    if "ModuleNotFoundError" in text:
        return (
            "the executors lack it: use one environment everywhere, or --archives, see "
            "docs/reference/spark.md"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return "set PYSPARK_PYTHON to a Python of the driver's version that every executor has"
    return "see the logs of the executors"


def reason(error: BaseException) -> str:
    """Return the line of a Spark error that says what happened, without the stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception): |\[[A-Z_.]+\]", line)]
    return (telling[-1:] or lines[:1] or [type(error).__name__])[0]
