"""Offsets: 14, 15, 29, 30, 31, 32 (ConsumerManageProcessor, AdminBrokerProcessor).

Answered by the leader only. A follower refuses with 14 and the leader's address, reads as well: its state
may lag, and a consumer that read an old offset would consume again what its group has done.

| code                          | read point (safety.md S25)                                            |
|-------------------------------|-----------------------------------------------------------------------|
| 14 QUERY_CONSUMER_OFFSET      | applied index; waits until what this leader was told of it is applied |
| 15 UPDATE_CONSUMER_OFFSET     | answered after commit when the client waits for an answer             |
| 29, 30, 31, 32                | applied index                                                         |
"""

from __future__ import annotations

from functools import partial

from dledger.broker.background import Background
from dledger.broker.commit_log import Sealer
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.topic.topic_creation import Catalog
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import (
    GetMaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.remoting.server import Connection, Handler


class OffsetProcessor:
    """Handlers of the offset codes."""

    def __init__(
        self,
        gate: LeaderGate,
        catalog: Catalog,
        store: MessageStore,
        pending: PendingOffsets,
        background: Background,
        reader: Reader,
    ) -> None:
        self._gate = gate
        self._catalog = catalog
        self._store = store
        self._pending = pending
        self._background = background
        self._reader = reader

    def handlers(self) -> dict[int, Handler]:
        """Code -> handler."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._gate.leader_only(self.query),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._gate.leader_only(self.update),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._gate.leader_only(self.search),
            RequestCode.GET_MAX_OFFSET: self._gate.leader_only(self.max_offset),
            RequestCode.GET_MIN_OFFSET: self._gate.leader_only(self.min_offset),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._gate.leader_only(self.earliest_time),
        }

    def query(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """14: what the group consumes next; 22 when it never said (the client then applies its rule)."""
        header = request.header(QueryConsumerOffsetHeader)
        answer = partial(self._answer_query, connection, request, header)
        queue = (header.topic, header.queueId)
        self._pending.read(header.consumerGroup, queue, connection, request, answer)

    def _answer_query(
        self, connection: Connection, request: Request, header: QueryConsumerOffsetHeader
    ) -> None:
        offset = self._store.state.consumer_offset(header.consumerGroup, header.topic, header.queueId)
        if (
            offset is None
            and header.setZeroIfNotFound is not False
            and self._reader.first_is_hot(header.topic, header.queueId)
        ):
            offset = 0  # a new group on a short queue starts at its beginning, as in RocketMQ
        if offset is None:
            remark = "Not found, maybe this group consumer boot first"
            connection.respond(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)
        else:
            connection.respond(request, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def update(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """15: the group consumed up to here. -1 (some clients send it) is taken and ignored."""
        header = request.header(UpdateConsumerOffsetHeader)
        if header.commitOffset < 0:
            connection.respond(request, ResponseCode.SUCCESS)
            return
        _check_queue(sealer, header.topic, header.queueId)
        group = header.consumerGroup
        if self._catalog.group_for_consumer(sealer, self._store.state, group) is None:
            remark = f"subscription group [{group}] does not exist"
            raise RemotingError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not self._pending.report(group, header.topic, header.queueId, header.commitOffset):
            end = self._store.state.next_offset(header.topic, header.queueId)
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"offset {header.commitOffset} is beyond the end {end} of {header.topic}@{header.queueId}",
            )
        if not request.oneway:
            answer = partial(connection.respond, request, ResponseCode.SUCCESS)
            self._pending.wait(group, connection, request, answer)

    def search(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """29: offset of a point in time."""
        header = request.header(SearchOffsetHeader)
        _check_queue(sealer, header.topic, header.queueId)
        upper = (header.boundaryType or "lower").lower() == "upper"
        topic, queue_id, timestamp = header.topic, header.queueId, header.timestamp

        async def answer() -> None:
            offset = await self._reader.offset_by_time(topic, queue_id, timestamp, upper=upper)
            connection.respond(request, ResponseCode.SUCCESS, ext={"offset": str(offset)})

        self._background.start(connection, request, answer())

    def max_offset(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """30: the offset that the next message will get, of what is committed."""
        header = request.header(GetMaxOffsetHeader)
        _check_queue(sealer, header.topic, header.queueId)
        offset = self._store.state.next_offset(header.topic, header.queueId)
        connection.respond(request, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def min_offset(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """31: the first message that still exists."""
        header = request.header(QueueHeader)
        _check_queue(sealer, header.topic, header.queueId)
        queue = self._store.queues.get(header.topic, header.queueId)
        offset = 0 if queue is None else queue.bounds.min
        connection.respond(request, ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def earliest_time(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """32: store time of the first message, -1 for an empty queue."""
        header = request.header(QueueHeader)
        _check_queue(sealer, header.topic, header.queueId)
        topic, queue_id = header.topic, header.queueId

        async def answer() -> None:
            timestamp = await self._reader.earliest_time(topic, queue_id)
            connection.respond(request, ResponseCode.SUCCESS, ext={"timestamp": str(timestamp)})

        self._background.start(connection, request, answer())


def _check_queue(sealer: Sealer, topic: str, queue_id: int) -> None:
    config = sealer.topic(topic)
    if config is None:
        raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    queues = max(config.read_queues, config.write_queues)
    if not 0 <= queue_id < queues:
        raise RemotingError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic[{topic}] has {queues} queues",
        )
