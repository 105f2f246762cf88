"""A broker group of real processes on loopback: a NameServer and N brokers, from generated configuration.

Used by `dledger up` and its companions, `scripts/quickstart` and the tests. All files are in one
directory, so that several groups can run side by side in different directories and port ranges (see
`spec`). Each group has its own NameServer, or uses the NameServer of another group. The files of a group
are:

``` DIR/cluster.json the requested settings, so that `stop`, `status` ... need only DIR DIR/conf/namesrv.conf
RocketMQ property names; only if the group has its own NameServer DIR/conf/broker-n0.conf ... DIR/logs/
rotating logs, and <name>.out with what a process printed DIR/run/<name>.pid pid and start of each process
DIR/store/n0 ... storePathRootDir of each broker ```
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dledger.local import wire
from dledger.local.conf_files import properties_text, write_conf
from dledger.local.placement import LOOPBACK, NAMESRV, Placement
from dledger.local.ports import HOST, port_taken
from dledger.local.processes import ManagedProcess, ProcessError
from dledger.local.spec import DEFAULT_BASE_PORT, MIB, ClusterError, ClusterSpec, find_base_port
from dledger.runtime.port_waits import ephemeral_ports, holder_text

T = TypeVar("T")

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
"""Time limit, in seconds, for a process to stop. A broker saves a snapshot when it stops. This takes about
5 s if ten thousand queues are in no snapshot yet, and more on a busy disk."""
POLL_S = 0.02
PORTS_TOLD = 4
PORT_WAIT_S = 3.0
"""If another program holds a port that is needed: how long to wait for the port, in seconds, before an
error names that program."""
PACKAGES = Path(__file__).resolve().parents[2]


class NoGroup(ClusterError):
    """Raised if there is no group in the directory."""


class Killed(NamedTuple):
    """A broker that was killed. `at` is the monotonic time just before the signal was sent; it can be
    compared with the time of an asyncio loop."""

    node: str
    pid: int
    at: float


class LocalCluster:
    """A broker group whose files are in one directory. `create` or `open` makes the object. All methods
    block."""

    def __init__(self, directory: Path, spec: ClusterSpec, placement: Placement = LOOPBACK) -> None:
        self.directory = directory
        self.spec = spec
        self.placement: Placement = placement
        self.members: tuple[str, ...] = spec.node_ids
        """Ids of the nodes that are members of the group. The other nodes of the settings are spares: they
        have ports and a place for a store, and are neither started nor waited for. Set it when the members
        change; `write` then writes the new list into the configuration files."""
        self.notes: list[str] = []
        """Texts for people about the configuration files that were written, for example which edits of a
        user were kept."""
        self._namesrv: ManagedProcess | None = None
        if not spec.namesrv:
            self._namesrv = self._process(NAMESRV, "namesrv", "dledger.namesrv")
        self._brokers = {
            node: self._process(node, f"broker-{node}", "dledger.broker") for node in spec.node_ids
        }

    # --- making and finding ---

    @classmethod
    def create(
        cls, directory: Path | str, spec: ClusterSpec | None = None, placement: Placement = LOOPBACK
    ) -> LocalCluster:
        """Write the configuration files and return the group. If the directory holds a group already, the
        settings must fit its stores."""
        cluster = cls.planned(directory, spec, placement)
        cluster.write()
        return cluster

    @classmethod
    def planned(
        cls, directory: Path | str, spec: ClusterSpec | None = None, placement: Placement = LOOPBACK
    ) -> LocalCluster:
        """Return the group as `create` does, but write nothing yet."""
        path = Path(directory).resolve()
        spec = spec or ClusterSpec()
        if cls.known(path):
            existing = cls.open(path)
            _check_same(path, existing.spec, spec)
            if existing.spec != spec and existing.running():
                changed = " and ".join(_changes(existing.spec, spec))
                raise ClusterError(f"the group in {path} is running with another {changed}: stop it first")
        elif path.exists() and not path.is_dir():
            raise ClusterError(f"{path} is a file: a group needs a directory")
        elif path.exists() and any(path.iterdir()):
            raise ClusterError(f"{path} is not empty and does not hold a group: choose another directory")
        return cls(path, spec, placement)

    @classmethod
    def known(cls, directory: Path | str) -> bool:
        """Return whether a group was created in this directory."""
        return (Path(directory) / "cluster.json").exists()

    @classmethod
    def open(cls, directory: Path | str) -> LocalCluster:
        """Open the group that was created in this directory. Raises NoGroup if there is none."""
        path = Path(directory).resolve()
        try:
            spec = ClusterSpec(**json.loads((path / "cluster.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise NoGroup(f"there is no group in {path}: start one with `dledger up`") from None
        except (ValueError, TypeError) as error:
            raise ClusterError(f"{path / 'cluster.json'} cannot be read: {error}") from error
        return cls(path, spec)

    def write(self) -> None:
        """Write the configuration files and `cluster.json`. Edits that a user made in the configuration
        files are kept; `notes` names them."""
        for name in ("conf", "logs", "run", "store"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        conf = self.directory / "conf"
        if self._namesrv is not None:
            self._write_conf(conf / "namesrv.conf", self.namesrv_properties())
        for node in self.members:
            self.write_node(node)
        text = json.dumps(asdict(self.spec), indent=2) + "\n"
        (self.directory / "cluster.json").write_text(text, encoding="utf-8")

    def write_node(self, node: str) -> None:
        """Write the configuration file of one broker."""
        path = self.directory / "conf" / f"broker-{node}.conf"
        self._write_conf(path, self.broker_properties(node))

    def _write_conf(self, path: Path, wanted: Mapping[str, str]) -> None:
        if note := write_conf(path, wanted):
            self.notes.append(note)

    def namesrv_properties(self) -> dict[str, str]:
        """Return the content of `namesrv.conf`."""
        return {
            "bindAddress": self.placement.listen.get(NAMESRV, HOST),
            "listenPort": str(self.spec.namesrv_port),
            "logDir": str(self.directory / "logs" / "namesrv"),
        }

    def broker_properties(self, node: str) -> dict[str, str]:
        """Return the content of a broker's configuration file."""
        spec, listen = self.spec, self.placement.listen.get(node, HOST)
        peers = ";".join(f"{peer}-{self.raft_addr(peer)}" for peer in self.members)
        apart = {"peerBindAddress": listen} if listen != self.placement.host(node) else {}
        return {
            "brokerClusterName": spec.cluster,
            "brokerName": spec.group,
            "brokerIP1": self.placement.host(node),
            "bindAddress": listen,
            **apart,
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

    def _process(self, place: str, name: str, module: str) -> ManagedProcess:
        conf = self.directory / "conf" / f"{name}.conf"
        python = (sys.executable, "-X", "faulthandler")
        return ManagedProcess(
            name,
            self.placement.command(place, python, module, ("-c", str(conf))),
            pid_file=self.directory / "run" / f"{name}.pid",
            output=self.directory / "logs" / f"{name}.out",
            cwd=self.directory,
            environment=_environment(),
        )

    # --- what is where ---

    @property
    def namesrv_addr(self) -> str:
        """`host:port` of the NameServer; several are separated by `;`."""
        return ";".join(self.namesrv_addresses)

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """Addresses of all NameServers that the brokers register with, `host:port` each."""
        if self.spec.namesrv:
            return self.spec.namesrv_addresses
        return (f"{self.placement.host(NAMESRV)}:{self.spec.namesrv_port}",)

    def addr(self, node: str) -> str:
        """Return `host:port` of a node, for clients."""
        return f"{self.placement.host(node)}:{self.spec.port(node)}"

    def raft_addr(self, node: str) -> str:
        """Return `host:port` of a node, for its peers."""
        return f"{self.placement.host(node)}:{self.spec.raft_port(node)}"

    def store(self, node: str) -> Path:
        """Return storePathRootDir of a node."""
        return self.directory / "store" / node

    def pid(self, node: str) -> int | None:
        """Pid of a broker; None if it is not running."""
        return self._broker(node).pid

    def exit_code(self, node: str) -> int | None:
        """Exit code of a broker's process if this object started it and it has ended; otherwise None. A
        signal that ended it is a negative number."""
        return self._broker(node).exit_code()

    def namesrv_pid(self) -> int | None:
        """Pid of the group's own NameServer; None if it is not running, or if the group uses other
        NameServers."""
        return None if self._namesrv is None else self._namesrv.pid

    def running(self) -> list[str]:
        """Return the names of the running processes."""
        return [process.name for process in self._all() if process.pid is not None]

    def down(self) -> list[str]:
        """Return the ids of the brokers that are not running."""
        return [node for node in self.members if self.pid(node) is None]

    def _all(self) -> list[ManagedProcess]:
        own = [] if self._namesrv is None else [self._namesrv]
        return [*own, *self._brokers.values()]

    def _wanted(self) -> list[ManagedProcess]:
        """The processes that run while the group is whole: all but those of spares."""
        own = [] if self._namesrv is None else [self._namesrv]
        return [*own, *(self._brokers[node] for node in self.members)]

    def _broker(self, node: str) -> ManagedProcess:
        try:
            return self._brokers[node]
        except KeyError:
            raise ClusterError(
                f"there is no node {node!r}; the nodes are {', '.join(self.spec.node_ids)}"
            ) from None

    # --- starting and stopping ---

    def check_startable(self) -> None:
        """Raise ClusterError if a port is taken or the disk is too small."""
        self.check_ports()
        self.check_disk()

    def check_ports(self) -> None:
        """Raise ClusterError if another program holds ports that the processes to be started need. The
        text names all these ports."""
        own: list[int] = []
        if self.namesrv_pid() is not None:
            own.append(self.spec.namesrv_port)
        for node in self.spec.node_ids:
            if self.pid(node) is not None:
                own += self.spec.ports_of(node)
        deadline = time.monotonic() + PORT_WAIT_S
        while taken := [
            f"{port} ({use}){holder_text(port)}"
            for port, use in self.spec.ports().items()
            if port not in own and port_taken(port)
        ]:
            if time.monotonic() < deadline:  # a connection may have it, or a process that is about to end
                time.sleep(POLL_S)
                continue
            more = f" and {len(taken) - PORTS_TOLD} more" if len(taken) > PORTS_TOLD else ""
            raise ClusterError(
                f"ports in use by another program: {', '.join(taken[:PORTS_TOLD])}{more}; choose "
                "others with --base-port"
            )

    def ephemeral_note(self) -> str:
        """Return a warning if the system may use the group's ports for outgoing connections; otherwise an
        empty text."""
        given = ephemeral_ports()
        ports = sorted(self.spec.ports())
        if given is None or not any(given[0] <= port <= given[1] for port in ports):
            return ""
        return (
            f"the system uses ports {given[0]} to {given[1]} for outgoing connections, so one of "
            f"{ports[0]} to {ports[-1]} may be in use when the group starts. Choose a --base-port "
            f"below {given[0]}"
        )

    def check_disk(self) -> None:
        """Raise ClusterError, which names the required size, if the disk is too small for the stores."""
        wanted = self.spec.disk_wanted()
        there = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free >= wanted:
            return  # a look at each file of ten thousand queues takes longer than the start
        held = sum(file.stat().st_size for file in self.directory.rglob("*") if file.is_file())
        if free + held < wanted:
            raise ClusterError(
                f"too little disk space at {self.directory}: {self.spec.nodes} nodes with segments of "
                f"{self.spec.segment_size // MIB} MiB need {wanted // MIB} MiB, and {free // MIB} MiB "
                "are free"
            )

    def start(self, limit_s: float = START_LIMIT_S, tell: Callable[[str], None] | None = None) -> list[str]:
        """Start all processes that are not running, and wait until a leader serves and the NameServer
        lists this leader. Returns the names of the started processes.

        `tell` is called with a text that says what is still missing, whenever that changes.
        """
        self.check_startable()
        started: list[ManagedProcess] = []
        try:
            for process in [one for one in self._wanted() if one.pid is None]:
                process.start()
                started.append(process)
            self.wait_ready(limit_s, tell)
        except BaseException:  # also when this program is ended
            for process in reversed(started):
                process.kill()
            raise
        return [process.name for process in started]

    def stop(self, limit_s: float = STOP_LIMIT_S) -> dict[str, str]:
        """Send SIGTERM to all processes, brokers first, and SIGKILL to those that still run after the
        limit. Returns for each process what happened to it."""
        outcome: dict[str, str] = {}
        own = [] if self._namesrv is None else [self._namesrv]
        for processes in (list(self._brokers.values()), own):
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
        """Kill one broker with SIGKILL."""
        at = time.monotonic()
        pid = self._broker(node).kill()
        if pid is None:
            raise ClusterError(f"{node} does not run")
        return Killed(node, pid, at)

    def kill_leader(self, limit_s: float = START_LIMIT_S) -> Killed:
        """Kill the leader with SIGKILL. If there is no leader yet, wait for one."""
        return self.kill(wait_for(self.leader, limit_s, lambda: "no node leads"))

    def terminate(self, node: str, limit_s: float = STOP_LIMIT_S) -> str:
        """Stop one broker with SIGTERM, and with SIGKILL if it still runs after the limit. On SIGTERM a
        leader hands leadership over first. Returns what happened."""
        return self._broker(node).stop(limit_s)

    def signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to a broker, such as SIGSTOP or SIGCONT."""
        if self._broker(node).signal(number) is None:
            raise ClusterError(f"{node} does not run")

    def start_node(self, node: str) -> int:
        """Start one broker without waiting for it; returns its pid."""
        return self._broker(node).start()

    def restart_node(self, node: str, limit_s: float = START_LIMIT_S) -> int:
        """Stop a broker if it runs, start it, and wait until it answers and has caught up; returns its
        pid."""
        self.terminate(node)
        pid = self.start_node(node)
        self.wait_caught_up(limit_s, [node])
        return pid

    def kill_namesrv(self) -> None:
        """Kill the group's own NameServer with SIGKILL. Does nothing if it does not run."""
        if self._namesrv is None:
            raise ClusterError(f"the NameServer {self.namesrv_addr} does not belong to this group")
        self._namesrv.kill()

    def start_namesrv(self) -> None:
        """Start the group's own NameServer again."""
        if self._namesrv is None:
            raise ClusterError(f"the NameServer {self.namesrv_addr} does not belong to this group")
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
            return any(wire.has_route(address, topic) for address in self.namesrv_addresses) or None

        wait_for(created, limit_s, lambda: f"topic {topic} could not be created: {self._describe()}")
        wait_for(routed, limit_s, lambda: f"topic {topic} has no route: {self._describe()}")

    # --- looking ---

    def health(self, node: str, timeout_s: float = 1.0) -> dict[str, Any] | None:
        """Return the JSON object of a broker's `/health`; None if the broker does not answer."""
        host = self.placement.health.get(node, HOST)
        connection = http.client.HTTPConnection(host, self.spec.http_port(node), timeout=timeout_s)
        try:
            connection.request("GET", "/health")
            value = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return value if isinstance(value, dict) else None

    def state(self, node: str) -> dict[str, Any]:
        """Return the Raft state of a node as `/health` shows it; empty if the node does not run or does
        not answer."""
        health = self.health(node) if self.pid(node) is not None else None
        return (health or {}).get("node") or {}

    def committed_index(self, node: str) -> int:
        """Return the highest index that a node knows to be committed; -1 if the node does not answer."""
        return int(self.state(node).get("committed_index", -1))

    def node_status(self, node: str) -> dict[str, Any]:
        """Return what `status` shows of one node. The role is `DOWN` if the node has no process, and
        `SILENT` if it does not answer."""
        pid = self.pid(node)
        state = self.state(node)
        return {
            "id": node,
            "pid": pid,
            "addr": self.addr(node),
            "raft_addr": self.raft_addr(node),
            "store": str(self.store(node)),
            "role": state.get("role") or ("DOWN" if pid is None else "SILENT"),
            "term": state.get("term"),
            "end_index": state.get("end_index"),
            "committed_index": state.get("committed_index"),
        }

    def status(self) -> dict[str, Any]:
        """Return the state of NameServers and groups in the form that `dledger status --json` prints."""
        nodes = [self.node_status(node) for node in self.members]
        leaders = [node for node in nodes if node["role"] == "LEADER"]
        leader = max(leaders, key=lambda node: node["term"] or 0)["id"] if leaders else None
        return {
            "namesrv": [
                {"addr": address, "pid": self.namesrv_pid(), "own": self._namesrv is not None}
                for address in self.namesrv_addresses
            ],
            "groups": [{"name": self.spec.group, "leader": leader, "nodes": nodes}],
        }

    def leader(self) -> str | None:
        """Return the id of the node that leads and serves. If two nodes do, it is the one with the higher
        term; if none does, None."""
        best: tuple[int, str] | None = None
        for node in self.members:
            state = self.state(node)
            if state.get("role") == "LEADER" and state.get("serving"):
                best = max(best or (-1, ""), (int(state.get("term") or 0), node))
        return best[1] if best else None

    def followers_first(self) -> list[str]:
        """Return all node ids with the leader's id last. This is the order of a rolling restart."""
        leader = self.leader()
        return sorted(self.members, key=lambda node: (node == leader, node))

    # --- waiting ---

    def wait_ready(self, limit_s: float = START_LIMIT_S, tell: Callable[[str], None] | None = None) -> str:
        """Wait until a leader serves and a NameServer returns its address for broker id 0; returns the
        leader's node id.

        `tell` is called with a text that says what is still missing, whenever that changes.
        """
        missing = ""

        def ready() -> str | None:
            nonlocal missing
            self._check_alive()
            leader = self.leader()
            before, missing = missing, "no leader is serving yet" if leader is None else self.unshown(leader)
            if tell is not None and missing and missing != before:
                tell(missing)
            return None if missing else leader

        return wait_for(ready, limit_s, lambda: f"{missing}: {self._describe()}")

    def unshown(self, leader: str) -> str:
        """Return the reason why clients cannot find this leader; empty if they can. It is enough that one
        NameServer lists the leader, because clients try all NameServers."""
        group, silent, reasons = self.spec.group, [], []
        for address in self.namesrv_addresses:
            try:
                known = wire.registered(address)
            except wire.NoAnswer as error:
                silent.append(str(error))
                continue
            shown = known[group].leader if group in known else None
            if shown == self.addr(leader):
                return ""
            others = ", ".join(sorted(known)) or "none"
            reasons.append(
                f"NameServer {address} shows {shown or 'no broker'} for {group}"
                if group in known
                else f"NameServer {address} does not know {group} (it knows {others})"
            )
        if not reasons:
            return f"{leader} leads, but no NameServer answers ({'; '.join(silent)})"
        return f"{leader} leads, but {'; '.join(reasons)}"

    def wait_leader(self, limit_s: float = START_LIMIT_S) -> str:
        """Wait until a leader serves; returns its id."""
        return wait_for(self.leader, limit_s, lambda: f"no leader is serving: {self._describe()}")

    def time_to_leader(self, killed: Killed, limit_s: float = START_LIMIT_S) -> tuple[str, float]:
        """Wait until another node leads and serves. Returns its id, and the seconds since the broker was
        killed."""
        return self.wait_leader(limit_s), time.monotonic() - killed.at

    def wait_answering(self, limit_s: float) -> bool:
        """Wait until all brokers answer. Returns False if the time limit is reached first."""
        deadline = time.monotonic() + limit_s
        while not all(self.state(node) for node in self.members):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def wait_down(self, nodes: list[str], limit_s: float) -> bool:
        """Wait until the processes of these brokers have ended. Returns False if the time limit is reached
        first."""
        return all(self._broker(node).wait_gone(limit_s) for node in nodes)

    def wait_caught_up(self, limit_s: float = START_LIMIT_S, nodes: list[str] | None = None) -> None:
        """Wait until these brokers (by default all of them) have caught up: the committed index of each
        broker must reach the committed index that the leader has when this call begins.

        Raises ClusterError if the time limit is reached first.
        """
        wanted = nodes or list(self.members)
        leader = self.wait_leader(limit_s)
        committed = self.committed_index(leader)

        def caught_up() -> bool | None:
            for node in wanted:
                self._check_not_ended(self._broker(node))
            return all(self.committed_index(node) >= committed for node in wanted) or None

        wait_for(
            caught_up, limit_s, lambda: f"nodes have not caught up to entry {committed}: {self._describe()}"
        )

    def wait_registered(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until the first NameServer lists all brokers. (`start` waits only until it lists the
        leader.)"""
        address, own = self.namesrv_addresses[0], set(map(self.addr, self.members))

        def listed() -> bool:
            try:
                known = wire.registered(address).get(self.spec.group)
            except wire.NoAnswer:
                return False
            return known is not None and own <= set(known.addresses.values())

        wait_for(listed, limit_s, lambda: f"not all brokers are registered: {self._describe()}")

    def _check_alive(self) -> None:
        for process in self._wanted():
            self._check_not_ended(process)
            if process.pid is None:
                raise ClusterError(f"{process.name} does not run: {process.tail() or 'no output'}")

    @staticmethod
    def _check_not_ended(process: ManagedProcess) -> None:
        """Raise ClusterError if a process that this object started has ended. The text shows its last
        output."""
        if (code := process.exit_code()) is not None:
            raise ClusterError(f"{process.name} ended (exit code {code}): {process.tail() or 'no output'}")

    def _describe(self) -> str:
        nodes = self.status()["groups"][0]["nodes"]
        return ", ".join(
            f"{node['id']} {node['role']} term {node['term']} committed {node['committed_index']}"
            for node in nodes
        )


def wait_for(look: Callable[[], T | None], limit_s: float, describe: Callable[[], str] | str) -> T:
    """Call `look` again and again until it returns a value other than None and False; returns this value.
    After `limit_s` seconds raises ClusterError with the text of `describe`."""
    deadline = time.monotonic() + limit_s
    while (value := look()) is None or value is False:
        if time.monotonic() > deadline:
            said = describe if isinstance(describe, str) else describe()
            raise ClusterError(f"after {limit_s:g} s {said}")
        time.sleep(POLL_S)
    return value


def _check_same(path: Path, existing: ClusterSpec, wanted: ClusterSpec) -> None:
    """Raise ClusterError if the wanted settings differ from those of the existing group in something that
    existing stores do not allow to change."""
    if existing.group != wanted.group:
        raise ClusterError(
            f"{path} holds the group {existing.group}, not {wanted.group}: choose another directory"
        )
    if existing.node_ids != wanted.node_ids or existing.segment_size != wanted.segment_size:
        raise ClusterError(
            f"{path} holds a group of {existing.nodes} nodes with segments of {existing.segment_size} "
            "bytes; choose another directory, or remove this one"
        )


def _changes(existing: ClusterSpec, wanted: ClusterSpec) -> list[str]:
    before, after = asdict(existing), asdict(wanted)
    names = {"base_port": "base port", "broker": "set of broker properties", "namesrv": "NameServer"}
    return [names.get(name, name) for name, value in after.items() if before[name] != value]


def _environment() -> dict[str, str]:
    """Return the environment variables with which a started process finds this package. If the package is
    installed, none are needed; they would even do harm, because they would put site-packages before the
    standard library in the search path."""
    if str(PACKAGES) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    paths = [str(PACKAGES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(paths)))}


__all__ = [
    "DEFAULT_BASE_PORT",
    "MIB",
    "ClusterError",
    "ClusterSpec",
    "Killed",
    "LocalCluster",
    "NoGroup",
    "ProcessError",
    "find_base_port",
    "properties_text",
    "wait_for",
]
