"""Checks of the machine on which jobs are started. They do not start Spark."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from dledger.runtime.remote_files import files_for
from dledger.spark.doctor.check import Check, Status
from dledger.spark.java import MAX_VERSION, NoJava, cache_dir, find_java
from dledger.spark.packages import package_root

MIB = 1024 * 1024
JVM_MIB = 1100
"""Largest memory, in MiB, that was measured for Spark's own process with its default heap of 1 GiB (450
MiB in an audit)."""
WORKER_MIB = 310
"""Largest memory, in MiB, that was measured for one Python worker while it read whole messages (170 MiB in
an audit). Spark starts one worker per core."""
DISK_MIB = 1024
"""Free disk space, in MiB, below which the doctor warns. Shuffles and spilled rows go to the disk. They
take little room in an audit, and as much as the data if a job sorts messages."""
_PROBE_TIMEOUT_S = 60

PACKAGES: Mapping[str, tuple[str, str]] = {
    "pyspark": ("4.0", "4.4"),
    "pyarrow": ("18", ""),
    "numpy": ("1.26", ""),
    "pandas": ("2.2", "3"),
}
"""Maps each distribution to the versions [from, below) that the extra `spark` asks for; an empty text is
no bound."""
CONNECT_PACKAGES: Mapping[str, tuple[str, str]] = {
    "grpcio": ("1.76", ""),
    "grpcio-status": ("1.76", ""),
    "googleapis-common-protos": ("1.71", ""),
    "zstandard": ("0.25", ""),
}
"""Distributions that Spark Connect needs in addition to PACKAGES."""


def look(
    environ: Mapping[str, str], stores: tuple[str, ...] = (), *, connect: bool = False
) -> Iterator[Check]:
    """Run all checks of the machine. This takes a second, as Java is started to ask for its version.

    `connect`: check only what a client of Spark Connect needs, as its Java and its workers run on another
    machine.
    """
    yield Check(
        "python", Status.OK, f"{platform.python_version()}, {sys.executable}, packages in {package_root()}"
    )
    yield packages(connect=connect)
    if not connect:
        yield java(environ)
        yield from spark_home(environ)
        yield worker_python(environ)
        yield memory(available_mib(Path("/")), os.cpu_count() or 1)
        yield disk(environ)
    yield from (store(path) for path in stores)


def packages(installed: Mapping[str, str] | None = None, *, connect: bool = False) -> Check:
    """Check the versions of the packages of the extra `spark`. `installed`: the packages' versions by
    name; tests pass it."""
    wanted = {**PACKAGES, **CONNECT_PACKAGES} if connect else PACKAGES
    found = {name: version(name) for name in wanted} if installed is None else dict(installed)
    wrong = [
        f"{name} {found.get(name) or 'is missing'}: from {low}" + (f", below {high}" if high else "")
        for name, (low, high) in wanted.items()
        if not _between(found.get(name, ""), low, high)
    ]
    text = ", ".join(f"{name} {found[name]}" for name in wanted if found.get(name))
    if not wrong:
        return Check("packages", Status.OK, text)
    return Check("packages", Status.ERROR, "; ".join(wrong), "pip install 'dledger[spark]'")


def version(name: str) -> str:
    """Return the version of an installed distribution; the empty text if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _between(found: str, low: str, high: str) -> bool:
    return bool(found) and _numbers(low) <= _numbers(found) and (not high or _numbers(found) < _numbers(high))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def java(environ: Mapping[str, str]) -> Check:
    """Check the Java that the session helper chooses."""
    try:
        found = find_java(environ, cache_dir(environ))
    except NoJava as error:
        said, _, advice = str(error).rpartition(". ")
        return Check("java", Status.ERROR, said, advice)
    text = f"{found.version} from {found.origin} ({found.real}), started through {found.home}"
    if found.version > MAX_VERSION:
        return Check("java", Status.WARNING, text, f"Spark 4.3 is known to run on Java 17 to {MAX_VERSION}")
    return Check("java", Status.OK, text)


def spark_home(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check SPARK_HOME. If it is set, Spark is started from there instead of from pip's pyspark, and both
    must have the same version."""
    home = environ.get("SPARK_HOME")
    if home:
        jars = sorted(Path(home).glob("jars/spark-core_*.jar"))
        there = jars[0].stem.rpartition("-")[2] if jars else ""
        ours = version("pyspark")
        if there == ours:
            yield Check("SPARK_HOME", Status.OK, f"{home}, Spark {there}")
        else:
            found = f"{home} holds {f'Spark {there}' if there else 'no Spark'}, the package pyspark is {ours}"
            advice = "unset SPARK_HOME" + (f", or: pip install pyspark=={there}" if there else "")
            yield Check("SPARK_HOME", Status.ERROR, found, advice)
    conf_dir = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    defaults = Path(conf_dir) / "spark-defaults.conf"
    if conf_dir and defaults.is_file():
        lines = defaults.read_text(errors="replace").splitlines()
        keys = [line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
        yield Check("spark-defaults.conf", Status.OK, f"{defaults} sets {', '.join(keys) or 'nothing'}")


def worker_python(environ: Mapping[str, str]) -> Check:
    """Check the Python interpreter that runs the tasks. It must have the version of the driver's
    interpreter and find the same packages."""
    program = environ.get("PYSPARK_PYTHON") or sys.executable
    theirs = bool(environ.get("PYSPARK_PYTHON"))
    origin = "PYSPARK_PYTHON" if theirs else "this one"
    advice = (
        "unset PYSPARK_PYTHON, so that this interpreter is used" if theirs else "pip install 'dledger[spark]'"
    )
    code = "import json, sys, numpy, pyarrow, dledger.audit; print(json.dumps(sys.version_info[:2]))"
    paths = os.pathsep.join(filter(None, [package_root(), environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [program, "-c", code],
            env={**environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("worker python", Status.ERROR, f"{program} ({origin}): {error}", advice)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Check("worker python", Status.ERROR, f"{program} ({origin}): {last[0]}", advice)
    major, minor = json.loads(done.stdout)
    if (major, minor) != sys.version_info[:2]:
        found = f"{program} ({origin}) is {major}.{minor}, the driver {platform.python_version()}"
        return Check("worker python", Status.ERROR, found, advice)
    return Check("worker python", Status.OK, f"{program} ({origin})")


def memory(free_mib: int | None, cores: int) -> Check:
    """Check whether the memory is enough for a session on all cores of this machine. `free_mib`: free
    memory; None if it is not known."""
    need = JVM_MIB + cores * WORKER_MIB
    text = f"a session on {cores} cores takes up to {need} MiB ({JVM_MIB} for Java, {WORKER_MIB} a core)"
    if free_mib is None:
        return Check("memory", Status.OK, f"free: not known; {text}")
    if free_mib >= need:
        return Check("memory", Status.OK, f"{free_mib} MiB free; {text}")
    fitting = max(1, (free_mib - JVM_MIB) // WORKER_MIB)
    return Check(
        "memory",
        Status.WARNING,
        f"{free_mib} MiB free; {text}",
        f"--master 'local[{fitting}]', or without Spark: dledger audit",
    )


def available_mib(root: Path) -> int | None:
    """Return the memory, in MiB, that processes can still allocate: that of the machine, or what is left
    of a container's limit if this is lower."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return None  # not Linux
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = [int(match[1]) // 1024] if match else []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        numbers = [_number(root / "sys/fs/cgroup" / name) for name in (limit, used)]
        if numbers[0] is not None and numbers[1] is not None:
            free.append(max(0, numbers[0] - numbers[1]) // MIB)
    return min(free, default=None)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def disk(environ: Mapping[str, str]) -> Check:
    """Check the disk on which Spark writes shuffles."""
    path = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(path).free // MIB
    except OSError as error:
        return Check("disk", Status.ERROR, f"{path}: {error}", _DISK_ADVICE)
    if not os.access(path, os.W_OK):
        return Check("disk", Status.ERROR, f"{path} cannot be written", _DISK_ADVICE)
    text = f"{path}: {free} MiB free"
    if free < DISK_MIB:
        return Check("disk", Status.WARNING, text, _DISK_ADVICE)
    return Check("disk", Status.OK, text)


_DISK_ADVICE = "set SPARK_LOCAL_DIRS to a directory with space"


def store(path: str) -> Check:
    """Check that a store can be opened from here, and report what it is."""
    from dledger.audit.store_directory import StoreError, open_store

    try:
        replicas = open_store(files_for(path), path)
    except (OSError, StoreError) as error:
        return Check("store", Status.ERROR, str(error), "name the storePathRootDir of a node")
    said = [
        f"replica {replica.name} of {replica.identity.group if replica.identity else 'no known group'}, "
        f"{len(replica.segments)} segments, committed up to {replica.committed}"
        for replica in replicas
    ]
    return Check("store", Status.OK, f"{path}: {'; '.join(said)}")
