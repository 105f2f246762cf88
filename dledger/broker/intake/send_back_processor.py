"""Request 36 CONSUMER_SEND_MSG_BACK, by which a consumer sends a message back
(SendMessageProcessor.consumerSendMsgBack).

A consumer sends back a message that it could not process. The broker stores a copy, which is delivered to the
group again after a delay. After too many tries the copy goes to the group's dead letters. The copy is in the
log before the consumer gets the answer and increases its offset. If the request is refused, clients send the
message to the retry topic themselves.
"""

from __future__ import annotations

from dledger.broker.auth import required
from dledger.broker.auth.required import to_consume
from dledger.broker.commit_log import CommitLogWriter, Outgoing, TopicSlot
from dledger.broker.core import CheckNeeded, Core
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.schedule.waiting import wait_in
from dledger.broker.topic.announcements import TopicAnnouncements
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.formats.message_ids import encode_message_id
from dledger.formats.properties import (
    DELAY,
    MAX_PROPERTIES_SIZE,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    decode_properties,
    encode_properties,
)
from dledger.formats.record import Record
from dledger.formats.state import DelayProgress, GroupConfig
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ConsumerSendMsgBackHeader

FIRST_LEVEL = 3
"""Delay level of the first retry (10 s). The level increases by one for each further retry."""
HONOURS_MAX_RECONSUME = 121
"""Number of the client version V3_4_9. From this version on, clients send maxReconsumeTimes themselves."""


class SendBackProcessor:
    """Handler of request 36 CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        core: Core,
        creation: TopicCreation,
        announcements: TopicAnnouncements,
        check_needed: CheckNeeded,
    ) -> None:
        self._env = core.env
        self._settings = core.settings
        self._gate = core.gate
        self._creation = creation
        self._announcements = announcements
        self._store = core.store
        self._reader = core.reader
        self._background = core.background
        self._committed = core.committed
        self._stats = core.stats
        self._check_needed = check_needed

    @handles(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackHeader,
        needs=Needs.LEADER,
        reads="applied index of the leader",
        may=required.OF_GROUP,
    )
    def send_back(self, call: LeaderCall[ConsumerSendMsgBackHeader]) -> None:
        """Store a copy of a message, either for a later retry or in the dead letters."""
        name = call.header.group
        group = self._creation.group_for_consumer(call.writer, self._store.state, name)
        if group is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        if group.retry_queues < 1:
            call.respond()  # the group wants no retries
            return
        call.writer.check_versions(DelayProgress.operation)
        self._background.start(call.connection, call.request, self._copy(call, group))

    async def _copy(self, call: LeaderCall[ConsumerSendMsgBackHeader], group: GroupConfig) -> None:
        header = call.header
        found = await self._reader.message_at(header.offset)
        if found is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        self._check_needed(call.connection, call.request, to_consume(found[1], group.name))
        writer = self._gate.writer
        if writer is None:  # leadership may have ended meanwhile
            self._gate.wait_or_refuse(call.connection, call.request)
            return
        if not writer.room:
            raise writer.refused
        message = self._again(call, writer, group, found[1])
        index = writer.add_together([message], [])
        self._stats.sent_back(group.name, found[1].topic)
        if message.slot.config.name in writer.unannounced:
            self._announcements.add(writer, message.slot, index, call.connection, call.request, call.respond)
        else:
            self._committed.add(index, call.connection, call.request, call.respond)

    def _again(
        self,
        call: LeaderCall[ConsumerSendMsgBackHeader],
        writer: CommitLogWriter,
        group: GroupConfig,
        record: Record,
    ) -> Outgoing:
        header, properties = call.header, decode_properties(record.properties)
        properties.setdefault(RETRY_TOPIC, record.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, encode_message_id(record.store_host, record.physical_offset))
        properties[WAIT] = "false"
        properties.pop(DELAY, None)
        limit = group.retry_max
        if call.request.version >= HONOURS_MAX_RECONSUME and header.maxReconsumeTimes is not None:
            limit = header.maxReconsumeTimes
        slot: TopicSlot
        if header.delayLevel < 0 or record.reconsume_times >= limit:
            slot, queue_id = self._creation.dead_letters(writer, group.name), 0
        else:
            retry = self._creation.internal_topic(writer, RETRY_PREFIX + group.name, group.retry_queues)
            level = header.delayLevel or FIRST_LEVEL + record.reconsume_times
            queue_id = self._env.random.randrange(max(retry.config.write_queues, 1))
            levels = len(self._settings.now.delay_levels)
            slot, queue_id = wait_in(writer, retry, queue_id, properties, level, levels)
        text = encode_properties(properties).encode()
        if len(text) > MAX_PROPERTIES_SIZE:
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties would have {len(text)} bytes together with those of a retry; the "
                f"limit is {MAX_PROPERTIES_SIZE}",
            )
        return Outgoing.again(record, slot, queue_id, text, record.reconsume_times + 1)
