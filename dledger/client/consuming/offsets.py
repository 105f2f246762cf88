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

    Older brokers of Apache do not know the request field `setZeroIfNotFound`, with which a client asks
    whether the group has an offset. They answer 0 while they have the queue's first message in memory, and
    then a new group begins with the first message, whatever is chosen here.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Begin with messages that are sent after the group began, that is, after `start` returned for the first
    of its consumers. A topic or a queue that appears later is read from its first message."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """Begin with the oldest message that is still stored."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """Begin with the first message stored at or after a given time."""


class QueueOffsets:
    """Asks the leaders of queues for offsets. Raises BrokerRefused or NoBroker."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    async def lowest(self, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still stored (request 31 GET_MIN_OFFSET)."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.queue_id))

    async def highest(self, queue: MessageQueue) -> int:
        """Offset that the next message will get (request 30 GET_MAX_OFFSET)."""
        header = GetMaxOffsetHeader(queue.topic, queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch (request 29
        SEARCH_OFFSET_BY_TIMESTAMP). Raises ClientError if the number is not a plausible time."""
        return await self.search(
            queue, check_time(timestamp_ms, "timestamp_ms", self._core.env.wall.now_ms())
        )

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms. Unlike `at_time` it accepts any
        number, because the condition of a query may contain any number."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed(self, queue: MessageQueue, consumer_group: str) -> int | None:
        """The committed offset of a group (request 14 QUERY_CONSUMER_OFFSET); None if the group has none in
        this queue."""
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
        """Set the committed offset of a group (request 15 UPDATE_CONSUMER_OFFSET). Returns when the broker
        has stored it.

        Raises BrokerRefused if the group's offset is higher and may not be set back. That is so while other
        consumers of the group are connected, or because the leader has just taken over and does not know them
        yet. Raises OutcomeUnknown if it is not known whether the offset was set.

        With `sets_back=False` an offset lower than the group's has no effect, and is no error.
        """
        group = consumer_group
        membership = await self._membership(queue, group) if sets_back else None
        header = UpdateConsumerOffsetHeader(
            group, queue.topic, queue.queue_id, offset, setsBack=sets_back, membership=membership
        )
        code, what = RequestCode.UPDATE_CONSUMER_OFFSET, f"commit offset {offset} of {queue}"
        await self._core.change(self._core.group(queue.broker_name), queue.topic, code, header, what)

    async def _membership(self, queue: MessageQueue, group: str) -> str | None:
        """The version of a group's membership; None if the broker has no such versions. A commit carries this
        version, so that the broker can refuse a commit which arrives late, after the members have changed."""
        header = QueryConsumerOffsetHeader(
            group, queue.topic, queue.queue_id, setZeroIfNotFound=False, askMembership=True
        )
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        return answer.ext.get("membership")

    async def reset(
        self, topic: str, broker_name: str, consumer_group: str, timestamp_ms: int
    ) -> dict[int, int]:
        """Set the offsets of a group in all queues of a topic at a broker group (request 222
        INVOKE_BROKER_TO_RESET_OFFSET). The new offset is that of the first message stored at or after a time
        in ms since the epoch, or with -1 the end of the queue. Running consumers of the group continue at the
        new offsets. Returns a dict from queue id to new offset, when the broker has stored the offsets.
        Raises ClientError for a bad time."""
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
    """Raise ClientError unless `offset` is a queue offset. A negative number is refused, and so is None (the
    committed offset of a queue that has none)."""
    try:
        found = operator.index(offset)
    except TypeError:
        found = -1
    if found < 0:
        raise ClientError(f"offset {offset!r}: give a queue offset, 0 or more")


def start_of(start: FromWhere | str, timestamp_ms: int, start_name: str, time_name: str) -> FromWhere:
    """Return where to begin. `start` is a FromWhere or its name. Raises ClientError for an unknown name, and
    if a time is given but not used, or needed but not given."""
    where = member_of(FromWhere, start, start_name)
    check_time(timestamp_ms, time_name)
    if (where is FromWhere.TIMESTAMP) != (timestamp_ms > 0):
        raise ClientError(
            f"{start_name}={where.name} and {time_name}={timestamp_ms}: FromWhere.TIMESTAMP needs a "
            "time, and the other values take none"
        )
    return where


class Progress(Protocol):
    """Stores and returns the committed offsets of a group."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in a queue; None if it has none."""

    async def save(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()) -> None:
        """Commit offsets. Raises ClientError or OSError if that failed for some queues. An offset may be
        lower than the group's only for a queue in `back`: its consumer was ordered to go back."""


class BrokerProgress:
    """Keeps the offsets of a clustering group at the brokers, where all consumers of the group find them."""

    def __init__(self, offsets: QueueOffsets, consumer_group: str) -> None:
        self._offsets = offsets
        self._group = consumer_group
        self._begun: set[tuple[str, str]] = set()
        """Pairs of a broker group and a topic for which this client has committed an offset of the group."""

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(queue, self._group)

    async def save(self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()) -> None:
        # All are sent in this turn of the loop. An offset that is sent later may be older than a reset
        # that arrived meanwhile.
        await self._commit(offsets, back)

    async def save_first(
        self, offsets: Mapping[MessageQueue, int], back: Container[MessageQueue] = ()
    ) -> None:
        """Save the first offsets of a group.

        Apache's brokers create the table of a group and topic without a lock (ConsumerOffsetManager,
        commitOffset). So when several first offsets arrive together, only one of them is kept. To avoid that,
        the first one is sent alone, and the others after it. The caller must not change the offsets
        meanwhile, and must not rely on a later automatic save.
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
        """Commit all of these offsets at the same time. If several commits fail, it raises one of the errors;
        an unexpected error comes before a ClientError."""
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
        # Lane.FLUSH is used because listeners may occupy every thread of Lane.DISK.
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
