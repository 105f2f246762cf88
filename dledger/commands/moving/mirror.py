"""`dledger mirror`: copy topics of one cluster to another while both run, and the offsets of their groups.

A message is read from the old cluster as consumers read it, and sent to the new one with the same body, tag,
keys, flag, unique id and own properties. Its property `MIRRORED_FROM` (`broker:queue:offset`) names the
original. Nothing else is stored: when the command is started again, it finds its position at the end of each
new queue. So no message is left out or sent twice, whatever interrupted the command. A send with an unknown
outcome is looked up in the same way.

Each old queue has one new queue, and the copies of a queue are in its order. A group's offset in the new
queue is the place of the first copy whose original is not below the group's offset. It is found by binary
search, because copies are in order (`mirrored_queues`). `mirrored_groups` explains how far a group may be
moved.

A message that came from the new cluster is not copied back: its properties name its original.

Retries and dead letters of the groups that move are copied as well, with the number of their deliveries,
because no consumer of the old cluster reads them any more. If the new cluster's consumers send a retry back
again, it keeps all its properties but is no longer a copy: its property says how often the copy had been
delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import NotReached
from dledger.client import AsyncProducer, ClientError, Message, TopicNotFound
from dledger.client.errors import BrokerRefused, InvalidMessage, OutcomeUnknown
from dledger.client.message import MessageQueue as Target
from dledger.client.message import ReceivedMessage
from dledger.client.producing.preset_ids import with_unique_id
from dledger.commands.moving.defaults import LOOK_BACK
from dledger.commands.moving.mirrored_queues import (
    DEAD_ORIGIN,
    EARLIER,
    MAX_EARLIER,
    ORIGIN,
    RETRY_ORIGIN,
    Clusters,
    QueueCopy,
    hops_of,
    is_of_group,
    origin_property,
    queues_of,
    topics_of_groups,
)
from dledger.commands.moving.staging import MovingFailed
from dledger.formats import properties as names
from dledger.remoting.bodies import PERM_READ, PERM_WRITE, MessageQueue
from dledger.remoting.registration import TopicConfig

IDLE_S = 0.2
"""Pause of a queue without new messages."""
RETRY_S = 0.5
"""Pause after a server refused or did not answer."""
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
        EARLIER,
    }
)
"""Properties that brokers and clients write for their own use."""
_NOT_COPIED_AGAIN = (
    _NOT_COPIED - {names.RETRY_TOPIC, names.UNIQ_KEY, names.KEYS, names.TAGS, ORIGIN, EARLIER}
) | {
    RETRY_ORIGIN,
    DEAD_ORIGIN,
}
"""Properties that are not copied in topics of groups. There a message keeps its ids, and the name of its own
topic."""


@dataclass
class Mirrored:
    """The result of a mirror run."""

    topics: list[str] = field(default_factory=list)
    copied: int = 0
    behind: int = 0
    lost: int = 0
    skipped: int = 0
    """Messages that had come from the new cluster."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Group -> how often an offset was set."""
    left: dict[str, int] = field(default_factory=dict)
    """Group -> messages that it has not consumed in the old cluster."""
    held: dict[str, int] = field(default_factory=dict)
    """Group -> queues in which it waits before a message that is not a copy."""
    set_back: dict[str, int] = field(default_factory=dict)
    """Group -> queues in which it was set back in the new cluster; it is left there."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Kinds of messages that still wait in the old cluster, and their number."""
    ended_by: int = 0
    """Exit code of the signal that ended it; 0 without one."""


class Mirror:
    """Copies from one cluster to another until it is stopped."""

    def __init__(
        self,
        old: AsyncAdminClient,
        new: AsyncAdminClient,
        producer: AsyncProducer,
        tell: Callable[[str], None],
        look_back: int = LOOK_BACK,
    ) -> None:
        """`tell` is called with temporary failures, and with differences between the clusters. `look_back`:
        messages at the end of a new queue that are searched for the last copy."""
        self._old = old
        self._new = new
        self._producer = producer
        self._tell = tell
        self._look_back = look_back
        self.clusters: Clusters = Clusters(old, new)
        self.queues: list[QueueCopy] = []
        self._topics: Sequence[str] = ()
        self._closed: dict[str, TopicConfig] = {}
        """Topics that were made here and must not be writable. They are closed when everything is copied."""
        self._start: Callable[[QueueCopy], object] | None = None
        """Begins to copy a queue, while the mirror runs."""
        self.ended: bool = False

    async def prepare(self, topics: Sequence[str]) -> None:
        """Find the queues, create missing topics, and find the position of an earlier run. MovingFailed."""
        self._topics = topics
        for topic in topics:
            sources = await queues_of(self._old, topic)
            try:
                targets = await queues_of(self._new, topic)
            except TopicNotFound:
                await self._producer.create_topic(topic, len(sources))
                targets = await self._until_routed(topic)
                await self._carry_settings(topic, len(sources))
            else:
                await self._tell_differences(topic)
            if len(targets) < len(sources):
                raise MovingFailed(
                    f"topic {topic}: {len(sources)} queues in the old cluster and {len(targets)} in "
                    "the new one: each old queue needs its own new queue, because order is kept. "
                    "Give the new topic the same number of queues"
                )
            await self._pair(sources, targets)

    async def prepare_groups(self, groups: Sequence[str]) -> None:
        """Prepare the retries and dead letters of these groups in the same way. A group has such a topic only
        after its first consumer, or its first dead letter; later ones are found when this is called again."""
        copied = {copy.source.topic for copy in self.queues}
        for topic in topics_of_groups(groups, self._topics, frozenset(await self._old.topics.names())):
            if topic in copied:
                continue
            with suppress(TopicNotFound):
                sources = await queues_of(self._old, topic)
                settings = await self._settings(self._old, topic)
                if settings is not None and not settings.perm & PERM_READ:
                    self._tell(f"{topic} is not copied: the old cluster forbids reading it (perm)")
                    continue
                targets = await self._queues_for(topic, len(sources))
                await self._pair(sources, targets)

    async def _pair(self, sources: Sequence[MessageQueue], targets: Sequence[MessageQueue]) -> None:
        """Assign a new queue to each old one and start to copy: all of them, or after an error none."""
        pairs = [QueueCopy(source, target) for source, target in zip(sources, targets, strict=False)]
        for copy in pairs:
            copy.next = await self.clusters.resume(copy, self._look_back)
        for copy in pairs:
            self.queues.append(copy)
            if self._start is not None:
                self._start(copy)

    async def _queues_for(self, topic: str, count: int) -> list[MessageQueue]:
        """At least `count` queues of a topic of a group in the new cluster, which creates such topics with
        one queue."""
        while True:
            with suppress(TopicNotFound):
                found = await queues_of(self._new, topic)
                if len(found) >= count:
                    return found
            address = min((await self._new.brokers.masters()).items())[1]
            known = await self._new.topics.config(address, topic)
            if known is None or known.readQueueNums < count:
                await self._new.topics.put(address, TopicConfig(topic, count, count, PERM_READ | PERM_WRITE))
            await asyncio.sleep(IDLE_S)

    async def _settings(self, admin: AsyncAdminClient, topic: str) -> TopicConfig | None:
        for address in (await admin.offsets.brokers_of(topic)).values():
            found = await admin.topics.config(address, topic)
            if found is not None:
                return found
        return None

    async def _carry_settings(self, topic: str, queues: int) -> None:
        """Give a topic that was made here the settings of its original. While it is copied it must be
        writable."""
        wanted = await self._settings(self._old, topic)
        if wanted is None:
            return
        wanted = replace(
            wanted,
            readQueueNums=queues,
            writeQueueNums=queues,
            attributes={f"+{name}": value for name, value in wanted.attributes.items()},
        )
        if not wanted.perm & PERM_WRITE:
            self._closed[topic] = wanted
        await self._put(replace(wanted, perm=wanted.perm | PERM_WRITE))

    async def _put(self, wanted: TopicConfig) -> None:
        for address in (await self._new.offsets.brokers_of(wanted.topicName)).values():
            try:
                said = await self._new.topics.put(address, wanted)
            except BrokerRefused as error:
                if not wanted.attributes:
                    raise
                self._tell(f"topic {wanted.topicName}: created without its attributes: {error}")
                said = await self._new.topics.put(address, replace(wanted, attributes={}))
            if said:
                self._tell(f"topic {wanted.topicName}: {said}")

    async def close_topics(self) -> None:
        """Make topics read-only that are read-only in the old cluster and were made here, when all of their
        messages are copied."""
        for topic, wanted in list(self._closed.items()):
            if not any(copy.behind for copy in self.queues if copy.source.topic == topic):
                await self._put(wanted)
                del self._closed[topic]

    async def _tell_differences(self, topic: str) -> None:
        old, new = await self._settings(self._old, topic), await self._settings(self._new, topic)
        if old is None or new is None:
            return
        for name in ("perm", "order", "topicSysFlag", "attributes"):
            was, now = getattr(old, name), getattr(new, name)
            if was != now:
                self._tell(f"topic {topic}: {name} is {now} in the new cluster, {was} in the old one")

    async def _until_routed(self, topic: str) -> list[MessageQueue]:
        while True:
            with suppress(TopicNotFound):
                return await queues_of(self._new, topic)
            await asyncio.sleep(IDLE_S)

    # -- copying --------------------------------------------------------------------------------------

    async def run(self, *, once: bool) -> None:
        """Copy until cancelled, or with `once` until each queue is copied up to the end that it had when it
        was looked at."""
        try:
            async with asyncio.TaskGroup() as tasks:

                def start(copy: QueueCopy) -> None:
                    tasks.create_task(self._run(copy, once=once), name=f"mirror {copy.source}")

                self._start = start
                for copy in self.queues:
                    start(copy)
        finally:
            self._start = None
            self.ended = True

    async def _run(self, copy: QueueCopy, *, once: bool) -> None:
        goal = None
        while goal is None or copy.next < goal or not once:
            try:
                idle = await self._some(copy)
                goal = copy.end if goal is None else goal
            except OutcomeUnknown as error:
                self._tell(f"{copy.target}: {error}: checking whether it is stored")
                await asyncio.sleep(RETRY_S)
                copy.next = await self._known(copy)
            except InvalidMessage as error:
                raise MovingFailed(
                    f"{copy.source}, message {copy.next}: it cannot be sent unchanged: {error}"
                ) from error
            except ClientError as error:
                self._tell(f"{copy.source}: {error}")
                self.clusters.forget_addresses()
                await asyncio.sleep(RETRY_S)
            else:
                if idle and (not once or copy.next < (goal or 0)):
                    await asyncio.sleep(IDLE_S)

    async def _known(self, copy: QueueCopy) -> int:
        while True:
            try:
                return await self.clusters.resume(copy, self._look_back)
            except ClientError as error:
                self._tell(f"{copy.target}: {error}")
                self.clusters.forget_addresses()
                await asyncio.sleep(RETRY_S)

    async def _some(self, copy: QueueCopy) -> bool:
        """Pull once and copy the messages; returns whether there were none."""
        address = await self.clusters.address(self._old, copy.source)
        pulled = await self._old.messages.pull(address, copy.source, copy.next)
        copy.end = pulled.highest
        if copy.next < pulled.lowest:
            copy.lost += pulled.lowest - copy.next
            copy.next = pulled.lowest
            return False
        for stored in pulled.messages:
            if stored.message.queue_offset >= copy.next:
                if await self.clusters.came_from_new(copy, stored.message):
                    copy.skipped += 1
                else:
                    await self._send(copy, stored.message)
                    copy.copied += 1
                copy.next = stored.message.queue_offset + 1
        if not pulled.messages and pulled.next_offset > copy.next:
            copy.next = pulled.next_offset  # what is there is of no queue
            return False
        return not pulled.messages

    async def _send(self, copy: QueueCopy, found: ReceivedMessage) -> None:
        if is_of_group(copy.source.topic):
            await self._put_again(copy, found)
            return
        own = {name: value for name, value in found.properties.items() if name not in _NOT_COPIED}
        source = copy.source
        before = hops_of(found)[:MAX_EARLIER]
        if before:
            own[EARLIER] = ",".join(before)
        own[ORIGIN] = f"{source.brokerName}:{source.queueId}:{found.queue_offset}"
        message = Message(
            copy.target.topic, found.body, None, found.properties.get(names.KEYS), own, found.flag
        )
        message.tags = found.tags  # also one that no subscription can name
        target = copy.target
        sent = await self._producer.send(
            with_unique_id(message, found.message_id), Target(target.topic, target.brokerName, target.queueId)
        )
        copy.add_copies(sent.queue_offset, sent.queue_offset + 1)

    async def _put_again(self, copy: QueueCopy, found: ReceivedMessage) -> None:
        """Copy a retry or dead letter, whose deliveries the group's consumers go on counting."""
        source, target = copy.source, copy.target
        own = {name: value for name, value in found.properties.items() if name not in _NOT_COPIED_AGAIN}
        hop = f"{source.brokerName}:{source.queueId}:{found.queue_offset}"
        own |= origin_property(source.topic, hop, found.reconsume_times)
        try:
            await self._new.messages.put(await self.clusters.address(self._new, target), target, found, own)
        except NotReached as error:
            raise OutcomeUnknown(str(error)) from error


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
