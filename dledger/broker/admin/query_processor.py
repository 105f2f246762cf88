"""Search for messages: 12 QUERY_MESSAGE finds messages by key, 321 QUERY_CONSUME_QUEUE reads a ConsumeQueue
(QueryMessageProcessor, AdminBrokerProcessor). Any broker answers, from the entries that it has applied."""

from __future__ import annotations

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.core import Core
from dledger.broker.requests import Call, Needs, handles
from dledger.broker.store.index_service import IndexBehind, IndexService
from dledger.formats.consume_queue import UNIT
from dledger.formats.index_file import message_keys
from dledger.formats.record import Record
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import dumps
from dledger.remoting.headers import QueryConsumeQueueHeader, QueryMessageHeader

APPLIED_HERE = "applied index of the node that answers (any)"
MAX_MESSAGES = 64
"""Largest number of messages in one answer, even if the request asks for more (maxMsgsNumBatch)."""
UNIQUE_MESSAGES = 32
"""Largest number of messages in the answer to a query by unique key (defaultQueryMaxNum)."""
MAX_BYTES = 8 * 1024 * 1024
"""Limit, in bytes, of the messages in one answer. A first message that is larger is still returned."""
MAX_KEY = 32_767
"""Limit, in characters, of the key in a query; a longer one is refused. No message has a longer key."""
MAX_UNITS = 800
"""Largest number of ConsumeQueue units in one answer, even if the request asks for more."""


class QueryProcessor:
    """Handlers of the requests that search for messages."""

    def __init__(self, core: Core, index: IndexService) -> None:
        self._store = core.store
        self._reader = core.reader
        self._index = index
        self._clients = core.clients
        self._background = core.background

    @handles(
        RequestCode.QUERY_MESSAGE,
        QueryMessageHeader,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.READ,
        does=actions.OFFSET,
    )
    def query_message(self, call: Call[QueryMessageHeader]) -> None:
        """Return the newest messages of a topic that have this key, in the order of the log. This broker
        compares the key itself; RocketMQ's brokers compare only its hash."""
        header = call.header
        if not self._index.enabled:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                "this broker keeps no index of message keys (messageIndexEnable=false), so it finds "
                "no message by its key",
            )
        if len(header.key) > MAX_KEY:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"the key has {len(header.key)} characters; the limit is {MAX_KEY}",
            )
        self._background.start(call.connection, call.request, self._answer(call))

    async def _answer(self, call: Call[QueryMessageHeader]) -> None:
        header = call.header
        most = UNIQUE_MESSAGES if header.uniqueKeyQuery else min(max(header.maxNum, 0), MAX_MESSAGES)
        begin_ms, end_ms = header.beginTimestamp, header.endTimestamp
        try:
            found = await self._index.search(header.topic, header.key, begin_ms, end_ms, most)
        except IndexBehind as error:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, str(error)) from error
        parts: list[tuple[int, bytes]] = []
        size = 0
        for position in dict.fromkeys(found.positions):  # a message may have a key twice
            message = await self._reader.message_at(position)
            if message is None or not _has_key(message[1], header.topic, header.key):
                continue
            if not begin_ms <= message[1].store_timestamp <= end_ms:
                continue
            if parts and size + len(message[0]) > MAX_BYTES:
                break
            parts.append((position, message[0]))
            size += len(message[0])
        ext = {
            "indexLastUpdateTimestamp": str(found.last_ms),
            "indexLastUpdatePhyoffset": str(found.last_position),
        }
        remark = (
            None
            if found.whole
            else ("more messages match than one query may look at: ask for a shorter time range")
        )
        if parts:
            call.respond(ext=ext, body=[data for _, data in sorted(parts)], remark=remark)
        else:
            remark = remark or "can not find message, maybe time range not correct"
            call.respond(ResponseCode.QUERY_NOT_FOUND, ext=ext, remark=remark)

    @handles(
        RequestCode.QUERY_CONSUME_QUEUE,
        QueryConsumeQueueHeader,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.READ,
        does=actions.Does(Action.GET, topics=("topic",), groups=("consumerGroup",)),
    )
    def query_consume_queue(self, call: Call[QueryConsumeQueueHeader]) -> None:
        """Return units of a ConsumeQueue as they are stored."""
        header = call.header
        queue = self._store.queues.get(header.topic or "", header.queueId)
        if queue is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"{header.queueId}@{header.topic} is not exist!")
        body: dict[str, object] = {"maxQueueIndex": queue.bounds.next, "minQueueIndex": queue.bounds.min}
        if header.consumerGroup is not None:
            group = self._clients.consumers.get(header.consumerGroup)
            subscription = None if group is None else group.subscriptions.get(queue.topic)
            body["subscriptionData"] = subscription
            if subscription is None:
                body["filterData"] = f"{header.consumerGroup}@{header.topic} is not online!"
        if not queue.bounds.min <= header.index < queue.bounds.next:
            place = f"Index {header.index} of {header.queueId}@{header.topic} is not exist!"
            call.respond(body=dumps(body), remark=place)
            return
        wanted = min(max(header.count, 0), MAX_UNITS, queue.bounds.next - header.index)

        async def answer() -> None:
            units = await self._reader.units(queue, header.index, wanted) if wanted else b""
            body["queueData"] = [
                {"physicOffset": position, "physicSize": size, "tagsCode": code, "eval": False}
                for position, size, code in UNIT.iter_unpack(units)
            ]
            call.respond(body=dumps(body))

        self._background.start(call.connection, call.request, answer())


def _has_key(record: Record, topic: str, key: str) -> bool:
    return record.topic == topic and key in message_keys(record.properties.encode())
