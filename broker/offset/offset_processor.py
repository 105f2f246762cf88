"""Offsets: 14, 15, 29, 30, 31, 32 (ConsumerManageProcessor, AdminBrokerProcessor).

Answered by the leader only. A follower refuses with 14 and the leader's address, reads as well: its state
may lag, and a consumer that read an old offset would consume again what its group has done.
"""

from __future__ import annotations

from functools import partial

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.context import BrokerContext
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import (
    GetMaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)

APPLIED = "applied index of the leader"
TOLD = (
    "applied index of the leader; the answer waits (0.2 s at most, normally) until what it was told of that"
    " queue before is applied, so that it is neither older than the group knows nor lost with the leader"
)


class OffsetProcessor:
    """Handlers of the offset codes."""

    def __init__(self, context: BrokerContext) -> None:
        self._creation = context.creation
        self._clients = context.clients
        self._store = context.store
        self._offsets = context.offsets
        self._background = context.background
        self._reader = context.reader

    @handles(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader, needs=Needs.LEADER, reads=TOLD)
    def query(self, call: LeaderCall[QueryConsumerOffsetHeader]) -> None:
        """What the group consumes next; 22 when it never said (the client then applies its rule)."""
        header = call.header
        answer = partial(self._answer_query, call)
        queue = (header.topic, header.queueId)
        self._offsets.read(header.consumerGroup, queue, call.connection, call.request, answer)

    def _answer_query(self, call: LeaderCall[QueryConsumerOffsetHeader]) -> None:
        header = call.header
        offset = self._store.state.consumer_offset(header.consumerGroup, header.topic, header.queueId)
        if (
            offset is None
            and header.setZeroIfNotFound is not False
            and self._reader.first_is_hot(header.topic, header.queueId)
        ):
            offset = 0  # a new group on a short queue starts at its beginning, as in RocketMQ
        if offset is None:
            remark = "Not found, maybe this group consumer boot first"
            call.respond(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        else:
            call.respond(ext={"offset": str(offset)})

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader, needs=Needs.LEADER)
    def update(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> None:
        """The group consumed up to here. -1 (some clients send it) is taken and ignored.

        An offset that is lower than the group's sets it back, as in RocketMQ, if the request wants an answer
        (tools, and a consumer that went back): while other consumers of the group are connected it is
        refused, as it may be late, from one that had the queue before; and so it is when a broker that does
        not lead forwards it, which may have found it unread after it was stopped or cut off for long, when
        its client has gone on with this leader. Lower one-way reports are ignored, and while a reset was not
        heard all reports of consumers.
        """
        header, writer = call.header, call.writer
        if header.commitOffset < 0:
            call.respond()
            return
        check_queue(writer, header.topic, header.queueId)
        group = header.consumerGroup
        if self._creation.group_for_consumer(writer, self._store.state, group) is None:
            remark = f"subscription group [{group}] does not exist"
            raise RemotingError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        queue, offset = (header.topic, header.queueId), header.commitOffset
        current = self._offsets.current(group, *queue)
        reset = self._offsets.unheard(group, *queue) is not None
        if reset and (call.request.oneway or group in self._clients.consumers):
            call.respond(remark="Offset has been previously reset")  # its consumer hears with its next pull
            return
        if not call.request.oneway and (reset or (current is not None and offset < current)):
            self._check_direct(call, current)
            by_tool = self._by_tool(call)
            if not by_tool:
                self._check_alone(call, current)
            self._check_end(*queue, offset)
            waiter = (call.connection, call.request, call.respond)
            announce = reset or by_tool
            self._offsets.reset(group, header.topic, {header.queueId: offset}, waiter, announce=announce)
            return
        if not self._offsets.report(group, header.topic, header.queueId, header.commitOffset):
            self._check_end(*queue, offset)
        if not call.request.oneway:
            self._offsets.wait(group, call.connection, call.request, call.respond)

    def _check_direct(self, call: LeaderCall[UpdateConsumerOffsetHeader], current: int | None) -> None:
        header = call.header
        if call.request.flag & FLAG_FORWARDED:  # whoever sets it
            raise RemotingError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"offset {header.commitOffset} of {header.topic}@{header.queueId} would set group "
                f"{header.consumerGroup} back, which is at {current} or was reset, and came by a broker that "
                "does not lead, perhaps late: not executed, ask the leader itself",
            )

    def _by_tool(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> bool:
        """Whether an administrator asks (mqadmin resetOffsetByTime -o): consumers in Java report oneway, and
        whoever waits for the answer belongs to no member."""
        if call.request.language != LanguageCode.JAVA.name:
            return False
        members = self._clients.consumers.get(call.header.consumerGroup)
        if members is None:
            return True
        return all(member.connection is not call.connection for member in members.members.values())

    def _check_alone(self, call: LeaderCall[UpdateConsumerOffsetHeader], current: int | None) -> None:
        header = call.header
        members = self._clients.consumers.get(header.consumerGroup)
        others = () if members is None else members.connections.values()
        if any(connection is not call.connection for connection in others):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"offset {header.commitOffset} of {header.topic}@{header.queueId} lies before {current}, "
                f"where group {header.consumerGroup} is, and other consumers of it are connected: stop them "
                "to set it back, or reset the group (222)",
            )

    def _check_end(self, topic: str, queue_id: int, offset: int) -> None:
        end = self._offsets.end_of(topic, queue_id)
        if offset > end:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"offset {offset} is beyond the end {end} of {topic}@{queue_id}",
            )

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, needs=Needs.LEADER, reads=APPLIED)
    def search(self, call: LeaderCall[SearchOffsetHeader]) -> None:
        """Offset of a point in time."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        upper = (header.boundaryType or "lower").lower() == "upper"
        topic, queue_id, timestamp = header.topic, header.queueId, header.timestamp

        async def answer() -> None:
            offset = await self._reader.offset_by_time(topic, queue_id, timestamp, upper=upper)
            call.respond(ext={"offset": str(offset)})

        self._background.start(call.connection, call.request, answer())

    @handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader, needs=Needs.LEADER, reads=APPLIED)
    def max_offset(self, call: LeaderCall[GetMaxOffsetHeader]) -> None:
        """The offset that the next message will get, of what is committed."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        offset = call.writer.next_applied(header.topic, header.queueId)
        call.respond(ext={"offset": str(offset)})

    @handles(RequestCode.GET_MIN_OFFSET, QueueHeader, needs=Needs.LEADER, reads=APPLIED)
    def min_offset(self, call: LeaderCall[QueueHeader]) -> None:
        """The first message that still exists."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        queue = self._store.queues.get(header.topic, header.queueId)
        offset = 0 if queue is None else queue.bounds.min
        call.respond(ext={"offset": str(offset)})

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, needs=Needs.LEADER, reads=APPLIED)
    def earliest_time(self, call: LeaderCall[QueueHeader]) -> None:
        """Store time of the first message, -1 for an empty queue."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        topic, queue_id = header.topic, header.queueId

        async def answer() -> None:
            timestamp = await self._reader.earliest_time(topic, queue_id)
            call.respond(ext={"timestamp": str(timestamp)})

        self._background.start(call.connection, call.request, answer())


def check_queue(writer: CommitLogWriter, topic: str, queue_id: int) -> None:
    config = writer.topic(topic)
    if config is None:
        raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    queues = max(config.read_queues, config.write_queues)
    if not 0 <= queue_id < queues:
        raise RemotingError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic[{topic}] has {queues} queues",
        )
