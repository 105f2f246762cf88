"""A standalone Spark cluster on loopback, as pip's pyspark brings it, and a Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from dledger.spark.java import cache_dir, find_java

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds."""
SPARK_HOME = Path(str(pyspark.__file__)).parent


@dataclass
class Cluster:
    """`master`: its URL. `environ`: what programs need that talk to it; nothing of ours is on their path."""

    master: str
    environ: dict[str, str]
    directory: Path
    workers: list[int] = field(default_factory=list)
    """Process ids of the workers, which start the executors."""

    def executors(self) -> list[int]:
        """Process ids of the executors that run now, in the order of their workers."""
        parents = {pid: parent for pid, parent in map(_parent, _pids()) if parent}
        found = []
        for worker in self.workers:
            for pid in (pid for pid, parent in parents.items() if parent == worker):
                if b"CoarseGrainedExecutorBackend" in _command(pid):
                    found.append(pid)
        return found

    def submit(self, *arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """spark-submit, from a directory where our packages are not."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, *options, *arguments]
        return run(command, self.environ, self.directory)


def run(command: list[str], environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A program to its end."""
    return subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start it, one core and 1 GiB a worker, and stop it at the end."""
    environ = _environ(directory)
    local = ["--host", "127.0.0.1", "--webui-port", "0"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = directory / "master.log"
        started.append(_daemon("master.Master", [*local, "--port", "0"], environ, log))
        master = _wait_for(log, r"Starting Spark master at (spark://\S+)", started[-1])
        size = ["--cores", "1", "--memory", "1g"]
        for number in range(workers):
            log = directory / f"worker-{number}.log"
            place = ["--work-dir", str(directory / f"worker-{number}")]
            started.append(_daemon("worker.Worker", [*local, *size, *place, master], environ, log))
        for number in range(workers):
            log = directory / f"worker-{number}.log"
            _wait_for(log, r"(Successfully registered) with master", started[1 + number])
        yield Cluster(master, environ, directory, [process.pid for process in started[1:]])
    finally:
        _stop(started)


@contextmanager
def connect_server(
    directory: Path, master: str = "local[2,4]", *, settings: Sequence[str] = (), python_path: str = ""
) -> Iterator[str]:
    """A Spark Connect server of its own process. Its URL, as `sc://127.0.0.1:40123`.

    `python_path`: where the Python processes of the server and, in a local session, of its tasks look; by
    default nothing of ours is there.
    """
    theirs = {"SPARK_CONNECT_MODE": "0", "SPARK_DAEMON_MEMORY": "1g", "PYTHONPATH": python_path}
    environ = {**_environ(directory), **theirs}
    binding = ("address=127.0.0.1", "port=0")
    every = ["spark.ui.enabled=false", *(f"spark.connect.grpc.binding.{one}" for one in binding), *settings]
    arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master]
    arguments += [word for setting in every for word in ("--conf", setting)]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--driver-java-options", QUICK]
    log = directory / "connect.log"
    started = _start([*submit, *arguments], environ, log)
    try:
        yield "sc://" + _wait_for(log, r"Spark Connect server started at: (\S+)", started)
    finally:
        _stop([started])


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _parent(pid: int) -> tuple[int, int]:
    """The process and its parent, which is 0 if the process has ended."""
    try:
        return pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return pid, 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _environ(directory: Path) -> dict[str, str]:
    java = find_java(os.environ, cache_dir(os.environ))
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(directory)),
        "LANG": "C.UTF-8",
        "JAVA_HOME": java.home,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _daemon(what: str, arguments: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
    return _start(program, environ, log)


def _start(program: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(program, env=environ, cwd=log.parent, stdout=out, stderr=out)


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in reversed(started):
        process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(STOP_LIMIT_S)
        finally:
            process.kill()


def _wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """The first group of the pattern, once the log has it."""
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"no {pattern!r}: {log.read_text(errors='replace')[-2000:]}")
