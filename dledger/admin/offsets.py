"""Ends of queues, and committed offsets of consumer groups: show, set, copy, and move them to a time."""

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
"""Given in place of a time: the end of the queue."""
NOBODY = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.BROADCAST_CONSUMPTION)
"""Codes by which a server reports that a group has no consumers, or no offsets."""
CONCURRENT = 16
"""At most this many queues are asked for at the same time."""


@dataclass(frozen=True)
class OffsetChange:
    """The change that a reset makes, or would make, in one queue (RollbackStats).

    `end`: offset of the next message. `before`: the group's offset, -1 for none. `at_time`: offset of the
    first message stored at the time or after it. `after`: the group's new offset.
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
        """Offset of the oldest message that is still stored (31)."""
        header = QueueHeader(queue.topic, queue.queueId)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header)

    async def highest(self, address: str, queue: MessageQueue) -> int:
        """Offset that the next message will get (30)."""
        header = GetMaxOffsetHeader(queue.topic, queue.queueId)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time in ms since the epoch (29). With END the end
        of the queue."""
        check_time(timestamp_ms, "timestamp_ms")
        if timestamp_ms == END:
            return await self.highest(address, queue)
        header = SearchOffsetHeader(queue.topic, queue.queueId, timestamp_ms)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group in one queue (15). If that sets the group back, our brokers refuse it
        when it arrives late, after the group's consumers have changed."""
        membership = (await self._query(address, group, queue, ask_membership=True)).ext.get("membership")
        header = UpdateConsumerOffsetHeader(
            group, queue.topic, queue.queueId, offset, setsBack=True, membership=membership
        )
        await self._asking.leader(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def committed(self, address: str, group: str, queue: MessageQueue) -> int | None:
        """The offset of a group in one queue (14); None when it has none."""
        answer = await self._query(address, group, queue)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return _offset_of(answer, RequestCode.QUERY_CONSUMER_OFFSET)

    async def _query(
        self, address: str, group: str, queue: MessageQueue, *, ask_membership: bool | None = None
    ) -> Response:
        """Send request 14. The answer is returned also when the group has no offset."""
        header = QueryConsumerOffsetHeader(
            group, queue.topic, queue.queueId, setZeroIfNotFound=False, askMembership=ask_membership
        )
        code, none = RequestCode.QUERY_CONSUMER_OFFSET, (ResponseCode.QUERY_NOT_FOUND,)
        return await self._asking.leader(address, code, header, accept=none)

    async def stats_at(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group at one broker (208), in all its topics or in one."""
        header = ConsumeStatsHeader(group, topic)
        answer = await self._asking.leader(address, RequestCode.GET_CONSUME_STATS, header)
        return read("offsets", decode_consume_stats, answer.body)

    async def stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group at all brokers that have it. Raises BrokerRefused with code 206 when it has
        none."""
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
        """Offsets of all groups at one broker (317); with `ordered` only in ordered topics."""
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
        """Set the offsets of a group at one broker, and move its consumers there (222): to a time in ms since
        the epoch, to END, or one queue to an offset. Without `force` offsets only go back. Returns the new
        offsets. Apache's brokers refuse with code 206 when no consumer is online."""
        check_time(timestamp_ms, "timestamp_ms")
        header = ResetOffsetHeader(group, topic, timestamp_ms, force, queue_id, offset)
        answer = await self._asking.leader(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        if not answer.body:
            return {}
        return read("offsets", lambda data: decode_queue_table(data, "offsetTable", int), answer.body)

    async def changes(
        self, address: str, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[OffsetChange]:
        """What `reset` would do at one broker, looked up for each queue. It changes nothing."""
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
        """Reset offsets as `reset` does, by setting each one (15): for a group without consumers at Apache's
        brokers (resetOffsetByTimeOld). Running consumers would undo it."""
        changes = await self.changes(address, group, topic, timestamp_ms, force=force)
        for change in changes:
            if change.after != change.before:
                await self.commit(address, group, change.queue, change.after)
        return changes

    async def clone(self, address: str, source: str, target: str, topic: str | None = None) -> None:
        """Copy the offsets of group `source` to group `target` at one broker (314)."""
        header = CloneGroupOffsetHeader(source, target, topic)
        await self._asking.leader(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """Broker names of a topic, each with the address to ask. Raises TopicNotFound."""
        found = dict(masters_of(await self._asking.route(topic)))
        if not found:
            raise TopicNotFound(f"no broker of the topic {topic} is registered")
        return found

    async def address_of(self, topic: str, broker_name: str) -> str:
        """The address to ask one broker of a topic. Raises ClientError if it does not have the topic."""
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
    """The methods of `Offsets`, blocking."""

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
