"""Very many messages of all kinds for a DLedger group of Apache's: single ones, batches, delayed ones,
transactions. The master is killed on the way, and starts again."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Semaphore

from dledger.client import Message, SendResult, TransactionProducer
from dledger.client.errors import ClientError
from dledger.client.producing.transaction_producer import LocalTransactionState
from dledger.local.cluster import wait_for
from tests.interop.apache import QUEUES, START_LIMIT_S, ApacheGroup

TOPICS = ("orders", "payments", "parcels")
IN_FLIGHT = 100
"""Messages without an answer; with more, a broker that shares two cores with the others says SYSTEM_BUSY."""
BATCH = 32
TAKES_LIMIT_S = 120.0
ROUND = 2000
"""Messages between two looks at whether the master is to be killed, or enough is acknowledged."""


@dataclass
class Sent:
    """What was sent, and what came of it. `acked`: the body by topic, queue and queue offset."""

    acked: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    hidden: Counter[str] = field(default_factory=Counter)
    """Acknowledged messages without a known place, by topic: delayed ones and those of transactions that were
    committed."""
    bodies: Counter[str] = field(default_factory=Counter)
    """How many messages were sent, by topic. No body is sent twice."""
    unknown: int = 0
    """Sends that failed: stored or not."""
    killed: str = ""
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return len(self.acked) + self.hidden.total()


class Traffic:
    """Sends messages to a group."""

    def __init__(self, group: ApacheGroup) -> None:
        self._group = group
        self._chance = random.Random(1)
        self._number = 0
        self._lock = Lock()
        self.sent = Sent()

    def run(self, messages: int) -> Sent:
        """Send until so many are acknowledged. The master is killed after half of them. All nodes run in the
        end."""
        sent = self.sent
        with TransactionProducer("interop", self._group.namesrv_addr, check=_rolled_back) as producer:
            for topic in TOPICS:
                create = partial(_try_to_create, producer, topic)
                wait_for(create, START_LIMIT_S, lambda: "no topic could be created")
            while sent.acknowledged < messages:
                kill = not sent.killed and sent.acknowledged > messages // 2
                self._round(producer, kill=kill)
            self._transactions(producer, 50)
        return sent

    def _round(self, producer: TransactionProducer, *, kill: bool) -> None:
        sent = self.sent
        free = Semaphore(IN_FLIGHT)
        for at in range(ROUND):
            free.acquire()
            item = self._single()
            producer.send_async(item, partial(self._note, item, free))
            if kill and at == ROUND // 2:
                sent.killed = self._group.kill_leader()
        for _ in range(IN_FLIGHT):
            free.acquire()
        if kill:
            self._group.wait_master(but=sent.killed)
            self._group.start_node(sent.killed)
            takes = partial(self._takes_messages, producer)
            wait_for(takes, TAKES_LIMIT_S, lambda: "the new master takes no messages")
        for _ in range(20):
            self._batch(producer)
        self._transactions(producer, 10)

    def _takes_messages(self, producer: TransactionProducer) -> bool | None:
        """Whether the new master takes messages: its name is known before it does."""
        before = self.sent.acknowledged
        self._batch(producer)
        return self.sent.acknowledged > before or None

    def _single(self) -> Message:
        number = self._take_number()
        body = b"message %d " % number + b"x" * (number * 37 % 200)
        if number % 500 == 7:
            body += self._chance.randbytes(20_000)
        elif number % 100 == 3:
            body += b"compressible " * 2000
        topic = TOPICS[number % 3]
        self.sent.bodies[topic] += 1
        return Message(
            topic,
            body,
            tags=f"tag{number % 5}" if number % 4 else None,
            keys=[f"key-{number}", f"shared-{number % 7}"] if number % 3 != 1 else None,
            properties={"own": f"grün {number}"} if number % 2 else None,
            delay_level=1 + number % 2 if number % 40 == 9 else 0,
        )

    def _take_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _note(self, item: Message, free: Semaphore, answer: SendResult | ClientError) -> None:
        with self._lock:
            if isinstance(answer, ClientError):
                self.sent.unknown += 1
                self.sent.errors[str(answer)[:80]] += 1
            elif item.delay_level:
                self.sent.hidden[item.topic] += 1
            else:
                place = (item.topic, answer.queue.queue_id, answer.queue_offset)
                self.sent.acked[place] = bytes(item.body)
        free.release()

    def _batch(self, producer: TransactionProducer) -> None:
        topic = self._chance.choice(TOPICS)
        messages = [
            Message(topic, b"batch %d" % number, tags="batch", keys=f"b{number}")
            for number in (self._take_number() for _ in range(BATCH))
        ]
        self.sent.bodies[topic] += BATCH
        try:
            first = producer.send_batch(messages)
        except ClientError as error:
            self.sent.unknown += BATCH
            self.sent.errors[str(error)[:80]] += 1
            return
        with self._lock:
            for at, item in enumerate(messages):
                place = (topic, first.queue.queue_id, first.queue_offset + at)
                self.sent.acked[place] = bytes(item.body)

    def _transactions(self, producer: TransactionProducer, count: int) -> None:
        """Every third is rolled back."""
        for _ in range(count):
            number = self._take_number()
            message = Message("orders", b"transaction %d" % number, keys=f"t{number}")
            transaction = producer.transaction(message)
            try:
                transaction.begin()
                if number % 3 == 0:
                    transaction.rollback()
                    continue
                self.sent.bodies["orders"] += 1
                transaction.commit()
                self.sent.hidden["orders"] += 1
            except ClientError as error:
                self.sent.unknown += 1
                self.sent.errors[str(error)[:80]] += 1


def _rolled_back(_message: object) -> LocalTransactionState:
    return LocalTransactionState.ROLLBACK_MESSAGE


def _try_to_create(producer: TransactionProducer, topic: str) -> bool | None:
    """True when it is done; a master that has just been elected may refuse."""
    with suppress(ClientError):
        producer.create_topic(topic, queues=QUEUES)
        return True
    return None
