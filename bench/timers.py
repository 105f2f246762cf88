"""`dledger bench timers`: how late timer messages come, and what those that wait take of a broker's memory.

Starts a group of real processes on loopback in a temporary directory, and sends messages with a time of their
own: first at a steady rate, then many that are due at one second. Late is what is stored in the topic after
its due time, by the clock of the brokers, which is also this program's; and what a consumer was handed.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from dledger.client.message import Message, SendResult
from dledger.client.offsets import FromWhere
from dledger.client.options import ProducerOptions
from dledger.client.producer import AsyncProducer
from dledger.client.pull_consumer import AsyncPullConsumer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.runtime.env import production_env

TOPIC = "timed"
STEADY_S = 20.0
WAIT_S = 3.0
"""For so long the messages of the steady part wait."""
GIVE_UP_S = 120.0


def timers(messages: int, rate: int, size: int, precision_ms: int) -> dict[str, object]:
    """`rate`: messages a second of the first part, `messages`: of the second; `size`: bytes of a body."""
    with tempfile.TemporaryDirectory(prefix="timers-") as directory:
        spec = ClusterSpec(
            base_port=find_base_port(3),
            segment_size=256 * MIB,
            broker={"timerPrecisionMs": str(precision_ms)},
        )
        group = LocalCluster.create(Path(directory) / "group", spec)
        group.start()
        try:
            group.create_topic(TOPIC, 4)
            return asyncio.run(_measure(group, messages, rate, size))
        finally:
            group.stop()


class _Run:
    def __init__(self, producer: AsyncProducer, consumer: AsyncPullConsumer, size: int) -> None:
        self._producer = producer
        self._consumer = consumer
        self._body = b"." * size
        self._now_ms = production_env("bench").wall.now_ms
        self.errors = 0
        self.stored: list[int] = []
        self.handed: list[int] = []

    def done(self, result: object) -> None:
        """A message was answered."""
        self.errors += not isinstance(result, SendResult)

    async def send(self, due_ms: int) -> None:
        """One message for a time."""
        await self._producer.room()
        at = datetime.fromtimestamp(due_ms / 1000, UTC)
        self._producer.send_nowait(Message(TOPIC, self._body, deliver_at=at), self.done)

    async def receive(self, count: int) -> None:
        """So many messages: how late they are, in ms."""
        self.stored, self.handed = [], []
        async with asyncio.timeout(GIVE_UP_S):
            while len(self.stored) < count:
                for message in await self._consumer.poll(timeout_s=1.0, max_messages=1024):
                    due_ms = int(message.properties["TIMER_OUT_MS"])
                    self.stored.append(message.store_timestamp_ms - due_ms)
                    self.handed.append(self._now_ms() - due_ms)

    def figures(self, what: str) -> dict[str, object]:
        """Percentiles."""
        found: dict[str, object] = {}
        for kind, late in (("stored", sorted(self.stored)), ("handed", sorted(self.handed))):
            for share in (0.5, 0.99, 1.0):
                place = min(int(len(late) * share), len(late) - 1)
                found[f"{what}, {kind}, p{share * 100:g}"] = f"{late[place]} ms late"
        return found

    @property
    def now_ms(self) -> int:
        """By the wall clock."""
        return self._now_ms()


async def _measure(group: LocalCluster, messages: int, rate: int, size: int) -> dict[str, object]:
    options = ProducerOptions(max_pending=2000, timeout_s=30.0)
    async with (
        AsyncProducer("bench", group.namesrv_addr, options) as producer,
        AsyncPullConsumer("bench", group.namesrv_addr) as consumer,
    ):
        await producer.prepare(TOPIC)
        await consumer.assign(await consumer.queues(TOPIC), start=FromWhere.FIRST)
        run = _Run(producer, consumer, size)
        result: dict[str, object] = {}
        count = int(STEADY_S * rate)
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(run.receive(count), name="receive")
            began = run.now_ms
            for number in range(count):
                ahead_ms = began + number * 1000 // rate - run.now_ms
                if ahead_ms > 0:
                    await asyncio.sleep(ahead_ms / 1000)
                await run.send(run.now_ms + int(WAIT_S * 1000))
            await receiving
        result |= run.figures(f"{rate} a second")
        leader = group.wait_leader()
        before = _resident_mib(group.pid(leader))
        began = run.now_ms
        due = (began // 1000 + 10 + messages // 3000) * 1000
        for _ in range(messages):
            await run.send(due)
        await producer.flush()
        result["sent"] = f"{messages * 1000 // max(run.now_ms - began, 1)} a second"
        result["memory of the leader"] = f"{before:.0f} MiB, {_resident_mib(group.pid(leader)):.0f} MiB then"
        result["sent before they were due"] = f"{(due - run.now_ms) / 1000:.1f} s"
        await run.receive(messages)
        result |= run.figures(f"{messages} at once")
        result["errors"] = run.errors
    return result


def _resident_mib(pid: int | None) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024
