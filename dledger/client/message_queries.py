"""Finds messages by key. Each broker group that has the topic is asked (request 12 QUERY_MESSAGE)."""

from __future__ import annotations

import asyncio

from dledger.client.core import ClientCore
from dledger.client.encoding import received_all
from dledger.client.errors import BrokerRefused, ClientError, refused_text
from dledger.client.message import ReceivedMessage, check_topic
from dledger.client.namespaces import with_namespace
from dledger.client.routes import subscribe_queues
from dledger.client.times import check_time
from dledger.formats.record import CorruptRecord
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import QueryMessageHeader

MAX_MESSAGES = 64
"""Largest number of messages that one query asks a broker for; RocketMQ's brokers have the same limit."""
NEVER_MS = (1 << 63) - 1
"""A time later than all others."""


class MessageQueries:
    """Finds messages by their keys. Brokers keep an index of them (`messageIndexEnable`)."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    async def by_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = NEVER_MS, most: int = MAX_MESSAGES
    ) -> list[ReceivedMessage]:
        """Find the messages that have this key (or unique key) and were stored within [begin, end] (ms since
        the epoch), the oldest first. Each broker group returns its newest `most` (1 to 64). Raises
        ClientError."""
        if not 1 <= most <= MAX_MESSAGES:
            raise ClientError(f"most={most}: give 1 to {MAX_MESSAGES}")
        now_ms = self._core.env.wall.now_ms()
        check_time(begin_ms, "begin_ms", now_ms)
        check_time(end_ms, "end_ms", now_ms)
        return await self._ask(QueryMessageHeader(topic, key, most, begin_ms, end_ms))

    async def by_unique_key(self, topic: str, unique_key: str) -> ReceivedMessage | None:
        """Find the message with this unique key (the `message_id` of send results), None when there is none.
        If it was stored more than once, the newest copy is returned. Raises ClientError."""
        found = await self._ask(QueryMessageHeader(topic, unique_key, MAX_MESSAGES, 0, NEVER_MS, True))
        return found[-1] if found else None

    async def _ask(self, header: QueryMessageHeader) -> list[ReceivedMessage]:
        check_topic(header.topic)
        header.topic = with_namespace(header.topic, self._core.options.namespace)
        if not header.key:
            raise ClientError("the key is empty, and no message has an empty key")
        queues = subscribe_queues(header.topic, await self._core.route(header.topic))
        brokers = sorted({queue.broker_name for queue in queues})
        answers = await asyncio.gather(*(self._ask_broker(broker, header) for broker in brokers))
        found = [message for messages in answers for message in messages]
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    async def _ask_broker(self, broker: str, header: QueryMessageHeader) -> list[ReceivedMessage]:
        group = self._core.group(broker)
        answer = await self._core.invoke_leader(group, header.topic, RequestCode.QUERY_MESSAGE, header)
        what = f"messages of {header.topic} with key {header.key!r} at {broker}"
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(f"{what}: {refused_text(answer.code, answer.remark)}", answer.code)
        try:
            return [
                message
                for message in received_all(answer.body, broker, self._core.options.namespace)
                # RocketMQ's brokers find a key by its hash, so other keys may be among the answers.
                if header.key == message.unique_key or header.key in message.keys
            ]
        except CorruptRecord as error:
            raise BrokerRefused(f"{what}: the response cannot be read: {error}") from error
