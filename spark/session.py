"""A SparkSession that works on a laptop as it is, with the data source `dledger` registered.

What is set and why: workers use this interpreter (else Spark takes `python3` from PATH) and find our
packages (classes are pickled by reference); the driver listens on loopback (odd host names in containers);
no UI, no console bar, errors only in the log; time zone UTC; a failed task is tried again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import audit
from spark.java import Java, cache_dir, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
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
"""


def session(
    app_name: str = "dledger",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    short: bool = False,
) -> SparkSession:
    """The active session, or a new one. `conf` wins over what is set here.

    `short`: for jobs of seconds: one JIT tier and one GC thread, which start in two thirds of the CPU time.

    `master`: as Spark's; default all cores of this machine, or what spark-submit says. spark.java.NoJava
    without a usable Java; ImportError without pyspark.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        active = _start(app_name, master, conf or {}, short)
    register(active)
    return active


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("dledger")` known to a session of anybody's."""
    from spark.source import DledgerSource

    spark.dataSource.register(DledgerSource)


def _start(app_name: str, master: str | None, conf: Mapping[str, str], short: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    cache = cache_dir(os.environ)
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        prepare_environment(find_java(os.environ, cache))
    builder = SparkSession.builder.appName(app_name)
    if not submitted:
        builder = builder.master(master or f"local[*,{TASK_ATTEMPTS}]")
    for key, value in {**_defaults(cache, short), **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepare_environment(java: Java) -> None:
    """Environment that the JVM and the Python workers inherit. What the user has set stays, but JAVA_HOME."""
    os.environ["JAVA_HOME"] = java.home
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_root() not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package_root(), *paths])


def package_root() -> str:
    """Directory that holds our packages: the repository, or site-packages."""
    return str(Path(str(audit.__file__)).resolve().parent.parent)


def _defaults(cache: Path, short: bool) -> dict[str, str]:
    java_options = [f"-Dlog4j2.configurationFile={_log_config(cache).as_uri()}"]
    if short:
        java_options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, min(os.cpu_count() or 2, 8))),
        "spark.sql.warehouse.dir": str(cache / "warehouse"),
        "spark.executorEnv.PYTHONPATH": package_root(),
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.log.level": "ERROR",
    }


def _log_config(cache: Path) -> Path:
    """The log configuration as a file, named by its content and put in place by one rename."""
    path = cache / f"log4j2-{crc32(_LOG4J2.encode()):08x}.properties"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(_LOG4J2)
        os.replace(unfinished, path)
    return path
