"""The common part of push and lite pull consumers: sharing queues with the rest of their group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.initial_offsets import InitialOffsets
from dledger.client.consuming.offsets import BrokerProgress, FileProgress, FromWhere, Progress, QueueOffsets
from dledger.client.consuming.open_consumers import OPEN_CONSUMERS
from dledger.client.consuming.queue_locks import QueueLocks
from dledger.client.consuming.rebalancing import QueueShare, Rebalancer, Receiver
from dledger.client.consuming.running_info import ABOUT_US, ConsumeNow, RunningInfo
from dledger.client.consuming.subscription import ALL, Subscription, subscribe
from dledger.client.core import ClientCore
from dledger.client.encoding import RETRY_PREFIX
from dledger.client.errors import ClientError
from dledger.client.lifecycle import AsyncClient
from dledger.client.message import check_topic
from dledger.client.namespaces import with_namespace
from dledger.client.options import ClientOptions, options_of
from dledger.remoting.bodies import ConsumerData, TopicRoute
from dledger.remoting.bodies import Subscription as WireSubscription
from dledger.remoting.client import Answered
from dledger.remoting.commands import Request
from dledger.runtime import Env

START_S = 5.0
"""How long `start` waits until brokers know the consumer, and the consumer knows where its group begins. If
no broker answers by then, `start` returns and this work goes on in the background."""


class MessageModel(Enum):
    """Whether each message goes to one consumer of the group (CLUSTERING) or to all of them
    (BROADCASTING)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class GroupConsumer(AsyncClient):
    """Reports its subscriptions to brokers, shares queues with its group, and commits the group's offsets."""

    _consume_type = "CONSUME_PASSIVELY"
    """The type reported to brokers; CONSUME_ACTIVELY for consumers whose application asks for messages."""

    def __init__(
        self,
        group: str,
        namesrv: Sequence[str],
        model: MessageModel,
        from_where: FromWhere,
        options: ConsumerOptions | None,
        client: ClientOptions | None,
        env: Env | None,
    ) -> None:
        common = options_of(ClientOptions, client, "client")
        self.group: str = with_namespace(group, common.namespace)
        self.options: ConsumerOptions = options_of(ConsumerOptions, options, "options")
        core = ClientCore(
            env,
            namesrv,
            common,
            dict.fromkeys(ABOUT_US, self._asked),
            disk_threads=self.options.concurrency,
        )
        super().__init__(core, f"consumer {group}")
        self._env = self._core.env
        self._statistics = ConsumeStatistics(self._core.now)
        self._model = model
        self._from_where = from_where
        self._core.consumers = self._consumer_data
        self._core.on_refused = self._end_by
        self._core.on_route.append(self._route_changed)
        self._core.on_members.append(self._members_changed)
        self._subscriptions: dict[str, Subscription] = {}
        self._offsets: QueueOffsets = QueueOffsets(self._core)
        """Asks brokers for offsets of queues."""
        self._share: QueueShare
        self._rebalancer: Rebalancer

    def _begin_with(self, receiver: Receiver, from_timestamp_ms: int, locks: QueueLocks | None) -> None:
        """The last step of the constructor. Pulled messages are passed to `receiver`."""
        broadcasting = self._model is MessageModel.BROADCASTING
        progress: Progress = BrokerProgress(self._offsets, self.group)
        if broadcasting:
            progress = FileProgress(self._env, self.options.offsets_dir, self._core.client_id, self.group)
        self._share = QueueShare(
            self._core, self.group, self.options, progress, receiver, locks, self._statistics
        )
        self._initial_offsets = InitialOffsets(
            self._core, self.group, self._offsets, progress, self._from_where, from_timestamp_ms
        )
        self._share.on_reset = lambda: self._rebalancer.soon()
        self._rebalancer = Rebalancer(
            self._core,
            self.group,
            self.options,
            self._share,
            self._initial_offsets,
            broadcasting,
            locks,
        )

        self._about_us = RunningInfo(
            self._core,
            self.group,
            self._share,
            self._subscription_data,
            {
                "PROP_NAMESERVER_ADDR": ";".join(self._core.namesrv),
                "PROP_CONSUME_TYPE": self._consume_type,
                "PROP_CONSUMEORDERLY": "true" if locks is not None else "false",
                "PROP_THREADPOOL_CORE_SIZE": str(self.options.concurrency),
            },
            self._consume_now,
            self._statistics,
        ).handlers()

    _consume_now: ConsumeNow | None = None
    """Calls the listener; None for consumers without one."""

    def _asked(self, address: str, request: Request) -> Answered:
        """Handle a broker's question about this consumer, or a reset of its offsets."""
        return self._about_us[request.code](address, request)

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consume a topic: all messages ("*"), messages with one of some tags ("A || B"), or messages whose
        properties satisfy a condition (`Sql`)."""
        check_topic(topic)
        topic = with_namespace(topic, self._core.options.namespace)
        self._subscriptions[topic] = subscribe(topic, expression, self._env.wall.now_ms())
        self._rebalancer.subscriptions = self._wanted()
        self._rebalancer.soon()

    def _check(self) -> None:
        if not self._subscriptions:
            raise ClientError("no topic is subscribed: call subscribe(topic) before start()")
        self._name_taken = OPEN_CONSUMERS.register(self._core, self.group)

    async def _begin(self) -> None:
        self._core.spawn(self._rebalancer.run(), f"rebalance {self.group}")
        self._core.spawn(self._share.commit_periodically(), f"commit {self.group}")
        if self._subscriptions:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    await self._rebalancer.met.wait()
        if self._failure is not None:
            raise self._failure

    def _end_by(self, error: BaseException) -> None:
        """End the consumer because of an error after which it cannot continue."""
        self._core.log.error("consumer ended by an error", group=self.group, reason=repr(error))
        self._failure = self._failure or error
        self._stop_soon()

    async def _looked(self, topic: str) -> None:
        """Wait until it is decided at which offsets the group begins in a subscribed topic; at most `START_S`
        seconds."""
        topic = with_namespace(topic, self._core.options.namespace)
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await self._initial_offsets.wait(topic)

    async def _finish(self, drain: bool) -> None:
        try:
            self._rebalancer.stop()
            self._share.pause()
            if drain:
                await self._finish_calls()
            await self._share.close()
            await self._core.unregister(None, self.group)
        finally:
            OPEN_CONSUMERS.release(self._name_taken)

    async def _finish_calls(self) -> None:
        """Wait for the calls of the application that are running."""

    @property
    def client_id(self) -> str:
        """The name by which brokers know this consumer."""
        return self._core.client_id

    def _wanted(self) -> dict[str, Subscription]:
        """The topics that were subscribed, and the group's own retry topic."""
        wanted = dict(self._subscriptions)
        if self._model is MessageModel.CLUSTERING:
            retry = RETRY_PREFIX + self.group
            wanted[retry] = subscribe(retry, ALL, 0)
        return wanted

    def _consumer_data(self) -> list[ConsumerData]:
        if not self._rebalancer.ready:
            return []
        return [
            ConsumerData(
                groupName=self.group,
                consumeType=self._consume_type,
                messageModel=self._model.value,
                consumeFromWhere=self._from_where.value,
                subscriptionDataSet=[
                    wanted
                    for wanted in self._subscription_data()
                    if self._initial_offsets.decided(
                        wanted.topic
                    )  # `InitialOffsets` says what other members conclude from it
                ],
            )
        ]

    def _subscription_data(self) -> list[WireSubscription]:
        return [
            WireSubscription(
                topic=wanted.topic,
                subString=wanted.expression,
                tagsSet=list(wanted.tags),
                codeSet=list(wanted.codes),
                subVersion=wanted.version,
                expressionType=wanted.kind,
            )
            for wanted in self._wanted().values()
        ]

    def _members_changed(self, group: str) -> None:
        if group == self.group:
            self._rebalancer.soon()

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        self._rebalancer.soon()
