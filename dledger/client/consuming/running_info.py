"""Answers the requests in which a broker asks about this consumer (221 GET_CONSUMER_STATUS_FROM_CLIENT, 307
GET_CONSUMER_RUNNING_INFO, 309 CONSUME_MESSAGE_DIRECTLY). Also resets its offsets when a broker requests that
(220 RESET_CONSUMER_CLIENT_OFFSET)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.rebalancing import AssignedQueue, QueueShare
from dledger.client.core import ClientCore
from dledger.client.encoding import received
from dledger.client.message import MessageQueue, ReceivedMessage
from dledger.formats.record import CorruptRecord, decode_record
from dledger.remoting.bodies import MessageQueue as WireQueue
from dledger.remoting.bodies import Subscription, decode_queue_table, queue_table
from dledger.remoting.client import ClientHandler
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import dumps, dumps_object_map
from dledger.remoting.headers import ResetOffsetHeader
from dledger.remoting.operator_headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusOfClientHeader,
    RunningInfoHeader,
)
from dledger.runtime.stacks import stacks

VERSION_NAME = "V5_3_3"
ABOUT_US = (
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""Codes of the requests that brokers send to a consumer."""
ConsumeNow = Callable[[ReceivedMessage], Coroutine[Any, Any, tuple[str, str | None]]]
"""Calls the listener with one message. Returns RocketMQ's CMResult, and after a failure the reason."""


class RunningInfo:
    """Answers brokers' requests about one consumer of a group."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        share: QueueShare,
        subscriptions: Callable[[], list[Subscription]],
        properties: dict[str, str],
        consume_now: ConsumeNow | None,
        statistics: ConsumeStatistics,
    ) -> None:
        """`consume_now` is None for a consumer without a listener."""
        self._core = core
        self._group = group
        self._share = share
        self._subscriptions = subscriptions
        self._consume_now = consume_now
        self._statistics = statistics
        now = str(core.env.wall.now_ms())
        self._properties = {
            **properties,
            "PROP_CLIENT_VERSION": VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": now,
        }

    def handlers(self) -> dict[int, ClientHandler]:
        """A dict from request code to its handler."""
        return {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _reset(self, address: str, request: Request) -> None:
        """Handle request 220 RESET_CONSUMER_CLIENT_OFFSET: the group's offsets were set, so continue from the
        new ones."""
        header = request.header(ResetOffsetHeader)
        if header.group != self._group:
            return
        for queue, offset in decode_queue_table(request.body, "offsetTable", int).items():
            self._share.reset(MessageQueue(queue.topic, queue.brokerName, queue.queueId), offset)

    def _status(self, address: str, request: Request) -> Response:
        header = request.header(ConsumerStatusOfClientHeader)
        self._check(header.group)
        offsets = {
            _wire(queue): assigned.process.commit_offset
            for queue, assigned in self._share.all()
            if queue.topic == header.topic
        }
        return Response(ResponseCode.SUCCESS, body=queue_table("messageQueueTable", offsets))

    def _running_info(self, address: str, request: Request) -> Response:
        header = request.header(RunningInfoHeader)
        self._check(header.consumerGroup)
        queues = sorted((_wire(queue), _queue_info(assigned)) for queue, assigned in self._share.all())
        subscriptions = self._subscriptions()
        body = dumps_object_map(
            "mqTable",
            queues,
            properties=self._properties,
            subscriptionSet=subscriptions,
            statusTable={one.topic: self._statistics.status(one.topic) for one in subscriptions},
            userConsumerInfo={},
            jstack=stacks() if header.jstackEnable else None,
        )
        return Response(ResponseCode.SUCCESS, body=body)

    def _consume_directly(self, address: str, request: Request) -> Coroutine[Any, Any, Response]:
        header = request.header(ConsumeDirectlyHeader)
        self._check(header.consumerGroup)
        consume_now = self._consume_now
        if consume_now is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, "this consumer has no listener")
        try:
            message = received(decode_record(request.body), header.brokerName or "")
        except CorruptRecord as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"the body is not a message: {error}") from error

        async def answer() -> Response:
            began = self._core.now()
            result, remark = await consume_now(message)
            spent_ms = int((self._core.now() - began) * 1000)
            told = {"autoCommit": True, "consumeResult": result, "order": False, "spentTimeMills": spent_ms}
            return Response(ResponseCode.SUCCESS, body=dumps({**told, "remark": remark}))

        return answer()

    def _check(self, group: str) -> None:
        if group != self._group:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)


def _wire(queue: MessageQueue) -> WireQueue:
    return WireQueue(queue.topic, queue.broker_name, queue.queue_id)


def _queue_info(assigned: AssignedQueue) -> dict[str, Any]:
    """The state of a queue as a ProcessQueueInfo."""
    process = assigned.process
    low, high = process.span
    return {
        "cachedMsgCount": process.count,
        "cachedMsgMaxOffset": high,
        "cachedMsgMinOffset": low,
        "cachedMsgSizeInMiB": process.bytes_waiting >> 20,
        "commitOffset": process.commit_offset,
        "droped": process.dropped,
        "lastConsumeTimestamp": assigned.consumed_at_ms,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": assigned.pulled_at_ms,
        "locked": assigned.locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
