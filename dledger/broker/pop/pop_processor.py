"""Requests that pop messages: 200050 POP_MESSAGE, 200052 PEEK_MESSAGE, 200054 NOTIFICATION, 200055
POLLING_INFO (PopMessageProcessor, PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor).

A pop reads messages from the group's offset on. It appends one batch to the log. The batch sets the group's
offset behind the messages that the pop takes, and records these messages in one checkpoint for each queue.
The messages are sent only when the batch is committed. No other consumer gets them until they are delivered
again (`revive_service`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dledger.broker.auth import actions, required
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.filter.message_filter import ALL, filter_of
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.pop.pop_hold import HeldPops, Pop
from dledger.broker.pop.pop_ledger import MAX_POP_ORDERS, PopLedger
from dledger.broker.pop.pop_order import popped
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.services import LeaderService
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.reader import MAX_SCAN_UNITS, GetResult
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import READ_WRITE
from dledger.formats.pop_handles import (
    ORDER_QUEUE,
    REVIVE_QUEUE,
    Handle,
    offsets_info,
    order_counts,
    retry_mark,
    retry_topic_v1,
    retry_topic_v2,
    start_info,
)
from dledger.formats.properties import (
    MAX_PROPERTIES_SIZE,
    POP_CK,
    PROPERTY_SEPARATOR,
    encode_properties,
)
from dledger.formats.record import QUEUE_OFFSET_AT, decode_record, encode_record
from dledger.formats.state import (
    MAX_INVISIBLE_MS,
    MAX_POP_MESSAGES,
    POP,
    POP_ORDERS,
    POPS,
    OrderKey,
    Perm,
    PopCheckpoint,
    PopOrder,
    TopicConfig,
    offsets_op,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.pop_headers import (
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PopMessageHeader,
)
from dledger.runtime.cooperative import PAUSE_S
from dledger.runtime.files import Buffer

APPLIED = "applied index of the leader"
SCAN_S = 5.0
"""Seconds for which one pop searches for messages that match its filter. The next pop continues where this
one ended."""
CLOCKS_DIFFER_MS = 1000
"""Largest time, in ms, by which the last pop in order may be ahead of this leader's clock. It is ahead if two
pops happen in the same millisecond, or if an earlier leader's clock is ahead. Up to this limit, the next pop
gets a later time than the last pop. A time that is ahead by more is ignored."""
MAX_ATTEMPT = 255
"""Limit, in characters, of an attempt id; a pop with a longer one is refused. (A client gives all tries of
one pop in order the same attempt id.)"""
_LONG = struct.Struct(">q")


@dataclass(slots=True)
class Taken:
    """The messages that a pop takes from one queue. `start` is the group's offset before the pop, `following`
    the group's offset after it."""

    topic: str
    queue_id: int
    start: int
    following: int
    offsets: tuple[int, ...]
    parts: list[Buffer]
    counts: tuple[int, ...] = ()


@dataclass(slots=True)
class Round:
    """The state of one pop while it collects messages."""

    pop: Pop
    time_ms: int
    places: Iterator[tuple[str, int]]
    taken: list[Taken] = field(default_factory=list)
    count: int = 0
    size: int = 0
    rest: int = 0
    """Number of messages that this pop leaves in the queues."""
    scanned: int = 0
    """Number of ConsumeQueue units that this pop examined in this turn of the event loop."""
    locked: set[OrderKey] = field(default_factory=set)
    """Queues that no other pop of the group may read while this pop collects messages."""
    cut: bool = False
    """Whether this pop ran out of time before it had examined all messages."""


class PopProcessor(LeaderService):
    """Handles the requests that pop messages, peek at them or ask for them, and keeps the pops that wait."""

    def __init__(
        self, core: Core, creation: TopicCreation, offsets: PendingOffsets, pops: PopLedger, rates: RateLimits
    ) -> None:
        self._env = core.env
        self._settings = core.settings
        self._gate = core.gate
        self._creation = creation
        self._store = core.store
        self._offsets = offsets
        offsets.on_order_reset = pops.order_reset
        self._background = core.background
        self._reader = core.reader
        self._committed = core.committed
        self._rates = rates.reading
        self._ledger = pops
        self._locked: set[OrderKey] = set()
        """Pairs of a group and a queue for which a pop of the group is reading the queue from the disk."""
        self.held: HeldPops = HeldPops(
            lambda: self._settings.now.max_pop_polling_size,
            lambda: self._settings.now.pop_polling_size,
            self._again,
            self._expired,
        )
        self._ledger.on_room = self.held.wake
        self._ledger.on_ready = self.held.wake_all
        self.messages: int = 0
        """Number of messages given to consumers since the start."""

    def deleted(self, topic: str) -> None:
        """Handle the waiting pops of a deleted topic again at once, so that they are refused."""
        for pop in self.held.take_topic(topic):
            pop.connection.again(pop.request)

    # -- requests ---------------------------------------------------------------------------------------

    @handles(
        RequestCode.POP_MESSAGE, PopMessageHeader, needs=Needs.LEADER, reads=APPLIED, may=required.CONSUME
    )
    def pop(self, call: LeaderCall[PopMessageHeader]) -> None:
        """Answer with messages that no other consumer of the group has. If there are none, the answer waits
        until there are some, or until the time-out in the request."""
        header = call.header
        self._check(call.writer, header.consumerGroup, header.topic, header.queueId)
        if self._rates.limited:
            self._rates.check(header.topic, header.consumerGroup, call.request.version)
        if not 0 < header.maxMsgNums <= MAX_POP_MESSAGES:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums is {header.maxMsgNums}; a pop may ask for 1 to {MAX_POP_MESSAGES} messages",
            )
        if not 0 <= header.invisibleTime <= MAX_INVISIBLE_MS:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {header.invisibleTime} ms; it must be from 0 to {MAX_INVISIBLE_MS} ms",
            )
        attempt = header.attemptId or ""
        if len(attempt) > MAX_ATTEMPT:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"attemptId has more than {MAX_ATTEMPT} characters"
            )
        if not call.writer.room:
            raise call.writer.refused
        call.writer.note_version(POP)
        expression = header.exp or "*"
        by_property = self._settings.now.property_filter
        wanted = filter_of(header.expType or "TAG", expression, by_property=by_property)
        if not header.order:
            self._make_retry_topic(call.writer, header.topic, header.consumerGroup)
        self._serve(
            Pop(
                call.connection,
                call.request,
                header.consumerGroup,
                header.topic,
                max(header.queueId, -1),
                header.maxMsgNums,
                header.invisibleTime,
                wanted,
                f"{header.expType or 'TAG'} {expression}",
                header.order,
                attempt,
                bool(header.initMode),
                header.pollTime / 1000,
            )
        )

    @handles(
        RequestCode.NOTIFICATION, NotificationHeader, needs=Needs.LEADER, reads=APPLIED, may=required.CONSUME
    )
    def notification(self, call: LeaderCall[NotificationHeader]) -> None:
        """Answer whether there are messages to pop, without taking any. If there are none, the answer waits
        until there are some, or until the time-out in the request."""
        header = call.header
        self._check(call.writer, header.consumerGroup, header.topic, header.queueId)
        pop = Pop(
            call.connection,
            call.request,
            header.consumerGroup,
            header.topic,
            max(header.queueId, -1),
            1,
            0,
            ALL,
            "*",
            header.order,
            (header.attemptId or "")[:MAX_ATTEMPT],
            False,
            header.pollTime / 1000,
            looks=True,
        )
        self._serve(pop)

    @handles(
        RequestCode.POLLING_INFO,
        PollingInfoHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.CONSUME,
        does=actions.CONSUMED,
    )
    def polling_info(self, call: LeaderCall[PollingInfoHeader]) -> None:
        """Answer how many pops of the group wait at this broker for messages of the topic."""
        header = call.header
        self._check(call.writer, header.consumerGroup, header.topic, header.queueId)
        call.respond(ext={"pollingNum": str(self.held.waiting(header.topic, header.consumerGroup))})

    @handles(
        RequestCode.PEEK_MESSAGE, PeekMessageHeader, needs=Needs.LEADER, reads=APPLIED, may=required.CONSUME
    )
    def peek(self, call: LeaderCall[PeekMessageHeader]) -> None:
        """Answer with the messages that a pop would get, without taking them."""
        header = call.header
        self._check(call.writer, header.consumerGroup, header.topic, header.queueId)
        if not 0 < header.maxMsgNums <= MAX_POP_MESSAGES:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums is {header.maxMsgNums}; a peek may ask for 1 to {MAX_POP_MESSAGES} messages",
            )
        pop = Pop(
            call.connection,
            call.request,
            header.consumerGroup,
            header.topic,
            max(header.queueId, -1),
            header.maxMsgNums,
            0,
            ALL,
            "*",
            False,
            "",
            False,
            0.0,
        )
        self._background.start(call.connection, call.request, self._peek(pop, call.writer.clock_ms()))

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """Try the waiting pops of these queues again, because messages were applied to them."""
        self.held.arrived(queues)

    def end(self, reason: str) -> None:
        """Refuse the waiting pops with the new leader's address, or forward them to it, because this node no
        longer leads. They have taken no messages yet."""
        self._locked.clear()
        for pop in self.held.take_all():
            self._gate.wait_or_refuse(pop.connection, pop.request)

    # -- checks -----------------------------------------------------------------------------------------

    def _check(self, writer: CommitLogWriter, group_name: str, topic_name: str, queue_id: int) -> None:
        topic = writer.topic(topic_name)
        if topic is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic_name}] not exist, apply first please!"
            )
        if not topic.perm & Perm.READ:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden"
            )
        if queue_id >= topic.read_queues:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{group_name}]",
            )
        group = self._creation.group_for_consumer(writer, self._store.state, group_name)
        if group is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group_name}] does not exist"
            )
        if not group.enable:
            raise RemotingError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")

    def _make_retry_topic(self, writer: CommitLogWriter, topic: str, group: str) -> None:
        """Create the retry topic of a group and a topic before the first pop, because a popped message is
        delivered again through this topic. Its name fits into 255 characters, because a group name has at
        most 120 characters and a topic name at most 127."""
        if retry_mark(topic) != "0":
            return
        name = (retry_topic_v2 if self._settings.now.retry_topic_v2 else retry_topic_v1)(topic, group)
        if writer.topic(name) is not None:
            return
        if not writer.room:
            raise writer.refused
        self._creation.put_topic(writer, TopicConfig(name, 1, 1, READ_WRITE))

    # -- gathering --------------------------------------------------------------------------------------

    def _again(self, pop: Pop) -> bool:
        writer = self._gate.writer
        if writer is not None and not writer.may_consume(pop.group, pop.topic, pop.queue_id):
            pop.connection.again(pop.request)  # to get the reason
            return True
        return self._serve(pop)

    def _serve(self, pop: Pop) -> bool:
        """Try to serve a pop. Returns False if the pop waits, newly or again."""
        writer = self._gate.writer
        if pop.connection.closed:
            return True  # its messages would be invisible to others in vain
        if writer is None:
            self._gate.wait_or_refuse(pop.connection, pop.request)
            return True
        if pop.connection.crowded and not pop.looks:
            self.held.for_room = pop.connection
            return not self._hold(Round(pop, writer.clock_ms(), iter(())))
        round_ = Round(pop, writer.clock_ms(), self._places(writer, pop))
        for topic, queue_id in round_.places:
            if not self._take(round_, topic, queue_id):
                cold = self._gather_cold(round_, writer, (topic, queue_id))
                self._background.start(pop.connection, pop.request, cold)
                return True
            if pop.looks and round_.rest:
                break
        return self._finish(round_, writer)

    async def _gather_cold(self, round_: Round, writer: CommitLogWriter, place: tuple[str, int]) -> None:
        """Continue a pop that has to read from the disk, or finds many messages that do not match. It does
        one read in each turn of the event loop."""
        pop = round_.pop
        until = asyncio.get_running_loop().time() + SCAN_S
        try:
            for topic, queue_id in chain((place,), round_.places):
                while await self._read_cold(round_, topic, queue_id):
                    if asyncio.get_running_loop().time() > until:
                        round_.cut = True
                        break
            if self._gate.writer is not writer:
                self._gate.wait_or_refuse(pop.connection, pop.request)
            else:
                self._finish(round_, writer)
        finally:
            self._locked.difference_update(round_.locked)
        if round_.taken:
            self.held.wake(pop.group, pop.topic)  # there may be more messages in locked queues

    async def _read_cold(self, round_: Round, topic: str, queue_id: int) -> bool:
        """Read once from a queue. Returns whether the queue should be read further."""
        if round_.scanned >= MAX_SCAN_UNITS:
            round_.scanned = 0
            await asyncio.sleep(PAUSE_S)
        start, room = self._look(round_, topic, queue_id)
        if room <= 0:
            return False
        key = (round_.pop.group, topic, queue_id)
        self._locked.add(key)
        round_.locked.add(key)
        where = (topic, queue_id, start, room, self._bytes_left(round_), round_.pop.wanted)
        result = self._reader.get(*where) or await self._reader.get_cold(*where)
        round_.scanned += result.next_offset - start
        self._note(round_, topic, queue_id, start, result)
        return not result.parts and start < result.next_offset < result.max_offset

    def _take(self, round_: Round, topic: str, queue_id: int) -> bool:
        """Take those messages of a queue that are in memory. Returns False if the pop has to be continued by
        `_gather_cold`."""
        start, room = self._look(round_, topic, queue_id)
        if room <= 0:
            return True
        if round_.scanned >= MAX_SCAN_UNITS:
            return False
        result = self._reader.get(topic, queue_id, start, room, self._bytes_left(round_), round_.pop.wanted)
        if result is None:
            return False
        round_.scanned += result.next_offset - start
        self._note(round_, topic, queue_id, start, result)
        return bool(result.parts) or result.next_offset >= result.max_offset

    def _look(self, round_: Round, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the group's offset in a queue, and how many messages this pop may take from the queue."""
        self.held.looks += 1
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0, 0
        pop = round_.pop
        if not pop.looks:
            self._offsets.follow(pop.group, topic, queue_id)  # a pop reads from the group's offset
        start = self._offsets.current(pop.group, topic, queue_id)
        if start is None:
            start = self._first(pop, queue)
        rest = queue.bounds.next - start
        key = (pop.group, topic, queue_id)
        if rest <= 0 or (pop.in_order and self._blocked(pop, key)):
            return start, 0
        allowed = self._ledger.room(*key)
        if pop.looks:
            round_.rest += rest if allowed else 0
            return start, 0
        room = min(pop.count - round_.count, allowed) if self._bytes_left(round_) > 0 else 0
        if room <= 0 or (key in self._locked and key not in round_.locked):
            round_.rest += rest
            return start, 0
        return start, room

    def _bytes_left(self, round_: Round) -> int:
        return self._settings.now.pull_max_bytes - round_.size

    def _first(self, pop: Pop, queue: ConsumeQueue) -> int:
        """Return the offset at which a group begins to read a queue in which it has no offset yet."""
        bounds = queue.bounds
        first = bounds.min
        if (
            pop.from_last
            and retry_mark(queue.topic) == "0"
            and not self._reader.first_is_hot(queue.topic, queue.queue_id)
        ):
            first = max(bounds.next - 1, bounds.min)
        if not pop.looks:
            self._offsets.report(pop.group, queue.topic, queue.queue_id, first)
        return first

    def _blocked(self, pop: Pop, key: tuple[str, str, int]) -> bool:
        writer = self._ledger.writer
        if writer is None:
            return True
        rows = writer.pending[POP_ORDERS].rows
        row = rows.get(key)
        if row is None:
            return len(rows) >= MAX_POP_ORDERS
        if pop.attempt and pop.attempt == row.attempt:
            return False
        due_s = self._ledger.due_s(key)
        return due_s is not None and due_s > asyncio.get_running_loop().time()

    def _note(self, round_: Round, topic: str, queue_id: int, start: int, result: GetResult) -> None:
        """Take the messages that a read has found. If it has found none, move the group's offset behind the
        messages that were examined."""
        if not result.parts:
            if result.next_offset > start:
                self._offsets.report(round_.pop.group, topic, queue_id, result.next_offset)
            return
        offsets = tuple(_LONG.unpack_from(part, QUEUE_OFFSET_AT)[0] for part in result.parts)
        round_.taken.append(Taken(topic, queue_id, start, result.next_offset, offsets, result.parts))
        round_.count += len(offsets)
        round_.size += result.size
        round_.rest += max(result.max_offset - result.next_offset, 0)

    def _places(self, writer: CommitLogWriter, pop: Pop) -> Iterator[tuple[str, int]]:
        """Yield the queues in the order in which this pop tries them. The retry topics come first or last, at
        random."""
        topic = writer.topic(pop.topic)
        if topic is None:
            return
        chance = self._env.random.randrange(100)
        retries = () if pop.in_order or retry_mark(pop.topic) != "0" else self._retries(pop)
        early = chance < self._settings.now.pop_from_retry_probability
        if early:
            yield from retries
        if pop.queue_id >= 0:
            yield pop.topic, pop.queue_id
        else:
            for at in range(topic.read_queues):
                yield pop.topic, (chance + at) % topic.read_queues
        if not early:
            yield from retries

    def _retries(self, pop: Pop) -> Sequence[tuple[str, int]]:
        return (
            (retry_topic_v1(pop.topic, pop.group), 0),
            (retry_topic_v2(pop.topic, pop.group), 0),
        )

    # -- answering --------------------------------------------------------------------------------------

    def _finish(self, round_: Round, writer: CommitLogWriter) -> bool:
        """Answer a pop, or let it wait. Returns False if it waits."""
        pop = round_.pop
        if pop.looks:
            if round_.rest:
                pop.connection.respond(
                    pop.request, ResponseCode.SUCCESS, ext={"hasMsg": "true", "pollingFull": "false"}
                )
                return True
            return not self._hold(round_)
        # If offsets were reset during a read from the disk, the group no longer wants what was read.
        taken = [
            one
            for one in round_.taken
            if self._offsets.current(pop.group, one.topic, one.queue_id) in (None, one.start)
        ]
        if not taken and round_.cut:
            self._nothing(pop, ResponseCode.POLLING_TIMEOUT, round_.rest)
            return True
        if not taken:
            return not self._hold(round_)
        try:
            if not writer.room:
                raise writer.refused
            writer.check_versions(POP)
        except RemotingError as error:
            self._refuse(pop, error)
            return True
        loop_s = asyncio.get_running_loop().time()
        group, ops = pop.group, []
        time_ms = self._free_time(round_, writer, taken)
        moved: dict[tuple[str, int], int] = {}
        if pop.in_order:
            for one in taken:
                row = self._order_row(writer, pop, one, time_ms)
                one.counts = row.counts
                ops.append(row.op())
                self._ledger.ordered(row, loop_s + pop.invisible_ms / 1000)
        else:
            for one in taken:
                checkpoint = PopCheckpoint(
                    group, one.topic, one.queue_id, one.start, time_ms, pop.invisible_ms, one.offsets
                )
                ops.append(checkpoint.op())
                moved[one.topic, one.queue_id] = one.following
                self._ledger.gave(checkpoint, loop_s + pop.invisible_ms / 1000)
            rows = [(topic, queue_id, offset) for (topic, queue_id), offset in moved.items()]
            ops.append(offsets_op(group, rows))
        index = writer.add_together([], ops)
        self._ledger.logged(index)
        if moved:
            self._offsets.logged(index, group, moved)
        self._committed.add(index, pop.connection, pop.request, lambda: self._answer(round_, taken, time_ms))
        return True

    def _free_time(self, round_: Round, writer: CommitLogWriter, taken: list[Taken]) -> int:
        """Return the time of this pop in ms. It must be unique, because a handle identifies its pop by the
        time. A handle belongs to one checkpoint or, for a pop in order, to the last pop of its queue.

        The time is also unique if a reset happens within the same millisecond, and if this leader's clock is
        behind that of the previous leader.
        """
        rows, time_ms = writer.pending[POPS].rows, round_.time_ms
        group = round_.pop.group
        if round_.pop.in_order:
            orders, freed = writer.pending[POP_ORDERS].rows, self._ledger.freed
            keys = [(group, one.topic, one.queue_id) for one in taken]
            last = [orders[key].time if key in orders else freed.get(key, -1) for key in keys]
            behind = [time + 1 for time in last if time_ms <= time < time_ms + CLOCKS_DIFFER_MS]
            return max([time_ms, *behind])
        while any((group, one.topic, one.queue_id, one.start, time_ms) in rows for one in taken):
            time_ms += 1
        return time_ms

    def _order_row(self, writer: CommitLogWriter, pop: Pop, taken: Taken, time_ms: int) -> PopOrder:
        key = (pop.group, taken.topic, taken.queue_id)
        zeros = (0,) * len(taken.offsets)
        row = PopOrder(*key, time_ms, pop.invisible_ms, pop.attempt, taken.offsets, zeros)
        return popped(writer.pending[POP_ORDERS].rows.get(key), row)

    def _answer(self, round_: Round, taken: list[Taken], time_ms: int) -> None:
        pop = round_.pop
        revive_queue = ORDER_QUEUE if pop.in_order else REVIVE_QUEUE
        ext = {
            "popTime": str(time_ms),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(revive_queue),
            "restNum": str(round_.rest),
            "startOffsetInfo": ";".join(start_info(one.topic, one.queue_id, one.start) for one in taken),
            "msgOffsetInfo": ";".join(offsets_info(one.topic, one.queue_id, one.offsets) for one in taken),
        }
        if pop.in_order:
            counts = [
                text
                for one in taken
                for text in order_counts(one.topic, one.queue_id, zip(one.offsets, one.counts, strict=True))
            ]
            ext["orderCountInfo"] = ";".join(counts)
        body: list[Buffer] = []
        for one in taken:
            if one.topic == pop.topic:
                body += one.parts
            else:
                handle = Handle(
                    one.start,
                    time_ms,
                    pop.invisible_ms,
                    revive_queue,
                    retry_mark(one.topic),
                    self._settings.now.broker_name,
                    one.queue_id,
                )
                body += [as_original(part, pop.topic, handle) for part in one.parts]
        messages = sum(len(one.offsets) for one in taken)
        self.messages += messages
        if self._rates.limited:
            self._rates.count(pop.topic, pop.group, messages)
        connection, code = pop.connection, ResponseCode.SUCCESS
        connection.respond(pop.request, code, ext=ext, body=body, remark="FOUND", promised=True)

    def _hold(self, round_: Round) -> bool:
        """Let a pop that has found nothing wait, or answer it. Returns True if it waits."""
        pop = round_.pop
        if pop.deadline:  # it waited before
            if pop.deadline > asyncio.get_running_loop().time() and not pop.connection.closed:
                self.held.again(pop)
                return True
        elif pop.poll_s > 0:
            kept = self.held.hold(pop)
            if kept:
                return True
            if kept is False:
                self._nothing(pop, ResponseCode.POLLING_FULL, round_.rest)
                return False
        self._nothing(pop, ResponseCode.POLLING_TIMEOUT, round_.rest)
        return False

    def _expired(self, pop: Pop) -> None:
        self._nothing(pop, ResponseCode.POLLING_TIMEOUT, 0)

    def _nothing(self, pop: Pop, code: ResponseCode, rest: int) -> None:
        if pop.looks:
            full = "true" if code is ResponseCode.POLLING_FULL else "false"
            pop.connection.respond(
                pop.request, ResponseCode.SUCCESS, ext={"hasMsg": "false", "pollingFull": full}
            )
            return
        writer = self._gate.writer
        ext = {
            "popTime": str(0 if writer is None else writer.clock_ms()),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(ORDER_QUEUE if pop.in_order else REVIVE_QUEUE),
            "restNum": str(rest),
            "startOffsetInfo": "",
            "msgOffsetInfo": "",
        }
        pop.connection.respond(pop.request, code, ext=ext, remark="NO_MESSAGE_IN_QUEUE")

    def _refuse(self, pop: Pop, error: RemotingError) -> None:
        code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
        pop.connection.respond(pop.request, code, remark=error.remark)

    async def _peek(self, pop: Pop, time_ms: int) -> None:
        body: list[Buffer] = []
        rest = size = 0
        writer = self._gate.writer
        for topic, queue_id in () if writer is None else self._places(writer, pop):
            queue = self._store.queues.get(topic, queue_id)
            if queue is None:
                continue
            start = self._offsets.current(pop.group, topic, queue_id)
            start = queue.bounds.min if start is None else max(start, queue.bounds.min)
            if start >= queue.bounds.next:
                continue
            room = self._settings.now.pull_max_bytes - size
            if len(body) < pop.count and room > 0:
                wanted = (topic, queue_id, start, pop.count - len(body), room, ALL)
                result = self._reader.get(*wanted) or await self._reader.get_cold(*wanted)
                body += result.parts
                size += result.size
                start = result.next_offset
            rest += max(queue.bounds.next - start, 0)
        ext = {
            "popTime": str(time_ms),
            "invisibleTime": "0",
            "reviveQid": "0",
            "restNum": str(rest),
        }
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_NOT_FOUND
        pop.connection.respond(pop.request, code, ext=ext, body=body)


def as_original(part: Buffer, topic: str, handle: Handle) -> Buffer:
    """Return a record of a retry topic in the form in which clients expect it: with the topic for which they
    asked, and with its handle. If its properties have no room for the handle, the record is returned
    unchanged. Clients then build the handle themselves."""
    record = decode_record(bytes(part))
    text = record.properties
    if text and not text.endswith(PROPERTY_SEPARATOR):
        text += PROPERTY_SEPARATOR
    text += encode_properties({POP_CK: handle._replace(offset=record.queue_offset).encode()})
    if len(text.encode()) > MAX_PROPERTIES_SIZE:
        return part
    return encode_record(
        topic=topic,
        body=record.body,
        properties=text,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )
