"""A SparkSession that works where it is started, with the data source `dledger` registered.

A session runs in one of four places (`Place`), and each has its own settings:

* LOCAL      this machine. Workers use this interpreter (otherwise Spark takes `python3` from PATH) and find
             our packages, as classes are pickled by reference. The driver listens on loopback, because
             containers may have odd host names. No UI, no console bar, only errors in the log; a failed task
             is retried.
* CLUSTER    `spark://`, `yarn`, `k8s://`: as LOCAL, but Spark chooses the network, and our packages are sent
             to the executors.
* SUBMITTED  started by spark-submit, which gets its configuration from the user. Our packages are sent if
             Spark did not send them.
* CONNECT    `sc://`, a Spark Connect server: as SUBMITTED, and no Java is needed here. Streams need our
             packages installed on the server, which starts their Python without the packages that clients
             send (docs/reference/spark.md).

In all places the time zone is UTC and filters are pushed down.
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
"""Spark's default is false: then it reads everything and filters afterwards."""
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
"""Show only errors. A process like this one is a shell to Spark, which logs its level at the start unless its
own logger has a level."""


class Place(Enum):
    """Where a session runs."""

    LOCAL = "local"
    CLUSTER = "cluster"
    SUBMITTED = "submitted"
    CONNECT = "connect"


def connect_server(master: str | None, environ: Mapping[str, str]) -> str:
    """URL of the Spark Connect server that is asked for, by `master` or by SPARK_REMOTE; empty when none
    is."""
    asked = master or environ.get("SPARK_REMOTE", "")
    return asked if asked.startswith("sc://") else ""


def place_of(master: str | None, environ: Mapping[str, str]) -> Place:
    """The place of a session with this master. What spark-submit has set takes precedence over the master."""
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
    """The active session, or a new one. `conf` wins over the settings made here.

    `short`: for jobs of seconds: one JIT tier and one GC thread, which start in two thirds of the CPU time.

    `master`: as Spark's, or `sc://host:port`; default SPARK_REMOTE, all cores of this machine, or what
    spark-submit says. spark.java.NoJava without a usable Java; ImportError without pyspark; OSError when
    nothing listens at the master's address; PySparkException when Spark cannot start.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        active = _start(app_name, master, conf or {}, short)
    register(active)
    return active


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("dledger")` known to any session, with filter pushdown."""
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
    """OSError when none of the master's addresses can be reached; Spark itself would keep trying for
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
    """Set the environment that the JVM and the Python workers inherit. Only JAVA_HOME replaces a value of the
    user."""
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
    """Write the log configuration to a file. Its name depends on its content, and one rename puts it in
    place."""
    path = cache / f"log4j2-{crc32(_LOG4J2.encode()):08x}.properties"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(_LOG4J2)
        os.replace(unfinished, path)
    return path
