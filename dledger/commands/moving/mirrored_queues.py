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
"""Property of a copy that names its original as `broker:queue:offset`."""
EARLIER = "MIRRORED_BEFORE"
"""Property of a copy of a copy: the originals of its original, the latest first, separated by commas."""
RETRY_ORIGIN = "MIRRORED_RETRY"
"""Property of a copy in a retry topic: its original and how often that was delivered before, as
`broker:queue:offset:times`. Such a message also has the `MIRRORED_FROM` that its original had in its own
topic. When it is sent back again, it keeps the property, but its number of deliveries differs: then it is not
a copy."""
DEAD_ORIGIN = "MIRRORED_DEAD"
"""Property of a copy in a topic of dead letters that names its original as `broker:queue:offset`."""
MAX_EARLIER = 16
"""Most originals that are kept in `MIRRORED_BEFORE`."""
LOOK_FOR_RETURNED = 128
"""Messages before a group's offset that are searched for one that came from the new cluster."""
READ_MESSAGES = 32
"""Messages that are read at once when searching backwards."""


@dataclass
class QueueCopy:
    """One old queue and its new one. `next`: offset of the next message to copy; `end`: end of the old
    queue."""

    source: MessageQueue
    target: MessageQueue
    next: int = 0
    end: int = 0
    copied: int = 0
    lost: int = 0
    """Messages that the old cluster's retention deleted before they were copied."""
    skipped: int = 0
    """Messages that are copies of messages of the new cluster, and were therefore skipped."""
    copies: tuple[int, int] = (0, 0)
    """Offsets [begin, end) of the new queue in which all messages are known to be copies from this one."""
    last_copy: int = -1
    """Offset of the last copy in the new queue, as far as it is known."""
    returns: bool | None = None
    """Whether messages of the old queue came from the new one; None until that was checked."""

    @property
    def behind(self) -> int:
        """Number of messages that are not copied yet."""
        return max(self.end - self.next, 0)

    def add_copies(self, begin: int, end: int) -> None:
        """Note that all messages of the new queue in [begin, end) are copies."""
        if begin < end:
            self.last_copy = max(self.last_copy, end - 1)
        known_begin, known_end = self.copies
        if known_begin < known_end and begin <= known_end and known_begin <= end:
            self.copies = (min(begin, known_begin), max(end, known_end))
        elif end - begin >= known_end - known_begin:
            self.copies = (begin, end)


class Clusters:
    """The two clusters, and the brokers to ask for their queues."""

    def __init__(self, old: AsyncAdminClient, new: AsyncAdminClient) -> None:
        self.old = old
        self.new = new
        self._at: dict[tuple[bool, str, str], str] = {}

    async def address(self, admin: AsyncAdminClient, queue: MessageQueue) -> str:
        """The address of the broker that has this queue in one of the clusters."""
        key = (admin is self.new, queue.topic, queue.brokerName)
        if key not in self._at:
            self._at[key] = await admin.offsets.address_of(queue.topic, queue.brokerName)
        return self._at[key]

    def forget_addresses(self) -> None:
        """Look the brokers up again, because leaders may have changed."""
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
        """Offset of the first message without a copy. MovingFailed when the last `look_back` messages of the
        new queue do not show it. In a topic of a group all messages are searched, because any number of the
        new cluster's own retries may follow the copies."""
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
                f"{copy.target}: none of the last {look_back} messages is a copy, so it is unknown "
                "how far the queue is copied: look further back (--look-back)"
            )
        return await self.old.offsets.lowest(await self.address(self.old, copy.source), copy.source)

    async def came_from_new(self, copy: QueueCopy, message: ReceivedMessage) -> bool:
        """Whether a message of the old cluster is a copy of one of the new cluster, also through other
        clusters."""
        return await self._origin_in_new(copy, message) is not None

    async def _origin_in_new(
        self, copy: QueueCopy, message: ReceivedMessage
    ) -> tuple[MessageQueue, int] | None:
        """The place in the new cluster from which a message of the old one was copied; None when it was not.

        Both clusters may have brokers of the same name, so the message itself is looked up: it must have the
        same place and the same unique id. When retention has deleted the message at that place, the name
        decides.
        """
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
        """Where a group at this offset of the old queue stands in the new queue: the group's offset there,
        and the offset up to which it has consumed the new queue's own messages.

        It has consumed those as copies in the old cluster. The second offset is 0 except in a mirror back.
        """
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
        """The offset in the new queue after the last of its messages whose copy lies shortly before `offset`
        in the old queue; 0 when there is none. Earlier messages need not be searched: those in between belong
        to the old cluster, and their copies come after those messages in the new queue."""
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
        """The first copy in a range: its place and the offset of its original; (-1, -1) when there is
        none."""
        async for at, message in self.read(self.new, copy.target, begin, end):
            origin = origin_of(message, copy.source)
            if origin >= 0:
                return at, origin
        return -1, -1

    async def copies_end(self, copy: QueueCopy, begin: int, end: int) -> int:
        """The first offset in [begin, end) of the new queue whose message is not a copy; `end` when all are
        copies."""
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
    """Topics of `known` that hold retries and dead letters of these groups, including retries of messages
    that they pop from `topics`."""
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
    """The originals of a message, the latest first: `broker:queue:offset`."""
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
    """Offset of a message's original in this old queue; -1 when it is not a copy from there."""
    for hop in hops_of(message)[:1]:
        queue, _, offset = hop.rpartition(":")
        if queue == f"{source.brokerName}:{source.queueId}":
            return int(offset)
    return -1


def origin_property(topic: str, hop: str, times: int) -> dict[str, str]:
    """The property for a copy in this topic. `times`: how often the original was delivered."""
    if topic.startswith(RETRY_PREFIX):
        return {RETRY_ORIGIN: f"{hop}:{times}"}
    return {DEAD_ORIGIN if topic.startswith(DLQ_PREFIX) else ORIGIN: hop}


def is_of_group(topic: str) -> bool:
    """Whether the topic holds retries or dead letters of a group."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
