"""Statistics: what the windows hold, and what tools are told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.offset import pull_offsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.stats import broker_stats, stats_processor
from dledger.broker.stats.broker_stats import BrokerStats
from dledger.broker.stats.stats_item import DAY, HOUR, MINUTE, WINDOWS, Snapshot, StatsItem
from dledger.formats.state import GROUPS, TOPICS, GroupConfig, TopicConfig
from dledger.remoting.bodies import MessageQueue, OffsetWrapper, TopicOffset, decode_queue_table
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.fastjson import loads
from dledger.remoting.headers import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.remoting.operator_headers import (
    BrokerConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    GroupTopicHeader,
    ViewBrokerStatsHeader,
)
from tests.broker.harness import Reply, World, make_env, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading
from tests.broker.turns import MAX_STEPS, Turns

TICK_MS = 10_000


def test_the_books_example() -> None:
    """Six calls of a ten-message batch within one minute: sum 60, one a second, ten a call."""
    item = StatsItem(0)
    for tick in range(1, 7):
        item.add(10)
        item.sample(tick, tick * TICK_MS)
    assert item.over(MINUTE, 60_000) == Snapshot(60, 1.0, 10.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=400))
def test_a_window_is_what_came_within_it(grown: list[int]) -> None:
    """Against a list of everything: no window is longer than it says, none misses anything."""
    item = StatsItem(0)
    for tick, count in enumerate(grown, 1):
        for _ in range(count):
            item.add(5)
        item.sample(tick, tick * TICK_MS)
    ticks = len(grown)
    for window in WINDOWS:
        length = (window.samples - 1) * window.every_ticks
        found = item.over(window, ticks * TICK_MS)
        low = 5 * sum(grown[max(0, ticks - length) :])
        high = 5 * sum(grown[max(0, ticks - length - window.every_ticks) :])
        assert low <= found.total <= high
        assert found.average == (5.0 if found.total else 0.0)


def test_what_came_since_the_last_sample_counts() -> None:
    item = StatsItem(0)
    item.sample(1, TICK_MS)
    item.add(3)
    assert item.over(MINUTE, TICK_MS + 2000) == Snapshot(3, 1.5, 3.0)
    assert item.over(HOUR, TICK_MS + 2000).total == item.over(DAY, TICK_MS + 2000).total == 3
    assert item.lately(MINUTE, TICK_MS + 100).tps == 3.0, "a rate is of a second at least"


def test_an_idle_item_keeps_no_samples() -> None:
    item = StatsItem(0)
    item.add(1)
    for tick in range(1, 25 * 360 + 400):
        item.sample(tick, tick * TICK_MS)
    assert item._windows == [None, None, None]


def test_further_keys_are_not_counted_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(broker_stats, "MAX_KEYS", 2)
        stats = BrokerStats(make_env(), "C", lambda: (0, 0))
        for topic in ("A", "B", "C", "D"):
            stats.got("G", topic, 0, 1, 10, 0)
        assert [stats.item("GROUP_GET_NUMS", f"{topic}@G") is None for topic in "ABCD"] == [0, 0, 1, 1]
        assert stats.not_counted == 4
        found = stats.item("BROKER_GET_NUMS", "C")
        assert found is not None and found.value == 4, "the whole counts them"

    run(test)


async def filled(world: World) -> None:
    """Three messages in queue 0 of T, two of which CG has consumed; one in queue 1."""
    world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
    for queue in (0, 0, 0, 1):
        await world.send(queue=queue)
    await world.pull()
    header = UpdateConsumerOffsetHeader("CG", "T", 0, 2)
    await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def at(queue: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", queue)


def test_what_tools_are_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await filled(world)
            now = world.clock.value

            async def ask(code: RequestCode, header: Any) -> Any:
                reply: Reply = await world.call(code, header)
                assert reply.code == ResponseCode.SUCCESS, reply.remark
                return reply.body

            stats = ViewBrokerStatsHeader("TOPIC_PUT_NUMS", "T")
            shown = json.loads(await ask(RequestCode.VIEW_BROKER_STATS_DATA, stats))
            assert shown["statsMinute"]["sum"] == shown["statsDay"]["sum"] == 4
            stats = ViewBrokerStatsHeader("GROUP_GET_NUMS", "T@CG")
            assert json.loads(await ask(RequestCode.VIEW_BROKER_STATS_DATA, stats))["statsHour"]["sum"] == 3
            stats = ViewBrokerStatsHeader("BROKER_PUT_NUMS", "DefaultCluster")
            assert json.loads(await ask(RequestCode.VIEW_BROKER_STATS_DATA, stats))["statsHour"]["sum"] == 4

            body = await ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T"))
            topic = decode_queue_table(body, "offsetTable", TopicOffset)
            assert (topic[at(0)].minOffset, topic[at(0)].maxOffset) == (0, 3)
            assert 0 <= now - topic[at(0)].lastUpdateTimestamp < 10_000
            assert topic[at(2)] == TopicOffset(0, 0, 0)

            for header in (ConsumeStatsHeader("CG"), ConsumeStatsHeader("CG", topicList="T;T2")):
                body = await ask(RequestCode.GET_CONSUME_STATS, header)
                group = decode_queue_table(body, "offsetTable", OffsetWrapper)
                assert (group[at(0)].brokerOffset, group[at(0)].consumerOffset) == (3, 2)
                assert group[at(0)].lastTimestamp and not group[at(1)].lastTimestamp
                assert loads(body, large=True)["consumeTps"] > 0

            body = await ask(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False))
            everything = loads(body, large=True)
            assert everything["totalDiff"] == 2 and "CG" in str(everything["consumeStatsList"])
            body = await ask(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(True))
            assert loads(body, large=True)["totalDiff"] == 0, "no topic is ordered"

            body = await ask(RequestCode.GET_ALL_CONSUMER_OFFSET, None)
            assert json.loads(body)["offsetTable"] == {"T@CG": {"0": 2}}

            body = await ask(RequestCode.QUERY_CONSUME_TIME_SPAN, ConsumeTimeSpanHeader("T", "CG"))
            spans = json.loads(body)["consumeTimeSpanSet"]
            assert spans[0]["minTimeStamp"] <= spans[0]["consumeTimeStamp"] <= spans[0]["maxTimeStamp"]
            assert spans[2] | {"messageQueue": 0} == {
                "consumeTimeStamp": -1,
                "delayTime": 0,
                "maxTimeStamp": -1,
                "messageQueue": 0,
                "minTimeStamp": -1,
            }

            who = json.loads(await ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("CG")))
            assert [one["clientId"] for one in who["connectionSet"]] == ["c"]
            assert set(who["subscriptionTable"]) == {"T"}
            who = json.loads(await ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader("PG")))
            assert [one["clientAddr"] for one in who["connectionSet"]] == [world.connection.peer]
            body = await ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader("T"))
            assert json.loads(body) == {"groupList": ["CG"]}
            body = await ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader("CG"))
            assert json.loads(body)["topicList"] == ["T"]
            body = await ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupTopicHeader("CG", "T"))
            assert json.loads(body)["subscriptionData"]["subString"] == "*"
            assert json.loads(await ask(RequestCode.GET_TOPIC_CONFIG, TopicHeader("T")))["perm"] == 6
            body = await ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("CG"))
            assert json.loads(body)["groupName"] == "CG"
            names = json.loads(await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None))["topicList"]
            assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(names)

    run(test)


@pytest.mark.parametrize(
    ("code", "header", "answer"),
    [
        (RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsHeader("TOPIC_PUT_NUMS", "no"), 1),
        (RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsHeader("NO", "T"), 1),
        (RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("no"), ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, ConsumeTimeSpanHeader("no", "G"), ResponseCode.TOPIC_NOT_EXIST),
        (
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            ConsumerGroupHeader("no"),
            ResponseCode.CONSUMER_NOT_ONLINE,
        ),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader("no"), 1),
        (RequestCode.GET_TOPIC_CONFIG, TopicHeader("no"), ResponseCode.TOPIC_NOT_EXIST),
        (
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            GroupHeader("no"),
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
    ],
)
def test_what_is_not_there_is_refused(code: RequestCode, header: Any, answer: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert (await world.call(code, header)).code == answer

    run(test)


def consume_stats(reply: Reply) -> dict[int, tuple[int, int, int]]:
    """End, consumer offset and pull offset by queue id."""
    rows = decode_queue_table(reply.body, "offsetTable", OffsetWrapper)
    return {
        queue.queueId: (row.brokerOffset, row.consumerOffset, row.pullOffset) for queue, row in rows.items()
    }


def test_statistics_have_what_a_group_committed_just_before(tmp_path: Path) -> None:
    """A consumer commits its last offsets one way and ends; a tool asks right behind it."""

    async def test() -> None:
        async with leading(tmp_path, offset_flush_s=3600.0) as world:
            sent = [world.send("T", queue=number % 2) for number in range(10)]
            assert all([(await one).code == 0 for one in sent])
            for queue in (0, 1):
                world.ask(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    UpdateConsumerOffsetHeader("CG", "T", queue, 5),
                    flag=2,
                )
            asked = world.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG"))
            other = world.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("other", "T"))
            assert (await other).code == 0, "nothing is pending of that group"
            assert not asked.done
            world.features.offset.offsets.flush()
            rows = consume_stats(await asked)
            assert rows[0] == rows[1] == (5, 5, 5)
            world.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("late", "T", 0, 5), flag=2
            )
            all_groups = await world.call(
                RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False)
            )
            assert b'"late"' in all_groups.body
            assert loads(all_groups.body, large=True)["totalDiff"] == 5, "only queue 1, of the late group"

    run(test)


def test_the_pull_offset_is_how_far_a_group_has_pulled(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert (await world.send("T")).code == 0
            held = world.pull(offset=1, sysFlag=6, suspendTimeoutMillis=3_600_000)
            header = ConsumeStatsHeader("CG", "T")

            async def shown() -> tuple[int, int, int]:
                return consume_stats(await world.call(RequestCode.GET_CONSUME_STATS, header))[0]

            assert (await world.pull(offset=0, maxMsgNums=1)).code == 0
            assert await shown() == (1, 0, 1)
            for _ in range(3):
                assert (await world.send("T")).code == 0
            assert (await held).code == 0, "a pull that waited"
            assert (await world.pull(offset=2)).code == 0
            assert await shown() == (4, 0, 4)
            assert (
                await world.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("CG", "T", 0, 3)
                )
            ).code == 0
            assert await shown() == (4, 3, 4)
            everything = await world.call(
                RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False)
            )
            assert loads(everything.body, large=True)["totalInflightDiff"] == 1
            assert (await world.send("T")).code == 0
            assert await shown() == (5, 3, 4), "nobody pulls"
            reset = await world.call(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader("CG", "T", 0, True)
            )
            assert reset.code == 0
            assert await shown() == (5, 0, 0)
            assert (await world.pull(offset=0, maxMsgNums=2)).code == 0
            assert await shown() == (5, 0, 2)
            world.node.follow("n1")
            world.node.lead()
            assert await shown() == (5, 0, 0), "another leader did not see these pulls"

    run(test)


def test_so_many_pull_offsets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_offsets, "MAX_PULLED", 2)
    table = PullOffsets()
    for queue in (0, 1, 2):
        table.pulled("CG", "T", queue, 7)
    assert [table.shown("CG", "T", queue, 3) for queue in (0, 1, 2)] == [3, 7, 7]
    table.forget(cast(CommitLogWriter, None), "topic", "other")
    assert table.shown("CG", "T", 1, 3) == 7
    table.forget(cast(CommitLogWriter, None), "group", "CG")
    assert table.shown("CG", "T", 1, 3) == 3


def test_more_rows_than_one_answer_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await filled(world)
            monkeypatch.setattr(stats_processor, "MAX_ROWS", 3)
            reply = await world.call(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG"))
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.remark == "more than 3 queues of group CG: ask for a topic (-t)"
            header = BrokerConsumeStatsHeader(False)
            reply = await world.call(RequestCode.GET_BROKER_CONSUME_STATS, header)
            assert "ask for each alone" in (reply.remark or "")

    run(test)


def test_a_large_broker_is_not_held_up_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 groups, 60 of them with offsets in 200 queues, and one in 200,000."""

    async def test() -> None:
        world = await World(str(tmp_path), max_topics=20_000).open()
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        state = world.broker.store.state
        topics = {f"t{number}": TopicConfig(f"t{number}", 4, 4, 6) for number in range(50)}
        state[TOPICS].rows.update(topics)
        for number in range(20_000):
            state[GROUPS].rows[f"g{number}"] = GroupConfig(f"g{number}")
        for number in range(60):
            state.offsets[f"g{number}"] = {(topic, queue): 0 for topic in topics for queue in range(4)}
        state.offsets["wide"] = {(f"w{number}", queue): 0 for number in range(50_000) for queue in range(4)}
        turns = Turns(monkeypatch)
        for code, header in (
            (RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False)),
            (RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("wide")),
            (RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader("wide")),
            (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader("t1")),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, None),
            (RequestCode.GET_BROKER_RUNTIME_INFO, None),
        ):
            with turns.watching():
                reply = await world.call(code, header)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            assert turns.longest < MAX_STEPS, code
        task.cancel()

    run(test)


def test_what_happened_in_a_window_is_logged_as_rocketmq_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_stats, "MAX_LOGGED", 2)
    monkeypatch.setattr(broker_stats, "TICK_S", 60.0)
    monkeypatch.setattr(broker_stats, "now_ms", lambda: 1_000_000)

    async def test() -> None:
        stats = BrokerStats(make_env(), "C", lambda: (0, 0))
        stats._clear(broker_stats.now_ms())
        for number, count in enumerate((5, 40, 30)):
            stats.got("G", f"T{number}", 0, count, 10 * count, 0)
        await stats._tell(MINUTE, "Minute")
        caplog.set_level("INFO")
        caplog.clear()
        await stats._tell(MINUTE, "Minute")
        lines = [record.getMessage() for record in caplog.records]
        gets = [line for line in lines if line.startswith("[GROUP_GET_NUMS]")]
        assert gets == [
            "[GROUP_GET_NUMS] [T1@G] Stats In One Minute, SUM: 40 TPS: 40.00 AVGPT: 40.00",
            "[GROUP_GET_NUMS] [T2@G] Stats In One Minute, SUM: 30 TPS: 30.00 AVGPT: 30.00",
        ]
        assert "[BROKER_GET_NUMS] [C] Stats In One Minute, SUM: 75 TPS: 75.00 AVGPT: 25.00" in lines
        assert {record.name for record in caplog.records} == {"test.stats"}
        caplog.clear()
        running = asyncio.create_task(stats.run())
        told = []
        for _ in range(12):
            stats.got("G", "T0", 0, 1, 10, 0)
            await skip_s(60)  # a tick
            await skip_s(0)
            told.append(bool(caplog.records))
            caplog.clear()
        running.cancel()
        assert stats._tick == 12 and told == 2 * ([False] * 5 + [True]), "once a minute"

    asyncio.run(test())
