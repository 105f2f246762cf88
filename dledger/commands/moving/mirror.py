"""`dledger mirror`: copy topics of one cluster to another while both run, and where their groups stand.

A message is read from the old cluster as consumers read it, and sent to the new one: same body, tag, keys,
flag, unique id and own properties. What it is a copy of stands in its property `MIRRORED_FROM`
(`broker:queue:offset`). Nothing else is remembered: whoever starts the command again reads from the end of
each new queue how far it is, so that nothing is left out and nothing is sent twice, whatever cut it short. A
send of which nobody knows how it ended is looked up the same way.

Each old queue has one new queue, and the copies of a queue are in its order. A group's offset in the new
queue is the place of the first copy whose offset is not below that of the group: found by halving, as copies
are in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dledger.admin import AsyncAdminClient
from dledger.client import AsyncProducer, ClientError, Message, TopicNotFound
from dledger.client.errors import BrokerRefused, InvalidMessage, OutcomeUnknown
from dledger.client.message import MessageQueue as Target
from dledger.client.message import ReceivedMessage
from dledger.client.naming import named_as
from dledger.commands.moving.staging import MovingFailed
from dledger.formats import properties as names
from dledger.remoting.bodies import MessageQueue

ORIGIN = "MIRRORED_FROM"
IDLE_S = 0.2
"""Pause of a queue that has nothing new."""
RETRY_S = 0.5
"""Pause after a server that refuses or does not answer."""
LOOK_BACK = 4096
"""Messages of others at the end of a new queue behind which the last copy is looked for."""
SKIPPED_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_")
_NOT_COPIED = frozenset(
    {
        names.KEYS,
        names.TAGS,
        names.WAIT,
        names.DELAY,
        names.UNIQ_KEY,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.TRAN_MSG,
        names.PGROUP,
        names.TRANSACTION_ID,
        names.CLUSTER,
        names.MSG_REGION,
        names.TRACE_ON,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.POP_CK,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
        names.TIMER_ROLL_TIMES,
        names.RESEND,
        ORIGIN,
    }
)
"""What brokers and clients write for themselves."""


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

    @property
    def behind(self) -> int:
        """Messages that are not copied yet."""
        return max(self.end - self.next, 0)


@dataclass
class Mirrored:
    """What was done."""

    topics: list[str] = field(default_factory=list)
    copied: int = 0
    behind: int = 0
    lost: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    """Group -> queues in which its offset was set."""


class Mirror:
    """Copies from one cluster to another, until told to stop."""

    def __init__(
        self,
        old: AsyncAdminClient,
        new: AsyncAdminClient,
        producer: AsyncProducer,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` hears of what does not work for the moment."""
        self._old = old
        self._new = new
        self._producer = producer
        self._tell = tell
        self.queues: list[QueueCopy] = []
        self._at: dict[tuple[bool, str, str], str] = {}

    async def prepare(self, topics: Sequence[str]) -> None:
        """Find the queues, make topics that are missing, and find how far an earlier run came.
        MovingFailed."""
        for topic in topics:
            sources = await self._queues(self._old, topic)
            try:
                targets = await self._queues(self._new, topic)
            except TopicNotFound:
                await self._producer.create_topic(topic, len(sources))
                targets = await self._until_routed(topic)
            if len(targets) < len(sources):
                raise MovingFailed(
                    f"topic {topic}: {len(sources)} queues in the old cluster and {len(targets)} in the "
                    "new one: "
                    "each needs one of its own, as it keeps its order. Give the new topic as many"
                )
            for source, target in zip(sources, targets, strict=False):
                copy = QueueCopy(source, target)
                copy.next = await self._resume(copy)
                self.queues.append(copy)

    async def _queues(self, admin: AsyncAdminClient, topic: str) -> list[MessageQueue]:
        route = await admin.topics.route(topic)
        return sorted(
            MessageQueue(topic, data.brokerName, number)
            for data in route.queueDatas
            for number in range(data.readQueueNums)
        )

    async def _until_routed(self, topic: str) -> list[MessageQueue]:
        while True:
            with suppress(TopicNotFound):
                return await self._queues(self._new, topic)
            await asyncio.sleep(IDLE_S)

    async def _address(self, admin: AsyncAdminClient, queue: MessageQueue) -> str:
        key = (admin is self._new, queue.topic, queue.brokerName)
        if key not in self._at:
            self._at[key] = await admin.offsets.address_of(queue.topic, queue.brokerName)
        return self._at[key]

    async def _resume(self, copy: QueueCopy) -> int:
        """Offset of the first message that has no copy."""
        address = await self._address(self._new, copy.target)
        lowest = await self._new.offsets.lowest(address, copy.target)
        highest = await self._new.offsets.highest(address, copy.target)
        at = highest
        while at > max(lowest, highest - LOOK_BACK):
            begin = max(lowest, at - 32)
            last = -1
            async for _, message in self._read(self._new, copy.target, begin, at):
                last = max(last, origin_of(message, copy.source))
            if last >= 0:
                return last + 1
            at = begin
        if at > lowest:
            raise MovingFailed(
                f"{copy.target}: the last {LOOK_BACK} messages are no copies, so how far it is copied is "
                "not known"
            )
        return await self._old.offsets.lowest(await self._address(self._old, copy.source), copy.source)

    async def _read(
        self, admin: AsyncAdminClient, queue: MessageQueue, begin: int, end: int
    ) -> AsyncIterator[tuple[int, ReceivedMessage]]:
        address = await self._address(admin, queue)
        async for pulled in admin.messages.pulls(address, queue, begin, end):
            for stored in pulled.messages:
                yield stored.message.queue_offset, stored.message

    # -- copying --------------------------------------------------------------------------------------

    async def run(self, *, once: bool) -> None:
        """Copy for ever, or `once`: until each queue is copied up to where it ended when it was looked at."""
        async with asyncio.TaskGroup() as tasks:
            for copy in self.queues:
                tasks.create_task(self._run(copy, once=once), name=f"mirror {copy.source}")

    async def _run(self, copy: QueueCopy, *, once: bool) -> None:
        goal = None
        while goal is None or copy.next < goal or not once:
            try:
                idle = await self._some(copy)
                goal = copy.end if goal is None else goal
            except OutcomeUnknown as error:
                self._tell(f"{copy.target}: {error}: looking whether it is stored")
                await asyncio.sleep(RETRY_S)
                copy.next = await self._known(copy)
            except InvalidMessage as error:
                raise MovingFailed(
                    f"{copy.source}, message {copy.next}: it cannot be sent as it is: {error}"
                ) from error
            except ClientError as error:
                self._tell(f"{copy.source}: {error}")
                self._at.clear()  # somebody else leads, perhaps
                await asyncio.sleep(RETRY_S)
            else:
                if idle and (not once or copy.next < (goal or 0)):
                    await asyncio.sleep(IDLE_S)

    async def _known(self, copy: QueueCopy) -> int:
        while True:
            try:
                return await self._resume(copy)
            except ClientError as error:
                self._tell(f"{copy.target}: {error}")
                self._at.clear()
                await asyncio.sleep(RETRY_S)

    async def _some(self, copy: QueueCopy) -> bool:
        """One pull, and its messages; whether there was nothing."""
        address = await self._address(self._old, copy.source)
        pulled = await self._old.messages.pull(address, copy.source, copy.next)
        copy.end = pulled.highest
        if copy.next < pulled.lowest:
            copy.lost += pulled.lowest - copy.next
            copy.next = pulled.lowest
            return False
        for stored in pulled.messages:
            if stored.message.queue_offset >= copy.next:
                await self._send(copy, stored.message)
                copy.next = stored.message.queue_offset + 1
                copy.copied += 1
        if not pulled.messages and pulled.next_offset > copy.next:
            copy.next = pulled.next_offset  # what is there is of no queue
            return False
        return not pulled.messages

    async def _send(self, copy: QueueCopy, found: ReceivedMessage) -> None:
        own = {name: value for name, value in found.properties.items() if name not in _NOT_COPIED}
        source = copy.source
        own[ORIGIN] = f"{source.brokerName}:{source.queueId}:{found.queue_offset}"
        message = Message(
            copy.target.topic, found.body, None, found.properties.get(names.KEYS), own, found.flag
        )
        message.tags = found.tags  # also one that no subscription can name
        target = copy.target
        await self._producer.send(
            named_as(message, found.message_id), Target(target.topic, target.brokerName, target.queueId)
        )

    # -- offsets --------------------------------------------------------------------------------------

    async def move_offsets(self, groups: Sequence[str]) -> dict[str, int]:
        """Have groups go on in the new cluster where they are in the old one: never back, and not where they
        are further. Group -> queues in which that changed something."""
        done = {}
        for group in groups:
            done[group] = 0
            for topic in dict.fromkeys(copy.source.topic for copy in self.queues):
                old = await self._stands(self._old, group, topic)
                new = await self._stands(self._new, group, topic)
                for copy in self.queues:
                    if copy.source.topic == topic and copy.source in old:
                        place = await self._place(copy, old[copy.source])
                        if place > new.get(copy.target, -1):
                            address = await self._address(self._new, copy.target)
                            await self._new.offsets.commit(address, group, copy.target, place)
                            done[group] += 1
        return done

    async def _stands(self, admin: AsyncAdminClient, group: str, topic: str) -> Mapping[MessageQueue, int]:
        try:
            found = await admin.offsets.stats(group, topic)
        except BrokerRefused:
            return {}  # nobody of the group was ever here
        return {
            queue: row.consumerOffset
            for queue, row in found.offsets.items()
            if queue.topic == topic and row.consumerOffset >= 0
        }

    async def _place(self, copy: QueueCopy, offset: int) -> int:
        """Where the first copy of a message at or behind this old offset is in the new queue; its end without
        one."""
        address = await self._address(self._new, copy.target)
        low = await self._new.offsets.lowest(address, copy.target)
        high = await self._new.offsets.highest(address, copy.target)
        while low < high:
            middle = (low + high) // 2
            at, origin = await self._copy_at(copy, middle, high)
            if origin < 0 or origin >= offset:
                high = middle  # behind the middle there are none, or it is late enough
            else:
                low = at + 1
        return low

    async def _copy_at(self, copy: QueueCopy, begin: int, end: int) -> tuple[int, int]:
        """The first copy in a range: its place and the offset of its original; (-1, -1) without one."""
        async for at, message in self._read(self._new, copy.target, begin, end):
            origin = origin_of(message, copy.source)
            if origin >= 0:
                return at, origin
        return -1, -1


def origin_of(message: ReceivedMessage, source: MessageQueue) -> int:
    """Offset in this old queue that a message is the copy of; -1 when it is none."""
    queue, _, offset = message.properties.get(ORIGIN, "").rpartition(":")
    return int(offset) if queue == f"{source.brokerName}:{source.queueId}" and offset.isdigit() else -1


async def all_topics(old: AsyncAdminClient) -> list[str]:
    """Topics of applications in the old cluster."""
    system: set[str] = set()
    for address in (await old.brokers.masters()).values():
        system.update(await old.topics.system_names(address))
    return [
        name
        for name in sorted(await old.topics.names())
        if name not in system and not name.startswith(SKIPPED_PREFIXES)
    ]
