"""Pulling: what is found, filtered, held, woken and refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.longpolling import subscription_wait
from dledger.broker.longpolling.pull_hold import ROOM_WAIT_S
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.headers import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ViewMessageHeader,
)
from tests.broker.harness import FakeConnection, Reply, World, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.client.fake_cluster import eventually

HOLD = PULL_SUBSCRIPTION | PULL_SUSPEND


def test_messages_come_with_the_bounds_of_the_queue(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for number in range(5):
            await world.send(body=b"%d" % number)
        reply = await world.pull(offset=1, maxMsgNums=2)
        assert reply.code == ResponseCode.SUCCESS and reply.remark == "FOUND"
        assert [record.body for record in reply.records] == [b"1", b"2"]
        assert reply.ext == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "3",
            "minOffset": "0",
            "maxOffset": "5",
        }

    run(test)


def test_nothing_uncommitted_is_seen(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        await world.pull()
        world.node.auto = False
        world.send()
        assert len((await world.pull()).records) == 1

    run(test)


def test_pulls_wait_while_too_many_answers_are_unsent(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(body=b"0")
        crowded = FakeConnection(crowded=True)
        pulls = [
            world.pull(connection=crowded, sysFlag=HOLD, suspendTimeoutMillis=20_000),
            world.pull(connection=crowded, sysFlag=PULL_SUBSCRIPTION, suspendTimeoutMillis=0),
        ]
        assert world.features.longpolling.pulls.held.count == 2
        await skip_s(0.5)
        await world.send(body=b"1")  # what comes meanwhile wakes nobody
        assert not any(pull.done for pull in pulls)
        crowded.crowded = False
        await skip_s(0.2)
        for pull in pulls:
            assert [record.body for record in (await pull).records] == [b"0", b"1"]

    run(test)


def test_pulls_that_found_no_room_hear_that_nothing_has_come(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        crowded = FakeConnection(crowded=True)
        pull = world.pull(connection=crowded, sysFlag=PULL_SUBSCRIPTION)
        await skip_s(ROOM_WAIT_S + 0.2)
        reply = await pull
        assert reply.code == ResponseCode.PULL_NOT_FOUND and not reply.body
        assert reply.ext["nextBeginOffset"] == "0" and reply.ext["maxOffset"] == "1"

    run(test)


def test_answers_outside_the_queue(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for _ in range(3):
            await world.send()
        for queue, offset, code, remark, following in [
            (0, 3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "3"),
            (0, 4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "0"),
            (0, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
            (1, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", "0"),
            (1, 5, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", "0"),
        ]:
            reply = await world.pull(queue=queue, offset=offset)
            assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (code, remark, following)
            assert "minOffset" in reply.ext and "maxOffset" in reply.ext

    run(test)


def test_tags_are_filtered_here(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for tag in ("A", "B", "", "C"):
            await world.send(properties=f"TAGS\x01{tag}\x02" if tag else "")
        found = await world.pull(subscription="B || C")
        assert [record.queue_offset for record in found.records] == [1, 3]
        nothing = await world.pull(subscription="X")
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert nothing.ext["nextBeginOffset"] == "4" and nothing.remark == "NO_MATCHED_MESSAGE"

    run(test)


def test_a_pull_that_is_ahead_of_its_heartbeat_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_wait, "WAIT_S", 60.0)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for tag in ("A", "B"):
            await world.send(properties=f"TAGS\x01{tag}\x02")
        first = world.pull(sysFlag=0, subscription="", subVersion=7)
        await asyncio.sleep(0.01)
        assert not first.done and world.features.longpolling.pulls.ahead.count == 1
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1", "CG", "U", "A", version=6))
        assert not first.done, "that was another topic"
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1", "CG", "T", "B", version=7))
        assert [record.queue_offset for record in (await first).records] == [1]
        newer = world.pull(sysFlag=0, subscription="", subVersion=8, expressionType="SQL92")
        await asyncio.sleep(0.01)
        assert not newer.done
        world.node.follow("n1")
        assert (await newer).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert world.features.longpolling.pulls.ahead.count == 0

    run(test)


def test_the_heartbeat_subscription_counts_without_one_in_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_wait, "WAIT_S", 0.02)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(properties="TAGS\x01A\x02")
        await world.send(properties="TAGS\x01B\x02")
        unknown = await world.pull(sysFlag=0)
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1", "CG", "T", "B", version=7))
        reply = await world.pull(sysFlag=0, subscription="", subVersion=7)
        assert [record.queue_offset for record in reply.records] == [1]
        newer = await world.pull(sysFlag=0, subVersion=8)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        other = await world.pull("BenchmarkTest", sysFlag=0)
        assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    run(test)


def test_java_clients_ahead_of_their_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their next heartbeat may be 20 s away. By tags they are served meanwhile, as they compare them; by
    properties they are told to rebalance, which makes them send it."""
    monkeypatch.setattr(subscription_wait, "WAIT_S", 0.02)
    java = LanguageCode.JAVA

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(properties="TAGS\x01A\x02")
        await world.send(properties="TAGS\x01B\x02")
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1", "CG", "T", "B", version=7))
        same = await world.pull(sysFlag=0, subVersion=7, language=java)
        assert [record.queue_offset for record in same.records] == [1]
        newer = await world.pull(sysFlag=0, subVersion=8, language=java)
        assert [record.queue_offset for record in newer.records] == [0, 1]
        while not world.connection.notices:  # noqa: ASYNC110  # of the group that got a member
            await asyncio.sleep(0)
        world.connection.notices.clear()
        others = [
            world.pull(sysFlag=0, subVersion=8, expressionType="SQL92", language=java),
            world.pull(sysFlag=PULL_CLASS_FILTER, subVersion=8, language=java),
        ]
        for other in others:
            assert (await other).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        told = [code for code, _ in world.connection.notices]
        assert told == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], "once while some wait"

    run(test)


def test_no_more_than_so_many_wait_for_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_wait, "MAX_WAITING", 1)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        first, second = world.pull(sysFlag=0), world.pull(sysFlag=0)
        assert second.reply.code == ResponseCode.SUBSCRIPTION_NOT_EXIST and not first.done

    run(test)


def test_refusals(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        for pending, code in [
            (world.pull("Nothing"), ResponseCode.TOPIC_NOT_EXIST),
            (world.pull(queue=4), ResponseCode.INVALID_PARAMETER),
            (world.pull(queue=-1), ResponseCode.INVALID_PARAMETER),
            (world.pull(consumerGroup="bad group"), ResponseCode.INVALID_PARAMETER),
            (world.pull(expressionType="SQL92"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            (world.pull(expressionType="JS"), ResponseCode.SYSTEM_ERROR),
        ]:
            assert (await pending).code == code
        closed = await World(str(tmp_path / "2"), auto_create_group=False).open()
        assert (await closed.pull()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(test)


def test_a_held_pull_is_woken_by_a_message(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(queue=1)
        waiting = world.pull(sysFlag=HOLD, suspendTimeoutMillis=60_000)
        await asyncio.sleep(0)
        world.node.commit()
        assert not waiting.done and world.features.longpolling.pulls.held.count == 1
        await world.send(queue=1)
        assert not waiting.done
        await world.send(body=b"now")
        assert waiting.reply.records[0].body == b"now"
        assert world.features.longpolling.pulls.held.count == 0

    run(test)


def test_a_held_pull_sleeps_over_messages_that_do_not_match(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        waiting = world.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=60_000, subscription="B")
        await world.send(properties="TAGS\x01A\x02")
        await asyncio.sleep(0.02)
        assert not waiting.done
        await skip_s(60)
        reply = await waiting
        assert reply.code == ResponseCode.PULL_NOT_FOUND and reply.ext["nextBeginOffset"] == "2"

    run(test)


def test_a_held_pull_ends_with_its_time(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        loop = asyncio.get_running_loop()
        await world.send()
        began = loop.time()
        reply = await world.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=50)
        assert reply.code == ResponseCode.PULL_NOT_FOUND
        assert loop.time() - began >= 0.05

    run(test)


def test_held_pulls_have_a_limit_and_vanish_with_their_connection(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_held_pulls=1).open()
        await world.send()
        gone = FakeConnection(serial=2)
        world.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=60_000, connection=gone)
        more = await world.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=60_000)
        assert more.code == ResponseCode.PULL_NOT_FOUND
        gone.closed = True
        await eventually(lambda: world.features.longpolling.pulls.held.count == 0)

    run(test)


def test_held_pulls_hear_who_leads_when_leadership_ends(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.meta["n1"] = {"client_addr": "10.0.0.2:10911"}
        await world.send()
        waiting = world.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=60_000)
        world.node.follow("n1")
        assert waiting.reply.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)


def test_cold_reads_are_done_in_the_background(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for number in range(3):
            await world.send(body=b"%d" % number)
        await world.pull()
        world.node.log.cold_below = world.node.log.end_pos
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        asked = world.pull(offset=1)
        assert not asked.done
        assert [record.body for record in (await asked).records] == [b"1", b"2"]
        task.cancel()

    run(test)


def test_a_pull_can_commit_an_offset(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        await world.pull(commitOffset=1, sysFlag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
        assert world.features.offset.offsets.current("CG", "T", 0) == 1

    run(test)


def test_one_message_by_its_id(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        sent = await world.send(body=b"this")
        offset = int(sent.ext["msgId"][16:], 16)
        reply = await world.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        assert reply.records[0].body == b"this"
        missing = await world.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset + 1))
        assert missing.code == ResponseCode.SYSTEM_ERROR
        task.cancel()

    run(test)


# Reads at followers


async def with_follower(tmp_path: Path, **changes: Any) -> World:
    """A leader of ten messages that are not in memory any more, and a follower that runs."""
    world = await World(str(tmp_path), **{"slave_read": True, **changes}).open()
    for number in range(10):
        await world.send(body=b"%d" % number)
    await world.pull(offset=10)
    await world.send(queue=1)  # and what was appended before, the group, is applied
    world.node.log.cold_below = world.node.log.end_pos
    world.node.meta["n1"] = {"client_addr": "10.0.0.2:10911"}
    return world


async def pulled(world: World, **header: Any) -> Reply:
    async with running(world):
        return await world.pull(**header)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    task = asyncio.ensure_future(world.broker.core.background.run())
    await asyncio.sleep(0)
    yield
    task.cancel()


@pytest.mark.parametrize(
    ("changes", "header", "suggested"),
    [({}, {}, "2"), ({}, {"offset": 10}, "0"), ({"slave_read": False}, {}, "0")],
)
def test_who_reads_what_is_not_in_memory_is_sent_to_a_follower(
    tmp_path: Path, changes: dict[str, Any], header: dict[str, Any], suggested: str
) -> None:
    async def test() -> None:
        world = await with_follower(tmp_path, **changes)
        assert (await pulled(world, **header)).ext["suggestWhichBrokerId"] == suggested

    run(test)


def test_a_follower_answers_from_its_own_log(tmp_path: Path) -> None:
    async def test() -> None:
        world = await with_follower(tmp_path)
        world.node.follow("n1")
        part = await pulled(world, maxMsgNums=4)
        assert [record.body for record in part.records] == [b"0", b"1", b"2", b"3"]
        assert part.ext["suggestWhichBrokerId"] == "1" and part.ext["nextBeginOffset"] == "4"
        rest = await pulled(world, offset=4)
        assert len(rest.records) == 6
        assert rest.ext["suggestWhichBrokerId"] == "0", "what comes now the leader has first"

    run(test)


@pytest.mark.parametrize(
    "header",
    [
        {"offset": 10},
        {"topic": "unknown"},
        {"queue": 7},
        {"consumerGroup": "unknown"},
        {"sysFlag": 5},
        {"subscription": "a || a", "expressionType": "nothing"},
    ],
)
def test_what_a_follower_cannot_answer_goes_to_the_leader(tmp_path: Path, header: dict[str, Any]) -> None:
    async def test() -> None:
        world = await with_follower(tmp_path)
        world.node.follow("n1")
        assert (await pulled(world, **header)).code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)
