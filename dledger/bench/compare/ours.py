"""This project's brokers. They are loaded through this project's client, which can also load other brokers
with RocketMQ's protocol."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from dledger.bench.compare.system import BATCH, FSYNC, PAGE_CACHE, Done
from dledger.client import AsyncProducer, Message, ProducerOptions, SendResult
from dledger.local.cluster import ClusterSpec, LocalCluster

TOPIC = "bench"
QUEUES = 8
SEGMENT_SIZE = 64 * 2**20
MAX_PENDING = 4096


class Ours:
    """A broker group of this project. `flush` is SYNC_FLUSH or ASYNC_FLUSH. The ports begin at `base`, in
    the same layout as with `dledger up`."""

    batch = "one batch message"

    def __init__(self, flush: str, base: int, nodes: int) -> None:
        self.name = f"dledger, {flush}"
        self.durability = FSYNC if flush == "SYNC_FLUSH" else PAGE_CACHE
        self._flush = flush
        self._base = base
        self._members = nodes
        self._group: LocalCluster | None = None

    @property
    def version(self) -> str:
        """Version of this package."""
        return version("dledger")

    def start(self, directory: Path) -> None:
        """Start the nodes, as `System.start` explains."""
        spec = ClusterSpec(
            nodes=self._members,
            base_port=self._base,
            segment_size=SEGMENT_SIZE,
            flush=self._flush,
        )
        self._group = LocalCluster.create(directory / "group", spec)
        self._group.start()
        self._group.wait_leader()
        self._group.create_topic(TOPIC, QUEUES)

    def stop(self) -> None:
        """End all processes, as `System.stop` explains."""
        if self._group is not None:
            self._group.stop()

    def pids(self) -> list[int]:
        """Return pids, as `System.pids` explains."""
        if self._group is None:
            return []
        found = [self._group.namesrv_pid(), *map(self._group.pid, self._group.spec.node_ids)]
        return [pid for pid in found if pid is not None]

    async def connect(self, size: int) -> OurSender:
        """Connect a sender, as `System.connect` explains."""
        assert self._group is not None
        return await our_sender(self._group.namesrv_addr, size)


async def our_sender(namesrv: str, size: int) -> OurSender:
    """Connect a sender that uses this project's producer and this NameServer."""
    producer = AsyncProducer("bench", namesrv, ProducerOptions(compress_over=0, max_pending=MAX_PENDING))
    await producer.start()
    await producer.prepare(TOPIC)
    return OurSender(producer, size)


class OurSender:
    """A `Sender` that uses this project's producer."""

    def __init__(self, producer: AsyncProducer, size: int) -> None:
        self._producer = producer
        self._message = Message(TOPIC, b"x" * size)
        self._batch = [self._message] * BATCH

    def send(self, done: Done) -> None:
        """Send one message, as `Sender.send` explains."""
        self._producer.send_nowait(self._message, lambda result: done(isinstance(result, SendResult)))

    def send_batch(self, done: Done) -> None:
        """Send a batch, as `Sender.send_batch` explains."""
        self._producer.send_batch_nowait(self._batch, lambda result: done(isinstance(result, SendResult)))

    async def close(self) -> None:
        """Close the connection."""
        await self._producer.close()
