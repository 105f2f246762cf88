"""What a cluster of Apache's is full of when it moves, and the table of what became of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import NamedTuple

from dledger.client import (
    ConsumerOptions,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from dledger.client.errors import ClientError
from dledger.client.message import MessageQueue
from dledger.local.cluster import wait_for

TOPICS = ("orders", "payments", "shipments", "returns", "events")
QUEUES = 4
BATCH = 50
LIMIT_S = 240.0
"""A condition that is not met by then is never met: the machine may be busy."""
RETRIED, DEAD, DELAYED, TIMED, HALVES = 10, 10, 20, 20, 10
"""How many of each kind; HALVES of each of the four ways in which a transaction may end."""
PRECISION_MS = 1000
"""By so much Apache's brokers deliver timer messages too early: they cut the time to whole seconds."""
GROUPS = ("billing", "shipping", "refunds")
TRANSACTION_GROUP = "payers"


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    queue_id: int
    offset: int


@dataclass
class Sent:
    """Identities of messages that were sent: the first word of the body."""

    plain: set[str] = field(default_factory=set)
    due_ms: dict[str, int] = field(default_factory=dict)
    """Delayed and timer messages: when they are due, in ms since the epoch."""
    committed: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    """Messages of transactions that are rolled back."""
    unknown: set[str] = field(default_factory=set)
    """Messages of which some send had an unknown outcome: they may be stored twice."""

    @property
    def wanted(self) -> set[str]:
        """All that must come to their topics."""
        return self.plain | self.due_ms.keys() | self.committed


def identity(message: ReceivedMessage) -> str:
    return message.body.split(b" ", 1)[0].decode()


def body_of(name: str) -> bytes:
    return f"{name} ".encode() + b"x" * (hash_of(name) % 900)


def hash_of(name: str) -> int:
    return sum(name.encode()) * 31


def create_topics(namesrv: str, topics: Iterable[str] = TOPICS) -> None:
    """Wait until the brokers take them."""

    def created(producer: Producer, topic: str) -> bool | None:
        try:
            producer.create_topic(topic, queues=QUEUES)
            return len(producer.queues(topic)) == QUEUES or None
        except ClientError:
            return None

    with Producer("mover", namesrv) as producer:
        for topic in topics:
            wait_for(partial(created, producer, topic), LIMIT_S, lambda: "no topic could be created")


def send_history(namesrv: str, messages: int, sent: Sent) -> None:
    """So many plain messages, in batches, the same number in each queue."""
    numbers = iter(range(messages))
    with Producer("mover", namesrv) as producer:
        queues = [queue for topic in TOPICS for queue in producer.queues(topic)]
        for turn in count():
            queue = queues[turn % len(queues)]
            names = [f"plain-{number}" for _, number in zip(range(BATCH), numbers, strict=False)]
            if not names:
                return
            producer.send_batch([Message(queue.topic, body_of(name), keys=name) for name in names], queue)
            sent.plain.update(names)


def send_waiting(
    namesrv: str, sent: Sent, prefix: str, delays: Iterable[int], timers_s: Iterable[int]
) -> None:
    """Delayed messages (by level) and timer messages (by seconds)."""
    with Producer("mover", namesrv) as producer:
        for number, level in enumerate(delays):
            name = f"{prefix}-delay-{number}"
            sent.due_ms[name] = now_ms() + LEVELS_S[level] * 1000
            producer.send(Message("events", body_of(name), delay_level=level))
        for number, seconds in enumerate(timers_s):
            name = f"{prefix}-timer-{number}"
            sent.due_ms[name] = now_ms() + seconds * 1000
            producer.send(Message("events", body_of(name), delay=timedelta(seconds=seconds)))


LEVELS_S = {2: 5, 3: 10, 4: 30, 5: 60}
"""Seconds of delay levels."""


def now_ms() -> int:
    return int(time.time() * 1000)


def decide(message: ReceivedMessage) -> LocalTransactionState:
    """How an open transaction ended: its name says."""
    if "-commit-" in identity(message):
        return LocalTransactionState.COMMIT_MESSAGE
    return LocalTransactionState.ROLLBACK_MESSAGE


def send_halves(namesrv: str, sent: Sent, prefix: str) -> None:
    """Transactions that are committed, rolled back, and left open; the producer is gone then."""
    with TransactionProducer(
        TRANSACTION_GROUP, namesrv, check=lambda _: LocalTransactionState.UNKNOWN
    ) as producer:
        for end in ("commit", "rollback", "open-commit", "open-rollback"):
            for number in range(HALVES):
                name = f"{prefix}-{end}-{number}"
                transaction = producer.transaction(Message("payments", body_of(name))).begin()
                if end == "commit":
                    transaction.commit()
                elif end == "rollback":
                    transaction.rollback()
                else:
                    transaction.leave_open()
                (sent.committed if end.endswith("commit") else sent.never).add(name)


class Consumed:
    """A push consumer of a group, and what it was given."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *topics: str,
        fails: Callable[[ReceivedMessage], bool] = lambda message: False,
        tries: int | None = None,
    ) -> None:
        """`fails`: of which messages the listener fails; `tries`: max_reconsume_times."""
        self.got: Counter[str] = Counter()
        """Identity -> how often it was consumed."""
        self.failed: set[str] = set()
        self.tries: dict[str, int] = {}
        """Identity -> reconsume_times at the last delivery."""
        self._lock = threading.Lock()
        self._fails = fails
        self.topics = topics
        options = ConsumerOptions(max_reconsume_times=tries, commit_s=1.0)
        self._consumer = PushConsumer(group, namesrv, self._take, from_where="FIRST", options=options)
        for topic in topics:
            self._consumer.subscribe(topic)
        self._consumer.start()

    def _take(self, message: ReceivedMessage) -> ConsumeStatus:
        name = identity(message)
        with self._lock:
            self.tries[name] = message.reconsume_times
            if self._fails(message):
                self.failed.add(name)
                return ConsumeStatus.RECONSUME_LATER
            self.got[name] += 1
        return ConsumeStatus.SUCCESS

    def names(self) -> set[str]:
        with self._lock:
            return set(self.got)

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(self.got)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def consuming(*args: object, **kwargs: object) -> Iterator[Consumed]:
    consumed = Consumed(*args, **kwargs)  # type: ignore[arg-type]
    try:
        yield consumed
    finally:
        consumed.close()


def read_all(namesrv: str, topics: Iterable[str] = TOPICS) -> dict[Place, ReceivedMessage]:
    """Every message of these topics, up to where they end now."""
    found: dict[Place, ReceivedMessage] = {}
    with PullConsumer("reader", namesrv) as consumer:
        queues = [
            queue for topic in topics for queue in wait_for(partial(queues_of, consumer, topic), LIMIT_S, str)
        ]
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        ends = {queue: consumer.highest(queue) for queue in queues}

        def all_read() -> bool:
            for message in consumer.poll(0.2, 2000):
                found[Place(message.queue.topic, message.queue.queue_id, message.queue_offset)] = message
            return all(consumer.position(queue) >= end for queue, end in ends.items())

        wait_for(all_read, LIMIT_S, lambda: f"{len(found)} messages of {ends}")
    return found


def queues_of(consumer: PullConsumer, topic: str) -> list[MessageQueue] | None:
    try:
        return list(consumer.queues(topic)) or None
    except ClientError:
        return None


def offsets_of(namesrv: str, groups: Iterable[str] = GROUPS) -> dict[tuple[str, str, int], int | None]:
    """Committed offsets by group, topic and queue."""
    found: dict[tuple[str, str, int], int | None] = {}
    for group in groups:
        with PullConsumer(group, namesrv) as consumer:
            for topic in TOPICS:
                queues = wait_for(partial(queues_of, consumer, topic), LIMIT_S, lambda: "no route")
                for queue in queues:
                    found[group, topic, queue.queue_id] = consumer.committed(queue)
    return found


def names_of(messages: Iterable[ReceivedMessage]) -> Counter[str]:
    return Counter(map(identity, messages))


def wait_for_names(namesrv: str, wanted: set[str]) -> dict[Place, ReceivedMessage]:
    """All messages, when all that are wanted are among them."""
    found: dict[Place, ReceivedMessage] = {}

    def there() -> bool:
        nonlocal found
        found = read_all(namesrv)
        return wanted <= names_of(found.values()).keys()

    def missing() -> str:
        lacking = sorted(wanted - names_of(found.values()).keys())
        return f"{len(lacking)} messages did not come: {lacking[:20]}"

    wait_for(there, LIMIT_S, missing)
    return found


class LiveProducer:
    """Sends numbered messages to all topics in turn until it is stopped."""

    def __init__(self, namesrv: str, prefix: str, sent: Sent, pause_s: float = 0.02) -> None:
        self._stop = threading.Event()
        self._sent = sent
        self._prefix = prefix
        self._pause_s = pause_s
        self._namesrv = namesrv
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="live producer")
        self._thread.start()

    def _run(self) -> None:
        with Producer("live", self._namesrv) as producer:
            while not self._stop.wait(self._pause_s):
                name = f"{self._prefix}-{self.count}"
                message = Message(TOPICS[self.count % len(TOPICS)], body_of(name))
                while True:
                    try:
                        producer.send(message)
                        break
                    except ClientError:
                        self._sent.unknown.add(name)
                self._sent.plain.add(name)
                self.count += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Table:
    """Rows of figures, printed at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rows: list[tuple[str, str]] = []

    def row(self, what: str, *figures: object) -> None:
        self._rows.append((what, ", ".join(map(str, figures))))

    def show(self) -> None:
        width = max(len(what) for what, _ in self._rows)
        print(f"\n{self._title}")
        for what, figures in self._rows:
            print(f"  {what:<{width}}  {figures}")


def judge_messages(
    table: Table, sent: Sent, found: dict[Place, ReceivedMessage], wanted: set[str] | None = None
) -> None:
    """Nothing is lost of what was `wanted` when it was read (without it: of all). Nothing comes twice, or
    early, and nothing that was rolled back comes."""
    names = names_of(found.values())
    wanted = sent.wanted if wanted is None else wanted
    lost = wanted - names.keys()
    twice = {name for name, times in names.items() if times > 1} - sent.unknown
    early = [
        name
        for message in found.values()
        if (name := identity(message)) in sent.due_ms
        and message.store_timestamp_ms + PRECISION_MS < sent.due_ms[name]
    ]
    late = sorted(
        message.store_timestamp_ms - sent.due_ms[identity(message)]
        for message in found.values()
        if identity(message) in sent.due_ms
    )
    undone = sent.never & names.keys()
    table.row("messages", f"{len(wanted)} to come", f"{len(lost)} lost", f"{len(twice)} stored twice")
    for kind in ("delay", "timer"):
        due = {name for name in sent.due_ms if f"-{kind}-" in name}
        table.row(f"{kind}s", f"{len(due)} due", f"{len(due & names.keys())} came")
    if late:
        table.row(
            "late by", f"{late[len(late) // 2]} ms (median)", f"{late[-1]} ms (worst)", f"{len(early)} early"
        )
    table.row("transactions", f"{len(sent.committed & names.keys())} of {len(sent.committed)} committed came",
              f"{len(undone)} of {len(sent.never)} rolled back came")  # fmt: skip
    assert not lost, sorted(lost)[:20]
    assert not twice, sorted(twice)[:20]
    assert not undone, sorted(undone)
    assert not early, sorted(early)
