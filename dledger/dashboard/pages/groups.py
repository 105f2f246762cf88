"""All consumer groups, and one group: its members, how far it is in each queue, and why it is slow."""

from __future__ import annotations

from functools import partial

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import RETRY_PREFIX, passing_over
from dledger.client import ClientError, TopicNotFound
from dledger.dashboard.facts import gather_bounded
from dledger.dashboard.pages.page import Asked, NotThere, Page, Rows, broker_groups, command, part_of
from dledger.remoting.bodies import ConsumerConnections, SubscriptionGroupConfig
from dledger.remoting.codes import ResponseCode
from dledger.remoting.operator_bodies import ConsumeStats, TopicStats

GROUPS_FRESH_S = 5.0
"""How long the list of all groups is used again, in seconds."""

REASONS = ("no member", "nothing consumed", "more members than queues")
"""What `reasons_of` may say."""


class GroupRow(msgspec.Struct, frozen=True):
    """A row of the list. `behind` and `members` are None if no broker answered."""

    name: str
    members: int | None
    model: str
    """CLUSTERING or BROADCASTING; empty without members."""
    behind: int | None
    rate: float
    """Messages a second that it consumed in the last minute."""
    dead_letters: int | None


class Groups(msgspec.Struct, frozen=True):
    """The data of the page."""

    cluster: str
    wanted: str
    rows: list[GroupRow]
    part: Rows
    problems: list[str]


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
    last_ms: int
    """Store time of the last message that it has consumed; 0 if that is not known."""


class GroupPage(msgspec.Struct, frozen=True):
    """The data of the page of one group."""

    cluster: str
    row: GroupRow
    settings: SubscriptionGroupConfig | None
    members: list[Member]
    members_part: Rows
    subscriptions: list[Subscribed]
    queues: list[QueueOffset]
    part: Rows
    retries: int | None
    """Messages in its retry topic, consumed or not."""
    slow: list[str]
    """Reasons why it is behind; empty if it is not, or no reason was found."""


class KnownGroups(msgspec.Struct, frozen=True):
    """The settings of the groups of a cluster by name, and which broker groups could not be asked."""

    groups: dict[str, SubscriptionGroupConfig]
    problems: list[str]


async def all_groups(admin: AsyncAdminClient) -> KnownGroups:
    """All groups of the cluster. A broker group that does not answer is left out, and named."""
    problems: list[str] = []

    async def ask(group: str, address: str) -> dict[str, SubscriptionGroupConfig]:
        try:
            return await admin.groups.configs(address)
        except ClientError as error:
            problems.append(f"{group}: {error}")
            return {}

    groups = await broker_groups(admin)
    found: dict[str, SubscriptionGroupConfig] = {}
    for configs in await gather_bounded([partial(ask, *one) for one in groups.items()]):
        found |= configs
    if not found and problems:
        raise ClientError("; ".join(problems))
    return KnownGroups(dict(sorted(found.items())), problems)


async def load(asked: Asked) -> Groups:
    """Load one part of the list. Only the figures of its rows are asked for."""
    known = await asked.facts.get(all_groups, asked.admin, fresh_s=GROUPS_FRESH_S)
    wanted = asked.word("q")
    shown = [name for name in known.groups if wanted.casefold() in name.casefold()]
    part, which = part_of(shown, asked)
    rows = await gather_bounded([partial(_row, asked, name) for name in part])
    return Groups(asked.cluster.name, wanted, rows, which, known.problems)


async def _row(asked: Asked, name: str) -> GroupRow:
    connections = await _connections(asked, name)
    stats = await _stats(asked, name)
    return row_of(name, connections, stats, await _kept(asked, 1, name))


def row_of(
    name: str,
    connections: ConsumerConnections | None,
    stats: ConsumeStats | None,
    dead_letters: int | None,
) -> GroupRow:
    """What the list shows of a group."""
    return GroupRow(
        name,
        None if connections is None else len(connections.connectionSet),
        (connections.messageModel or "") if connections else "",
        None if stats is None else stats.behind,
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


async def _kept(asked: Asked, which: int, name: str) -> int | None:
    """Messages that are kept in a topic of a group: of its retries (0) or of its dead letters (1). None if no
    broker answers."""
    topic = asked.admin.groups.topics_left(name)[which]
    try:
        stats: TopicStats = await asked.facts.get(asked.admin.topics.stats, topic)
    except TopicNotFound:
        return 0  # the topic is made with its first message
    except ClientError:
        return None
    return sum(one.maxOffset - one.minOffset for one in stats.offsets.values())


async def load_group(asked: Asked) -> GroupPage:
    """Load the page of one group. Raises NotThere if there is no such group."""
    name = asked.names["group"]
    groups = (await asked.facts.get(all_groups, asked.admin, fresh_s=GROUPS_FRESH_S)).groups
    if name not in groups:
        raise NotThere(name)
    connections, stats = await _connections(asked, name), await _stats(asked, name)
    row = row_of(name, connections, stats, await _kept(asked, 1, name))
    queues = [
        QueueOffset(
            key.topic,
            key.brokerName,
            key.queueId,
            one.consumerOffset,
            one.brokerOffset,
            one.lastTimestamp,
        )
        for key, one in (stats.offsets.items() if stats else ())
    ]
    part, which = part_of(sorted(queues, key=lambda one: (one.topic, one.group, one.queue)), asked)
    everyone = sorted(connections.connectionSet if connections else [], key=lambda one: one.clientId)
    members, members_part = part_of(everyone, asked, "members")
    subscriptions = connections.subscriptionTable if connections else {}
    return GroupPage(
        cluster=asked.cluster.name,
        row=row,
        settings=groups[name],
        members=[Member(one.clientId, one.clientAddr, one.language, one.version) for one in members],
        members_part=members_part,
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
    found = ["nothing consumed"] if row.rate == 0 and row.members else []
    own = [one for one in queues if not one.topic.startswith(RETRY_PREFIX)]
    if row.model != "BROADCASTING" and row.members is not None and row.members > len(own) > 0:
        found.append("more members than queues")
    return found


PAGE = Page("groups", "groups", "Groups", load, lambda asked: "dledger group list", listed=True)
GROUP = Page(
    "group",
    "groups/{group}",
    "Group",
    load_group,
    lambda asked: command("dledger group show", asked.names["group"]),
)
