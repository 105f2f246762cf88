"""Requests that reset offsets: 222 INVOKE_BROKER_TO_RESET_OFFSET and 314 CLONE_GROUP_OFFSET from tools, 220
RESET_CONSUMER_CLIENT_OFFSET to consumers (AdminBrokerProcessor).

A reset is one operation in the log for all queues of a topic. So it is done as a whole or not at all, even if
the leader changes. Consumers are informed of it in two ways. Connected consumers are notified by request 220,
and move to the new offset at once. Besides, the next pull of each queue is answered with the new offset (code
21 PULL_OFFSET_MOVED), for consumers that the notice did not reach, or that pulled while the notice was in
flight. Until then, offsets that the consumers report are ignored (`formats.state.resets`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.offset.group_topics import topics_of
from dledger.broker.offset.offset_processor import check_queue
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.formats.state import OffsetReset, TopicConfig
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ResetOffsetHeader
from dledger.remoting.operator_headers import CloneGroupOffsetHeader
from dledger.runtime.cooperative import PAUSE_S

APPLIED = "applied index of the leader"
SLICE = 100
"""Number of queues that are processed before the event loop turns to other work."""
MAX_TOLD_BYTES = 64 * 1024
"""Limit, in bytes, of the notices (request 220 RESET_CONSUMER_CLIENT_OFFSET) that are sent before the event
loop turns to other work."""
MAX_CLONED = 1000
"""Largest number of topics that one request clones; a request for more is refused."""
CPP = "CPP"
"""Language of the clients that expect a list in notices. Clients of other languages expect a map."""


class ResetProcessor:
    """Handlers of the requests that reset offsets."""

    def __init__(self, core: Core, offsets: PendingOffsets, creation: TopicCreation) -> None:
        self._settings = core.settings
        self._gate = core.gate
        self._store = core.store
        self._reader = core.reader
        self._clients = core.clients
        self._offsets = offsets
        self._creation = creation
        self._background = core.background
        self._log = core.env.log.child("offsets")
        offsets.notify_consumers = self._tell

    @handles(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.Rule(topic="topic", groups=("group",)),
        does=actions.Does(Action.UPDATE, topics=("topic",), groups=("group",)),
    )
    def reset(self, call: LeaderCall[ResetOffsetHeader]) -> None:
        """Set the offsets of a group in all queues of a topic, or in one queue. The target is an offset, a
        point in time, or the end of the queue (-1). Without `isForce`, offsets are only decreased."""
        header, writer = call.header, call.writer
        config = writer.topic(header.topic)
        if config is None:
            raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.queueId >= 0:
            check_queue(writer, header.topic, header.queueId)
        self._must_be_there(writer, header.group)
        self._check_group(header.group)
        writer.check_versions(OffsetReset.operation)
        self._background.start(call.connection, call.request, self._reset(call, config))

    async def _reset(self, call: LeaderCall[ResetOffsetHeader], config: TopicConfig) -> None:
        header = call.header
        queues = [header.queueId] if header.queueId >= 0 else range(config.read_queues)
        wanted: dict[int, int] = {}
        for number, queue_id in enumerate(queues):
            if number and not number % SLICE:
                await asyncio.sleep(PAUSE_S)
            wanted[queue_id] = await self._target(header, queue_id)
        if self._gate.writer is None:  # leadership may have ended meanwhile
            self._gate.wait_or_refuse(call.connection, call.request)
            return
        told: dict[int, int] = {}
        for queue_id, offset in list(wanted.items()):
            current = self._offsets.current(header.group, header.topic, queue_id)
            if not header.isForce and current is not None and current < offset:
                del wanted[queue_id]
                offset = current
            told[queue_id] = offset
        body = _map(self._settings.now.broker_name, header.topic, told)
        if not wanted:
            call.respond(body=body)
            return
        peer = call.connection.peer
        self._log.info(
            "offsets are reset", group=header.group, topic=header.topic, queues=len(wanted), by=peer
        )
        waiter = (call.connection, call.request, lambda: call.respond(body=body))
        self._offsets.reset(header.group, header.topic, wanted, waiter)

    async def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return the new offset of a queue."""
        low, high = self._store.queues.range_of(header.topic, queue_id)
        if header.queueId >= 0 and header.offset is not None and header.offset != -1:
            if not low <= header.offset <= high:
                remark = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
                raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)
            return header.offset
        if header.timestamp < 0:
            return high
        return await self._reader.offset_by_time(header.topic, queue_id, header.timestamp, upper=False)

    @handles(
        RequestCode.CLONE_GROUP_OFFSET,
        CloneGroupOffsetHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.Rule(topic="topic", groups=("srcGroup", "destGroup")),
        does=actions.Does(Action.UPDATE, topics=("topic",), groups=("destGroup",)),
    )
    def clone(self, call: LeaderCall[CloneGroupOffsetHeader]) -> None:
        """Set the offsets of one group to those of another group, in one topic or in all of them. The queues
        of one topic are set together."""
        header = call.header
        call.writer.check_versions(OffsetReset.operation)
        self._must_be_there(call.writer, header.srcGroup)
        if self._creation.group_for_consumer(call.writer, self._store.state, header.destGroup) is None:
            raise _no_group(header.destGroup)
        self._check_group(header.destGroup)
        self._background.start(call.connection, call.request, self._clone(call))

    async def _clone(self, call: LeaderCall[CloneGroupOffsetHeader]) -> None:
        header = call.header
        topic = (header.topic or "").strip()
        topics = [topic] if topic else await topics_of(self._store.state, header.srcGroup)
        if len(topics) > MAX_CLONED:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"group {header.srcGroup} has offsets in {len(topics)} topics: at most {MAX_CLONED} "
                "are cloned at once; clone them topic by topic",
            )
        self._clone_next(call, deque(topics))

    def _clone_next(self, call: LeaderCall[CloneGroupOffsetHeader], topics: deque[str]) -> None:
        """Clone the next topic in the list. The one after it is cloned when the offsets of this topic are
        applied."""
        header, writer = call.header, self._gate.writer
        while topics:
            if writer is None:
                self._gate.wait_or_refuse(call.connection, call.request)  # it may be done twice
                return
            name = topics.popleft()
            config = writer.topic(name)
            rows = self._store.state.offsets.get(header.srcGroup, {})
            queues = range(0 if config is None else config.read_queues)
            offsets = {queue: rows[name, queue] for queue in queues if (name, queue) in rows}
            if not offsets:
                continue
            waiter = (call.connection, call.request, partial(self._clone_next, call, topics))
            try:
                self._offsets.reset(header.destGroup, name, offsets, waiter)
            except RemotingError as error:  # no caller answers the request
                code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
                call.respond(code, remark=f"{error.remark}; topics before {name} are cloned")
            return
        call.respond()

    def _must_be_there(self, writer: CommitLogWriter, group: str) -> None:
        """Raises RemotingError if the group is unknown, so that a misspelt name does not create a group."""
        if writer.group(group) is None and group not in self._store.state.offsets:
            raise _no_group(group)

    def _check_group(self, group: str) -> None:
        members = self._clients.consumers.get(group)
        if members is not None and members.message_model == "BROADCASTING":
            raise RemotingError(
                ResponseCode.BROADCAST_CONSUMPTION,
                f"group {group} consumes in broadcasting mode: each of its consumers keeps its own offsets",
            )

    # -- telling consumers ----------------------------------------------------------------------------

    def _tell(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Send request 220 RESET_CONSUMER_CLIENT_OFFSET to the consumers that are connected to this broker.
        Other consumers get the new offset with their next pull."""
        members = self._clients.consumers.get(group)
        if members is None:
            return
        fields = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
        broker = self._settings.now.broker_name
        bodies = {False: _map(broker, topic, offsets), True: _list(broker, topic, offsets)}
        waiting = list(members.members.values())
        some = max(1, MAX_TOLD_BYTES // len(bodies[False]))

        def tell() -> None:
            for member in waiting[:some]:
                code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
                member.connection.send_oneway(code, fields, bodies[member.language == CPP])
            del waiting[:some]
            if waiting:
                asyncio.get_running_loop().call_later(PAUSE_S, tell)

        tell()


def _no_group(group: str) -> RemotingError:
    return RemotingError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")


def _map(broker: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """Return a ResetOffsetBody. It is encoded by hand because a topic may have a thousand queues."""
    fixed = msgspec.json.encode(broker), msgspec.json.encode(topic)
    rows = [
        b'{"brokerName":%b,"queueId":%d,"topic":%b}:%d' % (fixed[0], queue, fixed[1], offset)
        for queue, offset in offsets.items()
    ]
    return b'{"offsetTable":{%b}}' % b",".join(rows)


def _list(broker: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """Return a ResetOffsetBodyForC. It is encoded by hand because a topic may have a thousand queues."""
    fixed = msgspec.json.encode(broker), msgspec.json.encode(topic)
    rows = [
        b'{"brokerName":%b,"offset":%d,"queueId":%d,"topic":%b}' % (fixed[0], offset, queue, fixed[1])
        for queue, offset in offsets.items()
    ]
    return b'{"offsetTable":[%b]}' % b",".join(rows)
