"""A SparkSession that works wherever it is started, with the data source `dledger` registered.

A session runs in one of four places (`Place`), and each place has its own settings:

* LOCAL: this machine. Python workers use the interpreter of this process (otherwise Spark takes `python3`
  from PATH) and find our packages, which they need because classes are pickled by reference. The driver
  listens on loopback, because containers may have unusual host names. There is no UI and no progress bar
  on the console, and only errors are logged. A failed task is retried.
* CLUSTER: `spark://`, `yarn` or `k8s://`. As LOCAL, but Spark chooses the network address, and our
  packages are sent to the executors.
* SUBMITTED: started by spark-submit, which gets its configuration from the user. Our packages are sent if
  Spark did not send them.
* CONNECT: `sc://`, a Spark Connect server. As SUBMITTED, and no Java is needed on this machine. Streams
  need our packages installed on the server, because the server starts the Python of streams without the
  packages that clients send (docs/reference/spark.md).

In all places the time zone is UTC, and filters are pushed down to the data source.
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
"""Setting that enables filter pushdown in Python data sources. Spark's default is false: Spark then reads
everything and filters it afterwards."""
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
"""Configuration of Spark's logging that shows only errors. Spark treats a Python process without
spark-submit as a shell. A shell logs its log level at the start, unless the shell's logger has a level of
its own."""


class Place(Enum):
    """The place where a session runs."""

    LOCAL = "local"
    CLUSTER = "cluster"
    SUBMITTED = "submitted"
    CONNECT = "connect"


def connect_server(master: str | None, environ: Mapping[str, str]) -> str:
    """Return the URL of the Spark Connect server that `master` or, without it, SPARK_REMOTE names. Empty
    if neither names such a server."""
    asked = master or environ.get("SPARK_REMOTE", "")
    return asked if asked.startswith("sc://") else ""


def place_of(master: str | None, environ: Mapping[str, str]) -> Place:
    """Return the place of a session with this master. An environment that spark-submit has set takes
    precedence over the master."""
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
    """Return the active session, or start one. `conf` takes precedence over the settings made here.

    `master`: as in Spark, or `sc://host:port`. Default: SPARK_REMOTE, or what spark-submit says, or all
    cores of this machine. `short`: tune the session for jobs of seconds: Java uses one JIT tier and one GC
    thread, and starts in two thirds of the CPU time.

    Raises spark.java.NoJava without a usable Java, ImportError without pyspark, OSError if nothing listens
    at the master's address, and PySparkException if Spark cannot start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        active = _start(app_name, master, conf or {}, short)
    register(active)
    return active


def register(spark: SparkSession) -> None:
    """Register the data source in a session, so that `spark.read.format("dledger")` works, and enable
    filter pushdown."""
    from pyspark.errors import PySparkException

    from dledger.spark.source import PushingSource
    from dledger.spark.versions import HAS_PUSHDOWN

    if HAS_PUSHDOWN:
        spark.conf.set(PUSHDOWN, "true")
    try:
        spark.dataSource.register(PushingSource)
    except PySparkException as error:
        # Spark 4.0 keeps the source that it found itself (`pyspark_dledger`). It is equivalent, as Spark 4.0
        # cannot push filters down.
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
    """Raises OSError if none of the master's addresses can be reached. Spark itself would keep trying for
    minutes."""
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
    """Set the environment variables that the JVM and the Python workers inherit. Of the user's values,
    only JAVA_HOME is replaced."""
    os.environ["JAVA_HOME"] = java.home
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    if place is Place.LOCAL:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_root() not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package_root(), *paths])


def settings(place: Place, cache: Path, short: bool = False) -> dict[str, str]:
    """Return Spark's configuration for this place."""
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
        "spark.python.daemon.module": "dledger.spark.quiet_daemon",
    }


def _log_config(cache: Path) -> Path:
    """Write the log configuration to a file and return its path. Its name depends on its content, and it
    appears complete by one rename."""
    path = cache / f"log4j2-{crc32(_LOG4J2.encode()):08x}.properties"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(_LOG4J2)
        os.replace(unfinished, path)
    return path
