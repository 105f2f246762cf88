"""`dledger bench timers`: how late timer messages come, how much they cost, and how much they delay other
sends.

Starts a group of real processes on loopback in a temporary directory, and sends messages with a delivery
time: first at a steady rate, then many that are due at one second, twice:

| part   | what happens beside it              | what it shows                                    |
|--------|-------------------------------------|--------------------------------------------------|
| steady | a consumer                          | how late messages are                            |
| alone  | nothing                             | the same; processor time of the brokers          |
| beside | a consumer; BESIDE_RATE sends a     | the same; how long these sends wait for their    |
|        | second by a process of its own      | answers before and meanwhile                     |

For each message two delays are measured: the time from its due time until it is stored in its topic, and
the time from its due time until a consumer receives it. Brokers and this program use the same clock.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from dledger.client.consuming.pull_consumer import AsyncPullConsumer
from dledger.client.message import Message, SendResult
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.runtime.env import production_env

TOPIC = "timed"
OTHERS = "others"
STEADY_S = 20.0
WAIT_S = 3.0
"""How long before its due time a message of the steady part is sent, in seconds."""
BESIDE_RATE = 1000
"""Number of messages a second that the other producer sends beside the timer messages."""
QUIET_S = 8.0
"""How long, in seconds, nothing else happens before the second at which many messages are due. The waits
of the other producer in this time are the base of the comparison."""
AFTER_S = 3.0
GIVE_UP_S = 120.0


def timers(messages: int, rate: int, size: int, precision_ms: int) -> dict[str, object]:
    """Measure, and return the figures by name. `rate` is the number of messages a second in the steady
    part, and `messages` the number of messages in each of the other parts. `size` is the number of bytes
    of a body."""
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
            group.create_topic(OTHERS, 4)
            return asyncio.run(_measure(group, messages, rate, size))
        finally:
            group.stop()


class _Run:
    def __init__(self, group: LocalCluster, producer: AsyncProducer, size: int) -> None:
        self.group = group
        self._producer = producer
        self._body = b"." * size
        self._now_ms = production_env("bench").wall.now_ms
        self.errors = 0
        self.stored: list[int] = []
        self.handed: list[int] = []

    def done(self, result: object) -> None:
        """Count an error unless the message was stored. The producer calls this when a message was
        answered."""
        self.errors += not isinstance(result, SendResult)

    async def send(self, due_ms: int) -> None:
        """Send one message that is due at `due_ms`."""
        await self._producer._room()
        at = datetime.fromtimestamp(due_ms / 1000, UTC)
        self._producer.send_nowait(Message(TOPIC, self._body, deliver_at=at), self.done)

    async def send_all(self, messages: int) -> int:
        """Send this many messages, all of which are due at the same second; return that time in ms."""
        due = (self.now_ms // 1000 + int(QUIET_S) + 2 + messages // 2000) * 1000
        for _ in range(messages):
            await self.send(due)
        await self._producer.flush()
        return due

    async def receive(self, consumer: AsyncPullConsumer, count: int) -> None:
        """Receive this many messages, and record how late each is, in ms."""
        self.stored, self.handed = [], []
        async with asyncio.timeout(GIVE_UP_S):
            while len(self.stored) < count:
                for message in await consumer.poll(timeout_s=1.0, max_messages=1024):
                    due_ms = int(message.properties["TIMER_OUT_MS"])
                    self.stored.append(message.store_timestamp_ms - due_ms)
                    self.handed.append(self._now_ms() - due_ms)

    async def until(self, time_ms: int) -> None:
        """Sleep until this time."""
        await asyncio.sleep(max(time_ms - self.now_ms, 0) / 1000)

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time that each broker has used so far, in seconds."""
        nodes = self.group.spec.node_ids
        return {node: _cpu_s(self.group.pid(node)) for node in nodes}

    def figures(self, what: str, *, handed: bool = True) -> dict[str, object]:
        """Return percentiles of the delays. Names of the figures begin with `what`."""
        found: dict[str, object] = {}
        for kind, late in (("stored", sorted(self.stored)), ("handed", sorted(self.handed))):
            if kind == "handed" and not handed:
                continue
            for share in (0.5, 0.99, 1.0):
                found[f"{what}, {kind}, p{share * 100:g}"] = f"{_at(late, share)} ms late"
        return found

    @property
    def now_ms(self) -> int:
        """The time of the wall clock in ms."""
        return self._now_ms()


async def _measure(group: LocalCluster, messages: int, rate: int, size: int) -> dict[str, object]:
    options = ProducerOptions(max_pending=2000, timeout_s=30.0)
    async with AsyncProducer("bench", group.namesrv_addr, options) as producer:
        await producer.prepare(TOPIC)
        run = _Run(group, producer, size)
        result: dict[str, object] = {}
        for part in (_steady, _alone, _beside) if rate else (_alone, _beside):
            async with AsyncPullConsumer("bench", group.namesrv_addr) as consumer:
                result |= await part(run, consumer, rate if part is _steady else messages)
        result["errors"] = run.errors
    return result


async def _steady(run: _Run, consumer: AsyncPullConsumer, rate: int) -> dict[str, object]:
    count = int(STEADY_S * rate)
    await _from_now_on(consumer)
    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(run.receive(consumer, count), name="receive")
        began = run.now_ms
        for number in range(count):
            ahead_ms = began + number * 1000 // rate - run.now_ms
            if ahead_ms > 0:
                await asyncio.sleep(ahead_ms / 1000)
            await run.send(run.now_ms + int(WAIT_S * 1000))
        await receiving
    return run.figures(f"{rate} a second")


async def _from_now_on(consumer: AsyncPullConsumer) -> None:
    await consumer.assign(await consumer.queues(TOPIC))
    for queue in consumer.assignment:
        await consumer.seek_to_end(queue)  # also where the broker says that a new group begins with the first


async def _alone(run: _Run, consumer: AsyncPullConsumer, messages: int) -> dict[str, object]:
    """Measure the part `alone`: many messages are due at one second, and nobody consumes them meanwhile."""
    leader = run.group.wait_leader()
    memory = _resident_mib(run.group.pid(leader))
    queues = await consumer.queues(TOPIC)
    begin = {queue: await consumer.highest(queue) for queue in queues}
    began = run.now_ms
    due = await run.send_all(messages)
    sent = messages * 1000 // max(run.now_ms - began, 1)
    await run.until(due - 200)
    first = run.cpu_s()
    async with asyncio.timeout(GIVE_UP_S):
        await run.until(due)
        stored = 0
        while stored < messages:  # asked seldom: it costs the leader some time
            await asyncio.sleep(0.5)
            stored = sum([await consumer.highest(queue) - begin[queue] for queue in queues])
    last = run.cpu_s()
    taken = {node: (last[node] - first[node]) / messages * 1e6 for node in last}
    await consumer.assign(queues)
    for queue, offset in begin.items():
        await consumer.seek(queue, offset)
    await run.receive(consumer, messages)
    then = _resident_mib(run.group.pid(leader))
    return run.figures(f"{messages} at once, alone", handed=False) | {
        "sent": f"{sent} a second",
        "processor time of a message": f"{sum(taken.values()):.1f} us, of the leader {taken[leader]:.1f} us",
        "memory of the leader": f"{memory:.0f} MiB, {then:.0f} MiB then",
    }


async def _beside(run: _Run, consumer: AsyncPullConsumer, messages: int) -> dict[str, object]:
    """Measure the part `beside`: many messages are due at one second, while a consumer receives them and
    another producer sends."""
    await _from_now_on(consumer)
    due = await run.send_all(messages)
    ahead_s = (due - run.now_ms) / 1000
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, get_context("spawn")) as others:
        sending = loop.run_in_executor(
            others, others_send, run.group.namesrv_addr, due - min(ahead_s, QUIET_S) * 1000, due, AFTER_S
        )
        await run.receive(consumer, messages)
        waits, errors = await sending
    over = due + max(run.stored)
    quiet = sorted(wait for at, wait in waits if at < due)
    busy = sorted(wait for at, wait in waits if due <= at < over)
    result = run.figures(f"{messages} at once, beside others")
    result["others, before"] = _waited(quiet)
    result["others, meanwhile"] = _waited(busy)
    run.errors += errors
    return result


def others_send(
    namesrv: str, begin_ms: float, due_ms: int, after_s: float
) -> tuple[list[tuple[int, float]], int]:
    """Send BESIDE_RATE messages a second. Runs in a process of its own.

    Returns a pair. The first value says for each message when it was sent and how long it waited for its
    answer, both in ms. The second value is the number of errors.
    """
    return asyncio.run(_others_send(namesrv, begin_ms, due_ms, after_s))


async def _others_send(
    namesrv: str, begin_ms: float, due_ms: int, after_s: float
) -> tuple[list[tuple[int, float]], int]:
    now_ms = production_env("bench").wall.now_ms
    loop = asyncio.get_running_loop()
    waits: list[tuple[int, float]] = []
    failed: list[object] = []

    def sent(due_s: float) -> Callable[[object], None]:
        at = now_ms()

        def done(result: object) -> None:
            if isinstance(result, SendResult):
                waits.append((at, (loop.time() - due_s) * 1000))
            else:
                failed.append(result)

        return done

    options = ProducerOptions(max_pending=20_000, timeout_s=30.0)
    async with AsyncProducer("others", namesrv, options) as producer:
        await producer.prepare(OTHERS)
        message = Message(OTHERS, b"." * 1024)
        await asyncio.sleep(max(begin_ms - now_ms(), 0) / 1000)
        at_s = loop.time()
        while now_ms() < due_ms + after_s * 1000:
            # If it is sent late, the time that it waited here counts as well.
            while at_s <= loop.time():
                await producer._room()
                producer.send_nowait(message, sent(at_s))
                at_s += 1 / BESIDE_RATE
            await asyncio.sleep(max(at_s - loop.time(), 0))
        await producer.flush()
    return waits, len(failed)


def _waited(waits: list[float]) -> str:
    if not waits:
        return "none"
    return f"p50 {_at(waits, 0.5):.1f} ms, p99 {_at(waits, 0.99):.1f} ms, of {len(waits)}"


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _cpu_s(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int | None) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024
