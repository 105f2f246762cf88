"""Queues of a mirror: which message of the new cluster is the copy of which message of the old one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable, Sequence
from dataclasses import dataclass

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX
from dledger.client.message import ReceivedMessage
from dledger.commands.moving.staging import MovingFailed
from dledger.formats.pop_handles import retry_topic_v1, retry_topic_v2
from dledger.remoting.bodies import MessageQueue

ORIGIN = "MIRRORED_FROM"
"""Property of a copy: what it is a copy of, as `broker:queue:offset`."""
EARLIER = "MIRRORED_BEFORE"
"""Property of a copy of a copy: what its original was a copy of, the latest first, separated by commas."""
RETRY_ORIGIN = "MIRRORED_RETRY"
"""The same of a copy in a retry topic, with how often it was delivered before: `broker:queue:offset:times`.
Such a message also has the `MIRRORED_FROM` that its original had in its own topic. One that is given back
again keeps the property, but not the number of deliveries: it is no copy."""
DEAD_ORIGIN = "MIRRORED_DEAD"
"""The same of a copy in a topic of dead letters: `broker:queue:offset`."""
MAX_EARLIER = 16
"""So many of these are kept."""
LOOK_FOR_RETURNED = 128
"""Messages before a group's offset among which one is looked for that has come from the new cluster."""
READ_MESSAGES = 32
"""Messages that are read at once backwards."""


@dataclass
class QueueCopy:
    """One old queue and its new one. `next`: offset of the next message to be copied; `end`: of the old
    queue."""

    source: MessageQueue
    target: MessageQueue
    next: int = 0
    end: int = 0
    copied: int = 0
    lost: int = 0
    """Messages that the old cluster's retention took before they were copied."""
    skipped: int = 0
    """Messages that are copies of messages of the new cluster."""
    copies: tuple[int, int] = (0, 0)
    """Offsets [begin, end) of the new queue at which all messages are known to be copies of this one."""
    last_copy: int = -1
    """Offset of the last copy in the new queue, as far as is known."""
    returns: bool | None = None
    """Whether messages of the old queue have come from the new one; None before anybody has looked."""

    @property
    def behind(self) -> int:
        """Messages that are not copied yet."""
        return max(self.end - self.next, 0)

    def add_copies(self, begin: int, end: int) -> None:
        """All messages of the new queue in [begin, end) are copies."""
        if begin < end:
            self.last_copy = max(self.last_copy, end - 1)
        known_begin, known_end = self.copies
        if known_begin < known_end and begin <= known_end and known_begin <= end:
            self.copies = (min(begin, known_begin), max(end, known_end))
        elif end - begin >= known_end - known_begin:
            self.copies = (begin, end)


class Clusters:
    """The two clusters, and where a queue can be asked for."""

    def __init__(self, old: AsyncAdminClient, new: AsyncAdminClient) -> None:
        self.old = old
        self.new = new
        self._at: dict[tuple[bool, str, str], str] = {}

    async def address(self, admin: AsyncAdminClient, queue: MessageQueue) -> str:
        """The broker that has this queue of one of them."""
        key = (admin is self.new, queue.topic, queue.brokerName)
        if key not in self._at:
            self._at[key] = await admin.offsets.address_of(queue.topic, queue.brokerName)
        return self._at[key]

    def forget_addresses(self) -> None:
        """Others lead, perhaps."""
        self._at.clear()

    async def read(
        self, admin: AsyncAdminClient, queue: MessageQueue, begin: int, end: int
    ) -> AsyncIterator[tuple[int, ReceivedMessage]]:
        """Messages of a queue with their offsets."""
        address = await self.address(admin, queue)
        async for pulled in admin.messages.pulls(address, queue, begin, end):
            for stored in pulled.messages:
                yield stored.message.queue_offset, stored.message

    async def resume(self, copy: QueueCopy, look_back: int) -> int:
        """Offset of the first message that has no copy. MovingFailed where the last `look_back` messages of
        the new queue do not tell. Of a topic of a group all are looked at: behind the copies lie the retries
        of the new cluster's own, however many."""
        address = await self.address(self.new, copy.target)
        lowest = await self.new.offsets.lowest(address, copy.target)
        highest = await self.new.offsets.highest(address, copy.target)
        at = highest
        end = lowest if is_of_group(copy.target.topic) else max(lowest, highest - look_back)
        while at > end:
            begin = max(lowest, at - READ_MESSAGES)
            last = -1
            async for place, message in self.read(self.new, copy.target, begin, at):
                origin = origin_of(message, copy.source)
                last = max(last, origin)
                if origin >= 0:
                    copy.last_copy = max(copy.last_copy, place)
            if last >= 0:
                return last + 1
            at = begin
        if at > lowest:
            raise MovingFailed(
                f"{copy.target}: the last {look_back} messages are no copies, so how far it is copied is not "
                "known: look further back (--look-back)"
            )
        return await self.old.offsets.lowest(await self.address(self.old, copy.source), copy.source)

    async def came_from_new(self, copy: QueueCopy, message: ReceivedMessage) -> bool:
        """Whether a message of the old cluster is a copy of one of the new cluster, also by way of others."""
        return await self._origin_in_new(copy, message) is not None

    async def _origin_in_new(
        self, copy: QueueCopy, message: ReceivedMessage
    ) -> tuple[MessageQueue, int] | None:
        """The place in the new cluster that a message of the old one has come from; None for none.

        Names of brokers do not tell clusters apart, so the message itself is looked for: same place, same
        unique id. Where retention has taken what was at that place, the name decides."""
        topic = copy.target.topic
        for hop in hops_of(message):
            broker, _, rest = hop.partition(":")
            number, _, offset = rest.partition(":")
            queue = MessageQueue(topic, broker, int(number))
            if not await self._has(queue):
                continue
            address = await self.address(self.new, queue)
            pulled = await self.new.messages.pull(address, queue, int(offset), 1)
            found = [stored.message for stored in pulled.messages]
            if int(offset) < pulled.lowest or any(
                one.queue_offset == int(offset) and one.message_id == message.message_id for one in found
            ):
                return queue, int(offset)
        return None

    async def _has(self, queue: MessageQueue) -> bool:
        route = await self.new.topics.route(queue.topic)
        return any(
            data.brokerName == queue.brokerName and queue.queueId < data.readQueueNums
            for data in route.queueDatas
        )

    async def place(self, copy: QueueCopy, offset: int) -> tuple[int, int]:
        """Where a group that is at this offset of the old queue goes on in the new one; and the offset up to
        which it has consumed the new queue's own messages, as copies in the old cluster (0 but for a mirror
        back)."""
        address = await self.address(self.new, copy.target)
        low = await self.new.offsets.lowest(address, copy.target)
        high = await self.new.offsets.highest(address, copy.target)
        while low < high:
            middle = (low + high) // 2
            at, origin = await self._copy_at(copy, middle, high)
            if origin < 0 or origin >= offset:
                high = middle  # behind the middle there are none, or it is late enough
            else:
                low = at + 1
        returned = await self._returned(copy, offset)
        if returned > low:
            at, _ = await self._copy_at(copy, low, returned)
            low = returned if at < 0 else at
        return low, min(returned, low)

    async def _returned(self, copy: QueueCopy, offset: int) -> int:
        """The offset in the new queue behind the last of its messages whose copy stands shortly before
        `offset` in the old queue; 0 for none. Further back there is no need to look: between are messages of
        the old cluster, whose copies stand behind those messages in the new queue."""
        if copy.returns is False and not copy.skipped:
            return 0
        address = await self.address(self.old, copy.source)
        begin = max(await self.old.offsets.lowest(address, copy.source), offset - LOOK_FOR_RETURNED)
        found = 0
        async for _, message in self.read(self.old, copy.source, begin, offset):
            place = await self._origin_in_new(copy, message)
            if place is not None and place[0] == copy.target:
                found = place[1] + 1
        copy.returns = bool(copy.returns or found)
        return found

    async def _copy_at(self, copy: QueueCopy, begin: int, end: int) -> tuple[int, int]:
        """The first copy in a range: its place and the offset of its original; (-1, -1) without one."""
        async for at, message in self.read(self.new, copy.target, begin, end):
            origin = origin_of(message, copy.source)
            if origin >= 0:
                return at, origin
        return -1, -1

    async def copies_end(self, copy: QueueCopy, begin: int, end: int) -> int:
        """The first offset in [begin, end) of the new queue whose message is no copy; `end` without one."""
        known_begin, known_end = copy.copies
        at = known_end if known_begin <= begin < known_end else begin
        if at < end:
            async for offset, message in self.read(self.new, copy.target, at, end):
                if origin_of(message, copy.source) < 0:
                    copy.add_copies(begin, offset)
                    return offset
            copy.add_copies(begin, end)
        return end


def topics_of_groups(groups: Iterable[str], topics: Sequence[str], known: Container[str]) -> list[str]:
    """Those of the `known` topics that hold retries and dead letters of these groups, also retries of what
    they pop from these topics."""
    wanted = dict.fromkeys(
        name
        for group in groups
        for name in (
            RETRY_PREFIX + group,
            DLQ_PREFIX + group,
            *(make(topic, group) for topic in topics for make in (retry_topic_v1, retry_topic_v2)),
        )
    )
    return [name for name in wanted if name in known]


async def queues_of(admin: AsyncAdminClient, topic: str) -> list[MessageQueue]:
    """The queues of a topic that consumers read, sorted. TopicNotFound."""
    route = await admin.topics.route(topic)
    return sorted(
        MessageQueue(topic, data.brokerName, number)
        for data in route.queueDatas
        for number in range(data.readQueueNums)
    )


def hops_of(message: ReceivedMessage) -> list[str]:
    """What a message is a copy of, the latest first: `broker:queue:offset`."""
    topic, properties = message.queue.topic, message.properties
    if topic.startswith(RETRY_PREFIX):
        hop, _, times = properties.get(RETRY_ORIGIN, "").rpartition(":")
        found = [hop] if times == str(message.reconsume_times) else []
    elif topic.startswith(DLQ_PREFIX):
        found = [properties.get(DEAD_ORIGIN, "")]
    else:
        found = [properties.get(ORIGIN, ""), *properties.get(EARLIER, "").split(",")]
    return [hop for hop in found if _is_hop(hop)]


def _is_hop(text: str) -> bool:
    broker, *numbers = text.split(":")
    return bool(broker) and len(numbers) == 2 and all(one.isascii() and one.isdecimal() for one in numbers)


def origin_of(message: ReceivedMessage, source: MessageQueue) -> int:
    """Offset in this old queue that a message is the copy of; -1 when it is none."""
    for hop in hops_of(message)[:1]:
        queue, _, offset = hop.rpartition(":")
        if queue == f"{source.brokerName}:{source.queueId}":
            return int(offset)
    return -1


def origin_property(topic: str, hop: str, times: int) -> dict[str, str]:
    """The property of a copy in this topic, of a message that was delivered so often before."""
    if topic.startswith(RETRY_PREFIX):
        return {RETRY_ORIGIN: f"{hop}:{times}"}
    return {DEAD_ORIGIN if topic.startswith(DLQ_PREFIX) else ORIGIN: hop}


def is_of_group(topic: str) -> bool:
    """Whether it holds retries or dead letters of a group."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
