"""Delay levels and send-back: when messages come, what they are then, and that no switch repeats one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.schedule import delay_service, delivery_pace
from dledger.broker.schedule.delay_levels import DEFAULT_LEVELS, format_levels, parse_levels
from dledger.broker.schedule.delivery_pace import DeliveryPace
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.formats.message_ids import encode_message_id
from dledger.formats.properties import decode_properties
from dledger.formats.record import Record
from dledger.formats.state import DELAYS, DelayProgress, state_version
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import ConsumerSendMsgBackHeader
from tests.broker.fake_node import FakeLog, batches
from tests.broker.harness import Reply, World, run, skip_s
from tests.broker.test_clients import heartbeat

RETRY, DLQ = "%RETRY%CG", "%DLQ%CG"


LEVELS = tuple(range(20, 20 + 18))
"""Milliseconds: level n waits 19 + n."""
LONG_MS = 3_600_000
"""A level that is over when the test lets the time pass."""


@asynccontextmanager
async def leading(root: Path, log: FakeLog | None = None, **changes: Any) -> AsyncIterator[World]:
    """A broker that leads, its services run, and its clock goes with the loop's."""
    world = await World(str(root), log, **{"delay_levels": LEVELS, **changes}).open(lead=False)
    loop = asyncio.get_running_loop()
    lead = world.clock.value - loop.time() * 1000

    async def tick() -> None:
        while True:
            world.clock.value = int(lead + loop.time() * 1000)
            await asyncio.sleep(0.001)

    tasks = [
        asyncio.ensure_future(tick()),
        asyncio.ensure_future(world.broker.leadership.services.run()),
        asyncio.ensure_future(world.broker.core.background.run()),
    ]
    await asyncio.sleep(0)
    world.node.lead()
    await asyncio.sleep(0)
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise AssertionError(end)


async def came(world: World, topic: str = "T", queue: int = 0, count: int = 1) -> list[Record]:
    """The messages of a queue, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            found = await now(world, topic, queue)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.002)


async def delivered(world: World, count: int) -> None:
    """Until the leader has appended so many deliveries."""
    async with asyncio.timeout(20):
        while world.features.schedule.delays.delivered < count:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.002)


async def now(world: World, topic: str = "T", queue: int = 0) -> list[Record]:
    """The messages of a queue."""
    reply = await world.pull(topic, queue, maxMsgNums=32)
    return reply.records if reply.code == ResponseCode.SUCCESS else []


async def nothing_before(world: World, due_ms: int, topic: str = "T", queue: int = 0) -> None:
    """What is in a queue already came when it was due: a busy machine may take longer than a message does."""
    assert all(record.store_timestamp >= due_ms for record in await now(world, topic, queue))


async def back(world: World, record: Record, level: int = 0, **more: Any) -> Reply:
    header = ConsumerSendMsgBackHeader(record.physical_offset, "CG", level, **more)
    return await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def test_levels_are_read_as_rocketmq_has_them() -> None:
    levels = parse_levels(DEFAULT_LEVELS)
    assert (len(levels), levels[0], levels[2], levels[4], levels[-1]) == (18, 1000, 10_000, 60_000, 7_200_000)
    assert (
        format_levels(levels) == DEFAULT_LEVELS and format_levels(parse_levels("60s 24h 90m")) == "1m 1d 90m"
    )
    for wrong in ("", "5", "1x", "1s,5s", "-1s", "367d", " ".join(["1s"] * 65)):
        with pytest.raises(ValueError, match=r"expected|at most 366d"):
            parse_levels(wrong)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_delivered_and_how_far_that_is_are_one_batch(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two batches a crash between them would have the message delivered again."""
    if not compiled:
        monkeypatch.setattr(delay_service, "FAST", None)

    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path, log) as world:
            for level in (1, 1, 2):
                await world.send("T", b"x", 0, f"DELAY\x01{level}\x02")
            await came(world, count=3)
        delivered = [
            batch for batch in batches(log) if any(getattr(one, "topic", "") == "T" for one in batch)
        ]
        assert delivered
        for batch in delivered:
            assert isinstance(batch[-1], dict) and batch[-1]["op"] == DelayProgress.operation, batch

    run(test)


def test_levels_take_turns_while_others_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that has much to deliver does not keep the others waiting."""
    monkeypatch.setattr(DeliveryPace, "_shared", lambda self: True)
    monkeypatch.setattr(delivery_pace, "SHARED_BATCH_BYTES", 3 * 1024)

    async def test() -> None:
        async with leading(tmp_path, delay_levels=(LONG_MS,) * 18) as world:
            later = {"DELAY\x011\x02": 20, "DELAY\x013\x02": 4, "DELAY\x018\x02": 4}
            sent = [
                world.send("T", properties.encode() + bytes(900), 0, properties)
                for properties, count in later.items()
                for _ in range(count)
            ]
            assert all([(await one).code == 0 for one in sent])
            world.node.follow(None)
            await skip_s(LONG_MS / 1000)
            await asyncio.sleep(0.005)  # all are due now
            world.node.lead()
            records = await came(world, count=28)
            order = [record.body.partition(b"\x02")[0] for record in records]
            ends = [27 - order[::-1].index(level.encode()[:-1]) for level in later]
            assert ends[0] == 27 and max(ends[1:]) < 20, b" ".join(order)

    run(test)


def test_a_delayed_message_comes_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            begun = world.clock.value
            reply = await world.send("T", b"later", 2, "DELAY\x013\x02TAGS\x01a\x02")
            assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "2", "0")
            await nothing_before(world, begun + LEVELS[2], queue=2)
            (waiting,) = await now(world, SCHEDULE_TOPIC, 2)
            told = decode_properties(waiting.properties)
            assert (told["REAL_TOPIC"], told["REAL_QID"], told["DELAY"]) == ("T", "2", "3")
            (found,) = await came(world, queue=2)
            assert found.body == b"later" and found.topic == "T" and found.queue_offset == 0
            assert found.store_timestamp >= waiting.store_timestamp + LEVELS[2]
            told = decode_properties(found.properties)
            assert "DELAY" not in told and told["TAGS"] == "a"
            assert (found.born_timestamp, found.born_host) == (waiting.born_timestamp, waiting.born_host)
            assert world.broker.store.state[DELAYS].rows[3].next == 1

    run(test)


def test_many_come_in_their_order_and_each_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for number in range(100):
                await world.send("T", b"%d" % number, 0, f"DELAY\x01{number % 3 + 1}\x02")
            await delivered(world, 100)
            await asyncio.sleep(0.05)
            assert world.features.schedule.delays.delivered == 100
            bodies = []
            for offset in range(0, 100, 32):
                bodies += [int(record.body) for record in (await world.pull("T", 0, offset)).records]
            assert sorted(bodies) == list(range(100))
            for level in range(3):
                assert [body for body in bodies if body % 3 == level] == list(range(level, 100, 3))

    run(test)


def test_no_batch_is_larger_than_the_log_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None
            monkeypatch.setattr(world.node.appender, "max_batch", 2000, raising=False)
            for number in range(30):
                await world.send("T", b"%03d" % number + bytes(300), 0, "DELAY\x013\x02")
            await delivered(world, 30)
            found = await came(world, count=30)
            assert [int(record.body[:3]) for record in found] == list(range(30))

    run(test)


def test_a_level_beyond_the_last_is_the_last(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", properties="DELAY\x0199\x02")
            (waiting,) = await now(world, SCHEDULE_TOPIC, 17)
            assert decode_properties(waiting.properties)["DELAY"] == "18"
            assert (await world.send("T", properties="DELAY\x01x\x02")).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await world.send("T", properties="DELAY\x01-1\x02")).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await world.send("T", b"now", properties="DELAY\x010\x02")).code == 0
            assert b"now" in [record.body for record in await now(world)], "level 0 is none"

    run(test)


def test_the_next_leader_goes_on_where_the_log_says(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for number in range(3):
                await world.send("T", b"%d" % number, 0, "DELAY\x011\x02")
            await came(world, count=3)
            await world.send("T", b"3", 0, "DELAY\x0118\x02")
            world.node.follow("n1")
            await asyncio.sleep(2 * LEVELS[-1] / 1000)
            world.node.lead()
            found = await came(world, count=4)
            await asyncio.sleep(0.05)
            assert [record.body for record in await now(world)] == [b"0", b"1", b"2", b"3"]
            assert len(found) == 4

    run(test)


def test_what_a_deposed_leader_did_not_commit_is_delivered_by_the_next_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, delay_levels=(LONG_MS,) * 18) as world:
            await world.send("T", b"once", 0, "DELAY\x013\x02")
            world.node.auto = False
            await skip_s(LONG_MS / 1000)
            await delivered(world, 1)
            world.node.follow("n1")  # the delivery goes, and with it the note of it
            world.node.auto = True
            world.node.lead()
            assert [record.body for record in await came(world)] == [b"once"]
            await asyncio.sleep(0.05)
            assert len(await now(world)) == 1

    run(test)


def test_where_a_broker_knows_no_delays_yet_none_are_taken(tmp_path: Path) -> None:
    """It would end at the first operation that says how far they are (docs/howto/upgrade.md)."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None and state_version() >= 2
            world.node.appender.state_version = 1
            refused = await world.send("T", properties="DELAY\x013\x02")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "upgrade" in (refused.remark or "")
            assert (await world.send()).code == 0
            (record,) = await now(world)
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
            assert (await back(world, record)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (await world.send(RETRY, properties="DELAY\x013\x02")).code == 0, "as before: at once"
            assert len(await now(world, RETRY)) == 1

    run(test)


def test_what_is_sent_back_comes_again_and_again_and_is_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
            await world.send("T", b"hard", 1, "KEYS\x01k\x02", flag=7)
            (record,) = await now(world, queue=1)
            first_id = encode_message_id(record.store_host, record.physical_offset)
            assert (await back(world, record)).code == 0
            (waiting,) = await now(world, SCHEDULE_TOPIC, 2)
            assert waiting.reconsume_times == 1, "the first retry has level 3"
            (again,) = await came(world, RETRY)
            told = decode_properties(again.properties)
            assert (told["RETRY_TOPIC"], told["ORIGIN_MESSAGE_ID"], told["KEYS"]) == ("T", first_id, "k")
            assert (again.body, again.flag, again.reconsume_times) == (b"hard", 7, 1)
            assert again.born_timestamp == record.born_timestamp and "DELAY" not in told

            assert (await back(world, again)).code == 0
            (waiting,) = await now(world, SCHEDULE_TOPIC, 3)
            assert waiting.reconsume_times == 2, "and each further one the next"
            _, third = await came(world, RETRY, count=2)
            assert decode_properties(third.properties)["RETRY_TOPIC"] == "T"
            assert decode_properties(third.properties)["ORIGIN_MESSAGE_ID"] == first_id

            assert (await back(world, third, maxReconsumeTimes=2)).code == 0
            (dead,) = await came(world, DLQ)
            told = decode_properties(dead.properties)
            assert (told["RETRY_TOPIC"], dead.reconsume_times, "DELAY" in told) == ("T", 3, False)
            assert (await back(world, record, level=-1)).code == 0
            assert len(await came(world, DLQ, count=2)) == 2

    run(test)


def test_what_cannot_be_sent_back_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            (record,) = await now(world)
            gone = await back(world, record._replace(physical_offset=record.physical_offset + 1))
            assert gone.code == ResponseCode.SYSTEM_ERROR and "look message by offset failed" in str(
                gone.remark
            )
            assert (await back(world, record._replace(physical_offset=-5))).code == ResponseCode.SYSTEM_ERROR
            header = ConsumerSendMsgBackHeader(record.physical_offset, "bad group", 0)
            assert (
                await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            ).code == ResponseCode.INVALID_PARAMETER
            world.node.follow("n1")
            assert (await back(world, record)).code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)


def test_a_retry_that_a_client_sends_itself_waits_as_well(tmp_path: Path) -> None:
    """What all clients fall back to when 36 does not work."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
            begun = world.clock.value
            sent = await world.send(RETRY, b"x", 0, "DELAY\x014\x02RETRY_TOPIC\x01T\x02", reconsumeTimes=1)
            assert sent.code == 0
            await nothing_before(world, begun + LEVELS[3], RETRY)
            (again,) = await came(world, RETRY)
            assert again.reconsume_times == 1 and decode_properties(again.properties)["RETRY_TOPIC"] == "T"
            await world.send(RETRY, b"y", 0, "DELAY\x014\x02", reconsumeTimes=17, maxReconsumeTimes=16)
            (dead,) = await came(world, DLQ)
            assert dead.body == b"y" and "DELAY" not in decode_properties(dead.properties)

    run(test)


def test_levels_may_be_others_at_the_next_start(tmp_path: Path) -> None:
    """What waits in a level that is gone comes after the time of the last one, and nothing is lost."""

    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path / "a", log, delay_levels=(60_000,) * 18) as world:
            for level in (1, 3, 18):
                await world.send("T", b"%d" % level, 0, f"DELAY\x01{level}\x02")
        async with leading(tmp_path / "b", log, delay_levels=(LONG_MS, 20)) as world:
            assert {record.body for record in await came(world, count=2)} == {b"3", b"18"}
            await skip_s(2 * LONG_MS / 1000)  # their clock was ahead of that of this broker
            assert [record.body for record in await came(world, count=3)][2] == b"1"
            (told,) = await now(world, SCHEDULE_TOPIC, 17)
            assert decode_properties(told.properties)["DELAY"] == "18"
        async with leading(tmp_path / "c", log, delay_levels=(20,) * 30) as world:
            await world.send("T", b"30", 1, "DELAY\x0130\x02")
            assert [record.body for record in await came(world, queue=1)] == [b"30"]

    run(test)
