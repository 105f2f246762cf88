"""Consumer groups of a mirror: where they resume in the new cluster, and what they leave in the old one.

Three rules keep a group from losing messages:

1. The group's offset in the new cluster never passes a message that is not a copy, unless a mirror in the
   other direction had copied that message to the old cluster, and the group has consumed this copy.
   Otherwise the message was sent directly to the new cluster, and the group has not consumed it. So the
   group's offset stays before the message, and the group receives copies that follow it a second time.
2. If somebody set a group back to an earlier offset in the new cluster, the mirror does not move it
   forward again. The highest offset that the mirror has set or seen is stored as the offset of another
   group in the new cluster, whose name has the prefix `dledger-mirror-`. So this offset is still known
   after a restart of the mirror.
3. A queue in which a group has no offset in the old cluster gets none in the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dledger.admin import AsyncAdminClient
from dledger.broker.topic.topic_names import HALF_TOPIC
from dledger.client.errors import BrokerRefused, InvalidMessage
from dledger.client.message import check_group
from dledger.commands.moving.mirrored_queues import Clusters, QueueCopy, is_of_group
from dledger.commands.moving.source_config import TRANSACTION_GROUP
from dledger.remoting.bodies import MessageQueue, SubscriptionGroupConfig

MEMORY_PREFIX = "dledger-mirror-"
"""Prefix of the name of an auxiliary group. Its offsets are the highest ones that the mirror has set or
seen for another group."""
_DELAYS = "scheduleMessageOffset_"
"""Prefix of a field in the runtime information of brokers. The rest of the name is a delay level; the
value is the position reached in that level, and the level's end."""
_TIMED = ("timerCongestNum", "timerOffsetBehind", "timerMessagesWaiting")
"""Fields in the runtime information of brokers that count waiting timer messages: those in the timing
wheel and those not yet sorted into it (RocketMQ 5), and those that wait at this project's brokers."""
_OPEN = "openTransactions"
"""Field in the runtime information of this project's brokers: the number of half messages whose
transaction is open."""
DELAYED, TIMED, HALF = "delayed messages", "timer messages", "half messages"
"""Names of the kinds of messages that may wait in a cluster. Retries that wait for their delay are counted
as delayed messages."""


@dataclass
class MovedGroup:
    """The state of one consumer group that the mirror moves."""

    moves: int = 0
    """How often the mirror set an offset of the group."""
    left: int = 0
    """Number of messages that the group has not consumed in the old cluster."""
    held: set[MessageQueue] = field(default_factory=set)
    """Queues in which the group's offset stays before a message that is not a copy."""
    set_back: set[MessageQueue] = field(default_factory=set)
    """Queues in which somebody set the group back in the new cluster."""

    def __str__(self) -> str:
        parts = [f"{self.left} left in the old cluster"]
        if self.held:
            parts.append(f"held in {len(self.held)} queues")
        if self.set_back:
            parts.append(f"set back by others in {len(self.set_back)} queues")
        return ", ".join(parts)


class MirroredGroups:
    """Sets the offsets of groups in the new cluster to the positions that the groups have in the old one."""

    def __init__(self, clusters: Clusters, groups: Sequence[str], tell: Callable[[str], None]) -> None:
        self._clusters = clusters
        self._old, self._new = clusters.old, clusters.new
        self._tell = tell
        self._prepared: set[str] = set()
        self._highest: dict[tuple[str, MessageQueue], int] = {}
        self.moved: dict[str, MovedGroup] = {group: MovedGroup() for group in groups}

    async def move(self, queues: Sequence[QueueCopy]) -> None:
        """Check all groups once, and set their offsets where that is safe."""
        for group, moved in self.moved.items():
            if group not in self._prepared:
                await self._prepare(group)
                self._prepared.add(group)
            moved.left = 0
            for copy in queues:
                await self._move(group, moved, copy)

    async def _prepare(self, group: str) -> None:
        """Create the group in the new cluster with the settings that it has in the old one. If it exists
        there, report the differences."""
        wanted: SubscriptionGroupConfig | None = None
        for address in (await self._old.brokers.masters()).values():
            wanted = wanted or await self._old.groups.config(address, group)
        for address in (await self._new.brokers.masters()).values():
            known = await self._new.groups.config(address, group)
            if known is None and wanted is not None:
                said = await self._new.groups.put(address, wanted)
                if said:
                    self._tell(f"group {group}: {said}")
            elif known is not None and wanted is not None:
                for name in _CARRIED:
                    old, new = getattr(wanted, name), getattr(known, name)
                    if old != new:
                        self._tell(f"group {group}: {name} is {new} in the new cluster, {old} in the old one")
            memory = _memory_of(group)
            if memory and await self._new.groups.config(address, memory) is None:
                await self._new.groups.put(address, SubscriptionGroupConfig(memory, consumeEnable=False))

    async def _move(self, group: str, moved: MovedGroup, copy: QueueCopy) -> None:
        old = await committed_in_old(self._clusters, group, copy.source)
        if old is None:
            return
        moved.left += max(copy.end - old, 0)
        target = copy.target
        if target in moved.set_back:
            return
        address = await self._clusters.address(self._new, target)
        new = await self._new.offsets.committed(address, group, target)
        highest = await self._highest_of(group, address, target)
        if new is not None and new < highest:
            moved.set_back.add(target)
            self._tell(
                f"group {group} was moved back from {highest} to {new} in {target} of the new "
                "cluster: the mirror does not change it"
            )
            return
        place, returned = await self._clusters.place(copy, old)
        if new is not None and place <= new:
            await self._remember(group, address, target, new)
            return
        begin = await self._new.offsets.lowest(address, target) if new is None else new
        reached = await self._clusters.copies_end(copy, max(begin, returned), place)
        moved.held.discard(target)
        if reached <= copy.last_copy < place and not is_of_group(target.topic):
            moved.held.add(target)
            self._tell(
                f"group {group} stays at {reached} of {target}: that message is not a copy; a "
                f"producer has sent it to the new cluster. The copies after it, up to {place}, are "
                "delivered to the group again. Move all groups before the first producer"
            )
        if new is not None and reached <= new:
            await self._remember(group, address, target, new)
            return
        try:
            await self._new.offsets.commit(address, group, target, reached)
        except BrokerRefused as error:  # our brokers refuse until consumers know of a reset
            self._tell(f"group {group}, {target}: {error}")
            return
        known = await self._new.offsets.committed(address, group, target)
        if known is None or known < reached:
            moved.set_back.add(target)  # Apache's brokers answer yes, and keep the reset
            self._tell(f"group {group} stays at {known} of {target}: it was reset there by someone else")
            return
        moved.moves += 1
        await self._remember(group, address, target, known)

    async def _highest_of(self, group: str, address: str, target: MessageQueue) -> int:
        """Return the highest offset that the mirror has set or seen for the group; -1 if none is stored."""
        known = self._highest.get((group, target))
        if known is None:
            memory = _memory_of(group)
            stored = await self._new.offsets.committed(address, memory, target) if memory else None
            known = self._highest[group, target] = -1 if stored is None else stored
        return known

    async def _remember(self, group: str, address: str, target: MessageQueue, place: int) -> None:
        if place <= self._highest[group, target]:
            return
        memory = _memory_of(group)
        if memory:
            await self._new.offsets.commit(address, memory, target, place)
        self._highest[group, target] = place

    # -- what is left in the old cluster --------------------------------------------------------------

    async def waiting(self) -> dict[str, int]:
        """Return the number of messages of each kind that still wait in the old cluster: delayed messages,
        timer messages, half messages.

        The mirror copies such a message only after its delivery. Only messages that the brokers' runtime
        information reports are counted.
        """
        found: dict[str, int] = {}
        for address in (await self._old.brokers.masters()).values():
            rows = await self._old.brokers.runtime(address)
            for what, count in (
                (DELAYED, _delayed(rows)),
                (TIMED, sum(int(rows.get(name, "0")) for name in _TIMED)),
                (HALF, int(rows[_OPEN]) if _OPEN in rows else await _half(self._old, address)),
            ):
                found[what] = found.get(what, 0) + count
        return {what: count for what, count in found.items() if count}


_CARRIED = (
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "consumeMessageOrderly",
    "retryQueueNums",
    "retryMaxTimes",
)
"""Settings of a group that are compared between the clusters; differences are reported."""


async def committed_in_old(clusters: Clusters, group: str, queue: MessageQueue) -> int | None:
    """Return the offset of a group in the old cluster; None if it has none."""
    old = clusters.old
    address = await clusters.address(old, queue)
    offset = await old.offsets.committed(address, group, queue)
    if offset == 0:  # brokers before RocketMQ 5 answer 0 if the group has no offset
        with suppress(BrokerRefused):
            rows = (await old.offsets.stats_at(address, group)).offsets
            return 0 if any(row.topic == queue.topic for row in rows) else None
        return None
    return offset


def _memory_of(group: str) -> str:
    """Return the name of the auxiliary group that stores offsets for this group; empty if the name would
    be too long."""
    try:
        check_group(MEMORY_PREFIX + group)
    except InvalidMessage:
        return ""
    return MEMORY_PREFIX + group


async def _behind(admin: AsyncAdminClient, address: str, group: str, queue: MessageQueue) -> int:
    """Return the number of messages after the group's offset in a queue; if the group has no offset, all
    stored messages count."""
    offset = await admin.offsets.committed(address, group, queue)
    lowest = await admin.offsets.lowest(address, queue)
    return max(await admin.offsets.highest(address, queue) - max(offset or 0, lowest), 0)


def _delayed(rows: dict[str, str]) -> int:
    pairs = [value.split(",") for name, value in rows.items() if name.startswith(_DELAYS)]
    return sum(max(int(pair[1]) - int(pair[0]), 0) for pair in pairs if len(pair) == 2)


async def _half(admin: AsyncAdminClient, address: str) -> int:
    """Return the number of half messages that an Apache broker has not finished. It is an upper bound of
    the number of open transactions."""
    queue = MessageQueue(HALF_TOPIC, "", 0)
    try:
        return await _behind(admin, address, TRANSACTION_GROUP, queue)
    except BrokerRefused:
        return 0  # no half message was ever sent
