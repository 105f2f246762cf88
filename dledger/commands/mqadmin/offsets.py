"""Commands that set offsets of groups: resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.admin import OffsetChange, Refused
from dledger.admin.asking import masters_of
from dledger.admin.offsets import END
from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call, millis
from dledger.commands.mqadmin.output import Table
from dledger.remoting.bodies import MessageQueue
from dledger.remoting.codes import ResponseCode

RESET = Table.of("offsets", ("#brokerName", "#queueId", "#offset"), "%-40s  %-40s  %-40s", cut={0: 32})
CHANGES = Table.of(
    "changes",
    ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#resetOffset"),
    "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s",
    cut={0: 32},
)


async def reset_by_time(call: Call) -> None:
    given = call.given
    group, topic, text = given.text("g"), given.text("t"), given.text("s")
    timestamp = call.admin.now_ms() if text == "now" else millis(text)
    force = given.true("f", True)
    address, queue_id = given.maybe("b"), given.number("q", -1)
    if address is not None and queue_id >= 0:
        await _reset_queue(call, address, queue_id, timestamp)
        return
    what = f"topic[{topic}], force[{str(force).lower()}], timestamp(string)[{text}]"
    what += f", timestamp(long)[{timestamp}]"
    try:
        done = await _reset(call, group, topic, timestamp, force)
    except Refused as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        changes = await _reset_offline(call, group, topic, timestamp, force)
        call.out.line(f"reset consumer offset by specified consumerGroup[{group}], {what}")
        _show_changes(call, changes)
        return
    call.out.line(f"start reset consumer offset by specified, group[{group}], {what}")
    _show(call, done)


async def _reset_queue(call: Call, address: str, queue_id: int, timestamp: int) -> None:
    given = call.given
    group, topic = given.text("g"), given.text("t")
    call.out.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], queueId[{queue_id}], "
        f"broker[{address}], timestamp(string)[{given.text('s')}], timestamp(long)[{timestamp}]"
    )
    if "o" in given:
        offset = given.number("o")
    else:
        offset = await call.admin.offsets.at_time(address, MessageQueue(topic, "", queue_id), timestamp)
    call.out.value("offset", offset, f"reset consumer offset to {offset}")
    # Apache's mqadmin silently does nothing for offset 0.
    await call.admin.offsets.reset(address, group, topic, 0, queue_id=queue_id, offset=offset)


async def _brokers(call: Call, topic: str) -> Sequence[str]:
    route = await call.admin.topics.route(call.given.maybe("c") or topic)
    return [address for _, address in masters_of(route)]


async def _reset(call: Call, group: str, topic: str, timestamp: int, force: bool) -> dict[MessageQueue, int]:
    done: dict[MessageQueue, int] = {}
    unknown: dict[str, Refused] = {}
    addresses = await _brokers(call, topic)
    for address in addresses:
        try:
            done |= await call.admin.offsets.reset(address, group, topic, timestamp, force=force)
        except Refused as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            unknown[address] = error
    if len(unknown) == len(addresses):
        raise next(iter(unknown.values()))
    for address in unknown:
        call.fail(ClientError(f"{group} is unknown at {address}: nothing was reset there"))
    return done


async def _reset_offline(
    call: Call, group: str, topic: str, timestamp: int, force: bool
) -> list[OffsetChange]:
    changes: list[OffsetChange] = []
    for address in await _brokers(call, topic):
        changes += await call.admin.offsets.reset_offline(address, group, topic, timestamp, force=force)
    return changes


def _show(call: Call, done: dict[MessageQueue, int]) -> None:
    call.out.table(RESET, [(queue.brokerName, queue.queueId, at) for queue, at in sorted(done.items())])


def _show_changes(call: Call, changes: list[OffsetChange]) -> None:
    call.out.table(
        CHANGES,
        [
            (one.queue.brokerName, one.queue.queueId, one.end, one.before, one.at_time, one.after)
            for one in changes
        ],
    )


async def skip_accumulated(call: Call) -> None:
    group, topic, force = call.given.text("g"), call.given.text("t"), call.given.true("f", True)
    try:
        done = await _reset(call, group, topic, END, force)
    except Refused as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        _show_changes(call, await _reset_offline(call, group, topic, END, force))
        return
    _show(call, done)


async def clone(call: Call) -> None:
    source, target, topic = call.given.text("s"), call.given.text("d"), call.given.text("t")
    stats = await call.admin.offsets.stats(source, topic)
    addresses = await call.admin.offsets.brokers_of(topic)
    found: dict[MessageQueue, int] = {}
    for queue in stats.offsets:  # the stats show 0 if there is no offset
        if queue.brokerName in addresses:
            offset = await call.admin.offsets.committed(addresses[queue.brokerName], source, queue)
            if offset is not None:
                found[queue] = offset
    if not found:
        raise ClientError(
            f"the group {source} has no offset in the topic {topic}", ResponseCode.CONSUMER_NOT_ONLINE
        )
    for queue, offset in found.items():
        await call.admin.offsets.commit(addresses[queue.brokerName], target, queue, offset)
    call.out.line(f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]")
