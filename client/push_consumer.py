"""The push consumer on an event loop: it pulls, divides queues among the group, and calls a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from types import TracebackType

from dledger.client.core import ClientCore
from dledger.client.encoding import RETRY_PREFIX
from dledger.client.errors import ClientError
from dledger.client.groups import BrokerGroup
from dledger.client.listening import BatchListener, Dispatcher, Listener, ListenerCalls
from dledger.client.message import MessageQueue, check_group, check_topic
from dledger.client.offsets import BrokerProgress, FileProgress, FromWhere, Progress, QueueOffsets
from dledger.client.options import ClientOptions, ConsumerOptions
from dledger.client.rebalancing import QueueShare, Rebalancer
from dledger.client.subscription import ALL, Subscription, subscribe
from dledger.remoting.bodies import ConsumerData, TopicRoute
from dledger.remoting.bodies import Subscription as WireSubscription
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.runtime import Env


class MessageModel(Enum):
    """Who gets a message: one consumer of the group, or every one."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class AsyncPushConsumer:
    """Calls a listener with the messages of some topics; the consumers of a group share the queues.

    >>> async def handle(message): print(message.topic, message.body)
    >>> consumer = AsyncPushConsumer("billing", "127.0.0.1:9876", handle)      # doctest: +SKIP
    >>> consumer.subscribe("orders", "paid || sent")                           # doctest: +SKIP
    >>> async with consumer: await asyncio.sleep(3600)                         # doctest: +SKIP

    A listener that is a plain function runs in the DISK threads of `env.workers`, so these bound how many
    run at once. A message is delivered at least once: it may come again after a crash, a rebalance or a
    failover, so listeners have to be idempotent.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: Listener | None = None,
        *,
        batch_listener: BatchListener | None = None,
        model: MessageModel = MessageModel.CLUSTERING,
        from_where: FromWhere = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.options = options or ConsumerOptions()
        self._core = ClientCore(
            env,
            namesrv,
            client or ClientOptions(),
            {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed},
            disk_threads=self.options.concurrency,
        )
        self._env = self._core.env
        self._model = model
        self._from_where = from_where
        self._core.consumers = self._consumer_data
        self._core.on_route.append(self._route_changed)
        self._core.on_leader.append(self._leader_moved)
        self._subscriptions: dict[str, Subscription] = {}
        self.offsets = QueueOffsets(self._core)
        """Asks brokers for offsets of queues."""
        broadcasting = model is MessageModel.BROADCASTING
        progress: Progress = BrokerProgress(self.offsets, group)
        if broadcasting:
            progress = FileProgress(self._env, self.options.offsets_dir, self._core.client_id, group)
        calls = ListenerCalls(self._core, listener, batch_listener)
        self._dispatcher = Dispatcher(self._core, calls, self.options, group, broadcasting)
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

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume a topic, all of it ("*") or messages with one of some tags ("A || B")."""
        check_topic(topic)
        self._subscriptions[topic] = subscribe(topic, expression, self._env.wall.now_ms())
        self._rebalancer.subscriptions = self._wanted()
        self._rebalancer.soon()

    async def __aenter__(self) -> AsyncPushConsumer:
        if not self._subscriptions:
            raise ClientError("nothing subscribed: call subscribe(topic) before starting")
        await self._core.__aenter__()
        self._dispatcher.start()
        self._core.spawn(self._rebalancer.run(), f"rebalance {self.group}")
        self._core.spawn(self._share.commit_periodically(), f"commit {self.group}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or not issubclass(kind, asyncio.CancelledError):
                self._rebalancer.stop()
                self._share.pause()
                await self._dispatcher.stop()
                await self._share.close()
                await self._core.unregister(None, self.group)
        finally:
            await self._core.__aexit__(kind, error, trace)

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
