"""All consumer groups, and one group: its members, how far it is in each queue, and why it is slow."""

from __future__ import annotations

from functools import partial

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import passing_over
from dledger.client import ClientError
from dledger.dashboard.facts import gather_bounded
from dledger.dashboard.pages.page import Asked, NotThere, Page, Rows, part_of
from dledger.remoting.bodies import ConsumerConnections, SubscriptionGroupConfig
from dledger.remoting.codes import ResponseCode
from dledger.remoting.operator_bodies import ConsumeStats, TopicStats

GROUPS_FRESH_S = 5.0
"""How long the list of all groups is used again, in seconds."""
STUCK_S = 60.0
"""A queue is called stuck if its oldest message waits for at least this long, in seconds, while the group
consumes from others."""

REASONS = ("no member", "stuck queues", "nothing consumed", "more members than queues")
"""What `reasons_of` may say."""


class GroupRow(msgspec.Struct, frozen=True):
    """A row of the list. `behind` and `members` are None if no broker answered."""

    name: str
    members: int | None
    model: str
    """CLUSTERING or BROADCASTING; empty without members."""
    behind: int | None
    late_s: float
    """Age of the oldest message that it has not consumed, in seconds; 0 if there is none."""
    rate: float
    dead_letters: int


class Groups(msgspec.Struct, frozen=True):
    """The data of the page."""

    cluster: str
    wanted: str
    rows: list[GroupRow]
    part: Rows


class Member(msgspec.Struct, frozen=True):
    """A client of a group."""

    id: str
    address: str
    language: str
    version: int


class Subscribed(msgspec.Struct, frozen=True):
    """A topic that a group subscribes to, and which of its messages it wants."""

    topic: str
    expression: str
    kind: str
    """TAG or SQL92."""


class QueueOffset(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    topic: str
    group: str
    """Broker group."""
    queue: int
    offset: int
    end: int
    late_s: float
    """Age of the last message that it consumed, in seconds, if it is behind; otherwise 0."""


class GroupPage(msgspec.Struct, frozen=True):
    """The data of the page of one group."""

    cluster: str
    row: GroupRow
    settings: SubscriptionGroupConfig | None
    members: list[Member]
    subscriptions: list[Subscribed]
    queues: list[QueueOffset]
    part: Rows
    retries: int
    """Messages in its retry topic, consumed or not."""
    slow: list[str]
    """Reasons why it is behind; empty if it is not, or no reason was found."""


async def all_groups(admin: AsyncAdminClient) -> dict[str, SubscriptionGroupConfig]:
    """The settings of all groups of the cluster, by name."""
    found: dict[str, SubscriptionGroupConfig] = {}
    for address in (await admin.brokers.masters()).values():
        found |= await admin.groups.configs(address)
    for name in await admin.groups.names():
        found.setdefault(name, SubscriptionGroupConfig(name))
    return dict(sorted(found.items()))


async def load(asked: Asked) -> Groups:
    """Load one part of the list. Only the figures of its rows are asked for."""
    groups = await asked.facts.get(all_groups, asked.admin, fresh_s=GROUPS_FRESH_S)
    wanted = asked.word("q")
    shown = [name for name in groups if wanted.casefold() in name.casefold()]
    part, which = part_of(shown, asked)
    rows = await gather_bounded([partial(_row, asked, name) for name in part])
    return Groups(asked.cluster.name, wanted, rows, which)


async def _row(asked: Asked, name: str) -> GroupRow:
    connections = await _connections(asked, name)
    stats = await _stats(asked, name)
    return row_of(name, connections, stats, await _kept(asked, 1, name), asked.cluster.now_ms())


def row_of(
    name: str,
    connections: ConsumerConnections | None,
    stats: ConsumeStats | None,
    dead_letters: int,
    now_ms: int,
) -> GroupRow:
    """What the list shows of a group."""
    late = [
        (now_ms - one.lastTimestamp) / 1000
        for one in (stats.offsets.values() if stats else ())
        if one.brokerOffset > one.consumerOffset and one.lastTimestamp
    ]
    return GroupRow(
        name,
        None if connections is None else len(connections.connectionSet),
        (connections.messageModel or "") if connections else "",
        None if stats is None else stats.behind,
        round(max(late, default=0.0), 1),
        stats.consumeTps if stats else 0.0,
        dead_letters,
    )


async def _connections(asked: Asked, name: str) -> ConsumerConnections | None:
    found = ConsumerConnections()
    try:
        with passing_over(ResponseCode.CONSUMER_NOT_ONLINE):
            found = await asked.facts.get(asked.admin.groups.connections, name)
    except ClientError:
        return None
    return found


async def _stats(asked: Asked, name: str) -> ConsumeStats | None:
    try:
        found: ConsumeStats = await asked.facts.get(asked.admin.offsets.stats, name)
    except ClientError:
        return None
    return found


async def _kept(asked: Asked, which: int, name: str) -> int:
    """Messages that are kept in a topic of a group: of its retries (0) or of its dead letters (1)."""
    topic = asked.admin.groups.topics_left(name)[which]
    try:
        stats: TopicStats = await asked.facts.get(asked.admin.topics.stats, topic)
    except ClientError:
        return 0  # the topic is made with its first message
    return sum(one.maxOffset - one.minOffset for one in stats.offsets.values())


async def load_group(asked: Asked) -> GroupPage:
    """Load the page of one group. Raises NotThere if there is no such group."""
    name = asked.names["group"]
    groups = await asked.facts.get(all_groups, asked.admin, fresh_s=GROUPS_FRESH_S)
    if name not in groups:
        raise NotThere(name)
    now = asked.cluster.now_ms()
    connections, stats = await _connections(asked, name), await _stats(asked, name)
    row = row_of(name, connections, stats, await _kept(asked, 1, name), now)
    queues = [
        QueueOffset(
            key.topic,
            key.brokerName,
            key.queueId,
            one.consumerOffset,
            one.brokerOffset,
            round((now - one.lastTimestamp) / 1000, 1)
            if one.brokerOffset > one.consumerOffset and one.lastTimestamp
            else 0.0,
        )
        for key, one in (stats.offsets.items() if stats else ())
    ]
    part, which = part_of(sorted(queues, key=lambda one: (one.topic, one.group, one.queue)), asked)
    members = connections.connectionSet if connections else []
    subscriptions = connections.subscriptionTable if connections else {}
    return GroupPage(
        cluster=asked.cluster.name,
        row=row,
        settings=groups[name],
        members=[
            Member(one.clientId, one.clientAddr, one.language, one.version)
            for one in sorted(members, key=lambda one: one.clientId)
        ],
        subscriptions=[
            Subscribed(topic, one.subString, one.expressionType)
            for topic, one in sorted(subscriptions.items())
        ],
        queues=part,
        part=which,
        retries=await _kept(asked, 0, name),
        slow=reasons_of(row, queues),
    )


def reasons_of(row: GroupRow, queues: list[QueueOffset]) -> list[str]:
    """Why a group is behind, as far as its figures show it."""
    if not row.behind:
        return []
    if row.members == 0:
        return ["no member"]
    found = []
    behind = [one for one in queues if one.end > one.offset]
    stuck = [one for one in behind if one.late_s >= STUCK_S]
    if stuck and row.rate > 0 and len(stuck) < len(queues):
        found.append("stuck queues")
    elif stuck and row.rate == 0:
        found.append("nothing consumed")
    if row.members is not None and row.members > len(queues) > 0:
        found.append("more members than queues")
    return found


PAGE = Page("groups", "groups", "Groups", load, lambda asked: "dledger group list", listed=True)
GROUP = Page(
    "group",
    "groups/{group}",
    "Group",
    load_group,
    lambda asked: f"dledger group show {asked.names['group']}",
)
