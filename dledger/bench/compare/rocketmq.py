"""Apache RocketMQ in DLedger mode. A directory with its jars is needed.

Its brokers answer once a majority has a message in the page cache, so its class of durability is
PAGE_CACHE. The setting flushDiskType=SYNC_FLUSH does not make brokers in DLedger mode wait for the disk.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from dledger.bench.compare.ours import QUEUES, TOPIC, OurSender, our_sender
from dledger.bench.compare.system import (
    PAGE_CACHE,
    START_LIMIT_S,
    CompareError,
    Nodes,
    Started,
    reachable,
)
from dledger.client import AsyncProducer, ClientError
from dledger.local import wire

HOST = "127.0.0.1"
BROKER_NAME = "compare"
HEAP = "1g"
JAVA_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
LOGBACK = "<configuration><root level='ERROR'/></configuration>\n"


class RocketMq(Started):
    """A group of Apache RocketMQ brokers in DLedger mode. `jars` is the directory with the jars of
    rocketmq-broker and rocketmq-namesrv, and with all jars that these need.

    Each node uses ten ports, and the group up to five more; the lowest port is `base`.
    """

    name = "Apache RocketMQ DLedger"
    durability = PAGE_CACHE
    batch = "one batch message"

    def __init__(self, jars: Path, base: int, nodes: int) -> None:
        super().__init__(base, nodes)
        self._jars = jars
        self._namesrv = f"{HOST}:{base}"

    @property
    def version(self) -> str:
        """The version in the name of the broker's jar."""
        for path in self._jars.glob("rocketmq-broker-*.jar"):
            return re.sub(r"^rocketmq-broker-|\.jar$", "", path.name)
        raise CompareError(f"{self._jars}: no rocketmq-broker-*.jar there")

    def start(self, directory: Path) -> None:
        """Start the nodes, as `System.start` explains."""
        self._nodes = Nodes(directory)
        conf = directory / "conf"
        conf.mkdir()
        for name in ("logback_namesrv", "logback_broker", "rmq.namesrv.logback", "rmq.broker.logback"):
            (conf / f"{name}.xml").write_text(LOGBACK)
        (directory / "namesrv.conf").write_text(f"listenPort={self._base}\n")
        self._java(directory, "namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup")
        peers = ";".join(f"n{number}-{HOST}:{self._base + 1 + number}" for number in range(self._members))
        for number in range(self._members):
            store = directory / f"n{number}"
            (directory / f"n{number}.conf").write_text(
                f"brokerClusterName=compare\nbrokerName={BROKER_NAME}\nbrokerIP1={HOST}\n"
                f"listenPort={self._base + 10 * (number + 1)}\nnamesrvAddr={self._namesrv}\n"
                f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
                f"enableDLegerCommitLog=true\ndLegerGroup={BROKER_NAME}\ndLegerPeers={peers}\n"
                f"dLegerSelfId=n{number}\nsendMessageThreadPoolNums=4\ndiskMaxUsedSpaceRatio=98\n"
            )
            self._java(directory, f"n{number}", "org.apache.rocketmq.broker.BrokerStartup")
        asyncio.run(self._ready())

    async def connect(self, size: int) -> OurSender:
        """Connect a sender, as `System.connect` explains."""
        return await our_sender(self._namesrv, size)

    def _java(self, directory: Path, name: str, main: str) -> None:
        assert self._nodes is not None
        options = [*JAVA_OPENS, f"-Xmx{HEAP}", f"-Duser.home={directory}", "-cp", f"{self._jars}/*", main]
        environment = {"ROCKETMQ_HOME": str(directory), "JAVA_TOOL_OPTIONS": ""}
        self._nodes.start(name, ["java", *options, "-c", str(directory / f"{name}.conf")], environment)

    async def _ready(self) -> None:
        await reachable(HOST, self._base, START_LIMIT_S)
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            try:
                if await asyncio.to_thread(wire.master_address, self._namesrv, BROKER_NAME) is not None:
                    async with AsyncProducer("bench", self._namesrv) as producer:
                        await producer.create_topic(TOPIC, QUEUES)
                    return
            except (wire.NoAnswer, ClientError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    assert self._nodes is not None
                    raise CompareError(f"{self.name}: {error}\n{self._nodes.output()}") from error
            if asyncio.get_running_loop().time() > deadline:
                raise CompareError(f"{self.name}: no master after {START_LIMIT_S:.0f} s")
            await asyncio.sleep(0.5)
