"""Offsets of queues as brokers return them, and the committed offsets of a group."""

from __future__ import annotations

import asyncio
import operator
import os.path
from collections.abc import Container, Mapping
from enum import Enum
from typing import Protocol

from dledger.client.core import ClientCore
from dledger.client.errors import BrokerRefused, ClientError, refused_text
from dledger.client.message import MessageQueue
from dledger.client.options import member_of
from dledger.client.times import check_time
from dledger.remoting.bodies import MessageQueue as WireQueue
from dledger.remoting.bodies import decode_queue_table, queue_table
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadBody, BadHeader
from dledger.remoting.frames import Fields
from dledger.remoting.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.runtime import Env, Lane
from dledger.runtime.atomic_file import publish, read_file


class FromWhere(Enum):
    """Where a group begins in a queue in which it has no committed offset (ConsumeFromWhere).

    Older brokers of Apache do not know the field that asks whether there is one (`setZeroIfNotFound`): they
    answer 0 while they have the queue's first message in memory. In that case a new group begins with the
    first message, whatever is chosen here.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Begin with messages that are sent after the group began, that is, after `start` returned for the first
    of its consumers. A topic or a queue that appears later is read from its first message."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """Begin with the oldest message that is still stored."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """Begin with the first message stored at or after a given time."""


class QueueOffsets:
    """Offsets of queues, asked from their leaders. BrokerRefused, NoBroker."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    async def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still stored (31)."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.queue_id))

    async def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get (30)."""
        header = GetMaxOffsetHeader(queue.topic, queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch (29). ClientError for
        a number that is not a plausible time."""
        return await self.search(
            queue, check_time(timestamp_ms, "timestamp_ms", self._core.env.wall.now_ms())
        )

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms. Unlike `at_time` it accepts any
        number, as a condition of a query may have."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed(self, queue: MessageQueue, consumer_group: str) -> int | None:
        """The committed offset of a group (14); None when it has none in this queue."""
        header = QueryConsumerOffsetHeader(
            consumer_group, queue.topic, queue.queue_id, setZeroIfNotFound=False
        )
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        found = _offset_of(answer, f"offset of group {consumer_group} in {queue}")
        return None if found < 0 else found  # old brokers of Apache say -1

    async def commit(
        self, queue: MessageQueue, consumer_group: str, offset: int, *, sets_back: bool = True
    ) -> None:
        """Set the committed offset of a group (15); returns when the broker has stored it. BrokerRefused when
        the group is further and may not be set back: other consumers of it are connected, or the leader has
        just taken over and does not know them yet. OutcomeUnknown when the outcome is not known.

        Without `sets_back` an offset before the group's changes nothing, and is no error.
        """
        group = consumer_group
        membership = await self._membership(queue, group) if sets_back else None
        header = UpdateConsumerOffsetHeader(
            group, queue.topic, queue.queue_id, offset, setsBack=sets_back, membership=membership
        )
        code, what = RequestCode.UPDATE_CONSUMER_OFFSET, f"commit offset {offset} of {queue}"
        await self._core.change(self._core.group(queue.broker_name), queue.topic, code, header, what)

    async def _membership(self, queue: MessageQueue, group: str) -> str | None:
        """The version of a group's membership, None when the broker has no versions. With it a broker refuses
        a commit that arrives late, after other members may have gone on."""
        header = QueryConsumerOffsetHeader(
            group, queue.topic, queue.queue_id, setZeroIfNotFound=False, askMembership=True
        )
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        return answer.ext.get("membership")

    async def reset(
        self, topic: str, broker_name: str, consumer_group: str, timestamp_ms: int
    ) -> dict[int, int]:
        """Set the offsets of a group in all queues of a topic at a broker group (222): to the first message
        stored at or after a time in ms since the epoch, or with -1 to the end. Running consumers of the group
        move there. Returns the new offset of each queue id when the broker has stored them. ClientError for a
        bad time."""
        check_time(timestamp_ms, "timestamp_ms", self._core.env.wall.now_ms())
        header = ResetOffsetHeader(consumer_group, topic, timestamp_ms, isForce=True)
        group = self._core.group(broker_name)
        what = f"reset of group {consumer_group} in {topic}"
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await self._core.change(group, topic, code, header, what)
        try:
            told = decode_queue_table(answer.body, "offsetTable", int)
        except BadBody as error:
            raise BrokerRefused(f"{what}: {error.remark}") from error
        return {queue.queueId: offset for queue, offset in told.items()}

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: Fields) -> int:
        return _offset_of(await self._ask(queue, code, header), f"{code.name} of {queue}")

    async def _ask(self, queue: MessageQueue, code: int, header: Fields) -> Response:
        group = self._core.group(queue.broker_name)
        return await self._core.invoke_leader(group, queue.topic, code, header)


def _offset_of(answer: Response, what: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerRefused(f"{what}: {refused_text(answer.code, answer.remark)}", answer.code)
    try:
        return answer.header(OffsetResponseHeader).offset
    except BadHeader as error:
        raise BrokerRefused(f"{what}: {error.remark}") from error


def check_offset(offset: int) -> None:
    """ClientError unless it is a queue offset. It is not when it is negative, or None as for a queue without
    a committed offset."""
    try:
        found = operator.index(offset)
    except TypeError:
        found = -1
    if found < 0:
        raise ClientError(f"offset {offset!r}: give a queue offset, 0 or more")


def start_of(start: FromWhere | str, timestamp_ms: int, start_name: str, time_name: str) -> FromWhere:
    """Where to begin, given as such or by name. ClientError for an unknown name, and for a time that would
    not be used."""
    where = member_of(FromWhere, start, start_name)
    check_time(timestamp_ms, time_name)
    if (where is FromWhere.TIMESTAMP) != (timestamp_ms > 0):
        raise ClientError(
            f"{start_name}={where.name} and {time_name}={timestamp_ms}: FromWhere.TIMESTAMP needs a "
            "time, and the other values take none"
        )
    return where


class Progress(Protocol):
    """Keeps the committed offsets of a group."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The committed offset, None without one."""

    async def save(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()) -> None:
        """Commit offsets. ClientError or OSError when that failed for some queues. Only queues in `back`,
        whose consumer was ordered to go back, may get a lower offset than the group has."""


class BrokerProgress:
    """Keeps the offsets of a clustering group at the brokers, where all consumers of the group find them."""

    def __init__(self, offsets: QueueOffsets, consumer_group: str) -> None:
        self._offsets = offsets
        self._group = consumer_group
        self._begun: set[tuple[str, str]] = set()
        """Broker groups and topics for which an offset of the group was committed from here."""

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(queue, self._group)

    async def save(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()) -> None:
        # All leave in this turn: what is sent later may be older than a reset that was heard meanwhile.
        await self._commit(offsets, back)

    async def save_first(
        self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()
    ) -> None:
        """Save offsets that do not change meanwhile, and that are not saved again automatically.

        Apache's brokers add the table of a group and topic without a lock (ConsumerOffsetManager,
        commitOffset): when several first offsets arrive together, only one is kept. So the first one is sent
        alone.
        """
        first: dict[tuple[str, str], MessageQueue] = {}
        for queue in offsets:
            place = (queue.broker_name, queue.topic)
            if place not in self._begun:
                first.setdefault(place, queue)
        alone = {queue: offsets[queue] for queue in first.values()}
        await self._commit(alone, back)
        self._begun.update(first)
        await self._commit({queue: offset for queue, offset in offsets.items() if queue not in alone}, back)

    async def _commit(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue]) -> None:
        """Commit all of these at once; raises the worst of the errors."""
        outcomes = await asyncio.gather(
            *(
                self._offsets.commit(queue, self._group, offset, sets_back=queue in back)
                for queue, offset in offsets.items()
            ),
            return_exceptions=True,
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, ClientError)):
            raise error


class FileProgress:
    """Keeps the offsets of a broadcasting consumer in its own file, in RocketMQ's format
    (LocalFileOffsetStore)."""

    def __init__(self, env: Env, directory: str, client_id: str, consumer_group: str) -> None:
        self._env = env
        self._directory = os.path.join(directory, client_id, consumer_group)
        self._path = os.path.join(self._directory, "offsets.json")
        self._table: dict[MessageQueue, int] | None = None

    async def load(self, queue: MessageQueue) -> int | None:
        return (await self._read()).get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()) -> None:
        table = await self._read()
        table.update(offsets)
        data = queue_table(
            "offsetTable", {WireQueue(*queue): offset for queue, offset in sorted(table.items())}
        )
        # FLUSH: listeners may occupy every thread of the other lane.
        await self._env.workers.run(Lane.FLUSH, self._env.files.mkdir, self._directory)
        await publish(self._env.files, self._env.workers, Lane.FLUSH, self._path, data)

    async def _read(self) -> dict[MessageQueue, int]:
        if self._table is None:
            data = await self._env.workers.run(Lane.FLUSH, read_file, self._env.files, self._path)
            try:
                found = decode_queue_table(data, "offsetTable", int) if data else {}
            except BadBody as error:
                raise ClientError(
                    f"the offset file {self._path} cannot be read ({error.remark}): repair or remove it"
                ) from error
            self._table = {
                MessageQueue(queue.topic, queue.brokerName, queue.queueId): offset
                for queue, offset in found.items()
            }
        return self._table
