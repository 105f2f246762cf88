"""Statistics, and the offsets of topics and groups (AdminBrokerProcessor): 43 GET_ALL_CONSUMER_OFFSET, 202
GET_TOPIC_STATS_INFO, 208 GET_CONSUME_STATS, 303 QUERY_CONSUME_TIME_SPAN, 315 VIEW_BROKER_STATS_DATA and 317
GET_BROKER_CONSUME_STATS.

Any broker answers 43; only the leader answers the others. Code 315 shows what the leader counted itself; the
others read the applied state. A table of many queues is built in steps, so that the loop can do other work in
between. Its rows can therefore show different moments, as they can in RocketMQ.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.core import Core
from dledger.broker.offset.group_topics import topics_of
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.registration.registrar import Registrar
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.broker.stats.stats_item import WINDOWS
from dledger.formats.state import TopicConfig
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import dumps
from dledger.remoting.headers import ConsumeStatsHeader, TopicHeader
from dledger.remoting.operator_headers import (
    BrokerConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    ViewBrokerStatsHeader,
)
from dledger.runtime.cooperative import Pace
from dledger.runtime.files import Buffer

APPLIED = "applied index of the leader"
OWN = "counters in the memory of the leader, since it became leader"
MAX_ROWS = 50_000
"""Largest number of rows in one answer, about 10 MB. A row is one queue with the offset of one group. A
larger answer is refused."""
MAX_OFFSETS = 500_000
"""Largest number of offsets in one answer, about 10 MB. A larger answer is refused."""
OFFSETS_SLICE = 1000
"""Number of offsets that are encoded, in about 2 ms, before the loop turns to other work."""
SLICE = 200
"""Number of queues that are examined, in about 2 ms, before the loop turns to other work."""
MAX_TOPICS_ASKED = 1000
"""Largest number of topics that one request may name. A request that names more is refused."""


class StatsProcessor:
    """Handlers of the requests that show statistics, and the offsets of topics and groups."""

    def __init__(
        self, core: Core, offsets: PendingOffsets, pull_offsets: PullOffsets, registrar: Registrar
    ) -> None:
        self._env = core.env
        self._settings = core.settings
        self._store = core.store
        self._reader = core.reader
        self._clients = core.clients
        self._background = core.background
        self._offsets = offsets
        self._pull_offsets = pull_offsets
        self._registrar = registrar
        self._stats = core.stats

    @handles(
        RequestCode.VIEW_BROKER_STATS_DATA,
        ViewBrokerStatsHeader,
        needs=Needs.LEADER,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def view(self, call: LeaderCall[ViewBrokerStatsHeader]) -> None:
        """Show one statistic over the last minute, hour and day."""
        header = call.header
        item = self._stats.item(header.statsName, header.statsKey)
        if item is None:
            remark = f"The stats <{header.statsName}> <{header.statsKey}> not exist"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)
        now = self._stats.now_ms()
        shown = {}
        for window in WINDOWS:
            found = item.over(window, now)
            shown[window.name] = {"sum": found.total, "tps": found.tps, "avgpt": found.average}
        call.respond(body=dumps(shown))

    @handles(
        RequestCode.GET_TOPIC_STATS_INFO,
        TopicHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.SHOWN_TOPIC,
    )
    def topic(self, call: LeaderCall[TopicHeader]) -> None:
        """Show the first and the next offset of each queue of a topic, and when its last message was
        stored."""
        config = self._topic(call, call.header.topic)

        async def answer() -> None:
            rows: list[bytes] = []
            pace = Pace(SLICE)
            for number, key in enumerate(self._queue_keys(config, queues_of(config))):
                await pace.step()
                bounds = self._store.queues.range_of(config.name, number)
                last = await self._stored(config.name, number, bounds[1] - 1)
                rows.append(
                    b'%b:{"lastUpdateTimestamp":%d,"maxOffset":%d,"minOffset":%d}'
                    % (key, max(last, 0), bounds[1], bounds[0])
                )
            tps = msgspec.json.encode(self._stats.put_tps(config.name))
            call.respond(body=b'{"offsetTable":{%b},"topicPutTps":%b}' % (b",".join(rows), tps))

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.GET_CONSUME_STATS,
        ConsumeStatsHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, topics=("topic",), groups=("consumerGroup",)),
    )
    def group(self, call: LeaderCall[ConsumeStatsHeader]) -> None:
        """Show the offsets of a group in the queues of its topics, or of the named topics. Offsets that the
        group reported before this request are included. So the answer waits until they are in the log, at
        most the time between two flushes of offsets."""
        header, name = call.header, call.header.consumerGroup
        named = [topic for topic in (header.topicList or "").split(";") if topic]
        if len(named) > MAX_TOPICS_ASKED:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"{len(named)} topics: ask for at most {MAX_TOPICS_ASKED}"
            )
        topic = (header.topic or "").strip()

        async def answer() -> None:
            topics = named or ([topic] if topic else await topics_of(self._store.state, name))
            rows: list[bytes] = []
            tps = 0.0
            pace = Pace(SLICE)
            async for config in self._existing(call, name, topics, pace, named=bool(named)):
                async for row, *_ in self._rows(name, config, config.read_queues, pace):
                    rows.append(row)
                    _check_size(len(rows), f"group {name}: ask for a topic (-t)")
                tps += self._stats.consume_tps(name, config.name)
            call.respond(body=_consume_stats(rows, tps))

        def begin() -> None:
            self._background.start(call.connection, call.request, answer())

        self._offsets.read_group(name, call.connection, call.request, begin)

    @handles(
        RequestCode.GET_BROKER_CONSUME_STATS,
        BrokerConsumeStatsHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def all_groups(self, call: LeaderCall[BrokerConsumeStatsHeader]) -> None:
        """Show the offsets of all groups in all topics, or only in ordered topics."""
        ordered = call.header.isOrder

        async def answer() -> None:
            groups: list[bytes] = []
            behind = held = count = 0
            pace = Pace(SLICE)
            for name in list(self._store.state.groups):
                await pace.step()
                topics: list[bytes] = []
                rows_of = name in self._store.state.offsets
                found = await topics_of(self._store.state, name) if rows_of else []
                async for config in self._existing(call, name, found, pace):
                    if ordered and not config.order:
                        continue
                    rows: list[bytes] = []
                    async for row, diff, pulled in self._rows(name, config, config.write_queues, pace):
                        rows.append(row)
                        behind += diff
                        held += pulled
                        count += 1
                        _check_size(count, "all groups: ask for each alone (consumerProgress -g)")
                    topics.append(_consume_stats(rows, self._stats.consume_tps(name, config.name)))
                groups.append(b"{%b:[%b]}" % (msgspec.json.encode(name), b",".join(topics)))
            call.respond(
                body=b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
                % (msgspec.json.encode(self._settings.now.client_addr), b",".join(groups), behind, held)
            )

        def begin() -> None:
            self._background.start(call.connection, call.request, answer())

        self._offsets.read_all(call.connection, call.request, begin)

    @handles(
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        needs=Needs.ANY,
        reads="applied index of any broker",
        may=required.ACCOUNT,
        does=actions.LISTED,
    )
    def all_offsets(self, call: Call[None]) -> None:
        """Show every consumer offset, in the form in which RocketMQ's slaves request it
        (ConsumerOffsetSerializeWrapper)."""

        async def answer() -> None:
            parts: list[bytes] = []
            pace, count = Pace(OFFSETS_SLICE), 0
            for name in list(self._store.state.offsets):
                table = self._store.state.offsets.get(name, {})
                by_topic: dict[str, dict[str, int]] = {}
                for key in list(table):  # not items(): making and freeing 200,000 tuples takes milliseconds
                    topic, queue = key
                    if (offset := table.get(key)) is not None:
                        by_topic.setdefault(f"{topic}@{name}", {})[str(queue)] = offset
                    await pace.step()
                    count += 1
                    _check_size(count, "all groups: ask for each alone (consumerProgress -g)", MAX_OFFSETS)
                while by_topic:  # one by one, because freeing all at once would block the loop
                    topic_at_group, offsets = by_topic.popitem()
                    parts.append(
                        b"%b:%b" % (msgspec.json.encode(topic_at_group), msgspec.json.encode(offsets))
                    )
                    await pace.step()
            version = dumps(self._registrar.data_version())
            body: list[Buffer] = [b'{"dataVersion":%b,"offsetTable":{' % version, b",".join(parts), b"}}"]
            call.respond(body=body)

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        ConsumeTimeSpanHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, topics=("topic",), groups=("group",)),
    )
    def time_span(self, call: LeaderCall[ConsumeTimeSpanHeader]) -> None:
        """Show three store times for each queue: that of the first message, that of the last message, and
        that of the last message which the group consumed."""
        config, group = self._topic(call, call.header.topic), call.header.group

        async def answer() -> None:
            rows: list[bytes] = []
            pace = Pace(SLICE)
            for number, key in enumerate(self._queue_keys(config, config.write_queues)):
                await pace.step()
                first, end = self._store.queues.range_of(config.name, number)
                oldest = await self._stored(config.name, number, first)
                newest = await self._stored(config.name, number, end - 1)
                offset = self._store.state.consumer_offset(group, config.name, number) or 0
                consumed = await self._stored(config.name, number, offset - 1) if offset else oldest
                waits_since = await self._stored(config.name, number, max(offset, first))
                delay = max(0, self._env.wall.now_ms() - waits_since) if waits_since >= 0 else 0
                rows.append(
                    b'{"consumeTimeStamp":%d,"delayTime":%d,"maxTimeStamp":%d,"messageQueue":%b,'
                    b'"minTimeStamp":%d}' % (consumed, delay, newest, key, oldest)
                )
            call.respond(body=b'{"consumeTimeSpanSet":[%b]}' % b",".join(rows))

        self._background.start(call.connection, call.request, answer())

    # -- parts ----------------------------------------------------------------------------------------

    def _topic(
        self, call: LeaderCall[TopicHeader] | LeaderCall[ConsumeTimeSpanHeader], name: str
    ) -> TopicConfig:
        config = call.writer.topic(name)
        if config is None:
            raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return config

    async def _existing(
        self,
        call: LeaderCall[ConsumeStatsHeader] | LeaderCall[BrokerConsumeStatsHeader],
        group: str,
        topics: Iterable[str],
        pace: Pace,
        *,
        named: bool = False,
    ) -> AsyncIterator[TopicConfig]:
        """Yield the topics that exist. If the topics are not `named` and the members of the group are known,
        topics that the group no longer subscribes to are left out."""
        members = self._clients.consumers.get(group)
        wanted = None if named or members is None else members.subscriptions
        for name in topics:
            await pace.step()
            config = call.writer.topic(name)
            if config is not None and (not wanted or name in wanted):
                yield config

    def _queue_keys(self, config: TopicConfig, queues: int) -> Iterable[bytes]:
        """Yield each queue, encoded as the key of a JSON map."""
        broker = msgspec.json.encode(self._settings.now.broker_name)
        topic = msgspec.json.encode(config.name)
        for number in range(queues):
            yield b'{"brokerName":%b,"queueId":%d,"topic":%b}' % (broker, number, topic)

    async def _rows(
        self, group: str, config: TopicConfig, queues: int, pace: Pace
    ) -> AsyncIterator[tuple[bytes, int, int]]:
        """Yield three values for each queue of a topic.

        * the JSON row with the offset of the group
        * how many messages the group is behind
        * how many messages its consumers have pulled and not yet acknowledged
        """
        for number, key in enumerate(self._queue_keys(config, queues)):
            await pace.step()
            end = self._store.queues.range_of(config.name, number)[1]
            offset = self._store.state.consumer_offset(group, config.name, number) or 0
            stored = await self._stored(config.name, number, offset - 1)
            pulled = self._pull_offsets.shown(group, config.name, number, offset)
            yield (
                b'%b:{"brokerOffset":%d,"consumerOffset":%d,"lastTimestamp":%d,"pullOffset":%d}'
                % (key, end, offset, max(stored, 0), pulled),
                end - offset,
                pulled - offset,
            )

    async def _stored(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in ms, or -1 if the message does not exist."""
        return await self._reader.store_time(topic, queue_id, offset)


def queues_of(config: TopicConfig) -> int:
    """Return the number of queues of a topic: the larger one of its numbers for reading and for writing."""
    return max(config.read_queues, config.write_queues)


def _consume_stats(rows: list[bytes], tps: float) -> bytes:
    return b'{"consumeTps":%b,"offsetTable":{%b}}' % (msgspec.json.encode(tps), b",".join(rows))


def _check_size(rows: int, instead: str, limit: int | None = None) -> None:
    limit = MAX_ROWS if limit is None else limit
    if rows > limit:
        raise RemotingError(ResponseCode.SYSTEM_ERROR, f"more than {limit} queues of {instead}")
