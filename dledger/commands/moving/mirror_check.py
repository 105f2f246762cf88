"""`dledger mirror OLD NEW --check`: reports what the mirror still has to do, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dledger.admin import AsyncAdminClient
from dledger.client import TopicNotFound
from dledger.client.errors import BrokerRefused
from dledger.commands.moving.mirrored_groups import MirroredGroups, committed_in_old
from dledger.commands.moving.mirrored_queues import Clusters, QueueCopy, hops_of, queues_of, topics_of_groups
from dledger.remoting.bodies import MessageQueue


@dataclass
class GroupCheck:
    """The state of one consumer group: what it still has to consume in the old cluster, and how many
    consumers it has in each cluster."""

    left: int = 0
    """Number of messages that the group has not consumed in the old cluster."""
    old_consumers: int = 0
    new_consumers: int = 0

    def __str__(self) -> str:
        return (
            f"{self.left} left in the old cluster, {self.old_consumers} consumers there and "
            f"{self.new_consumers} in the new one"
        )


@dataclass
class Checked:
    """The result of a check: which messages are not copied, and the state of each group."""

    behind: dict[str, int] = field(default_factory=dict)
    """Maps a topic to the number of its messages that are not copied. Only topics with such messages are
    included."""
    groups: dict[str, GroupCheck] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    """Maps a kind of messages that still wait in the old cluster (such as delayed messages) to their
    number."""

    @property
    def moved(self) -> bool:
        """Whether the move is complete: every message of the old cluster is copied, none waits there, and
        no group has consumers there."""
        return not (self.behind or self.waiting or any(one.old_consumers for one in self.groups.values()))

    def lines(self) -> list[str]:
        """The result as lines for people."""
        lines = [f"{topic}: {count} messages are not copied" for topic, count in self.behind.items()]
        lines += [f"{group}: {one}" for group, one in self.groups.items()]
        lines += [f"still in the old cluster: {count} {what}" for what, count in self.waiting.items()]
        done = "nothing is left in the old cluster" if self.moved else "the move is not finished"
        return [*lines, done]


async def check(
    old: AsyncAdminClient, new: AsyncAdminClient, topics: Sequence[str], groups: Sequence[str], look_back: int
) -> Checked:
    """Read the state of both clusters, and change nothing. Raises ClientError or MovingFailed."""
    clusters = Clusters(old, new)
    found = Checked(groups={group: GroupCheck() for group in groups})
    for topic in (*topics, *topics_of_groups(groups, topics, frozenset(await old.topics.names()))):
        sources = await queues_of(old, topic)
        targets: list[MessageQueue] = []
        with suppress(TopicNotFound):
            targets = await queues_of(new, topic)
        behind = 0
        for number, source in enumerate(sources):
            address = await clusters.address(old, source)
            end = await old.offsets.highest(address, source)
            pair = QueueCopy(source, targets[number]) if number < len(targets) else None
            if pair is not None:
                begin = await clusters.resume(pair, look_back)
            else:
                begin = await old.offsets.lowest(address, source)
            behind += (
                await _behind(clusters, pair, begin, end) if pair and begin < end else max(end - begin, 0)
            )
            for group, one in found.groups.items():
                offset = await committed_in_old(clusters, group, source)
                if offset is not None:
                    one.left += max(end - offset, 0)
        if behind:
            found.behind[topic] = behind
    for group, one in found.groups.items():
        one.old_consumers = await _consumers(old, group)
        one.new_consumers = await _consumers(new, group)
    found.waiting = await MirroredGroups(clusters, [], lambda text: None).waiting()
    return found


async def _behind(clusters: Clusters, copy: QueueCopy, begin: int, end: int) -> int:
    """Return the number of messages in [begin, end) of an old queue that are still to be copied.

    If the first of these messages was copied from the new cluster (a mirror in the other direction ran
    before), all such messages are left out of the count.
    """
    count, first = 0, True
    async for _, message in clusters.read(clusters.old, copy.source, begin, end):
        if first and not await clusters.came_from_new(copy, message):
            return end - begin
        first = False
        count += not hops_of(message)
    return count


async def _consumers(admin: AsyncAdminClient, group: str) -> int:
    try:
        return len((await admin.groups.connections(group)).connectionSet)
    except BrokerRefused:  # this is how a broker reports that there are none
        return 0
