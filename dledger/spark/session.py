"""A SparkSession that works where it is started, with the data source `dledger` registered.

Four places, and what is set in each (`Place`):

* LOCAL      this machine. Workers use this interpreter (else Spark takes `python3` from PATH) and find our
             packages (classes are pickled by reference); the driver listens on loopback (odd host names in
             containers); no UI, no console bar, errors only in the log; a failed task is tried again.
* CLUSTER    `spark://`, `yarn`, `k8s://`: the same, but the network is Spark's to choose, and our packages
             are sent to the executors.
* SUBMITTED  started by spark-submit: whoever submits configures. Our packages are sent if Spark did not.
* CONNECT    `sc://`, a Spark Connect server: likewise, and no Java is needed here. Streams, whose Python the
             server starts without what clients send, need our packages installed there
             (docs/reference/spark.md).

Everywhere the time zone is UTC and filters are pushed down.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zlib import crc32

from dledger.spark.java import Java, cache_dir, find_java
from dledger.spark.packages import archive, package_root, sent_by_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
REACH_LIMIT_S = 5.0
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""False by default; without it Spark reads everything and filters afterwards."""
_LOG4J2 = """status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.task.name = org.apache.spark.scheduler.TaskSetManager
logger.task.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""
"""Errors only. A shell, which this is to Spark, announces its level unless its own logger has one."""


class Place(Enum):
    """Where a session runs."""

    LOCAL = "local"
    CLUSTER = "cluster"
    SUBMITTED = "submitted"
    CONNECT = "connect"


def connect_server(master: str | None, environ: Mapping[str, str]) -> str:
    """URL of the Spark Connect server that is asked for; empty when none is. SPARK_REMOTE as Spark has it."""
    asked = master or environ.get("SPARK_REMOTE", "")
    return asked if asked.startswith("sc://") else ""


def place_of(master: str | None, environ: Mapping[str, str]) -> Place:
    """By the master asked for; what spark-submit said goes before it."""
    if "PYSPARK_GATEWAY_PORT" in environ:
        return Place.SUBMITTED
    if connect_server(master, environ):
        return Place.CONNECT
    if master is None or master.startswith("local"):
        return Place.LOCAL
    return Place.CLUSTER


def session(
    app_name: str = "dledger",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    short: bool = False,
) -> SparkSession:
    """The active session, or a new one. `conf` wins over what is set here.

    `short`: for jobs of seconds: one JIT tier and one GC thread, which start in two thirds of the CPU time.

    `master`: as Spark's, or `sc://host:port`; default SPARK_REMOTE, all cores of this machine, or what
    spark-submit says. spark.java.NoJava without a usable Java; ImportError without pyspark; OSError when
    nobody listens at the master's address; PySparkException when Spark cannot start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        active = _start(app_name, master, conf or {}, short)
    register(active)
    return active


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("dledger")` known to a session of anybody's, with filter pushdown."""
    from pyspark.errors import PySparkException

    from dledger.spark.source import PushingSource
    from dledger.spark.versions import HAS_PUSHDOWN

    if HAS_PUSHDOWN:
        spark.conf.set(PUSHDOWN, "true")
    try:
        spark.dataSource.register(PushingSource)
    except PySparkException as error:
        # Spark 4.0 keeps what it found by itself (`pyspark_dledger`): the same, as it can push nothing.
        if HAS_PUSHDOWN or "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _start(app_name: str, master: str | None, conf: Mapping[str, str], short: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    place = place_of(master, os.environ)
    cache = cache_dir(os.environ)
    server = connect_server(master, os.environ)
    if place is not Place.SUBMITTED:
        reach(server or master or "")
    builder = SparkSession.builder.appName(app_name)
    if place is Place.CONNECT:
        builder = builder.remote(server)
    elif place is not Place.SUBMITTED:
        prepare_environment(find_java(os.environ, cache), place)
        builder = builder.master(master or f"local[*,{TASK_ATTEMPTS}]")
    for key, value in {**settings(place, cache, short), **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if place is not Place.LOCAL and not sent_by_spark():
        spark.addArtifacts(str(archive(cache)), pyfile=True)
    return spark


def reach(master: str) -> None:
    """OSError when none of the master's addresses can be reached: Spark itself would try for minutes."""
    match = re.match(r"(spark|sc)://([^/;]+)", master)
    if match is None:
        return
    port = {"spark": 7077, "sc": 15002}[match[1]]
    failed = []
    for address in match[2].split(","):
        url = urlsplit(f"//{address}")
        try:
            socket.create_connection((url.hostname, url.port or port), REACH_LIMIT_S).close()
        except OSError as error:
            failed.append(f"{address}: {error}")
        else:
            return
    raise OSError(f"{master} cannot be reached ({'; '.join(failed)})")


def prepare_environment(java: Java, place: Place = Place.LOCAL) -> None:
    """Environment that the JVM and the Python workers inherit. What the user has set stays, but JAVA_HOME."""
    os.environ["JAVA_HOME"] = java.home
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    if place is Place.LOCAL:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_root() not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package_root(), *paths])


def settings(place: Place, cache: Path, short: bool = False) -> dict[str, str]:
    """Spark's configuration in this place."""
    everywhere = {"spark.sql.session.timeZone": "UTC"}
    if place in (Place.SUBMITTED, Place.CONNECT):
        return everywhere
    java_options = [f"-Dlog4j2.configurationFile={_log_config(cache).as_uri()}"]
    if short:
        java_options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    ours = {
        **everywhere,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(cache / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join(java_options),
    }
    if place is Place.CLUSTER:
        return ours
    return {
        **ours,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(2, min(os.cpu_count() or 2, 8))),
        "spark.executorEnv.PYTHONPATH": package_root(),
    }


def _log_config(cache: Path) -> Path:
    """The log configuration as a file, named by its content and put in place by one rename."""
    path = cache / f"log4j2-{crc32(_LOG4J2.encode()):08x}.properties"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(_LOG4J2)
        os.replace(unfinished, path)
    return path
