"""All topics, and one topic: its queues, its settings, and who consumes it."""

from __future__ import annotations

from functools import partial

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import DLQ_PREFIX, RETRY_PREFIX
from dledger.client import ClientError, TopicNotFound
from dledger.dashboard.facts import gather_bounded
from dledger.dashboard.pages.page import Asked, NotThere, Page, Rows, broker_groups, command, part_of
from dledger.remoting.operator_bodies import TopicStats
from dledger.remoting.registration import TopicConfig

KINDS = ("normal", "retry", "dead-letter", "system")
TOPICS_FRESH_S = 5.0
"""How long the list of all topics is used again, in seconds: with ten thousand topics it is megabytes."""


class Topic(msgspec.Struct, frozen=True):
    """One topic of all broker groups that have it."""

    name: str
    kind: str
    groups: tuple[str, ...]
    """Broker groups that have it."""
    read_queues: int
    """Queues that can be read, of all broker groups."""
    write_queues: int
    permission: str
    order: bool


class TopicRow(msgspec.Struct, frozen=True):
    """A row of the list. The figures are None if no broker answered."""

    topic: Topic
    messages: int | None
    last_write_ms: int | None


class Topics(msgspec.Struct, frozen=True):
    """The data of the page."""

    cluster: str
    wanted: str
    """Part of the names that are shown; empty: all."""
    kind: str
    """Which kind is shown; `all` shows each."""
    kinds: tuple[str, ...]
    rows: list[TopicRow]
    part: Rows
    problems: list[str]


class QueueRow(msgspec.Struct, frozen=True):
    """One queue of a topic."""

    group: str
    """Broker group."""
    queue: int
    first: int
    next: int
    """Offset of the next message."""
    last_write_ms: int


class Consumer(msgspec.Struct, frozen=True):
    """A consumer group of a topic. `problem` says why its figures are missing."""

    group: str
    behind: int | None
    rate: float
    problem: str = ""


class TopicPage(msgspec.Struct, frozen=True):
    """The data of the page of one topic."""

    cluster: str
    topic: Topic
    attributes: dict[str, str]
    messages: int
    rate_in: float
    bytes_last_minute: int
    queues: list[QueueRow]
    part: Rows
    consumers: list[Consumer]
    consumers_part: Rows


class KnownTopics(msgspec.Struct, frozen=True):
    """The topics of a cluster by name, and which broker groups could not be asked."""

    topics: dict[str, Topic]
    problems: list[str]


async def all_topics(admin: AsyncAdminClient) -> KnownTopics:
    """All topics of the cluster. A broker group that does not answer is left out, and named."""
    problems: list[str] = []

    async def ask(group: str, address: str) -> tuple[str, list[TopicConfig], frozenset[str]]:
        try:
            system = frozenset(await admin.topics.system_names(address))
            configs = (await admin.topics.configs(address)).topicConfigTable
        except ClientError as error:
            problems.append(f"{group}: {error}")
            return group, [], frozenset()
        return group, list(configs.values()), system

    groups = await broker_groups(admin)
    found: dict[str, Topic] = {}
    for group, configs, system in await gather_bounded([partial(ask, *one) for one in groups.items()]):
        for config in configs:
            found[config.topicName] = _joined(found.get(config.topicName), group, config, system)
    if not found and problems:
        raise ClientError("; ".join(problems))
    return KnownTopics(dict(sorted(found.items())), problems)


def _joined(before: Topic | None, group: str, config: TopicConfig, system: frozenset[str]) -> Topic:
    return Topic(
        config.topicName,
        kind_of(config.topicName, system),
        (*(before.groups if before else ()), group),
        config.readQueueNums + (before.read_queues if before else 0),
        config.writeQueueNums + (before.write_queues if before else 0),
        permission_text(config.perm),
        config.order,
    )


def kind_of(name: str, system: frozenset[str]) -> str:
    """The kind of a topic, one of `KINDS`."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead-letter"
    return "system" if name in system else "normal"


def permission_text(value: int) -> str:
    """The permission of a topic as letters.

    >>> permission_text(6), permission_text(4), permission_text(0)
    ('RW', 'R', '-')
    """
    return ("R" if value & 4 else "") + ("W" if value & 2 else "") or "-"


async def load(asked: Asked) -> Topics:
    """Load one part of the list. Only the figures of its rows are asked for."""
    known = await asked.facts.get(all_topics, asked.admin, fresh_s=TOPICS_FRESH_S)
    wanted, kind = asked.word("q"), asked.word("kind") or "normal"
    shown = [
        one
        for one in known.topics.values()
        if kind in ("all", one.kind) and wanted.casefold() in one.name.casefold()
    ]
    part, which = part_of(shown, asked)
    rows = await gather_bounded([partial(_row, asked, one) for one in part])
    return Topics(asked.cluster.name, wanted, kind, KINDS, rows, which, known.problems)


async def _row(asked: Asked, topic: Topic) -> TopicRow:
    try:
        stats: TopicStats = await asked.facts.get(asked.admin.topics.stats, topic.name)
    except ClientError:
        return TopicRow(topic, None, None)
    ends = stats.offsets.values()
    messages = sum(one.maxOffset - one.minOffset for one in ends)
    return TopicRow(topic, messages, max((one.lastUpdateTimestamp for one in ends), default=0))


async def load_topic(asked: Asked) -> TopicPage:
    """Load the page of one topic. Raises NotThere if there is no such topic."""
    name = asked.names["topic"]
    known = await asked.facts.get(all_topics, asked.admin, fresh_s=TOPICS_FRESH_S)
    topic = known.topics.get(name)
    if topic is None:
        raise NotThere(name)
    admin = asked.admin
    try:
        stats: TopicStats = await asked.facts.get(admin.topics.stats, name)
        groups: list[str] = await asked.facts.get(admin.topics.groups, name)
    except TopicNotFound as error:
        raise NotThere(name) from error
    queues = [
        QueueRow(key.brokerName, key.queueId, one.minOffset, one.maxOffset, one.lastUpdateTimestamp)
        for key, one in stats.offsets.items()
    ]
    part, which = part_of(sorted(queues, key=lambda one: (one.group, one.queue)), asked)
    shown, consumers = part_of(sorted(groups), asked, "consumers")
    attributes, written = await _more(asked, topic)
    return TopicPage(
        cluster=asked.cluster.name,
        topic=topic,
        attributes=attributes,
        messages=sum(one.next - one.first for one in queues),
        rate_in=stats.topicPutTps,
        bytes_last_minute=written,
        queues=part,
        part=which,
        consumers=await gather_bounded([partial(_consumer, asked, group, name) for group in shown]),
        consumers_part=consumers,
    )


async def _more(asked: Asked, topic: Topic) -> tuple[dict[str, str], int]:
    """The attributes of a topic, and how many bytes it received in the last minute."""
    admin = asked.admin
    attributes: dict[str, str] = {}
    written = 0
    for group, address in (await broker_groups(admin)).items():
        if group not in topic.groups:
            continue
        try:
            config = await admin.topics.config(address, topic.name)
            attributes |= {} if config is None else config.attributes
            written += (await admin.brokers.stats(address, "TOPIC_PUT_SIZE", topic.name)).statsMinute.sum
        except ClientError:
            continue  # nothing was counted, or the broker is away
    return attributes, written


async def _consumer(asked: Asked, group: str, topic: str) -> Consumer:
    try:
        stats = await asked.facts.get(asked.admin.offsets.stats, group, topic)
    except ClientError as error:
        return Consumer(group, None, 0.0, str(error))
    return Consumer(group, stats.behind, stats.consumeTps)


PAGE = Page("topics", "topics", "Topics", load, lambda asked: "dledger topic list", listed=True)
TOPIC = Page(
    "topic",
    "topics/{topic}",
    "Topic",
    load_topic,
    lambda asked: command("dledger topic show", asked.names["topic"]),
)
