"""Programs of the client machines in a run with brokers. They use our real producer and consumers; one of
them is an operator.

Each program may be killed and started again at any time. It then continues with the next operation of the
plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from hashlib import shake_128
from types import MappingProxyType

from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.broker_history import (
    BrokerHistory,
    Commit,
    Position,
    Receipt,
    Send,
    TopicChange,
    Turn,
)
from dledger.chaos.scenarios.broker_judge import DELAYS_MS
from dledger.chaos.scenarios.broker_replay import HALF, SCHEDULE, TIMERS
from dledger.chaos.scenarios.client_stage import ClientStage
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP
from dledger.chaos.scenarios.plan import Operation
from dledger.chaos.scenarios.reset_judge import Reset
from dledger.chaos.scenarios.timed_sends import send_timed
from dledger.chaos.scenarios.transaction_history import End, Fate
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.offsets import FromWhere, QueueOffsets
from dledger.client.consuming.pull_consumer import AsyncPullConsumer
from dledger.client.consuming.push_consumer import AsyncPushConsumer
from dledger.client.errors import ClientError, OutcomeUnknown
from dledger.client.listeners import ConsumeOrderlyStatus
from dledger.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from dledger.client.namespaces import without_namespace
from dledger.client.options import ClientOptions
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.transaction_producer import (
    AsyncTransaction,
    AsyncTransactionProducer,
    LocalTransactionState,
)
from dledger.remoting.bodies import TopicRoute
from dledger.runtime.env import Env

FIRST_TOPIC = "auto"
"""A topic that the brokers create when a producer first sends to it."""
TAGS = 3
PLAIN_UP_TO = 4096
"""Largest body, in bytes, that can always be compressed. Of the larger bodies every second one has random
bytes and cannot be compressed."""
KINDS = 6
"""The kind of a single message is its number modulo KINDS. Most numbers stand for plain messages."""
DELAYED, IN_TRANSACTIONS, TIMED = 0, 3, 5
"""The kinds that are not plain: a message with a delay level, one that is sent in a transaction, and a timer
message (which has its own time of delivery)."""
FATES = tuple(Fate)
PATIENCE = (ProducerOptions(), ProducerOptions(timeout_s=0.6, attempt_timeout_s=0.25))
"""Options of the producers, used in turn. With short time-outs a producer often does not learn the outcome of
its messages."""
COMMIT_EVERY_S = 0.7
ASSIGN_EVERY_S = 2.0
PULL_GROUP, PUSH_GROUP, ORDERLY_GROUP = "readers", "workers", "in-order"
STAY_S = (1.0, 8.0)
"""How long an orderly consumer runs before it closes and another one begins, in seconds (shortest and longest
time)."""
CALL_S, LONG_CALL_S, LONG_EVERY = 0.02, 1.5, 12
"""Three numbers for the calls of the listener of an orderly consumer: the longest usual call in seconds, the
longest long call in seconds, and the average number of messages for each long call.

Brokers keep a lock longer than a long call plus the time for which a consumer regards its lock as valid.
Otherwise a second call could begin before a long call ends.
"""
RESET_EVERY = 3
"""Every RESET_EVERY-th operation of the operator ends with a reset of the consumer offsets of the workers'
groups."""


class Program:
    """The program of one client machine."""

    def __init__(self, stage: ClientStage, number: int, history: BrokerHistory, topics: list[str]) -> None:
        self.name: str = stage.client_names[number]
        self.redirect: bool = number % 2 == 0
        """Whether this client sends its requests to the leader whose address a broker returns. For other
        clients, brokers that do not lead forward the requests."""
        self.lives = 0
        self._stage = stage
        self._history = history
        self._topics = topics
        """Topics that may be used: the first one, and all topics whose creation was acknowledged."""

    async def main(self, env: Env) -> None:
        """Run the program once, from its start to its end or a kill."""
        raise NotImplementedError

    def options(self) -> ClientOptions:
        """The options of this machine's client."""
        return ClientOptions(
            client_ip=self._stage.client_address(self.name),
            redirect=self.redirect,
            namespace=self._stage.namespace,
        )

    def place_of(self, queue: MessageQueue) -> Queue:
        """A queue as the history names it: without the namespace."""
        return without_namespace(queue.topic, self._stage.namespace), queue.queue_id

    def now(self) -> int:
        """The time of the run as this process sees it, in ns."""
        return self._stage.client_now(self.name)


class Planned(Program):
    """Performs the client's operations of the plan one after another. No operation begins before its time in
    the plan."""

    def __init__(
        self,
        stage: ClientStage,
        number: int,
        history: BrokerHistory,
        topics: list[str],
        operations: list[Operation],
    ) -> None:
        super().__init__(stage, number, history, topics)
        self._operations = operations
        self._next = 0
        self.patience: ProducerOptions = PATIENCE[number % len(PATIENCE)]
        self.last_sent = False

    @property
    def done(self) -> bool:
        """Whether every operation of the plan has ended or was cut off by a kill."""
        return self._next >= len(self._operations) and not self._stage.client_runs(self.name)

    def leave_out_rest(self) -> int:
        """Begin no further operation of the plan. Returns how many are left out."""
        left = len(self._operations) - self._next
        del self._operations[self._next :]
        return left

    async def main(self, env: Env) -> None:
        self.lives += 1
        producer = AsyncTransactionProducer(
            "producers",
            self._stage.namesrv_addr,
            check=self.check,
            options=self.patience,
            client=self.options(),
            env=env,
        )
        async with producer:
            while self._next < len(self._operations):
                operation = self._operations[self._next]
                early = operation.at_ms * MS - self.now()
                if early > 0:
                    await asyncio.sleep(early / 1e9)
                self._next += 1
                await self.perform(producer, operation)

    async def check(self, message: ReceivedMessage) -> LocalTransactionState:
        """Answer a broker that checks a transaction: commit, roll back, or unknown. The message may come from
        another producer."""
        fate = self._history.transactions.fates[message.body]
        if fate is Fate.NEVER:
            return LocalTransactionState.UNKNOWN
        states = LocalTransactionState
        return states.COMMIT_MESSAGE if fate.commits else states.ROLLBACK_MESSAGE

    async def perform(self, producer: AsyncTransactionProducer, operation: Operation) -> None:
        """Perform one operation."""
        raise NotImplementedError


class Producer(Planned):
    """Sends messages one by one, several at once, and in batches."""

    _count = 0
    sent_again: int = 0
    """How often `send_again` has been completed."""

    def __init__(
        self,
        stage: ClientStage,
        number: int,
        history: BrokerHistory,
        topics: list[str],
        operations: list[Operation],
    ) -> None:
        super().__init__(stage, number, history, topics, operations)
        self._last: list[MessageQueue] = []

    async def perform(self, producer: AsyncTransactionProducer, operation: Operation) -> None:
        topic = self._topics[operation.pick % len(self._topics)]
        if operation.kind == "batch":
            messages = [self._message(topic, operation.size) for _ in range(operation.count)]
            send = self._begin(topic, messages, batch=True)
            await self._settle(send, producer.send_batch(messages))
        elif operation.kind == "burst":
            async with asyncio.TaskGroup() as group:
                for number in range(operation.count):
                    group.create_task(self._some(producer, topic, operation.size), name=f"burst-{number}")
        else:
            await self._some(producer, topic, operation.size)

    async def send_last(self, env: Env) -> None:
        """Send messages until every topic has acknowledged one more message. This shows that the group makes
        progress."""
        async with AsyncProducer(
            "producers", self._stage.namesrv_addr, client=self.options(), env=env
        ) as producer:
            for topic in list(self._topics):
                while True:
                    send = await self._one(producer, topic, 100)
                    await asyncio.sleep(0.05)
                    if send.outcome == ACKNOWLEDGED and send.topic == topic:
                        self._last.append(MessageQueue(topic, self._stage.broker_name, send.queue))
                        break
        self.last_sent = True

    async def send_again(self, env: Env) -> None:
        """Send one more message to each queue in which `send_last` stored a message."""
        async with AsyncProducer(
            "producers", self._stage.namesrv_addr, client=self.options(), env=env
        ) as producer:
            for queue in self._last:
                await self._one(producer, queue.topic, 100, queue)
        self.sent_again += 1

    def _message(self, topic: str, size: int) -> Message:
        self._count += 1
        unique = f"{self.name}-{self._count}"
        filling = b"." * size
        if size > PLAIN_UP_TO and self._count % 2:
            filling = shake_128(unique.encode()).digest(size)
        tag = f"tag{self._count % TAGS}" if self._count % (TAGS + 1) else None
        return Message(topic, f"{unique}|".encode() + filling, tags=tag, keys=unique)

    def turn(self) -> tuple[int, int]:
        """Two numbers that decide what kind of message the next single one is: a counter, which chooses
        among the variants of a kind, and the kind (DELAYED, IN_TRANSACTIONS, TIMED, or another number for a
        plain message)."""
        return divmod(self._count, KINDS)

    def _delay_level(self) -> int:
        """The delay level of the next single message. 0 means no delay."""
        turn, rest = self.turn()
        return 1 + turn % len(DELAYS_MS) if rest == DELAYED else 0

    def _begin(self, topic: str, messages: list[Message], *, batch: bool = False) -> Send:
        send = Send(self.name, topic, [message.body for message in messages], self.now(), batch)
        self._history.sends.append(send)
        return send

    async def _some(self, producer: AsyncTransactionProducer, topic: str, size: int) -> None:
        """Send one message. Some messages are sent in a transaction, and some are timer messages."""
        turn, rest = self.turn()
        if rest == IN_TRANSACTIONS:
            await self._in_transaction(producer, topic, size, FATES[turn % len(FATES)])
        elif rest == TIMED:
            message, begin = self._message(topic, size), partial(self._begin, TIMERS)
            await send_timed(self._stage, self._history, producer, message, turn, begin, self._settle)
        else:
            await self._one(producer, topic, size)

    async def _in_transaction(
        self, producer: AsyncTransactionProducer, topic: str, size: int, fate: Fate
    ) -> None:
        message = self._message(topic, size)
        self._history.transactions.fates[message.body] = fate
        transaction = producer.transaction(message)
        send = self._begin(HALF, [message])
        await self._settle(send, _begun(transaction))
        if send.outcome != ACKNOWLEDGED:
            return
        send.queue = 0
        if fate not in (Fate.COMMIT, Fate.ROLL_BACK):
            transaction.leave_open()
            return
        end = End(message.body, send.offset, fate.commits)
        self._history.transactions.ends.append(end)
        try:
            await self.decide(transaction, commit=fate.commits)
            end.outcome = ACKNOWLEDGED
        except OutcomeUnknown:
            end.outcome = UNKNOWN
        except ClientError:
            end.outcome = REFUSED

    async def decide(self, transaction: AsyncTransaction, *, commit: bool) -> None:
        """End a transaction. Raises the errors of `AsyncTransaction.commit`."""
        await (transaction.commit() if commit else transaction.rollback())

    async def _one(
        self, producer: AsyncProducer, topic: str, size: int, queue: MessageQueue | None = None
    ) -> Send:
        level = self._delay_level() if queue is None else 0
        message = self._message(topic, size)
        if level:
            message.delay_level = level
            send = self._begin(SCHEDULE, [message])
        else:
            send = self._begin(topic, [message])
        await self._settle(send, producer.send(message, queue))
        if level:
            send.queue = level - 1
        return send

    async def _settle(self, send: Send, sending: Awaitable[SendResult]) -> None:
        try:
            result = await sending
            send.outcome, send.queue, send.offset = ACKNOWLEDGED, result.queue.queue_id, result.queue_offset
            send.ids = tuple(result.offset_message_id.split(","))
        except OutcomeUnknown as error:
            send.outcome, send.text = UNKNOWN, str(error)
        except ClientError as error:  # all other errors say that the message is certainly not stored
            send.outcome, send.text = REFUSED, str(error)
        send.end, send.begun = self.now(), self._stage.begun


async def _begun(transaction: AsyncTransaction) -> SendResult:
    await transaction.begin()
    assert transaction.result is not None
    return transaction.result


class Operator(Planned):
    """Creates topics, and gives them more queues."""

    def __init__(
        self,
        stage: ClientStage,
        number: int,
        history: BrokerHistory,
        topics: list[str],
        operations: list[Operation],
    ) -> None:
        super().__init__(stage, number, history, topics, operations)
        self._queues: dict[str, int] = {}

    async def perform(self, producer: AsyncTransactionProducer, operation: Operation) -> None:
        names = list(self._queues)
        topic = f"made{len(names)}"
        if names and operation.pick % 3 == 0:
            topic = names[operation.pick // 3 % len(names)]
        queues = self._queues[topic] = self._queues.get(topic, 0) + 1 + operation.pick % 2
        change = TopicChange(topic, queues, self.now())
        self._history.changes.append(change)
        elections, unanswered = self._stage.elections, producer._unanswered_count
        try:
            await producer.create_topic(topic, queues)
            change.outcome = ACKNOWLEDGED
            if topic not in self._topics:
                self._topics.append(topic)
            if self._stage.elections > elections:
                self._stage.marks.reach("a topic was made while the leader changed")
        except ClientError as error:
            change.outcome, change.text = UNKNOWN, str(error)
        change.unanswered = producer._unanswered_count > unanswered
        change.end = self.now()
        if operation.pick % RESET_EVERY == 0:
            await self._reset(producer, PUSH_GROUP)
            if self._stage.resets_in_order:
                await self._reset(producer, ORDERED_GROUP)

    async def _reset(self, producer: AsyncProducer, group: str) -> None:
        """Reset the consumer offsets of a group to the beginning of the first topic."""
        topic, stage = self._topics[0], self._stage
        unseen = {
            queue: dict.fromkeys(range(len(messages)))
            for queue, messages in stage.committed_messages().items()
            if queue[0] == topic and group == PUSH_GROUP  # for the other group the log says it
        }
        reset = Reset(group, topic, self.now(), unseen)
        self._history.resets.append(reset)
        elections = stage.elections
        try:
            offsets = QueueOffsets(producer._core)
            reset.told = await offsets.reset(topic, stage.broker_name, group, 0)
            reset.outcome = ACKNOWLEDGED
            if stage.elections > elections:
                stage.marks.reach("offsets were reset while the leader changed")
        except ClientError:
            reset.outcome = UNKNOWN
        reset.end = self.now()


class Consumer(Program):
    """The common part of consumer programs. It writes observations to the history."""

    group = ""
    routes: Mapping[str, TopicRoute] = MappingProxyType({})
    """Maps a topic to the route that the program got last since its start."""

    def handed(self, life: int, message: ReceivedMessage) -> None:
        """Note a message that the client handed to the program."""
        queue = self.place_of(message.queue)
        self._history.received(
            Receipt(
                self.group,
                self.name,
                life,
                queue,
                message.queue_offset,
                message.body,
                message.physical_offset,
                message.store_timestamp_ms,
                self._stage.leader_term(),
                self._stage.begun,
                self.now(),
            )
        )


class PullReader(Consumer):
    """Pulls from all queues of all topics, commits consumer offsets, and asks for the consumer offsets of its
    group."""

    group = PULL_GROUP

    async def main(self, env: Env) -> None:
        self.lives += 1
        life = self.lives
        async with AsyncPullConsumer(
            self.group, self._stage.namesrv_addr, client=self.options(), env=env
        ) as consumer:
            self.routes: Mapping[str, TopicRoute] = consumer._core.routes
            next_commit = next_assign = 0
            while True:
                if self.now() >= next_assign:
                    await self._assign(consumer)
                    next_assign = self.now() + round(ASSIGN_EVERY_S * 1e9)
                if not consumer.assignment:
                    await asyncio.sleep(0.1)
                    continue
                for message in await consumer.poll(timeout_s=COMMIT_EVERY_S):
                    self.handed(life, message)
                if self.now() >= next_commit:
                    await self._commit(consumer)
                    next_commit = self.now() + round(COMMIT_EVERY_S * 1e9)

    async def _assign(self, consumer: AsyncPullConsumer) -> None:
        for topic in list(self._topics):
            try:
                for queue in await consumer.queues(topic):
                    if queue not in consumer.assignment:
                        begin = self.now()
                        await consumer.assign([*consumer.assignment, queue], start=FromWhere.FIRST)
                        self._stands(queue, consumer.position(queue), begin)
            except ClientError:
                continue  # the topic does not exist yet, or nobody leads: try again in a moment

    def _stands(self, queue: MessageQueue, offset: int, begin: int) -> None:
        if self.lives > 1 and offset > 0:
            self._stage.marks.reach("a consumer went on where its group had been")
        self._history.positions.append(Position(self.group, self.place_of(queue), offset, begin, self.now()))

    async def _commit(self, consumer: AsyncPullConsumer) -> None:
        """Commit each queue in a request of its own, so that each outcome is known. Sometimes ask for the
        committed offset."""
        for queue in consumer.assignment:
            key = self.place_of(queue)
            offset = consumer.position(queue)
            if self._stage.measured:
                return
            if offset == self._committed(key):
                continue
            commit = Commit(self.group, key, offset, self.now())
            self._history.commits.append(commit)
            try:
                await consumer._offsets.commit(queue, consumer.group, offset, sets_back=False)
            except ClientError:
                commit.outcome, commit.end = UNKNOWN, self.now()
                continue
            commit.outcome, commit.end = ACKNOWLEDGED, self.now()
            commit.term = self._stage.leader_term()
            try:
                found = await consumer.committed(queue)
            except ClientError:
                continue
            self._stands(queue, -1 if found is None else found, commit.end)

    def _committed(self, queue: tuple[str, int]) -> int:
        own = (one for one in reversed(self._history.commits) if one.queue == queue)
        return next((one.offset for one in own if one.outcome == ACKNOWLEDGED), -1)


class PushWorker(Consumer):
    """A push consumer that shares the queues of all topics with the other worker of its group."""

    group = PUSH_GROUP

    async def main(self, env: Env) -> None:
        self.lives += 1
        life = self.lives

        async def handle(message: ReceivedMessage) -> None:
            self.handed(life, message)
            await self.work(message)

        options = ConsumerOptions(concurrency=1, commit_s=1.0)
        consumer = AsyncPushConsumer(
            self.group,
            self._stage.namesrv_addr,
            handle,
            from_where=FromWhere.FIRST,
            options=options,
            client=self.options(),
            env=env,
        )
        self.routes: Mapping[str, TopicRoute] = consumer._core.routes
        known = list(self._topics)
        for topic in known:
            consumer.subscribe(topic)
        async with consumer:
            while True:
                await asyncio.sleep(ASSIGN_EVERY_S)
                for topic in [topic for topic in self._topics if topic not in known]:
                    known.append(topic)
                    consumer.subscribe(topic)

    async def work(self, message: ReceivedMessage) -> None:
        """Work on a message before it counts as consumed. This worker has nothing to do."""


class OrderlyWorker(Consumer):
    """An orderly push consumer. It shares the queues of all topics with another worker. After some time it
    closes, and continues as a new consumer."""

    group = ORDERLY_GROUP

    async def main(self, env: Env) -> None:
        options = ConsumerOptions(
            concurrency=4,
            commit_s=1.0,
            rebalance_s=2.0,
            rebalance_retry_s=0.2,
            suspend_s=0.1,
            lock_renew_s=0.8,
            lock_valid_s=2.0,
            close_timeout_s=4.0,
        )
        while True:
            self.lives += 1
            consumer = AsyncPushConsumer(
                self.group,
                self._stage.namesrv_addr,
                partial(self._handle, env, self.lives),
                orderly=True,
                from_where=FromWhere.FIRST,
                options=options,
                client=self.options(),
                env=env,
            )
            for topic in list(self._topics):
                consumer.subscribe(topic)
            async with consumer:
                await asyncio.sleep(env.random.uniform(*STAY_S))

    async def _handle(self, env: Env, life: int, message: ReceivedMessage) -> ConsumeOrderlyStatus | None:
        queue = self.place_of(message.queue)
        term = self._stage.leader_term()
        turn = Turn(self.group, self.name, life, queue, message.queue_offset, self.now(), term)
        self._history.turns.append(turn)
        self.handed(life, message)
        longest = CALL_S if env.random.randrange(LONG_EVERY) else LONG_CALL_S
        await asyncio.sleep(env.random.uniform(0.0, longest))
        turn.end, turn.last_term = self.now(), self._stage.leader_term()
        if env.random.randrange(20) == 0:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return None
