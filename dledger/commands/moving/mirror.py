"""`dledger mirror`: copies topics of one cluster to another while both run, and also the offsets of the
consumer groups.

A message is read from the old cluster as consumers read it. It is sent to the new cluster with the same
body, tag, keys, flag and unique id, and with the properties that the application gave it. Its property
`MIRRORED_FROM` (`broker:queue:offset`) names the original. The command stores no other progress. When it
is started again, it finds its position from the last copies in each new queue. So no message is left out
or sent twice, whatever interrupted the command. If the outcome of a send is unknown, the end of the new
queue is read in the same way to see whether the message is stored.

Each queue of the old cluster is copied to one queue of the new cluster, and the copies keep the order of
their originals. In the new queue, a group's offset is set to the first copy whose original the group has
not consumed in the old queue. This copy is found by binary search, because copies are in order
(`mirrored_queues`). `mirrored_groups` explains how far a group may be moved.

A message that came from the new cluster is not copied back: its properties name its original.

Retries and dead letters of the groups that move are copied as well, with the number of their deliveries,
because no consumer of the old cluster reads them any more. If a consumer of the new cluster sends a copied
retry back again, the new retry keeps all properties of the copy. But it does not count as a copy, because
it was delivered more often than its property `MIRRORED_RETRY` says.
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
"""Pause, in seconds, before a queue that had no new messages is read again."""
RETRY_S = 0.5
"""Pause, in seconds, after a server refused a request or did not answer."""
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
        names.IDEMPOTENT,
        ORIGIN,
        EARLIER,
    }
)
"""Names of properties that brokers and clients write for their own use; a copy does not get them from its
original."""
_NOT_COPIED_AGAIN = (
    _NOT_COPIED - {names.RETRY_TOPIC, names.UNIQ_KEY, names.KEYS, names.TAGS, ORIGIN, EARLIER}
) | {
    RETRY_ORIGIN,
    DEAD_ORIGIN,
}
"""Names of properties that a copied retry or dead letter does not get from its original. It does get the
properties with its unique id, its keys, its tags and the name of its original topic."""


@dataclass
class Mirrored:
    """The result of a mirror run."""

    topics: list[str] = field(default_factory=list)
    copied: int = 0
    behind: int = 0
    lost: int = 0
    skipped: int = 0
    """Number of messages that were not copied because they had come from the new cluster."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Maps a group to how often the mirror set one of its offsets."""
    left: dict[str, int] = field(default_factory=dict)
    """Maps a group to the number of messages that it has not consumed in the old cluster."""
    held: dict[str, int] = field(default_factory=dict)
    """Maps a group to the number of queues in which the group's offset stays before a message that is not
    a copy."""
    set_back: dict[str, int] = field(default_factory=dict)
    """Maps a group to the number of queues in which somebody set it back in the new cluster. The mirror
    does not move it forward there."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Maps a kind of messages that still wait in the old cluster (such as delayed messages) to their
    number."""
    ended_by: int = 0
    """Exit code for the signal that ended the mirror; 0 if no signal did."""


class Mirror:
    """Copies topics from one cluster to another until it is stopped."""

    def __init__(
        self,
        old: AsyncAdminClient,
        new: AsyncAdminClient,
        producer: AsyncProducer,
        tell: Callable[[str], None],
        look_back: int = LOOK_BACK,
    ) -> None:
        """`tell` is called with a text for each temporary failure, and for each difference between the
        clusters. `look_back` is the number of messages at the end of a new queue that are searched for the
        last copy."""
        self._old = old
        self._new = new
        self._producer = producer
        self._tell = tell
        self._look_back = look_back
        self.clusters: Clusters = Clusters(old, new)
        self.queues: list[QueueCopy] = []
        self._topics: Sequence[str] = ()
        self._closed: dict[str, TopicConfig] = {}
        """Topics that the mirror created, and whose originals are not writable, with their final settings.
        They get these settings when everything is copied."""
        self._start: Callable[[QueueCopy], object] | None = None
        """While the mirror runs: a function that starts to copy one more queue. Otherwise None."""
        self.ended: bool = False

    async def prepare(self, topics: Sequence[str]) -> None:
        """Find the queues, create missing topics, and find the position that an earlier run reached.
        Raises MovingFailed if that is impossible."""
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
        """Prepare the topics of retries and dead letters of these groups in the same way.

        A group has a retry topic only after its first consumer came, and a topic of dead letters only
        after its first dead letter. So this is called again and again, and finds topics that were created
        since.
        """
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
        """Assign a queue of the new cluster to each queue of the old one, and start to copy. If a position
        cannot be found, no queue is started."""
        pairs = [QueueCopy(source, target) for source, target in zip(sources, targets, strict=False)]
        for copy in pairs:
            copy.next = await self.clusters.resume(copy, self._look_back)
        for copy in pairs:
            self.queues.append(copy)
            if self._start is not None:
                self._start(copy)

    async def _queues_for(self, topic: str, count: int) -> list[MessageQueue]:
        """Return at least `count` queues of a group's topic in the new cluster. The new cluster creates
        such topics with one queue, so the number is raised if needed."""
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
        """Give a topic that the mirror created the settings of its original, except that it stays writable
        while messages are copied."""
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
        """Make topics read-only whose originals are read-only, once all their messages are copied. Only
        topics that the mirror created are changed."""
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
        """Copy until cancelled. With `once`, copy each queue only up to the end that it had when it was
        first read."""
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
        """Pull once and copy the messages. Returns whether the queue had no messages to copy."""
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
            copy.next = pulled.next_offset  # the entries there belong to no queue
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
        """Copy a retry or a dead letter. The copy keeps its number of deliveries, and the group's
        consumers in the new cluster continue to count from it."""
        source, target = copy.source, copy.target
        own = {name: value for name, value in found.properties.items() if name not in _NOT_COPIED_AGAIN}
        hop = f"{source.brokerName}:{source.queueId}:{found.queue_offset}"
        own |= origin_property(source.topic, hop, found.reconsume_times)
        try:
            await self._new.messages.put(await self.clusters.address(self._new, target), target, found, own)
        except NotReached as error:
            raise OutcomeUnknown(str(error)) from error


async def all_topics(old: AsyncAdminClient) -> list[str]:
    """Return the topics of applications in the old cluster."""
    system: set[str] = set()
    for address in (await old.brokers.masters()).values():
        system.update(await old.topics.system_names(address))
    return [
        name
        for name in sorted(await old.topics.names())
        if name not in system and not name.startswith(SKIPPED_PREFIXES)
    ]
