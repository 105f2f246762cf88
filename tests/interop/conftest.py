"""Installs the real clients into a cache and starts a three-node group for them.

DLEDGER_REQUIRE_INTEROP=1 (set in CI): a client that cannot be installed is a failure, not a skip.
DLEDGER_CACHE: where to keep what was installed (default: ~/.cache/dledger).
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn
from zlib import crc32

import pytest

from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port

DRIVERS = Path(__file__).parent / "drivers"
NPM_PACKAGES = ("ali-ons@3.12", "urllib@2")
PIP_PACKAGE = "rocketmq==0.4.4"
INSTALL_LIMIT_S = 300


def cache() -> Path:
    base = os.environ.get("DLEDGER_CACHE") or str(Path.home() / ".cache" / "dledger")
    return Path(base) / "interop"


def missing(reason: str) -> NoReturn:
    """Skip where a machine cannot have the client; in CI that is a failure."""
    if os.environ.get("DLEDGER_REQUIRE_INTEROP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def install(target: Path, command: list[str], what: str) -> Path:
    """Run an installer for `target` once; the mark says that it finished.

    One installer at a time, of all processes: two of Maven's at once spoil its repository for each other.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return install_locked(target, command, what)


def install_locked(target: Path, command: list[str], what: str) -> Path:
    """Do the work of `install` while the lock is held."""
    mark = target / ".installed"
    # Without this checkout's paths: checkouts that share a cache would install over each other.
    wanted = " ".join(command).replace(str(DRIVERS.parent), "").replace(sys.executable, "python")
    if mark.exists() and mark.read_text() == wanted:
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        done = subprocess.run(
            command, cwd=target, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        missing(f"{what} could not be installed within {INSTALL_LIMIT_S} s")
    if done.returncode:
        missing(f"{what} could not be installed: {(done.stderr or done.stdout).strip()[-600:]}")
    mark.write_text(wanted)
    return target


@dataclass(frozen=True)
class ClientKind:
    """A client of another project: how to start its driver."""

    name: str
    command: Callable[[str], list[str]]
    environment: dict[str, str]


@pytest.fixture(scope="session")
def ali_ons() -> ClientKind:
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("node and npm are not installed")
    (cache() / "npm").mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", ".", *NPM_PACKAGES]
    modules = install(cache() / "npm" / "ali-ons", command, "ali-ons")
    driver = str(DRIVERS / "ali.js")
    return ClientKind("ali-ons", lambda args: ["node", driver, *args.split(), str(modules)], {})


@pytest.fixture(scope="session")
def py_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> ClientKind:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        missing(f"{PIP_PACKAGE} has no wheel for {sys.platform} {platform.machine()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    modules = install(cache() / "pip" / "rocketmq", [*command, "--target", ".", PIP_PACKAGE], PIP_PACKAGE)
    home = tmp_path_factory.mktemp("cpp-home")  # the C++ client writes its log below the home directory
    driver = str(DRIVERS / "pyrocketmq.py")
    return ClientKind(
        "rocketmq (C++)",
        lambda args: [sys.executable, driver, *args.split()],
        {"PYTHONPATH": str(modules), "HOME": str(home), "ROCKETMQ_CLIENT_LOG_DIR": str(home)},
    )


GO_DRIVER = DRIVERS / "go"


@pytest.fixture(scope="session")
def go_client() -> ClientKind | None:
    """Apache's Go client; None where there is no Go to build its driver with, or it gets no modules."""
    if shutil.which("go") is None:
        return None
    try:
        command = ["go", "mod", "download"]
        subprocess.run(command, cwd=GO_DRIVER, check=True, capture_output=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        warnings.warn(f"the Go client is left out: {error.stderr or error}", stacklevel=1)
        return None
    sources = b"".join((GO_DRIVER / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    target = cache() / "go" / f"driver-{crc32(sources):08x}"
    build = ["go", "build", "-C", str(GO_DRIVER), "-buildvcs=false", "-o", str(target / "driver"), "."]
    driver = str(install(target, build, "the driver of the Go client") / "driver")
    return ClientKind("rocketmq-client-go", lambda args: [driver, *args.split()], {})


POMS = Path(__file__).parent / "java"


def rocketmq_libraries(major: int) -> Path:
    """Directory with the jars of Apache RocketMQ 4.9 or 5, from Maven Central."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        missing("java and mvn are not installed")
    pom = POMS / f"rocketmq{major}" / "pom.xml"
    target = cache() / "maven" / f"rocketmq{major}-{crc32(pom.read_bytes()):08x}"
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    return install(target, [*command, f"-DoutputDirectory={target}"], f"Apache RocketMQ {major}")


def java_client(major: int, poll_ms: int = 0, binary: bool = False) -> ClientKind:
    """Apache's Java client of a version; `poll_ms`: pollNameServerInterval instead of its default of 30 s;
    `binary`: with headers in RocketMQ's own serialization instead of JSON, and heartbeats of version 2, where
    it knows them."""
    libraries = rocketmq_libraries(major)
    if shutil.which("javac") is None:
        missing("javac is not installed")
    source = DRIVERS / "JavaDriver.java"
    classes = cache() / "java" / f"{libraries.name}-{crc32(source.read_bytes()):08x}"
    path = f"{libraries}/*"
    install(classes, ["javac", "-nowarn", "-d", str(classes), "-cp", path, str(source)], "the Java driver")
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={classes}"]
    if binary:
        options += ["-Drocketmq.serialize.type=ROCKETMQ", "-Dcom.rocketmq.heartbeat.v2=true"]
    start = ["java", *options, "-cp", f"{classes}:{path}", "JavaDriver"]
    name = f"rocketmq-client {major}" + (f", poll {poll_ms} ms" if poll_ms else "")
    return ClientKind(name, lambda args: [*start, *args.split(), str(poll_ms)], {"JAVA_TOOL_OPTIONS": ""})


MAX_STARTS = 3


class Driver:
    """A running driver: its events, in the order they came. `ms` is the wall clock of this machine."""

    def __init__(self, kind: ClientKind, mode: str, namesrv: str, topic: str, group: str) -> None:
        self.name = f"{kind.name} {mode}"
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._noise: deque[str] = deque(maxlen=10)
        self._kind, self._arguments = kind, f"{mode} {namesrv} {topic} {group}"
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self._process = subprocess.Popen(
            self._kind.command(self._arguments),
            env={**os.environ, **self._kind.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._lines.put(line)

    def wait(self, done: Callable[[list[dict[str, Any]]], bool], limit_s: float) -> None:
        """Until the events so far satisfy `done`."""
        deadline = time.monotonic() + limit_s
        while not done(self.events):
            self._take(max(0.0, min(1.0, deadline - time.monotonic())))
            assert time.monotonic() < deadline, f"{self.name}: after {limit_s} s only {self.summary()}"

    def _take(self, timeout_s: float) -> bool:
        """The next line, if there is one."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return False
        if not line.startswith("{"):
            self._noise.append(line.rstrip())
            return True
        event = json.loads(line)
        if self._starts < MAX_STARTS and self._could_not_start(event):
            self._noise.append(line.rstrip())
            self.close()
            self._start()
        else:
            self.events.append(event)
        return True

    def _could_not_start(self, event: dict[str, Any]) -> bool:
        """Java's consumers give up where the broker that they ask first does not answer within 3 s: it was
        killed just then, or ten JVMs start on two cores. Who runs one starts it again."""
        fatal = not self.events and event["event"] == "fatal"
        return fatal and ".remoting.exception.Remoting" in event["text"]

    def drained(self) -> list[dict[str, Any]]:
        """All events so far, with those that wait to be read."""
        while self._take(0.0):
            pass
        return self.events

    def named(self, event: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [item for item in self.events if item["event"] == event]

    def next_ack_ms(self, after_ms: float, limit_s: float) -> float:
        """Wall clock of the first acknowledgement of a send that began after `after_ms` (wall clock).

        A driver sends one message after the other, so such a send follows an event of that time. A failure
        need not be among them: clients retry by themselves.
        """

        def acks(events: list[dict[str, Any]]) -> list[float]:
            later = [item for item in events if item["ms"] > after_ms]
            return [float(item["ms"]) for item in later[1:] if item["event"] == "acked"]

        self.wait(lambda events: bool(acks(events)), limit_s)
        return acks(self.events)[0]

    def summary(self) -> str:
        counts: dict[str, int] = {}
        for item in self.events:
            counts[item["event"]] = counts.get(item["event"], 0) + 1
        said = "; ".join(self._noise)
        return f"{counts}, last: {self.events[-3:]}, exit code {self._process.poll()}, said: {said}"

    def close(self) -> None:
        """Let it end by itself, else kill it. Then its events are all there."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        while self._take(0):
            pass  # what it said until it ended


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    """Start drivers that end with the test."""
    drivers: list[Driver] = []

    def start(kind: ClientKind, mode: str, namesrv: str, topic: str, group: str) -> Driver:
        drivers.append(Driver(kind, mode, namesrv, topic, group))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("interop") / "group"
    cluster = LocalCluster.create(directory, ClusterSpec(base_port=find_base_port(start=23000)))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def whole_group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed with a node down leaves the next one a group of three all the same."""
    group: LocalCluster | None = None
    if "group" in request.fixturenames:
        group = request.getfixturevalue("group")
    yield
    if group is not None:
        for node in set(group.down()) & set(group.spec.node_ids):
            group.restart_node(node)


@pytest.fixture
def topics(group: LocalCluster) -> Callable[[str], str]:
    """Create topics by name."""

    def make(name: str) -> str:
        group.create_topic(name)
        return name

    return make


def judge_order(events: list[dict[str, Any]]) -> int:
    """No message of a queue comes before all that are in front of it. How many came again."""
    reached: dict[int, int] = {}
    for item in events:
        end = reached.get(item["queue"], 0)
        assert item["offset"] <= end, (item, end)
        reached[item["queue"]] = max(end, item["offset"] + 1)
    return len(events) - sum(reached.values())
