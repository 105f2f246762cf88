"""Apache RocketMQ's own NameServer and brokers in DLedger mode: a group of three in a directory.

Ports, from the base port B: NameServer B, DLedger peers B + 1 to B + 3; broker number i (0, 1, 2) takes
B + 10 (i + 1) for clients, two below it for its fast port and the one after for its HA port.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dledger.formats.addresses import split_address
from dledger.local import wire
from dledger.local.cluster import wait_for
from dledger.local.processes import ManagedProcess

HOST = "127.0.0.1"
BROKER_NAME = "RaftNode00"
NODES = ("n0", "n1", "n2")
SEGMENT_SIZE = 512 * 1024
QUEUES = 4
"""As many as a topic gets that is created by sending to it: a new leader may not know the topic yet, because
topics go from master to slave every ten seconds."""

JAVA_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What RocketMQ needs to unmap files on Java 9 and newer."""
MEMORY = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)
LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""
START_LIMIT_S = 120.0
STOP_LIMIT_S = 40.0


class ApacheGroup:
    """A NameServer and a DLedger group of three brokers of Apache's, or one broker without DLedger.

    `broker`: further properties of every broker, `nodes`: those of one node. All methods block.
    """

    def __init__(
        self,
        directory: Path,
        libraries: Path,
        base_port: int,
        segment_size: int = SEGMENT_SIZE,
        *,
        dledger: bool = True,
        broker: Mapping[str, object] | None = None,
        nodes: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.directory = directory
        self._further = broker or {}
        self._of_node = nodes or {}
        self._dledger = dledger
        self._nodes = NODES if dledger else NODES[:1]
        self.led: str = self._nodes[0]
        """Who was master when the group was stopped."""
        self._segment_size = segment_size
        self.namesrv_addr = f"{HOST}:{base_port}"
        self._base = base_port
        self._home = directory / "home"
        conf = self._home / "conf"
        conf.mkdir(parents=True)
        for name in ("logback_namesrv", "logback_broker", "logback_tools"):  # 4.9 does not start without
            (conf / f"{name}.xml").write_text(LOGBACK)
        (directory / "namesrv.conf").write_text(f"listenPort={base_port}\n")
        self._namesrv = self._process(libraries, "namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup")
        self._brokers: dict[str, ManagedProcess] = {}
        for node in self._nodes:
            text = "".join(f"{key}={value}\n" for key, value in self._properties(node).items())
            self.conf(node).write_text(text)
            self._brokers[node] = self._process(libraries, node, "org.apache.rocketmq.broker.BrokerStartup")

    def _process(self, libraries: Path, name: str, main: str) -> ManagedProcess:
        home = f"-Duser.home={self._home}"  # logs and remembered offsets go below it
        options = [*JAVA_OPENS, *MEMORY, home, "-cp", f"{libraries}/*", main]
        return ManagedProcess(
            name,
            ["java", *options, "-c", str(self.directory / f"{name}.conf")],
            pid_file=self.directory / f"{name}.pid",
            output=self.directory / f"{name}.out",
            cwd=self.directory,
            environment={"ROCKETMQ_HOME": str(self._home), "JAVA_TOOL_OPTIONS": ""},
        )

    def _properties(self, node: str) -> dict[str, object]:
        number = NODES.index(node)
        return {
            "brokerClusterName": "RaftCluster",
            "brokerName": BROKER_NAME,
            "brokerIP1": HOST,
            "listenPort": self._base + 10 * (number + 1),
            "namesrvAddr": self.namesrv_addr,
            "storePathRootDir": self.store(node),
            "storePathCommitLog": self.store(node) / "commitlog",
            "enableDLegerCommitLog": str(self._dledger).lower(),
            "dLegerGroup": BROKER_NAME,
            "dLegerPeers": ";".join(f"{peer}-{HOST}:{self._base + at}" for at, peer in enumerate(NODES, 1)),
            "dLegerSelfId": node,
            "mappedFileSizeCommitLog": self._segment_size,
            "mappedFileSizeConsumeQueue": 300 * 20,
            "maxHashSlotNum": 500,
            "maxIndexNum": 2000,
            "diskMaxUsedSpaceRatio": 95,
            **self._further,
            **self._of_node.get(node, {}),
        }

    def conf(self, node: str) -> Path:
        """The broker.conf of a node."""
        return self.directory / f"{node}.conf"

    def store(self, node: str) -> Path:
        """storePathRootDir of a node."""
        return self.directory / node

    @property
    def stores(self) -> list[Path]:
        """Stores of all nodes."""
        return [self.store(node) for node in self._nodes]

    def start(self) -> None:
        """Start all and wait until there is a master."""
        for process in (self._namesrv, *self._brokers.values()):
            process.start()
        self.wait_master()

    def leader(self) -> str | None:
        """The node that the NameServer calls master, None without one."""
        try:
            address = wire.master_address(self.namesrv_addr, BROKER_NAME)
        except wire.NoAnswer:
            return None
        return None if address is None else NODES[(split_address(address)[1] - self._base) // 10 - 1]

    def wait_master(self, but: str | None = None) -> str:
        """Until a node (another one than `but`) is master."""
        return wait_for(
            lambda: node if (node := self.leader()) != but else None, START_LIMIT_S, self._describe
        )

    def kill_leader(self) -> str:
        """SIGKILL the master; which node that was."""
        node = self.wait_master()
        self._brokers[node].kill()
        return node

    def start_node(self, node: str) -> None:
        """Start a broker that was killed."""
        self._brokers[node].start()

    def wait_caught_up(self, entries: int) -> None:
        """Until all checkpoints, written every three seconds, say the same: at least so many entries,
        all committed."""

        def ends() -> bool | None:
            found = [checkpoint(path) for store in self.stores for path in store.glob("dledger-*/checkpoint")]
            numbers = {value for values in found for value in values.values()}
            return (len(found) == len(NODES) and len(numbers) == 1 and min(numbers) >= entries - 1) or None

        wait_for(ends, START_LIMIT_S, self._describe)

    def stop(self) -> None:
        """SIGTERM to all: the brokers, then the NameServer."""
        self.stop_brokers()
        self._namesrv.stop(STOP_LIMIT_S)

    def stop_brokers(self) -> None:
        """SIGTERM to the brokers, the master last: they write their checkpoints as they end."""
        if not any(process.pid for process in self._brokers.values()):
            return  # and who led them is known
        self.led = self.leader() or self._nodes[-1]
        for node, process in self._brokers.items():
            if node != self.led:
                process.stop(STOP_LIMIT_S)
        self._brokers[self.led].stop(STOP_LIMIT_S)

    def kill(self) -> None:
        """SIGKILL to all: nobody needs what they stored."""
        for process in (*self._brokers.values(), self._namesrv):
            process.kill()

    def _describe(self) -> str:
        lines = [f"{name}: {process.tail()[-600:]}" for name, process in self._brokers.items()]
        return f"master {self.leader()}\n" + "\n".join(lines)


def checkpoint(path: Path) -> dict[str, int]:
    """DLedger's checkpoint file: committedIndex and endIndex, lines of a date between them left out."""
    lines = [line.partition("=") for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: int(value) for name, _, value in lines if value}


def java_command(libraries: Path, main: str, *arguments: str) -> list[str]:
    """A Java program of ours or of RocketMQ's tools."""
    return ["java", *JAVA_OPENS, *MEMORY, "-cp", f"{libraries}/*", main, *arguments]
