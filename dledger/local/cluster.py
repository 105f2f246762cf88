"""A broker group of real processes on loopback: a NameServer and N brokers, from generated configuration.

Used by `scripts/cluster`, `scripts/quickstart` and the tests. Everything lies in one directory, so that
several groups live side by side in different directories and port ranges:

```
DIR/cluster.json               what was asked for: `stop`, `status` ... need nothing but DIR
DIR/conf/namesrv.conf          RocketMQ property names
DIR/conf/broker-n0.conf ...
DIR/logs/                      rotating logs, and <name>.out with what a process printed
DIR/run/<name>.pid             pid and start of each process
DIR/store/n0 ...               storePathRootDir of each broker
```

Ports, from the base port B (default 9876): NameServer B; broker number i (0, 1, ...) takes B + 10 (i + 1) for
clients, the next one for its peers and the one after for HTTP. A group of three needs B ... B + 32.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dledger.local import wire
from dledger.local.ports import CLAIM, HOST, claim, port_taken
from dledger.local.processes import ManagedProcess, ProcessError

T = TypeVar("T")

MIB = 1024 * 1024
DEFAULT_BASE_PORT = 9876
DEFAULT_SEGMENT_SIZE = 64 * MIB
DEFAULT_POOL_SEGMENTS = 2
STATE_BYTES = 32 * MIB
"""Disk for index, queues, small files and logs of one node, to begin with."""
PORTS_PER_NODE = 10
MAX_NODES = 9
START_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
POLL_S = 0.02
PACKAGES = Path(__file__).resolve().parents[2]


class ClusterError(Exception):
    """Something about the group is not as it must be; the text says what to do."""


@dataclass(frozen=True)
class ClusterSpec:
    """What a group is made of. `broker` holds further lines for every broker's configuration file."""

    nodes: int = 3
    base_port: int = DEFAULT_BASE_PORT
    group: str = "broker-a"
    cluster: str = "DefaultCluster"
    segment_size: int = DEFAULT_SEGMENT_SIZE
    pool_segments: int = DEFAULT_POOL_SEGMENTS
    flush: str = "SYNC_FLUSH"
    broker: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ClusterError(f"{self.nodes} nodes: from 1 to {MAX_NODES} can be started")
        if not 1 <= self.base_port <= 65535 - PORTS_PER_NODE * (self.nodes + 1):
            raise ClusterError(f"base port {self.base_port}: the group's ports would not fit below 65536")

    @property
    def node_ids(self) -> tuple[str, ...]:
        """`n0`, `n1`, ..."""
        return tuple(f"n{number}" for number in range(self.nodes))

    @property
    def namesrv_port(self) -> int:
        """Of the NameServer."""
        return self.base_port

    def port(self, node: str) -> int:
        """Where clients reach a node."""
        return self.base_port + PORTS_PER_NODE * (int(node[1:]) + 1)

    def raft_port(self, node: str) -> int:
        """Where the peers reach a node."""
        return self.port(node) + 1

    def http_port(self, node: str) -> int:
        """`/health` and `/metrics` of a node."""
        return self.port(node) + 2

    def ports(self) -> dict[int, str]:
        """Every port with what it is for."""
        ports = {self.namesrv_port: "NameServer"}
        for node in self.node_ids:
            ports[self.port(node)] = f"clients of {node}"
            ports[self.raft_port(node)] = f"peers of {node}"
            ports[self.http_port(node)] = f"HTTP of {node}"
        return ports

    def disk_wanted(self) -> int:
        """Bytes that the group takes before the first segment is full, with its pools."""
        return self.nodes * (self.segment_size * (1 + self.pool_segments) + STATE_BYTES)


def find_base_port(nodes: int = 3, start: int = DEFAULT_BASE_PORT, step: int = CLAIM) -> int:
    """The first base port from `start` on with all ports of a group free, which now are this process's."""
    for base in range(start, 30000, step):
        ports = ClusterSpec(nodes=nodes, base_port=base).ports()
        if not any(port_taken(port) for port in ports) and claim(ports):
            return base
    raise ClusterError(f"no free range of ports for {nodes} nodes between {start} and 30000")


class Killed(NamedTuple):
    """Who was killed; `at` is the monotonic clock just before the signal, which an asyncio loop shows too."""

    node: str
    pid: int
    at: float


class LocalCluster:
    """A group in a directory. Made by `create` or `open`; all methods block."""

    def __init__(self, directory: Path, spec: ClusterSpec) -> None:
        self.directory = directory
        self.spec = spec
        self._namesrv = self._process("namesrv", "dledger.namesrv", directory / "conf" / "namesrv.conf")
        self._brokers = {
            node: self._process(
                f"broker-{node}", "dledger.broker", directory / "conf" / f"broker-{node}.conf"
            )
            for node in spec.node_ids
        }

    # --- making and finding ---

    @classmethod
    def create(cls, directory: Path | str, spec: ClusterSpec | None = None) -> LocalCluster:
        """Write the configuration files; an existing group in the directory must be the same one."""
        path = Path(directory).resolve()
        spec = spec or ClusterSpec()
        known = path / "cluster.json"
        if known.exists():
            existing = cls.open(path)
            if existing.spec != spec and existing.running():
                raise ClusterError(f"another group runs in {path}: stop it first")
            if existing.spec.node_ids != spec.node_ids or existing.spec.segment_size != spec.segment_size:
                raise ClusterError(
                    f"{path} holds a group of {existing.spec.nodes} nodes with segments of "
                    f"{existing.spec.segment_size} bytes; take another directory, or remove this one"
                )
        elif path.exists() and any(path.iterdir()):
            raise ClusterError(f"{path} is not empty and holds no group")
        cluster = cls(path, spec)
        cluster._write_files()
        return cluster

    @classmethod
    def known(cls, directory: Path | str) -> bool:
        """Whether a group was created in this directory."""
        return (Path(directory) / "cluster.json").exists()

    @classmethod
    def open(cls, directory: Path | str) -> LocalCluster:
        """The group that was created in this directory."""
        path = Path(directory).resolve()
        try:
            spec = ClusterSpec(**json.loads((path / "cluster.json").read_text()))
        except FileNotFoundError:
            raise ClusterError(f"no group in {path}: start one with `scripts/cluster start --dir`") from None
        except (ValueError, TypeError) as error:
            raise ClusterError(f"{path / 'cluster.json'} cannot be read: {error}") from error
        return cls(path, spec)

    def _write_files(self) -> None:
        for name in ("conf", "logs", "run", "store"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        conf = self.directory / "conf"
        (conf / "namesrv.conf").write_text(properties_text(self.namesrv_properties()))
        for node in self.spec.node_ids:
            self.write_node(node)
        text = json.dumps(asdict(self.spec), indent=2) + "\n"
        (self.directory / "cluster.json").write_text(text)

    def write_node(self, node: str) -> None:
        """Write the configuration file of one broker."""
        path = self.directory / "conf" / f"broker-{node}.conf"
        path.write_text(properties_text(self.broker_properties(node)))

    def namesrv_properties(self) -> dict[str, str]:
        """Content of `namesrv.conf`."""
        return {
            "bindAddress": HOST,
            "listenPort": str(self.spec.namesrv_port),
            "logDir": str(self.directory / "logs" / "namesrv"),
        }

    def broker_properties(self, node: str) -> dict[str, str]:
        """Content of a broker's configuration file."""
        spec = self.spec
        peers = ";".join(f"{peer}-{HOST}:{spec.raft_port(peer)}" for peer in spec.node_ids)
        return {
            "brokerClusterName": spec.cluster,
            "brokerName": spec.group,
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(spec.port(node)),
            "httpPort": str(spec.http_port(node)),
            "namesrvAddr": self.namesrv_addr,
            "storePathRootDir": str(self.store(node)),
            "logDir": str(self.directory / "logs" / f"broker-{node}"),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": spec.group,
            "dLegerSelfId": node,
            "dLegerPeers": peers,
            "flushDiskType": spec.flush,
            "mapedFileSizeCommitLog": str(spec.segment_size),
            "segmentPoolSize": str(spec.pool_segments),
            **spec.broker,
        }

    def _process(self, name: str, module: str, conf: Path) -> ManagedProcess:
        return ManagedProcess(
            name,
            [sys.executable, "-X", "faulthandler", "-m", module, "-c", str(conf)],
            pid_file=self.directory / "run" / f"{name}.pid",
            output=self.directory / "logs" / f"{name}.out",
            cwd=self.directory,
            environment={"PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), *_python_path()]))},
        )

    # --- what is where ---

    @property
    def namesrv_addr(self) -> str:
        """`host:port` of the NameServer."""
        return f"{HOST}:{self.spec.namesrv_port}"

    def addr(self, node: str) -> str:
        """`host:port` for clients of a node."""
        return f"{HOST}:{self.spec.port(node)}"

    def store(self, node: str) -> Path:
        """storePathRootDir of a node."""
        return self.directory / "store" / node

    def pid(self, node: str) -> int | None:
        """Of a running broker."""
        return self._broker(node).pid

    def namesrv_pid(self) -> int | None:
        """Of the running NameServer."""
        return self._namesrv.pid

    def running(self) -> list[str]:
        """Names of the processes that run."""
        return [process.name for process in self._all() if process.pid is not None]

    def down(self) -> list[str]:
        """Ids of the brokers that do not run."""
        return [node for node in self.spec.node_ids if self.pid(node) is None]

    def _all(self) -> list[ManagedProcess]:
        return [self._namesrv, *self._brokers.values()]

    def _broker(self, node: str) -> ManagedProcess:
        try:
            return self._brokers[node]
        except KeyError:
            raise ClusterError(f"no node {node!r}: there are {', '.join(self.spec.node_ids)}") from None

    # --- starting and stopping ---

    def check_ports(self) -> None:
        """ClusterError that names every port of a process to be started that somebody else holds."""
        own: list[int] = []
        if self._namesrv.pid is not None:
            own.append(self.spec.namesrv_port)
        for node in self.spec.node_ids:
            if self.pid(node) is not None:
                own += [self.spec.port(node), self.spec.raft_port(node), self.spec.http_port(node)]
        taken = [
            f"{port} ({use})"
            for port, use in self.spec.ports().items()
            if port not in own and port_taken(port)
        ]
        if taken:
            raise ClusterError(
                f"in use by another program: port {', '.join(taken)}; choose others with --base-port"
            )

    def check_disk(self) -> None:
        """ClusterError with the amount wanted when the disk is too small for the stores."""
        wanted = self.spec.disk_wanted()
        held = sum(file.stat().st_size for file in self.directory.rglob("*") if file.is_file())
        free = shutil.disk_usage(self.directory).free
        if free + held < wanted:
            raise ClusterError(
                f"too little disk at {self.directory}: {wanted // MIB} MiB wanted for {self.spec.nodes} "
                f"nodes with segments of {self.spec.segment_size // MIB} MiB, {free // MIB} MiB free"
            )

    def start(self, limit_s: float = START_LIMIT_S) -> list[str]:
        """Start whatever does not run and wait until a leader serves. Names of what was started."""
        self.check_ports()
        self.check_disk()
        started = [process for process in self._all() if process.pid is None]
        for process in started:
            process.start()
        try:
            self.wait_ready(limit_s)
        except (ClusterError, KeyboardInterrupt):
            for process in reversed(started):
                process.kill()
            raise
        return [process.name for process in started]

    def stop(self, limit_s: float = STOP_LIMIT_S) -> dict[str, str]:
        """SIGTERM to all, brokers first; SIGKILL after the limit. What happened to each process."""
        outcome: dict[str, str] = {}
        for processes in (list(self._brokers.values()), [self._namesrv]):
            for process in processes:
                if process.signal(signal.SIGTERM) is None:
                    outcome[process.name] = "not running"
            deadline = time.monotonic() + limit_s
            for process in processes:
                if process.name not in outcome:
                    gone = process.wait_gone(max(0.0, deadline - time.monotonic()))
                    outcome[process.name] = "stopped" if gone else process.stop(0)
        return outcome

    def kill(self, node: str) -> Killed:
        """SIGKILL one broker."""
        at = time.monotonic()
        pid = self._broker(node).kill()
        if pid is None:
            raise ClusterError(f"{node} does not run")
        return Killed(node, pid, at)

    def kill_leader(self) -> Killed:
        """SIGKILL the broker that leads now."""
        leader = self.leader()
        if leader is None:
            raise ClusterError("no node leads at the moment")
        return self.kill(leader)

    def terminate(self, node: str, limit_s: float = STOP_LIMIT_S) -> str:
        """SIGTERM one broker (it hands leadership over first), SIGKILL after the limit. What happened."""
        return self._broker(node).stop(limit_s)

    def signal(self, node: str, number: signal.Signals) -> None:
        """Any signal, as SIGSTOP and SIGCONT."""
        if self._broker(node).signal(number) is None:
            raise ClusterError(f"{node} does not run")

    def start_node(self, node: str) -> int:
        """Start one broker, without waiting for it. Its pid."""
        return self._broker(node).start()

    def restart_node(self, node: str, limit_s: float = START_LIMIT_S) -> int:
        """Stop a broker if it runs, start it, wait until it answers and has caught up. Its pid."""
        self.terminate(node)
        pid = self.start_node(node)
        self.wait_caught_up(limit_s, [node])
        return pid

    def kill_namesrv(self) -> None:
        """SIGKILL the NameServer."""
        self._namesrv.kill()

    def start_namesrv(self) -> None:
        """Start the NameServer again."""
        self._namesrv.start()

    def create_topic(self, topic: str, queues: int = 4, limit_s: float = START_LIMIT_S) -> None:
        """Create a topic and wait until the NameServer knows it."""

        def created() -> bool | None:
            try:
                return (
                    wire.create_topic(self.addr(self.wait_leader(limit_s)), topic, queues).code == 0 or None
                )
            except wire.NoAnswer:
                return None

        def routed() -> bool | None:
            return wire.has_route(self.namesrv_addr, topic) or None

        wait_for(created, limit_s, lambda: f"topic {topic} could not be created: {self._describe()}")
        wait_for(routed, limit_s, lambda: f"topic {topic} has no route: {self._describe()}")

    # --- looking ---

    def health(self, node: str, timeout_s: float = 1.0) -> dict[str, Any] | None:
        """The JSON object of a broker's `/health`; None when it does not answer."""
        connection = http.client.HTTPConnection(HOST, self.spec.http_port(node), timeout=timeout_s)
        try:
            connection.request("GET", "/health")
            value = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return value if isinstance(value, dict) else None

    def state(self, node: str) -> dict[str, Any]:
        """Raft state of a node as `/health` shows it; empty when it does not run or does not answer."""
        health = self.health(node) if self.pid(node) is not None else None
        return (health or {}).get("node") or {}

    def committed_index(self, node: str) -> int:
        """Index up to which a node knows everything as committed; -1 when it does not answer."""
        return int(self.state(node).get("committed_index", -1))

    def node_status(self, node: str) -> dict[str, Any]:
        """One entry of `nodes` in `status`. Role `DOWN`: no process; `SILENT`: it does not answer."""
        pid = self.pid(node)
        state = self.state(node)
        return {
            "id": node,
            "pid": pid,
            "addr": self.addr(node),
            "raft_addr": f"{HOST}:{self.spec.raft_port(node)}",
            "store": str(self.store(node)),
            "role": state.get("role") or ("DOWN" if pid is None else "SILENT"),
            "term": state.get("term"),
            "end_index": state.get("end_index"),
            "committed_index": state.get("committed_index"),
        }

    def status(self) -> dict[str, Any]:
        """NameServers and groups, as `scripts/cluster status --json` prints them."""
        nodes = [self.node_status(node) for node in self.spec.node_ids]
        leaders = [node for node in nodes if node["role"] == "LEADER"]
        leader = max(leaders, key=lambda node: node["term"] or 0)["id"] if leaders else None
        return {
            "namesrv": [{"addr": self.namesrv_addr, "pid": self.namesrv_pid()}],
            "groups": [{"name": self.spec.group, "leader": leader, "nodes": nodes}],
        }

    def leader(self) -> str | None:
        """Id of the node that leads and serves, of the highest term if two say so; None at the moment."""
        best: tuple[int, str] | None = None
        for node in self.spec.node_ids:
            state = self.state(node)
            if state.get("role") == "LEADER" and state.get("serving"):
                best = max(best or (-1, ""), (int(state.get("term") or 0), node))
        return best[1] if best else None

    def followers_first(self) -> list[str]:
        """All node ids, the leader's last: the order of a rolling restart."""
        leader = self.leader()
        return sorted(self.spec.node_ids, key=lambda node: (node == leader, node))

    # --- waiting ---

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> str:
        """Until a leader serves and the NameServer gives its address for id 0. The leader's id."""

        def ready() -> str | None:
            self._check_alive()
            leader = self.leader()
            if leader is None:
                return None
            try:
                master = wire.master_address(self.namesrv_addr, self.spec.group)
            except wire.NoAnswer:
                return None
            return leader if master == self.addr(leader) else None

        return wait_for(ready, limit_s, lambda: f"no leader serves: {self._describe()}")

    def wait_leader(self, limit_s: float = START_LIMIT_S) -> str:
        """Until a leader serves. Its id."""
        return wait_for(self.leader, limit_s, lambda: f"no leader serves: {self._describe()}")

    def time_to_leader(self, limit_s: float = START_LIMIT_S) -> tuple[str, float]:
        """Wait until a leader serves: its id and the seconds that it took."""
        started = time.monotonic()
        return self.wait_leader(limit_s), time.monotonic() - started

    def wait_down(self, nodes: list[str], limit_s: float) -> bool:
        """Whether these brokers' processes end within the limit."""
        return all(self._broker(node).wait_gone(limit_s) for node in nodes)

    def wait_caught_up(self, limit_s: float = START_LIMIT_S, nodes: list[str] | None = None) -> None:
        """Until these brokers (default: all) hold, and know of, all that is committed now."""
        wanted = nodes or list(self.spec.node_ids)
        leader = self.wait_leader(limit_s)
        committed = self.committed_index(leader)

        def caught_up() -> bool | None:
            return all(self.committed_index(node) >= committed for node in wanted) or None

        wait_for(caught_up, limit_s, lambda: f"not caught up to {committed}: {self._describe()}")

    def _check_alive(self) -> None:
        for process in self._all():
            code = process.exit_code()
            if code is not None or process.pid is None:
                raise ClusterError(
                    f"{process.name} ended (exit code {code}): {process.tail() or 'no output'}"
                )

    def _describe(self) -> str:
        nodes = self.status()["groups"][0]["nodes"]
        return ", ".join(
            f"{node['id']} {node['role']} term {node['term']} committed {node['committed_index']}"
            for node in nodes
        )


def wait_for(look: Callable[[], T | None], limit_s: float, describe: Callable[[], str]) -> T:
    """Poll until `look` gives something; ClusterError with `describe()` after the limit."""
    deadline = time.monotonic() + limit_s
    while (value := look()) is None:
        if time.monotonic() > deadline:
            raise ClusterError(f"after {limit_s:g} s {describe()}")
        time.sleep(POLL_S)
    return value


def properties_text(properties: Mapping[str, str]) -> str:
    """A configuration file: `key=value` lines."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _python_path() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


__all__ = [
    "ClusterError",
    "ClusterSpec",
    "Killed",
    "LocalCluster",
    "ProcessError",
    "find_base_port",
    "properties_text",
    "wait_for",
]
