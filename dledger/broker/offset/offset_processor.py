"""Requests about offsets: 14 QUERY_CONSUMER_OFFSET, 15 UPDATE_CONSUMER_OFFSET, 29 SEARCH_OFFSET_BY_TIMESTAMP,
30 GET_MAX_OFFSET, 31 GET_MIN_OFFSET, 32 GET_EARLIEST_MSG_STORETIME (ConsumerManageProcessor,
AdminBrokerProcessor).

Only the leader answers. A follower refuses with code 14 SERVICE_NOT_AVAILABLE and the leader's address, reads
included. Its state may be behind, and a consumer that reads an old offset would consume the same messages
again.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.topic.topic_creation import TopicCreation
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
    "applied index of the leader; the answer waits (normally 0.2 s at most) until earlier commits "
    "for that queue are applied, so it is neither older than what the group knows nor lost with the "
    "leader"
)

MEMBERS_KNOWN_S = 60.0
"""Seconds after a change of leader in which no commit may set a group back to a lower offset. Clients of all
languages look for new brokers and send a heartbeat every 30 s. So after this time the leader knows each
consumer."""


class OffsetProcessor:
    """Handlers of the requests about offsets."""

    def __init__(self, core: Core, creation: TopicCreation, offsets: PendingOffsets) -> None:
        self._creation = creation
        self._clients = core.clients
        self._store = core.store
        self._offsets = offsets
        self._background = core.background
        self._gate = core.gate
        self._reader = core.reader

    @handles(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetHeader,
        needs=Needs.LEADER,
        reads=TOLD,
        may=required.CONSUME,
        does=actions.CONSUMED,
    )
    def query(self, call: LeaderCall[QueryConsumerOffsetHeader]) -> None:
        """Return the offset at which the group consumes next. For a group that never reported one, it is 0 if
        the queue still begins at offset 0 and its first message is in memory, unless the request forbids it
        (`setZeroIfNotFound=false`). Otherwise the answer is 22 QUERY_NOT_FOUND, and the client applies its
        own rule."""
        header = call.header
        answer = partial(self._answer_query, call)
        queue = (header.topic, header.queueId)
        self._offsets.read(header.consumerGroup, queue, call.connection, call.request, answer)

    def _answer_query(self, call: LeaderCall[QueryConsumerOffsetHeader]) -> None:
        header = call.header
        ext = {"membership": self._membership(call)} if header.askMembership else {}
        offset = self._store.state.consumer_offset(header.consumerGroup, header.topic, header.queueId)
        if (
            offset is None
            and header.setZeroIfNotFound is not False
            and self._reader.first_is_hot(header.topic, header.queueId)
        ):
            offset = 0  # a new group on a short queue starts at its beginning, as in RocketMQ
        if offset is None:
            remark = "Not found, maybe this group consumer boot first"
            call.respond(ResponseCode.QUERY_NOT_FOUND, ext=ext, remark=remark)
        else:
            call.respond(ext={"offset": str(offset), **ext})

    @handles(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetHeader,
        needs=Needs.LEADER,
        may=required.CONSUME,
        does=actions.Does(Action.SUB | Action.UPDATE, topics=("topic",), groups=("consumerGroup",)),
    )
    def update(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> None:
        """Handle the commit of an offset, up to which a group has consumed. The offset -1, which some clients
        send, is ignored.

        An ordinary commit only moves a group forward. Two requests can move it back: a reset (222
        INVOKE_BROKER_TO_RESET_OFFSET), and a two-way commit that passes `_check_sets_back`. Two kinds of
        commits never move a group back: one-way commits, and commits that their client marks as ordinary
        (`setsBack` is false). If such a commit names a lower offset, it may be late, from the consumer that
        had the queue before. It is answered with success and changes nothing.

        After a reset, commits are ignored until a consumer of the group has received the new offset. Until
        then only another reset can replace the reset. Consumers receive the new offset with their next pull,
        so their commits are answered with success. A client that is not a consumer and does not mark its
        commit as ordinary is refused.
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
        wanted = self._offsets.unheard(group, *queue)
        if wanted is not None:
            self._before_heard(call, wanted)
            return
        current = self._offsets.current(group, *queue)
        lower = current is not None and offset < current
        if lower and header.setsBack is not False and not call.request.oneway:
            self._check_sets_back(call, current)
            self._check_end(*queue, offset)
            waiter = (call.connection, call.request, call.respond)
            rows = {header.queueId: offset}
            self._offsets.reset(group, header.topic, rows, waiter, announce=self._by_tool(call))
            return
        if not self._offsets.report(group, header.topic, header.queueId, header.commitOffset):
            self._check_end(*queue, offset)
        if not call.request.oneway:
            self._offsets.wait(group, call.connection, call.request, call.respond)

    def _before_heard(self, call: LeaderCall[UpdateConsumerOffsetHeader], wanted: int) -> None:
        """Answer a commit for a queue whose group was reset to the offset `wanted`, while no consumer of the
        group has received that offset."""
        header = call.header
        harmless = header.setsBack is False or call.request.oneway or header.commitOffset == wanted
        if not harmless and (header.setsBack or not self._by_member(call)):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"group {header.consumerGroup} was reset to {wanted} in "
                f"{header.topic}@{header.queueId}, and none of its consumers has been notified yet: "
                "only another reset (request code 222) can replace it",
            )
        call.respond(remark="Offset has been previously reset")  # the next pull gets the new offset

    def _check_sets_back(self, call: LeaderCall[UpdateConsumerOffsetHeader], current: int | None) -> None:
        """Raises RemotingError if a two-way commit may not move its group back.

        It may not in four cases. First, a follower forwarded the commit. The follower may have been stopped
        or cut off, and may have read the commit only after the client had gone on with this leader. Second,
        the members of the group are no longer those that the commit names. Third, this leader has just taken
        over, and may not know all consumers of the group yet. Fourth, other consumers of the group are
        connected, and one of them may have the queue now; this case does not apply to tools.
        """
        header = call.header
        what = (
            f"offset {header.commitOffset} of {header.topic}@{header.queueId} lies before {current}, where "
            f"group {header.consumerGroup} is"
        )
        if call.request.flag & FLAG_FORWARDED:  # also if a client sets the flag itself
            raise RemotingError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{what}, and the commit was forwarded by a follower and may be late. It was not "
                "executed: send it to the leader itself",
            )
        if header.membership is not None and header.membership != self._membership(call):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"{what}, and the members of the group have changed since the commit was sent "
                f"(membership {header.membership}, now {self._membership(call)}): commit again if you "
                "still want that",
            )
        left_s = MEMBERS_KNOWN_S - self._gate.serving_s
        if left_s > 0:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{what}, and this leader has taken over too recently to know all consumers of the "
                f"group: try again in {math.ceil(left_s)} s, or reset the group (request code 222)",
            )
        if not self._by_tool(call) and not self._alone(call):
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"{what}, and other consumers of the group are connected: stop them before you move "
                "it back, or reset the group (request code 222)",
            )

    def _membership(self, call: LeaderCall[Any]) -> str:
        """Return the version of the group's membership. It consists of the term and a number, because each
        new leader builds its list of members anew."""
        return f"{call.writer.term}.{self._clients.version_of(call.header.consumerGroup)}"

    def _by_member(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> bool:
        """Return whether the request comes from a consumer of the group. This includes requests that were
        forwarded by a broker to which a consumer of the group sends heartbeats."""
        members = self._clients.consumers.get(call.header.consumerGroup)
        return members is not None and call.connection.serial in members.connections

    def _by_tool(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> bool:
        """Return whether an administrator's tool sent the request (mqadmin resetOffsetByTime -o). Consumers
        in Java commit one-way, so a two-way commit from Java comes from a tool if no member of the group uses
        the connection."""
        if call.request.language != LanguageCode.JAVA.name:
            return False
        members = self._clients.consumers.get(call.header.consumerGroup)
        if members is None:
            return True
        return all(member.connection is not call.connection for member in members.members.values())

    def _alone(self, call: LeaderCall[UpdateConsumerOffsetHeader]) -> bool:
        """Return whether no other consumer of the group is connected."""
        members = self._clients.consumers.get(call.header.consumerGroup)
        others = () if members is None else members.connections.values()
        return all(connection is call.connection for connection in others)

    def _check_end(self, topic: str, queue_id: int, offset: int) -> None:
        end = self._offsets.end_of(topic, queue_id)
        if offset > end:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"offset {offset} is beyond the end {end} of {topic}@{queue_id}",
            )

    @handles(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.OFFSET,
    )
    def search(self, call: LeaderCall[SearchOffsetHeader]) -> None:
        """Return the offset in a queue that belongs to a point in time."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        upper = (header.boundaryType or "lower").lower() == "upper"
        topic, queue_id, timestamp = header.topic, header.queueId, header.timestamp

        async def answer() -> None:
            offset = await self._reader.offset_by_time(topic, queue_id, timestamp, upper=upper)
            call.respond(ext={"offset": str(offset)})

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.OFFSET,
    )
    def max_offset(self, call: LeaderCall[GetMaxOffsetHeader]) -> None:
        """Return the offset that the next message of a queue will get. Only applied messages count, which are
        all committed."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        offset = call.writer.next_applied(header.topic, header.queueId)
        call.respond(ext={"offset": str(offset)})

    @handles(
        RequestCode.GET_MIN_OFFSET,
        QueueHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.OFFSET,
    )
    def min_offset(self, call: LeaderCall[QueueHeader]) -> None:
        """Return the offset of a queue's first message that still exists."""
        header = call.header
        check_queue(call.writer, header.topic, header.queueId)
        queue = self._store.queues.get(header.topic, header.queueId)
        offset = 0 if queue is None else queue.bounds.min
        call.respond(ext={"offset": str(offset)})

    @handles(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        QueueHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.OFFSET,
    )
    def earliest_time(self, call: LeaderCall[QueueHeader]) -> None:
        """Return the store time of a queue's first message in ms; -1 if the queue is empty."""
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
