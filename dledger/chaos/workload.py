"""A numbered history of messages through our client, and the checks on the log afterwards.

Three kinds of senders run side by side. Each message names its sender and number:

* one *steady* sender per queue waits for each acknowledgement before it sends the next message. So its
  messages must be in order (safety.md S26).
* one *flood* keeps a window of messages in flight, as load.
* one *probe* sends a small message every few milliseconds, whatever happens. Failovers are measured by it.

The log is read with raw frames and `formats`, not with the client under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from dledger.client.errors import ClientError
from dledger.client.message import Message, MessageQueue, SendResult
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.formats.record import decode_records
from dledger.local import wire

PULL_MESSAGE = 11
GET_MAX_OFFSET = 30
FOUND = 0
PROBE_INTERVAL_S = 0.005


@dataclass(slots=True)
class Sent:
    """One message. Times are loop times in seconds. `result` is None while the outcome is open."""

    sender: str
    number: int
    started_at: float
    acked_at: float | None = None
    result: SendResult | ClientError | None = None

    @property
    def key(self) -> str:
        """The beginning of the body: sender and number."""
        return f"{self.sender}:{self.number}"

    @property
    def place(self) -> tuple[int, int] | None:
        """(queue id, queue offset) of an acknowledged message. None for other messages."""
        if isinstance(self.result, SendResult):
            return self.result.queue.queue_id, self.result.queue_offset
        return None


class Load:
    """Sends to one topic until it is stopped. `history` holds every message, in the order in which messages
    were first sent.

    `window` limits the messages in flight of the flood (0 means no flood), and `steady` turns the steady
    senders on. The probe always sends.
    """

    def __init__(
        self, namesrv: str, topic: str, *, window: int = 64, body_size: int = 1024, steady: bool = True
    ) -> None:
        self.history: list[Sent] = []
        self.acked: int = 0
        self.in_flight: int = 0
        self._steady_on = steady
        self._namesrv = namesrv
        self._topic = topic
        self._window = window
        self._padding = b"." * body_size
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._progress = asyncio.Event()

    def stop(self) -> None:
        """Send no new messages. `run` ends when all messages in flight have an outcome."""
        self._stop.set()
        self._changed.set()

    async def run(self) -> None:
        """Send until `stop`."""
        options = ProducerOptions(compress_over=0)  # bodies have their full size in the log
        async with AsyncProducer("PG_load", self._namesrv, options) as producer:
            queues = await producer.queues(self._topic)
            async with asyncio.TaskGroup() as group:
                for queue in queues if self._steady_on else ():
                    name = f"q{queue.queue_id}"
                    group.create_task(self._steady(producer, name, queue), name=name)
                group.create_task(self._flood(producer), name="flood")
                group.create_task(self._probe(producer), name="probe")
            while self.in_flight:
                self._changed.clear()
                await self._changed.wait()

    async def _steady(self, producer: AsyncProducer, name: str, queue: MessageQueue) -> None:
        number = 0
        while not self._stop.is_set():
            sent = self._begin(name, number)
            try:
                result = await producer.send(self._message(sent), queue)
            except ClientError as error:
                sent.result = error
            else:
                self._acknowledged(sent, result)
            number += 1

    async def _flood(self, producer: AsyncProducer) -> None:
        number = 0
        while not self._stop.is_set():
            while self.in_flight < self._window:
                self._send(producer, self._begin("flood", number))
                number += 1
            self._changed.clear()
            await self._changed.wait()

    async def _probe(self, producer: AsyncProducer) -> None:
        number = 0
        while not self._stop.is_set():
            self._send(producer, self._begin("probe", number))
            number += 1
            await asyncio.sleep(PROBE_INTERVAL_S)

    def _begin(self, sender: str, number: int) -> Sent:
        sent = Sent(sender, number, asyncio.get_running_loop().time())
        self.history.append(sent)
        return sent

    def _message(self, sent: Sent) -> Message:
        padding = b"" if sent.sender == "probe" else self._padding
        return Message(self._topic, sent.key.encode() + b" " + padding, keys=sent.key)

    def _send(self, producer: AsyncProducer, sent: Sent) -> None:
        self.in_flight += 1
        producer.send_nowait(self._message(sent), partial(self._settled, sent))

    def _settled(self, sent: Sent, result: SendResult | ClientError) -> None:
        self.in_flight -= 1
        if isinstance(result, SendResult):
            self._acknowledged(sent, result)
        else:
            sent.result = result
            self._changed.set()

    def _acknowledged(self, sent: Sent, result: SendResult) -> None:
        sent.result, sent.acked_at = result, asyncio.get_running_loop().time()
        self.acked += 1
        self._changed.set()
        self._progress.set()

    async def wait_acked(self, count: int, limit_s: float = 30) -> None:
        """Wait until `count` further messages are acknowledged. Raises TimeoutError after `limit_s`
        seconds."""
        wanted = self.acked + count
        async with asyncio.timeout(limit_s):
            while self.acked < wanted:
                self._progress.clear()
                await self._progress.wait()

    async def wait_failover(self, killed_at: float, limit_s: float = 30) -> float:
        """Wait until `failover_s` returns a time, and return that time. Raises TimeoutError after `limit_s`
        seconds."""
        async with asyncio.timeout(limit_s):
            while (seconds := self.failover_s(killed_at)) is None:
                self._progress.clear()
                await self._progress.wait()
        return seconds

    def failover_s(self, killed_at: float) -> float | None:
        """Seconds from the kill to the first acknowledgement of a message that was first sent after the kill.
        None if there is none yet."""
        times: list[float] = []
        for sent in reversed(self.history):
            if sent.started_at <= killed_at:
                break
            if sent.acked_at is not None:
                times.append(sent.acked_at)
        return min(times) - killed_at if times else None


@dataclass
class Report:
    """The result of comparing a history with the log. Everything except the counts must be empty."""

    acked: int = 0
    unknown: int = 0
    """Sends without acknowledgement, which may or may not be in the log."""
    recovered: int = 0
    """How many of the unknown messages are in the log."""
    duplicated: int = 0
    """How many further copies of messages are in the log."""
    lost: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Messages that are not at the place that was acknowledged."""
    unordered: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is lost, moved, out of order or unexpected, and no queue offset is wrong."""
        return not (self.lost or self.moved or self.unordered or self.unexpected or self.gaps)

    def __str__(self) -> str:
        counts = (
            f"acked {self.acked}, unknown {self.unknown} (recovered {self.recovered}), "
            f"duplicated {self.duplicated}"
        )
        faults = ("lost", "moved", "unordered", "unexpected", "gaps")
        found = [
            f"{name}: {len(getattr(self, name))} {getattr(self, name)[:5]}"
            for name in faults
            if getattr(self, name)
        ]
        return "; ".join([counts, *found])


def check(history: Iterable[Sent], log: dict[int, list[str]]) -> Report:
    """Compare a history with the log. `log` maps a queue id to the keys of its messages, in the order of
    their offsets from 0 on."""
    report = Report()
    places: dict[str, list[tuple[int, int]]] = {}
    for queue, keys in log.items():
        for offset, key in enumerate(keys):
            places.setdefault(key, []).append((queue, offset))
    known = {}
    for sent in history:
        known[sent.key] = sent
        found = places.get(sent.key, [])
        if sent.place is None:
            report.unknown += 1
            report.recovered += bool(found)
        else:
            report.acked += 1
            if not found:
                report.lost.append(sent.key)
            elif sent.place not in found:
                report.moved.append(f"{sent.key} at {found}, acknowledged at {sent.place}")
        report.duplicated += max(0, len(found) - 1)
    report.unexpected = [key for key in places if key not in known]
    for queue, keys in log.items():
        last: dict[str, int] = {}
        for offset, key in enumerate(keys):
            sender, _, number = key.partition(":")
            if sender == f"q{queue}":  # the steady sender of this queue
                if int(number) < last.get(sender, -1):
                    report.unordered.append(f"{key} at offset {offset} behind {last[sender]}")
                last[sender] = max(last.get(sender, -1), int(number))
    return report


def read_queue(addr: str, topic: str, queue: int) -> tuple[list[str], list[str]]:
    """Read a whole queue from offset 0. Returns the keys of its messages, and descriptions of wrong
    offsets."""
    keys: list[str] = []
    gaps: list[str] = []
    ext = {"topic": topic, "queueId": str(queue)}
    with wire.RawConnection(addr, timeout_s=10) as connection:
        connection.send(wire.request(GET_MAX_OFFSET, ext))
        end = int(connection.answer().ext["offset"])
        pull = {
            **ext, "consumerGroup": "CG_check", "maxMsgNums": "1024", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        while len(keys) < end:
            connection.send(wire.request(PULL_MESSAGE, {**pull, "queueOffset": str(len(keys))}))
            answer = connection.answer()
            if answer.code != FOUND:
                gaps.append(f"queue {queue}: offset {len(keys)} of {end}: code {answer.code} {answer.remark}")
                return keys, gaps
            for record in decode_records(answer.body):
                if record.queue_offset != len(keys):
                    gaps.append(f"queue {queue}: offset {record.queue_offset} where {len(keys)} was due")
                keys.append(record.body.partition(b" ")[0].decode())
    return keys, gaps


def check_log(history: Iterable[Sent], addr: str, topic: str, queues: int) -> Report:
    """Read all queues of a topic from the leader at `addr`, and compare them with the history."""
    log: dict[int, list[str]] = {}
    gaps: list[str] = []
    for queue in range(queues):
        log[queue], found = read_queue(addr, topic, queue)
        gaps += found
    report = check(history, log)
    report.gaps = gaps
    return report
