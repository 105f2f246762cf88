"""Ends of queues, and committed offsets of consumer groups: shows, sets and copies offsets, and moves them to
the offset at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dledger.admin.asking import Asking, master_of, masters_of, read
from dledger.admin.blocking import Blocking, Face
from dledger.client.errors import BrokerRefused, ClientError, TopicNotFound
from dledger.client.times import check_time
from dledger.remoting.bodies import MessageQueue, OffsetWrapper, decode_queue_table
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader
from dledger.remoting.frames import Fields
from dledger.remoting.headers import (
    ConsumeStatsHeader,
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.remoting.operator_bodies import (
    ConsumeStats,
    ConsumeStatsList,
    decode_consume_stats,
    decode_consume_stats_list,
)
from dledger.remoting.operator_headers import BrokerConsumeStatsHeader, CloneGroupOffsetHeader

END = -1
"""Given in place of a time, it means the end of the queue."""
NOBODY = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.BROADCAST_CONSUMPTION)
"""Codes by which a server reports that a group has no consumers, or no offsets."""
CONCURRENT = 16
"""At most this many queues are asked for at the same time."""


@dataclass(frozen=True)
class OffsetChange:
    """The change that a reset makes, or would make, in one queue (RollbackStats).

    `end` is the offset of the next message. `before` is the group's offset so far, or -1 if it has none.
    `at_time` is the offset of the first message stored at or after the given time. `after` is the group's new
    offset.
    """

    queue: MessageQueue
    end: int
    before: int
    at_time: int
    after: int


class Offsets:
    """Operations on offsets. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def lowest(self, address: str, queue: MessageQueue) -> int:
        """Offset of the oldest message that is still stored (request 31 GET_MIN_OFFSET)."""
        header = QueueHeader(queue.topic, queue.queueId)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header)

    async def highest(self, address: str, queue: MessageQueue) -> int:
        """Offset that the next message will get (request 30 GET_MAX_OFFSET)."""
        header = GetMaxOffsetHeader(queue.topic, queue.queueId)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time, in ms since the epoch (request 29
        SEARCH_OFFSET_BY_TIMESTAMP). For END it is the end of the queue."""
        check_time(timestamp_ms, "timestamp_ms")
        if timestamp_ms == END:
            return await self.highest(address, queue)
        header = SearchOffsetHeader(queue.topic, queue.queueId, timestamp_ms)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group in one queue (request 15 UPDATE_CONSUMER_OFFSET). A late request that
        would set the group back is refused by our brokers, if the group's consumers have changed
        meanwhile."""
        membership = (await self._query(address, group, queue, ask_membership=True)).ext.get("membership")
        header = UpdateConsumerOffsetHeader(
            group, queue.topic, queue.queueId, offset, setsBack=True, membership=membership
        )
        await self._asking.leader(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def committed(self, address: str, group: str, queue: MessageQueue) -> int | None:
        """The offset of a group in one queue (request 14 QUERY_CONSUMER_OFFSET); None if the group has
        none."""
        answer = await self._query(address, group, queue)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return _offset_of(answer, RequestCode.QUERY_CONSUMER_OFFSET)

    async def _query(
        self, address: str, group: str, queue: MessageQueue, *, ask_membership: bool | None = None
    ) -> Response:
        """Send request 14 QUERY_CONSUMER_OFFSET. It is no error if the group has no offset; the answer says
        so."""
        header = QueryConsumerOffsetHeader(
            group, queue.topic, queue.queueId, setZeroIfNotFound=False, askMembership=ask_membership
        )
        code, none = RequestCode.QUERY_CONSUMER_OFFSET, (ResponseCode.QUERY_NOT_FOUND,)
        return await self._asking.leader(address, code, header, accept=none)

    async def stats_at(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group at one broker, in all its topics or in one (request 208 GET_CONSUME_STATS)."""
        header = ConsumeStatsHeader(group, topic)
        answer = await self._asking.leader(address, RequestCode.GET_CONSUME_STATS, header)
        return read("offsets", decode_consume_stats, answer.body)

    async def stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group at all brokers that have it. Raises BrokerRefused with code 206
        CONSUMER_NOT_ONLINE if it has none."""
        found = ConsumeStats({}, 0.0)
        for _, address in await self._asking.places_of_group(group, topic):
            one = await self.stats_at(address, group, topic)
            found.offsets.update(one.offsets)
            found.consumeTps += one.consumeTps
        if not found.offsets:
            raise BrokerRefused(
                "Not found the consumer group consume stats, because return offset table is empty, maybe the"
                " consumer not consume any message",
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        found.offsets = dict(sorted(found.offsets.items()))
        return found

    async def all_stats(
        self, address: str, *, ordered: bool = False, timeout_s: float = 50.0
    ) -> ConsumeStatsList:
        """Offsets of all groups at one broker (request 317 GET_BROKER_CONSUME_STATS); with `ordered` only in
        ordered topics."""
        header = BrokerConsumeStatsHeader(ordered)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        answer = await self._asking.leader(address, code, header, timeout_s=timeout_s)
        return read("offsets", decode_consume_stats_list, answer.body)

    async def reset(
        self,
        address: str,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        queue_id: int = -1,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Set the offsets of a group at one broker, and move its running consumers there (request 222
        INVOKE_BROKER_TO_RESET_OFFSET). Returns the new offsets.

        The new offsets are those at a time, in ms since the epoch, or with END the ends of the queues. Or one
        queue is set to an `offset`. Without `force` an offset may only become lower. Apache's brokers refuse
        with code 206 CONSUMER_NOT_ONLINE if no consumer is online.
        """
        check_time(timestamp_ms, "timestamp_ms")
        header = ResetOffsetHeader(group, topic, timestamp_ms, force, queue_id, offset)
        answer = await self._asking.leader(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        if not answer.body:
            return {}
        return read("offsets", lambda data: decode_queue_table(data, "offsetTable", int), answer.body)

    async def changes(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[OffsetChange]:
        """For each queue, the change that `reset` would make at one broker. This method changes nothing."""
        check_time(timestamp_ms, "timestamp_ms")
        stats = await self.stats_at(address, group, topic)
        rows = {queue: one for queue, one in stats.offsets.items() if queue.topic == topic}
        if not rows:
            rows = {
                queue: OffsetWrapper(end, -1) for queue, end in (await self._ends(address, topic)).items()
            }
        free = asyncio.Semaphore(CONCURRENT)

        async def change(queue: MessageQueue, row: OffsetWrapper) -> OffsetChange:
            async with free:
                target = await self.at_time(address, queue, timestamp_ms)
            after = target if force or row.consumerOffset < 0 else min(target, row.consumerOffset)
            return OffsetChange(queue, row.brokerOffset, row.consumerOffset, target, after)

        return list(await asyncio.gather(*(change(queue, rows[queue]) for queue in sorted(rows))))

    async def reset_offline(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[OffsetChange]:
        """Reset offsets as `reset` does, but by setting the offset of each queue (request 15
        UPDATE_CONSUMER_OFFSET, resetOffsetByTimeOld). Use it for a group without consumers at Apache's
        brokers. Running consumers would undo the reset."""
        changes = await self.changes(address, group, topic, timestamp_ms, force=force)
        for change in changes:
            if change.after != change.before:
                await self.commit(address, group, change.queue, change.after)
        return changes

    async def clone(self, address: str, source: str, target: str, topic: str | None = None) -> None:
        """Copy the offsets of group `source` to group `target` at one broker (request 314
        CLONE_GROUP_OFFSET)."""
        header = CloneGroupOffsetHeader(source, target, topic)
        await self._asking.leader(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """Names of the broker groups that have a topic, each with the address to ask. Raises
        TopicNotFound."""
        found = dict(masters_of(await self._asking.route(topic)))
        if not found:
            raise TopicNotFound(f"no broker of the topic {topic} is registered")
        return found

    async def address_of(self, topic: str, broker_name: str) -> str:
        """The address at which to ask one broker group about a topic. Raises ClientError if the group does
        not have the topic."""
        for group in (await self._asking.route(topic)).brokerDatas:
            address = master_of(group)
            if group.brokerName == broker_name and address is not None:
                return address
        raise ClientError(f"no broker {broker_name!r} has the topic {topic}")

    async def _ends(self, address: str, topic: str) -> dict[MessageQueue, int]:
        for name, at in (await self.brokers_of(topic)).items():
            if at == address:
                route = await self._asking.route(topic)
                count = next(data.readQueueNums for data in route.queueDatas if data.brokerName == name)
                queues = [MessageQueue(topic, name, number) for number in range(count)]
                return {queue: await self.highest(address, queue) for queue in queues}
        raise ClientError(f"{address} is not the master of a broker group that has {topic}")

    async def _offset(self, address: str, code: RequestCode, header: Fields) -> int:
        return _offset_of(await self._asking.leader(address, code, header), code)


def _offset_of(answer: Response, code: RequestCode) -> int:
    try:
        return answer.header(OffsetResponseHeader).offset
    except BadHeader as error:
        raise BrokerRefused(f"{code.name}: {error.remark}") from error


class BlockingOffsets(Face[Offsets]):
    """The methods of `Offsets` as blocking methods."""

    lowest = Blocking(Offsets.lowest)
    highest = Blocking(Offsets.highest)
    at_time = Blocking(Offsets.at_time)
    commit = Blocking(Offsets.commit)
    stats_at = Blocking(Offsets.stats_at)
    stats = Blocking(Offsets.stats)
    all_stats = Blocking(Offsets.all_stats)
    reset = Blocking(Offsets.reset)
    changes = Blocking(Offsets.changes)
    reset_offline = Blocking(Offsets.reset_offline)
    clone = Blocking(Offsets.clone)
    brokers_of = Blocking(Offsets.brokers_of)
    address_of = Blocking(Offsets.address_of)
    committed = Blocking(Offsets.committed)
