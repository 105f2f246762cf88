"""Requests that read messages: 11 PULL_MESSAGE, 361 LITE_PULL_MESSAGE, 33 VIEW_MESSAGE_BY_ID
(PullMessageProcessor).

The read point (safety.md S25) is the applied index of the leader. With `slaveReadEnable`, a follower itself
answers pulls that commit no offset. It answers from the messages that it has applied, all of which are
committed. The leader suggests such a follower (`suggestWhichBrokerId`) to consumers that read messages which
are no longer in memory. A follower forwards all other pulls.

Answers consist of views of mapped segments, which the connection writes together. If a read has to access the
disk, a worker does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from dledger.broker.auth import actions, required
from dledger.broker.clients.client_table import ConsumerGroup
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import route_id
from dledger.broker.core import Core, Members
from dledger.broker.filter.message_filter import ALL, CLASS_FILTER, TAG, MessageFilter, TagFilter, filter_of
from dledger.broker.filter.retry_filter import RetryFilter
from dledger.broker.latency.slow_consumers import SlowConsumers
from dledger.broker.longpolling.pull_hold import HeldPulls, Pull
from dledger.broker.longpolling.subscription_wait import SubscriptionWait
from dledger.broker.longpolling.suggestions import pull_fields, suggested_here
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.broker.services import LeaderService
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.reader import GetResult, GetStatus
from dledger.broker.topic.deleted_messages import OfLivingTopics, hosts_of
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.formats.state import DELETIONS, RESETS, Perm
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    ViewMessageHeader,
)

APPLIED = "applied index of the leader"
APPLIED_OR_HERE = f"{APPLIED}; with slaveReadEnable also that of a follower, for pulls that commit no offset"
DEFAULT_COUNT = 32
"""Number of messages for a request that asks for 0 or fewer. That is a mistake of a client, which would
otherwise pull in a tight loop."""

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""Maps the result of a read to a response code. NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE have no entry,
because their response codes depend on the requested offset (spec A6.5)."""


class PullProcessor(LeaderService):
    """Handles the requests that read messages, and keeps the pulls that wait."""

    def __init__(
        self,
        core: Core,
        creation: TopicCreation,
        offsets: PendingOffsets,
        pull_offsets: PullOffsets,
        rates: RateLimits,
        slow_consumers: SlowConsumers,
        members: Members,
    ) -> None:
        self._settings = core.settings
        self._gate = core.gate
        self._creation = creation
        self._store = core.store
        self._clients = core.clients
        self._offsets = offsets
        self._pull_offsets = pull_offsets
        self._background = core.background
        self._reader = core.reader
        self._stats = core.stats
        self._rates = rates.reading
        self._slow_consumers = slow_consumers
        self._members = members
        self.held: HeldPulls = HeldPulls(
            lambda: self._settings.now.max_held_pulls, self._woken, self._expired
        )
        self.ahead: SubscriptionWait = SubscriptionWait(
            core.clients, lambda call: call.connection.again(call.request)
        )
        offsets.reset_listeners.append(self._reset)
        self._looking: deque[Pull] = deque()
        """Pulls that are to be tried again and whose filter reads properties. Each turn of the event loop
        serves only one of them, because one may take 5 ms."""
        self.messages: int = 0
        """Number of messages sent to consumers since the start."""
        self.bytes: int = 0

    @handles(
        RequestCode.PULL_MESSAGE,
        PullMessageHeader,
        needs=Needs.LEADER,
        reads=APPLIED_OR_HERE,
        at_follower="pull_here",
        may=required.CONSUME,
    )
    @handles(
        RequestCode.LITE_PULL_MESSAGE,
        PullMessageHeader,
        needs=Needs.LEADER,
        reads=APPLIED_OR_HERE,
        at_follower="pull_here",
        may=required.CONSUME,
    )
    def pull(self, call: LeaderCall[PullMessageHeader]) -> None:
        """Answer with messages from an offset on. If there are none, the answer waits until there are some,
        or until the time-out in the request."""
        header = call.header
        self._check(call.writer, header)
        if self._rates.limited:
            self._rates.check(header.topic, header.consumerGroup, call.request.version)
        if not header.sysFlag & PULL_SUBSCRIPTION:
            missing = self.ahead.missing(call)
            if missing is not None:
                self.ahead.wait(call, missing)
                return
        wanted = self._filter(header)
        if header.sysFlag & PULL_COMMIT_OFFSET:
            self._offsets.report(header.consumerGroup, header.topic, header.queueId, header.commitOffset)
        moved = self._offsets.comes_from(
            header.consumerGroup, header.topic, header.queueId, header.queueOffset
        )
        if moved is not None:
            self._send_on(call, moved)
            return
        self._serve(self._made(call, wanted))

    def pull_here(self, call: Call[PullMessageHeader]) -> bool:
        """Answer a pull at a broker that does not lead. Returns False if this broker cannot answer it, so
        that it must be forwarded to the leader."""
        header, state = call.header, self._store.state
        if not self._settings.now.slave_read or header.sysFlag & PULL_COMMIT_OFFSET:
            return False
        group, topic = state.groups.get(header.consumerGroup), state.topics.get(header.topic)
        if group is None or not group.enable or topic is None or not topic.perm & Perm.READ:
            return False  # the leader answers with the reason
        if not header.sysFlag & PULL_SUBSCRIPTION and self.ahead.missing(call) is not None:
            return False
        reset = state[RESETS].rows.get((header.consumerGroup, header.topic))
        if reset is not None and reset.offset(header.queueId) is not None:
            return False  # the leader answers with the new offset
        queue = self._store.queues.get(header.topic, header.queueId)
        if queue is None or not queue.bounds.min <= header.queueOffset < queue.bounds.next:
            return False
        try:
            pull = self._made(call, self._filter(header))
        except RemotingError:
            return False
        self._background.start(call.connection, call.request, self._serve_here(pull))
        return True

    async def _serve_here(self, pull: Pull) -> None:
        count = min(pull.count, self._settings.now.pull_max_count_cold)
        size = min(pull.size, self._settings.now.pull_max_bytes_cold)
        result = await self._reader.get_cold(pull.topic, pull.queue_id, pull.offset, count, size, pull.wanted)
        if result.status is GetStatus.FOUND and result.next_offset < result.max_offset:
            self._answer(pull, result, ResponseCode.SUCCESS, self._settings.now.follower_id)
        elif result.status is GetStatus.FOUND:
            self._answer(pull, result, ResponseCode.SUCCESS)  # the last message: the leader is next
        else:
            self._gate.wait_or_refuse(pull.connection, pull.request)

    def _made(self, call: Call[PullMessageHeader], wanted: MessageFilter) -> Pull:
        header, config = call.header, self._settings.now
        suspend_ms = 0
        if header.sysFlag & PULL_SUSPEND:
            suspend_ms = header.suspendTimeoutMillis if config.long_polling else config.short_polling_ms
        count = header.maxMsgNums if header.maxMsgNums > 0 else DEFAULT_COUNT
        size = config.pull_max_bytes
        if header.maxMsgBytes is not None and header.maxMsgBytes > 0:
            size = min(size, header.maxMsgBytes)
        return Pull(
            call.connection,
            call.request,
            header.consumerGroup,
            header.topic,
            header.queueId,
            header.queueOffset,
            min(count, config.pull_max_count),
            size,
            wanted,
            max(0, suspend_ms) / 1000,
        )

    def _suggested(self, queue_id: int) -> int:
        """Return the id of a running follower that is suggested to a consumer which reads messages that are
        no longer in memory. 0 means the leader itself."""
        config = self._settings.now
        if not config.slave_read:
            return 0
        known = self._members().items()
        others = sorted(node for node, address in known if address and node != config.self_id)
        return route_id(others[queue_id % len(others)]) if others else 0

    def _send_on(self, call: LeaderCall[PullMessageHeader], offset: int) -> None:
        """Answer that the group's offset was reset, so that the consumer continues at the new offset."""
        low, high = self._store.queues.range_of(call.header.topic, call.header.queueId)
        call.respond(
            ResponseCode.PULL_OFFSET_MOVED,
            ext=pull_fields(suggested_here(call.connection), offset, low, high),
            remark="OFFSET_RESET",
        )

    def _reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Handle the waiting pulls of a group again at once, because its offsets were reset."""
        for pull in self.held.take_of(group, topic, offsets):
            pull.connection.again(pull.request)

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """Try the waiting pulls of these queues again, because messages were applied to them."""
        self.held.arrived(queues)

    def deleted(self, topic: str) -> None:
        """Handle the waiting pulls of a deleted topic again at once, so that they are refused."""
        for pull in self.held.take_topic(topic):
            pull.connection.again(pull.request)

    def end(self, reason: str) -> None:
        """Refuse the waiting pulls with the new leader's address, or forward them to it, because this node no
        longer leads."""
        for pull in (*self.held.take_all(), *self._looking):
            self._gate.wait_or_refuse(pull.connection, pull.request)
        self._looking.clear()
        for call in self.ahead.take_all():
            self._gate.wait_or_refuse(call.connection, call.request)

    @handles(
        RequestCode.VIEW_MESSAGE_BY_ID,
        ViewMessageHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.Rule(special=required.of_any_topic),
        does=actions.Does(actions.SEEN, body=actions.any_topic),
    )
    def view_message(self, call: LeaderCall[ViewMessageHeader]) -> None:
        """Return the message at a physical offset, which its offset message id contains."""
        offset = call.header.offset

        async def answer() -> None:
            found = await self._reader.message_at(offset)
            if found is None:
                raise RemotingError(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {offset}"
                )
            call.respond(body=found[0])

        self._background.start(call.connection, call.request, answer())

    # -- checks ---------------------------------------------------------------------------------------

    def _check(self, writer: CommitLogWriter, header: PullMessageHeader) -> None:
        group = self._creation.group_for_consumer(writer, self._store.state, header.consumerGroup)
        if group is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumerGroup}] does not exist",
            )
        if not group.enable:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumerGroup}"
            )
        topic = writer.topic(header.topic)
        if topic is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & Perm.READ:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queueId < topic.read_queues:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"readQueueNums:[{topic.read_queues}] consumer:[{header.consumerGroup}]",
            )
        members = self._clients.consumers.get(header.consumerGroup)
        if members is not None and members.message_model == "BROADCASTING" and not group.broadcast:
            raise RemotingError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] consume by broadcast way is forbidden",
            )

    def _filter(self, header: PullMessageHeader) -> MessageFilter:
        """Return the filter of a pull. Its subscription is in the request or, if the request has none, in the
        heartbeat of its group."""
        config = self._settings.now
        group = self._clients.consumers.get(header.consumerGroup)
        if header.sysFlag & PULL_SUBSCRIPTION:
            kind, expression = header.expressionType or TAG, header.subscription or ""
            by_class = header.sysFlag & PULL_CLASS_FILTER
        else:
            assert group is not None  # `SubscriptionWait.missing` looked
            subscription = group.subscriptions[header.topic]
            kind, expression = subscription.expressionType or TAG, subscription.subString
            if subscription.subVersion < header.subVersion:
                expression = "*"  # `missing` let it pass: other tags than these, which the client compares
            by_class = header.sysFlag & PULL_CLASS_FILTER or subscription.classFilterMode
        if by_class:
            kind = CLASS_FILTER
        try:
            wanted = filter_of(kind, expression, by_property=config.property_filter)
        except RemotingError as error:
            if header.sysFlag & PULL_SUBSCRIPTION or error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            raise RemotingError(  # RocketMQ's code if the subscription is from a heartbeat
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                f"{error.remark}",
            ) from error
        if header.topic.startswith(RETRY_PREFIX):
            if kind != TAG and config.filter_retry:
                wanted = RetryFilter(lambda topic: self._of_topic(group, topic))
            deleted = self._store.state[DELETIONS].rows
            if deleted:
                wanted = OfLivingTopics(deleted, hosts_of(self._members), wanted)
        return wanted

    def _of_topic(self, group: ConsumerGroup | None, topic: str) -> MessageFilter:
        """Return a group's filter by properties for a topic. If the group has no such filter, or an invalid
        one, return the filter ALL."""
        subscription = None if group is None else group.subscriptions.get(topic)
        if subscription is None or subscription.expressionType in ("", TAG):
            return ALL
        try:
            return filter_of(subscription.expressionType, subscription.subString, by_property=True)
        except RemotingError:
            return ALL  # pulls of that topic itself are refused

    # -- answering ------------------------------------------------------------------------------------

    def _woken(self, pull: Pull) -> None:
        writer = self._gate.writer
        if writer is not None and not writer.may_consume(pull.group, pull.topic, pull.queue_id):
            pull.connection.again(pull.request)  # to get the reason
            return
        if pull.wanted is ALL or isinstance(pull.wanted, TagFilter):
            self._serve(pull)
            return
        self._looking.append(pull)
        if len(self._looking) == 1:
            asyncio.get_running_loop().call_soon(self._serve_next)

    def _serve_next(self) -> None:
        if not self._looking:
            return  # leadership ended meanwhile
        pull = self._looking.popleft()
        if self._looking:
            asyncio.get_running_loop().call_soon(self._serve_next)
        self._serve(pull)

    def _serve(self, pull: Pull) -> None:
        if pull.connection.crowded:
            self._wait_for_room(pull)
            return
        pull.for_room = False
        result = self._reader.get(pull.topic, pull.queue_id, pull.offset, pull.count, pull.size, pull.wanted)
        if result is None:
            self._background.start(pull.connection, pull.request, self._serve_cold(pull))
        else:
            self._answer_or_hold(pull, result)

    async def _serve_cold(self, pull: Pull) -> None:
        count = min(pull.count, self._settings.now.pull_max_count_cold)
        size = min(pull.size, self._settings.now.pull_max_bytes_cold)
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await self._reader.get_cold(pull.topic, pull.queue_id, pull.offset, count, size, pull.wanted)
        pull.took_s += loop.time() - began
        if self._gate.writer is None:
            self._gate.wait_or_refuse(pull.connection, pull.request)
        elif result.status is not GetStatus.FOUND:
            self._answer_or_hold(pull, result)
        elif pull.connection.crowded:
            self._wait_for_room(pull)
        else:
            self._answer(pull, result, ResponseCode.SUCCESS, self._suggested(pull.queue_id))

    def _wait_for_room(self, pull: Pull) -> None:
        """Let a pull wait until fewer answers are unsent. If that is not possible, answer that there are no
        messages."""
        if not self.held.hold_for_room(pull):
            self._expired(pull)

    def _answer_or_hold(self, pull: Pull, result: GetResult) -> None:
        code = _response_code(result.status, pull.offset)
        if code is ResponseCode.PULL_RETRY_IMMEDIATELY and pull.deadline:
            # The new messages do not match: wait behind them, unless further messages have arrived.
            pull.offset = result.next_offset
            if self._store.state.next_offset(pull.topic, pull.queue_id) == pull.offset and self.held.hold(
                pull
            ):
                return
        elif code is ResponseCode.PULL_NOT_FOUND and pull.suspend_s > 0 and self.held.hold(pull):
            return
        self._answer(pull, result, code)

    def _expired(self, pull: Pull) -> None:
        low, high = self._store.queues.range_of(pull.topic, pull.queue_id)
        result = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, pull.offset, low, high)
        self._answer(pull, result, ResponseCode.PULL_NOT_FOUND)

    def _answer(self, pull: Pull, result: GetResult, code: ResponseCode, suggested: int = 0) -> None:
        count, size = len(result.parts), result.size
        self.messages += count
        self.bytes += size
        if count and self._rates.limited:
            self._rates.count(pull.topic, pull.group, count)
        if count and self._slow_consumers.on:
            self._slow_consumers.pulled(pull.group, pull.topic, pull.queue_id, result.parts[-1])
        connection = pull.connection
        if result.status is GetStatus.FOUND:
            self._pull_offsets.pulled(pull.group, pull.topic, pull.queue_id, result.next_offset)
        self._stats.got(pull.group, pull.topic, pull.queue_id, count, size, int(pull.took_s * 1000))
        connection.respond(
            pull.request,
            code,
            ext=pull_fields(
                suggested or suggested_here(connection),
                result.next_offset,
                result.min_offset,
                result.max_offset,
            ),
            body=result.parts,
            remark=result.status.name,
        )


def _response_code(status: GetStatus, offset: int) -> ResponseCode:
    code = _CODES.get(status)
    if code is not None:
        return code
    return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
