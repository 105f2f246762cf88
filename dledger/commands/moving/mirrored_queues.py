"""Queues of a mirror: finds out which message of the new cluster is the copy of which message of the old
one."""

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
"""Property of a copy. It names the original as `broker:queue:offset`."""
EARLIER = "MIRRORED_BEFORE"
"""Property of a copy whose original was itself a copy. It names the earlier originals, the latest first,
separated by commas."""
RETRY_ORIGIN = "MIRRORED_RETRY"
"""Property of a copy in a retry topic: its original, and how often the original was delivered before, as
`broker:queue:offset:times`.

Such a copy also has the property `MIRRORED_FROM` if its original had it. If a consumer sends the copy back
again, the new retry keeps the property, but its number of deliveries differs from `times`. So it does not
count as a copy.
"""
DEAD_ORIGIN = "MIRRORED_DEAD"
"""Property of a copy in a topic of dead letters. It names the original as `broker:queue:offset`."""
MAX_EARLIER = 16
"""Largest number of originals in `MIRRORED_BEFORE`."""
LOOK_FOR_RETURNED = 128
"""How many messages before a group's offset in the old queue are searched for one that came from the new
cluster."""
READ_MESSAGES = 32
"""Number of messages that are read at once in a search backwards."""


@dataclass
class QueueCopy:
    """A queue of the old cluster and the queue of the new cluster to which it is copied. `next` is the
    offset of the next message to copy, and `end` is the end of the old queue."""

    source: MessageQueue
    target: MessageQueue
    next: int = 0
    end: int = 0
    copied: int = 0
    lost: int = 0
    """Number of messages that the old cluster's retention deleted before they were copied."""
    skipped: int = 0
    """Number of messages that were skipped because they are copies of messages of the new cluster."""
    copies: tuple[int, int] = (0, 0)
    """Offsets [begin, end) of the new queue in which all messages are known to be copies of messages of
    the old queue."""
    last_copy: int = -1
    """Highest offset in the new queue at which a copy is known to be."""
    returns: bool | None = None
    """Whether some messages of the old queue are copies of messages of the new queue; None until that was
    checked."""

    @property
    def behind(self) -> int:
        """Number of messages of the old queue that are not copied yet."""
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
    """The two clusters of a mirror, with the addresses of the brokers that have their queues."""

    def __init__(self, old: AsyncAdminClient, new: AsyncAdminClient) -> None:
        self.old = old
        self.new = new
        self._at: dict[tuple[bool, str, str], str] = {}

    async def address(self, admin: AsyncAdminClient, queue: MessageQueue) -> str:
        """Return the address of the broker that has this queue in the cluster of `admin`."""
        key = (admin is self.new, queue.topic, queue.brokerName)
        if key not in self._at:
            self._at[key] = await admin.offsets.address_of(queue.topic, queue.brokerName)
        return self._at[key]

    def forget_addresses(self) -> None:
        """Forget the addresses, so that the brokers are looked up again; leaders may have changed."""
        self._at.clear()

    async def read(
        self, admin: AsyncAdminClient, queue: MessageQueue, begin: int, end: int
    ) -> AsyncIterator[tuple[int, ReceivedMessage]]:
        """Yield the messages of a queue with offsets in [begin, end), each with its offset."""
        address = await self.address(admin, queue)
        async for pulled in admin.messages.pulls(address, queue, begin, end):
            for stored in pulled.messages:
                yield stored.message.queue_offset, stored.message

    async def resume(self, copy: QueueCopy, look_back: int) -> int:
        """Return the offset of the first message of the old queue that has no copy. Raises MovingFailed if
        none of the last `look_back` messages of the new queue is a copy.

        In a group's topic all messages of the new queue are searched, because any number of the new
        cluster's own retries may follow the copies.
        """
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
        """Return whether a message of the old cluster is a copy of a message of the new cluster, made
        directly or by way of other clusters."""
        return await self._origin_in_new(copy, message) is not None

    async def _origin_in_new(
        self, copy: QueueCopy, message: ReceivedMessage
    ) -> tuple[MessageQueue, int] | None:
        """Return the queue and offset in the new cluster from which a message of the old cluster was
        copied; None if it was not copied from there.

        Both clusters may have brokers of the same name, so the original is looked up: it must have the
        recorded offset and the same unique id. If retention has deleted the message at that offset, it is
        enough that the queue exists.
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
        """Return two offsets in the new queue, for a group that is at `offset` in the old queue: the
        offset to which the group is moved, and an offset below which the group has consumed all of the new
        queue's own messages.

        Own messages of the new queue are those that are not copies. The group has consumed copies of them
        in the old cluster. Unless a mirror in the other direction ran, the second offset is 0.
        """
        address = await self.address(self.new, copy.target)
        low = await self.new.offsets.lowest(address, copy.target)
        high = await self.new.offsets.highest(address, copy.target)
        while low < high:
            middle = (low + high) // 2
            at, origin = await self._copy_at(copy, middle, high)
            if origin < 0 or origin >= offset:
                high = middle  # no copy follows, or its original is late enough
            else:
                low = at + 1
        returned = await self._returned(copy, offset)
        if returned > low:
            at, _ = await self._copy_at(copy, low, returned)
            low = returned if at < 0 else at
        return low, min(returned, low)

    async def _returned(self, copy: QueueCopy, offset: int) -> int:
        """Find the last message before `offset` in the old queue that is a copy of a message of the new
        queue. Return the offset in the new queue that follows the original of this copy; 0 if there is
        none.

        Only the last LOOK_FOR_RETURNED messages before `offset` are searched. If none of these is a copy
        from the new queue, they were first sent to the old cluster. Their copies in the new queue come
        after the originals of all earlier copies, so earlier messages need not be searched.
        """
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
        """Find the first copy in [begin, end) of the new queue. Return its offset and the offset of its
        original; (-1, -1) if there is none."""
        async for at, message in self.read(self.new, copy.target, begin, end):
            origin = origin_of(message, copy.source)
            if origin >= 0:
                return at, origin
        return -1, -1

    async def copies_end(self, copy: QueueCopy, begin: int, end: int) -> int:
        """Return the first offset in [begin, end) of the new queue whose message is not a copy; `end` if
        all are copies."""
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
    """Return those topics of `known` that hold retries or dead letters of these groups. Retries of
    messages that the groups receive by pop from `topics` are included."""
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
    """Return the queues of a topic from which consumers read, sorted. Raises TopicNotFound if there is no
    such topic."""
    route = await admin.topics.route(topic)
    return sorted(
        MessageQueue(topic, data.brokerName, number)
        for data in route.queueDatas
        for number in range(data.readQueueNums)
    )


def hops_of(message: ReceivedMessage) -> list[str]:
    """Return the originals of a message as `broker:queue:offset`, the latest first."""
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
    """Return the offset of a message's original in the queue `source`; -1 if the message is not a copy
    from this queue."""
    for hop in hops_of(message)[:1]:
        queue, _, offset = hop.rpartition(":")
        if queue == f"{source.brokerName}:{source.queueId}":
            return int(offset)
    return -1


def origin_property(topic: str, hop: str, times: int) -> dict[str, str]:
    """Return the property that marks a copy in this topic. `times` is how often the original was
    delivered."""
    if topic.startswith(RETRY_PREFIX):
        return {RETRY_ORIGIN: f"{hop}:{times}"}
    return {DEAD_ORIGIN if topic.startswith(DLQ_PREFIX) else ORIGIN: hop}


def is_of_group(topic: str) -> bool:
    """Return whether the topic holds retries or dead letters of a group."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
