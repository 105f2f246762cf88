"""Messages: finds them by id, key, offset and time, reads many of them, finds out which groups have consumed
one, and passes one to a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum

from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX, Asking, Refused, masters_of, read_body
from dledger.admin.blocking import Blocking, Face
from dledger.admin.groups import Groups
from dledger.admin.offsets import Offsets
from dledger.client.encoding import DEFAULT_TOPIC, received
from dledger.client.errors import BrokerRefused, ClientError
from dledger.client.message import ReceivedMessage
from dledger.client.message_queries import MAX_MESSAGES, NEVER_MS
from dledger.client.times import check_time
from dledger.formats.message_ids import decode_message_id, host_text
from dledger.formats.properties import (
    CONSUME_START_TIME,
    DELAY,
    IDEMPOTENT,
    MAX_OFFSET,
    MAX_RECONSUME_TIMES,
    MIN_OFFSET,
    POP_CK,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RESEND,
    RETRY_TOPIC,
    TIMER_OUT_MS,
    encode_properties,
)
from dledger.formats.record import CorruptRecord, Record, decode_records
from dledger.remoting.bodies import MessageQueue
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader
from dledger.remoting.headers import (
    PULL_SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueryMessageHeader,
    SendMessageV2Header,
    ViewMessageHeader,
)
from dledger.remoting.operator_bodies import ConsumeDirectlyResult
from dledger.remoting.operator_headers import ConsumeDirectlyHeader

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The consumer group in whose name tools read messages (MixAll.TOOLS_CONSUMER_GROUP). It has no offsets."""
REDELIVERY_GROUP = "TOOLS_REDELIVERY"
"""The consumer group whose offsets in `%DLQ%` topics record which dead letters were delivered again."""
MAX_PULL = 32
"""Largest number of messages in one pull."""
OF_EARLIER_TRIES = frozenset(
    (
        CONSUME_START_TIME,
        DELAY,
        MAX_OFFSET,
        MAX_RECONSUME_TIMES,
        MIN_OFFSET,
        POP_CK,
        REAL_QID,
        REAL_TOPIC,
        RECONSUME_TIME,
        RESEND,
        IDEMPOTENT,
        TIMER_OUT_MS,
    )
)
"""Properties that are removed from a dead letter when it is delivered again."""
NOTHING_THERE = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class TrackType(Enum):
    """Whether a consumer group has consumed a message."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    """It is not known, because the application of the group asks for messages itself, and offsets do not show
    what it has consumed."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class MessageTrack:
    """The answer to the question whether a consumer group has consumed a message. `type` is the answer; after
    an error, `reason` says what went wrong."""

    group: str
    type: TrackType
    reason: str | None = None


@dataclass(frozen=True)
class StoredMessage:
    """A message as consumers get it, with some of its fields at the broker: the `size` of its record in
    bytes, the CRC of its body as it is stored, and `prepared_offset`, the log offset of its half message."""

    message: ReceivedMessage
    size: int
    body_crc: int
    prepared_offset: int

    @property
    def queue(self) -> MessageQueue:
        """The queue in which the message is stored."""
        queue = self.message.queue
        return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


class PullStatus(Enum):
    """How a pull ended (RocketMQ's names)."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True)
class Pulled:
    """The answer to one pull: the messages, the offset of the next pull, and the lowest and highest offset of
    the queue."""

    status: PullStatus
    messages: list[StoredMessage]
    next_offset: int
    lowest: int
    highest: int


class Messages:
    """Operations on messages. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking, groups: Groups, offsets: Offsets) -> None:
        self._asking = asking
        self._groups = groups
        self._offsets = offsets

    async def at_id(self, topic: str, offset_message_id: str) -> StoredMessage:
        """Find the message with this offset message id (request 33 VIEW_MESSAGE_BY_ID). The id contains the
        address of the broker that stored the message, and the message's place in the log there.

        That broker is asked first, then the others of its group. If no broker is registered with this
        address, all brokers are asked. Raises BrokerRefused if there is no such message.
        """
        try:
            place = decode_message_id(offset_message_id)
        except ValueError as error:
            raise ClientError(f"{offset_message_id!r}: {error}") from error
        header = ViewMessageHeader(place.physical_offset, topic or None)
        stored_at = host_text(place.host)
        view = await self._asking.cluster()
        known = {address: group for group in view.groups() for address in group.brokerAddrs.values()}
        group = known.get(stored_at)
        places = list(group.brokerAddrs.values()) if group is not None else list(known)
        places.sort(key=lambda address: address != stored_at)
        failure: ClientError = ClientError(f"no broker is registered at the address in {offset_message_id}")
        for address in places:
            try:
                answer = await self._asking.broker(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
            except ClientError as error:
                failure = error
                continue
            found = self._stored(answer, known[address].brokerName)
            if found:
                return found[0]
        raise failure

    async def by_id(self, topic: str, message_id: str) -> StoredMessage:
        """Find the message with this id, which is an offset message id or a unique id. Raises BrokerRefused
        if there is no such message.

        The offset message id of an imported message names the broker that it was imported from. If no broker
        is registered with that address, all brokers are asked.
        """
        try:
            host: str | None = host_text(decode_message_id(message_id).host)
        except ValueError:
            host = None
        if host is not None and host in (await self._asking.cluster()).addresses():
            found = await self._at_id_or_none(topic, message_id)
            if found is not None:
                return found
        unique = await self.by_key(topic, message_id, unique=True)
        if unique:
            return unique[0]
        found = None if host is None else await self._at_id_or_none(topic, message_id)
        if found is None or found.message.offset_message_id != message_id:
            raise BrokerRefused(
                f"the topic {topic} has no message with the id {message_id}", ResponseCode.QUERY_NOT_FOUND
            )
        return found

    async def _at_id_or_none(self, topic: str, message_id: str) -> StoredMessage | None:
        try:
            return await self.at_id(topic, message_id)
        except Refused as error:
            if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise
            return None

    async def by_key(
        self,
        topic: str,
        key: str,
        most: int = MAX_MESSAGES,
        begin_ms: int = 0,
        end_ms: int = NEVER_MS,
        *,
        unique: bool = False,
        route_of: str | None = None,
    ) -> list[StoredMessage]:
        """Find messages with a key, or with a unique id if `unique` is set (request 12 QUERY_MESSAGE). They
        were stored within [begin, end], in ms since the epoch, and are returned with the oldest first. Each
        broker group returns its newest `most`.

        If `route_of` is given, the brokers of that topic are asked instead of the brokers of `topic`.
        """
        check_time(begin_ms, "begin_ms")
        check_time(end_ms, "end_ms")
        header = QueryMessageHeader(topic, key, most, begin_ms, end_ms, unique)
        found: list[StoredMessage] = []
        for name, address in masters_of(await self._asking.route(route_of or topic)):
            none = (ResponseCode.QUERY_NOT_FOUND,)
            answer = await self._asking.leader(address, RequestCode.QUERY_MESSAGE, header, accept=none)
            if answer.code == ResponseCode.SUCCESS:
                found += self._stored(answer, name)
        # RocketMQ's brokers find a key by its hash, so other keys may be among the answers.
        found = [one for one in found if key == one.message.unique_key or key in one.message.keys]
        return sorted(found, key=lambda one: (one.message.store_timestamp_ms, one.message.physical_offset))

    async def pull(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        most: int = MAX_PULL,
        expression: str = "*",
        group: str = TOOLS_GROUP,
    ) -> Pulled:
        """Pull messages of a queue from an offset on, without waiting for new ones (request 11
        PULL_MESSAGE)."""
        header = PullMessageHeader(
            consumerGroup=group,
            topic=queue.topic,
            queueId=queue.queueId,
            queueOffset=offset,
            maxMsgNums=most,
            sysFlag=PULL_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription=expression,
            expressionType="TAG",
        )
        answer = await self._asking.leader(address, RequestCode.PULL_MESSAGE, header, accept=NOTHING_THERE)
        try:
            told = answer.header(PullMessageResponseHeader)
        except BadHeader as error:
            raise BrokerRefused(f"a pull of {queue}: {error.remark}") from error
        status = _STATUS[ResponseCode(answer.code)]
        found = self._stored(answer, queue.brokerName) if status is PullStatus.FOUND else []
        return Pulled(status, found, told.nextBeginOffset, told.minOffset, told.maxOffset)

    async def pulls(
        self,
        address: str,
        queue: MessageQueue,
        start: int,
        end: int,
        expression: str = "*",
        group: str = TOOLS_GROUP,
    ) -> AsyncIterator[Pulled]:
        """Pull the messages of a queue from `start` to `end` (exclusive), or until there are no more. Yields
        the answer to each pull."""
        offset = start
        while offset < end:
            pulled = await self.pull(address, queue, offset, min(MAX_PULL, end - offset), expression, group)
            yield pulled
            over = pulled.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL)
            if over or pulled.next_offset <= offset:
                return
            offset = pulled.next_offset

    async def consume_directly(
        self, stored: StoredMessage, group: str, client_id: str, topic: str | None = None
    ) -> ConsumeDirectlyResult:
        """Pass a message to the listener of one consumer, and return the listener's result (request 309
        CONSUME_MESSAGE_DIRECTLY)."""
        header = ConsumeDirectlyHeader(
            group, client_id, stored.message.offset_message_id, stored.message.queue.broker_name, topic
        )
        name = stored.message.queue.broker_name
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        places = dict(masters_of(await self._asking.route(stored.message.queue.topic)))
        if name not in places:
            raise ClientError(f"no broker of {name} is registered")
        address = places[name]
        answer = await self._asking.leader(address, code, header, timeout_s=10.0)
        return read_body("result", ConsumeDirectlyResult, answer.body)

    async def redeliver(self, address: str, stored: StoredMessage) -> None:
        """Deliver a dead letter to its group again. The broker at `address` does this.

        The message comes at once, under its old id, and has all its retries again. Other groups that consume
        its topic do not get it. The dead letter itself stays in its topic. Raises ClientError if the message
        is not a dead letter. If it raises NotReached, the message may have been delivered, or may be later.
        """
        message, topic = stored.message, stored.queue.topic
        group = topic.removeprefix(DLQ_PREFIX)
        if group == topic:
            raise ClientError(f"{message.message_id} in {topic} is not a dead letter")
        if RETRY_TOPIC not in message.properties:
            raise ClientError(f"{message.message_id} in {topic} does not name its original topic")
        kept = {name: value for name, value in message.properties.items() if name not in OF_EARLIER_TRIES}
        header = SendMessageV2Header(
            producerGroup=REDELIVERY_GROUP,
            topic=RETRY_PREFIX + group,
            defaultTopic=DEFAULT_TOPIC,
            defaultTopicQueueNums=1,
            queueId=0,
            sysFlag=message.sys_flag,
            bornTimestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=encode_properties(kept),
            reconsumeTimes=0,
        )
        await self._asking.leader(address, RequestCode.SEND_MESSAGE_V2, header, message.body)

    async def put(
        self, address: str, queue: MessageQueue, message: ReceivedMessage, properties: Mapping[str, str]
    ) -> None:
        """Store a copy of a message in a queue: its body, flag and number of deliveries, with these
        properties. Unlike a producer's send, this is allowed in retry topics and in topics of dead letters,
        and is not repeated. If it raises NotReached, the message may be stored."""
        header = SendMessageV2Header(
            producerGroup=TOOLS_GROUP,
            topic=queue.topic,
            defaultTopic=DEFAULT_TOPIC,
            defaultTopicQueueNums=1,
            queueId=queue.queueId,
            sysFlag=0,
            bornTimestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=encode_properties(properties),
            reconsumeTimes=message.reconsume_times,
            # One more delivery is allowed. Otherwise RocketMQ 4 would make it a dead letter at once.
            maxReconsumeTimes=message.reconsume_times + 1,
        )
        await self._asking.leader(address, RequestCode.SEND_MESSAGE_V2, header, message.body)

    async def track(self, stored: StoredMessage, groups: list[str]) -> list[MessageTrack]:
        """For each of these consumer groups, find out whether it has consumed a message
        (messageTrackDetail)."""
        return [await self._track(stored, group) for group in groups]

    async def _track(self, stored: StoredMessage, group: str) -> MessageTrack:
        message = stored.message
        try:
            told = await self._groups.connections(group)
            if told.consumeType == "CONSUME_ACTIVELY":
                return MessageTrack(group, TrackType.PULL)
            if told.messageModel == "BROADCASTING":
                return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
            stats = await self._offsets.stats(group)
        except ClientError as error:
            offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            reason = error.remark if isinstance(error, Refused) else str(error)
            kind = TrackType.NOT_ONLINE if offline else TrackType.UNKNOWN
            return MessageTrack(group, kind, f"CODE:{error.code} DESC:{reason}")
        row = stats.offsets.get(stored.queue)
        if row is None or row.consumerOffset <= message.queue_offset:
            return MessageTrack(group, TrackType.NOT_CONSUME_YET)
        subscription = told.subscriptionTable.get(message.topic)
        tags = [] if subscription is None else subscription.tagsSet
        if tags and "*" not in tags and message.tags not in tags:
            return MessageTrack(group, TrackType.CONSUMED_BUT_FILTERED)
        return MessageTrack(group, TrackType.CONSUMED)

    def _stored(self, answer: Response, broker_name: str) -> list[StoredMessage]:
        try:
            return [_stored(record, broker_name) for record in decode_records(answer.body)]
        except CorruptRecord as error:
            raise BrokerRefused(f"messages of {broker_name} cannot be read: {error}") from error


def _stored(record: Record, broker_name: str) -> StoredMessage:
    message = received(record, broker_name)
    return StoredMessage(message, record.size, record.body_crc, record.prepared_transaction_offset)


class BlockingMessages(Face[Messages]):
    """The methods of `Messages` as blocking methods. There is no `pulls`; a program calls `pull` again with
    `next_offset` instead."""

    at_id = Blocking(Messages.at_id)
    by_id = Blocking(Messages.by_id)
    by_key = Blocking(Messages.by_key)
    pull = Blocking(Messages.pull)
    consume_directly = Blocking(Messages.consume_directly)
    track = Blocking(Messages.track)
    redeliver = Blocking(Messages.redeliver)
    put = Blocking(Messages.put)
