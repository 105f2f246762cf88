"""The push consumer on an event loop: it pulls, divides queues among the group, and calls a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from dledger.client.core import ClientCore
from dledger.client.encoding import RETRY_PREFIX
from dledger.client.errors import ClientError
from dledger.client.groups import BrokerGroup
from dledger.client.life import AsyncClient
from dledger.client.listening import BatchListener, Dispatcher, Listener, ListenerCalls
from dledger.client.message import MessageQueue, check_group, check_topic
from dledger.client.offsets import (
    BrokerProgress,
    FileProgress,
    FromWhere,
    Progress,
    QueueOffsets,
    start_of,
)
from dledger.client.open_consumers import OPEN_CONSUMERS
from dledger.client.options import ClientOptions, ConsumerOptions, member_of, namesrv_addresses, options_of
from dledger.client.rebalancing import QueueShare, Rebalancer
from dledger.client.subscription import ALL, Subscription, subscribe
from dledger.remoting.bodies import ConsumerData, TopicRoute
from dledger.remoting.bodies import Subscription as WireSubscription
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.runtime import Env
from dledger.runtime.signals import TERMINATED, on_termination


class MessageModel(Enum):
    """Who gets a message: one consumer of the group, or every one."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class AsyncPushConsumer(AsyncClient):
    """Calls a listener with the messages of some topics; the consumers of a group share the queues.

    >>> async def handle(message): print(message.topic, message.body)
    >>> consumer = AsyncPushConsumer("billing", "127.0.0.1:9876", handle, topic="orders")  # doctest: +SKIP
    >>> async with consumer: await consumer.wait()                                         # doctest: +SKIP

    A listener that is a plain function runs in the DISK threads of `env.workers`, so these bound how many
    run at once. A message is delivered at least once: it may come again after a crash, a rebalance or a
    failover, so listeners have to be idempotent. It is consumed when the listener, and what it returned where
    that can be awaited, has ended with None or `ConsumeStatus.SUCCESS`; whatever else it returns or raises is
    logged, and the message is delivered again. SystemExit and KeyboardInterrupt end the consumer.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: Listener | None = None,
        *,
        topic: str | None = None,
        expression: str = ALL,
        batch_listener: BatchListener | None = None,
        model: MessageModel | str = MessageModel.CLUSTERING,
        from_where: FromWhere | str = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        namesrv = namesrv_addresses(namesrv)
        model, from_where = check_consumer(
            group, listener, batch_listener, model, from_where, from_timestamp_ms
        )
        self.group = group
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        core = ClientCore(
            env,
            namesrv,
            options_of(ClientOptions, client, "client"),
            {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed},
            disk_threads=self.options.concurrency,
        )
        super().__init__(core, f"consumer {group}")
        self._env = self._core.env
        self._model = model
        self._from_where = from_where
        self._core.consumers = self._consumer_data
        self._core.on_route.append(self._route_changed)
        self._core.on_leader.append(self._leader_moved)
        self._subscriptions: dict[str, Subscription] = {}
        self.offsets: QueueOffsets = QueueOffsets(self._core)
        """Asks brokers for offsets of queues."""
        broadcasting = model is MessageModel.BROADCASTING
        progress: Progress = BrokerProgress(self.offsets, group)
        if broadcasting:
            progress = FileProgress(self._env, self.options.offsets_dir, self._core.client_id, group)
        calls = ListenerCalls(self._core, listener, batch_listener)
        self._dispatcher = Dispatcher(self._core, calls, self.options, group, broadcasting, self._fatal)
        self._share = QueueShare(self._core, group, self.options, progress, self._dispatcher)
        self._rebalancer = Rebalancer(
            self._core,
            group,
            self.options,
            self._share,
            self.offsets,
            broadcasting,
            from_where,
            from_timestamp_ms,
        )
        if topic is not None:
            self.subscribe(topic, expression)

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume a topic: all of it ("*"), messages with one of some tags ("A || B"), or those whose
        properties fulfil a condition (`Sql`)."""
        check_topic(topic)
        self._subscriptions[topic] = subscribe(topic, expression, self._env.wall.now_ms())
        self._rebalancer.subscriptions = self._wanted()
        self._rebalancer.soon()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer ends (True), or the time is over (False).

        In an `async with` block that is when its end was asked for: by `close`, or because the listener
        raised SystemExit or KeyboardInterrupt, which is a ClientError here. On the main thread SIGTERM asks
        for the end as well, and is SystemExit(143) here, unless the program has a handler of its own.
        """
        self._core.check_open()
        terminated = asyncio.Event()

        def terminate() -> None:
            terminated.set()
            self.stop_soon()

        with on_termination(terminate):
            try:
                async with asyncio.timeout(timeout_s):
                    await (self._stop if self._hosting is None else self._over).wait()
            except TimeoutError:
                return False
        if terminated.is_set():
            raise SystemExit(TERMINATED)
        if self._failure is not None:
            raise ended_by(self._failure) from self._failure
        return True

    def stop_soon(self, drain: bool = True) -> None:
        """Ask for the end: no further message is handed out. On the loop."""
        self.hand_out_no_more()
        super().stop_soon(drain)

    def hand_out_no_more(self) -> None:
        """From now on the listener is not called. From any thread."""
        self._dispatcher.stop_soon()

    @property
    def inside(self) -> bool:
        """Whether the caller is this consumer's listener."""
        return self._dispatcher.inside

    @property
    def _inside(self) -> bool:
        return self._dispatcher.inside

    def _check(self) -> None:
        if not self._subscriptions:
            raise ClientError("nothing subscribed: call subscribe(topic) before starting")
        self._name_taken = OPEN_CONSUMERS.take(self._core, self.group)

    async def _begin(self) -> None:
        self._dispatcher.start()
        self._core.spawn(self._rebalancer.run(), f"rebalance {self.group}")
        self._core.spawn(self._share.commit_periodically(), f"commit {self.group}")

    async def _finish(self, drain: bool) -> None:
        self._dispatcher.stop_soon()
        try:
            self._rebalancer.stop()
            self._share.pause()
            if drain:
                await self._dispatcher.stop()
            await self._share.close()
            await self._core.unregister(None, self.group)
        finally:
            OPEN_CONSUMERS.give_back(self._name_taken)

    def _fatal(self, error: BaseException) -> None:
        """A listener raised what is not about its message."""
        self._core.log.error("consumer ends", group=self.group, reason=repr(error))
        self._failure = error
        self.stop_soon()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._share.queues

    @property
    def client_id(self) -> str:
        """The name by which brokers know this consumer."""
        return self._core.client_id

    def _wanted(self) -> dict[str, Subscription]:
        """What was subscribed, and the group's own retry topic."""
        wanted = dict(self._subscriptions)
        if self._model is MessageModel.CLUSTERING:
            retry = RETRY_PREFIX + self.group
            wanted[retry] = subscribe(retry, ALL, 0)
        return wanted

    def _consumer_data(self) -> list[ConsumerData]:
        return [
            ConsumerData(
                groupName=self.group,
                consumeType="CONSUME_PASSIVELY",
                messageModel=self._model.value,
                consumeFromWhere=self._from_where.value,
                subscriptionDataSet=[
                    WireSubscription(
                        topic=wanted.topic,
                        subString=wanted.expression,
                        tagsSet=list(wanted.tags),
                        codeSet=list(wanted.codes),
                        subVersion=wanted.version,
                        expressionType=wanted.kind,
                    )
                    for wanted in self._wanted().values()
                ],
            )
        ]

    def _ids_changed(self, address: str, request: Request) -> None:
        """A broker says that a consumer came or went (40)."""
        if request.ext().get("consumerGroup") == self.group:
            self._rebalancer.soon()

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._rebalancer.soon()

    def _leader_moved(self, group: BrokerGroup) -> None:
        self._share.leader_moved(group)


def check_consumer(
    group: str,
    listener: Listener | None,
    batch_listener: BatchListener | None,
    model: MessageModel | str,
    from_where: FromWhere | str,
    from_timestamp_ms: int,
) -> tuple[MessageModel, FromWhere]:
    """What a push consumer is made with; ClientError names what cannot be meant."""
    check_group(group)
    if (listener is None) == (batch_listener is None):
        raise ClientError("give either listener= or batch_listener=")
    call = batch_listener if listener is None else listener
    if not callable(call):
        raise ClientError(
            f"the listener is {type(call).__name__}: give a function, or an object with __call__"
        )
    where = start_of(from_where, from_timestamp_ms, "from_where", "from_timestamp_ms")
    return member_of(MessageModel, model, "model"), where


def ended_by(error: BaseException) -> ClientError:
    """The error that tells why a consumer ended."""
    return ClientError(f"the consumer has ended because of {type(error).__name__}: {error}")
