"""Timer messages and recalls: when they come, what is refused, that no switch repeats or loses one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.timer import timer_service
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.properties import decode_properties
from dledger.formats.record import Record, encode_record
from dledger.formats.state import TIMERS
from dledger.formats.timers import TIMER_TOPIC, RecallHandle
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import RecallMessageHeader
from tests.broker.fake_node import FakeLog
from tests.broker.harness import Reply, World, run
from tests.broker.test_delays import came, leading, nothing_before, now
from tests.broker.test_deletions import create, delete

SHORT = {"timer_precision_ms": 1}


def timed(**properties: object) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


@asynccontextmanager
async def standing(root: Path, log: FakeLog | None = None, **changes: Any) -> AsyncIterator[World]:
    """A broker that leads, and its services run; its clock stands until it is set."""
    world = await World(str(root), log, **changes).open()
    tasks = [
        asyncio.ensure_future(world.broker.leadership.services.run()),
        asyncio.ensure_future(world.broker.core.background.run()),
    ]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise AssertionError(end)


def set_clock(world: World, time_ms: int) -> None:
    """Set the clock, and have the timers notice it at once."""
    world.clock.value = time_ms
    world.features.timer.service._wake.set()


async def recall(world: World, handle: str, topic: str = "T") -> Reply:
    return await world.call(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic, handle, "PG"))


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.002)


async def all_of(world: World, count: int, topic: str = "T", queue: int = 0) -> list[Record]:
    """The messages of a queue, once there are so many, and a moment later."""
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            reply = await world.pull(topic, queue, len(found), maxMsgNums=32)
            if reply.code == ResponseCode.SUCCESS:
                found += reply.records
            else:
                await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    assert (await world.pull(topic, queue, len(found))).code != ResponseCode.SUCCESS
    return found


def test_a_timer_message_comes_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **SHORT) as world:
            begun = world.clock.value
            reply = await world.send("T", b"later", 2, timed(TIMER_DELAY_MS=50, TAGS="a", UNIQ_KEY="K"))
            assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "2", "0")
            await nothing_before(world, begun + 50, queue=2)
            (waiting,) = await now(world, TIMER_TOPIC)
            told = decode_properties(waiting.properties)
            due = int(told["TIMER_OUT_MS"])
            assert (told["REAL_TOPIC"], told["REAL_QID"]) == ("T", "2")
            assert begun + 50 <= due <= world.clock.value + 50
            assert RecallHandle.decode(reply.ext["recallHandle"]) == ("T", "broker-a", due, "K")
            (found,) = await came(world, queue=2)
            assert found.body == b"later" and found.topic == "T" and found.queue_offset == 0
            assert due <= found.store_timestamp
            told = decode_properties(found.properties)
            assert "REAL_TOPIC" not in told and "REAL_QID" not in told and told["TAGS"] == "a"
            assert (found.born_timestamp, found.born_host) == (waiting.born_timestamp, waiting.born_host)
            (row,) = world.broker.store.state[TIMERS].rows.values()
            assert row.begin == 0 and row.time >= due and row.next == 1

    run(test)


@pytest.mark.parametrize("sent_before", [False, True])
def test_timers_that_an_old_import_brought_without_a_row_come(tmp_path: Path, sent_before: bool) -> None:
    """Imports of earlier versions wrote no row of the table `timers`: nothing was delivered yet, all wait."""
    log = FakeLog()
    due = 1_700_000_000_500
    for number in range(2):
        properties = timed(TIMER_OUT_MS=due, REAL_TOPIC="T", REAL_QID=0, UNIQ_KEY=f"K{number}")
        position = log.end_pos + HEADER_SIZE
        fields = {"queue_offset": number, "physical_offset": position, "properties": properties}
        log.append(encode_record(topic=TIMER_TOPIC, body=b"old %d" % number, **fields), 0)

    async def test() -> None:
        async with standing(tmp_path, log, **SHORT) as world:
            await create(world, "T", 1)
            if sent_before:
                await world.send("T", b"new", 0, timed(TIMER_DELIVER_MS=due + 1))
            set_clock(world, due + 1)
            wanted = [b"old 0", b"old 1", *([b"new"] if sent_before else [])]
            assert [one.body for one in await all_of(world, len(wanted))] == wanted

    run(test)


@pytest.mark.parametrize(
    ("properties", "wait_ms"),
    [
        ({"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 5000}, 1000),
        ({"TIMER_DELAY_MS": 1500, "TIMER_DELIVER_MS": 1}, 1500),
        ({"TIMER_DELIVER_MS": 1_700_000_002_500}, 2500),
        ({"__STARTDELIVERTIME": 1_700_000_002_001}, 2001),
        ({"TIMER_DELIVER_MS": 1_700_000_000_000}, None),
        ({"TIMER_DELAY_SEC": 0}, None),
        ({"TIMER_DELAY_MS": -5}, None),
        ({"TIMER_DELAY_MS": 5000, "TIMER_OUT_MS": 7}, None),
    ],
)
def test_when_it_is_due(tmp_path: Path, properties: dict[str, object], wait_ms: int | None) -> None:
    async def test() -> None:
        for precision in (1, 100, 1000):
            world = await World(str(tmp_path / str(precision)), timer_precision_ms=precision).open()
            assert world.clock.value == 1_700_000_000_000
            await world.send("T", b"x", 0, timed(**properties))
            if wait_ms is None:
                assert len(await now(world)) == 1 and await now(world, TIMER_TOPIC) == []
            else:
                (waiting,) = await now(world, TIMER_TOPIC)
                due = int(decode_properties(waiting.properties)["TIMER_OUT_MS"]) - world.clock.value
                assert due % precision == 0 and wait_ms <= due < wait_ms + precision

    run(test)


@pytest.mark.parametrize(
    ("properties", "changes", "code", "remark"),
    [
        ({"TIMER_DELAY_SEC": 3 * 86400 + 1}, {}, 13, "should not be bigger than the max delay 259200000ms"),
        ({"TIMER_DELAY_SEC": "9" * 19}, {"timer_max_delay_s": 366 * 86400}, 13, "max delay"),
        ({"TIMER_DELIVER_MS": "9" * 19}, {}, 13, "max delay"),
        ({"TIMER_DELAY_SEC": "9" * 20}, {}, 13, "TIMER_DELAY_SEC is '999"),
        ({"TIMER_DELAY_MS": "soon"}, {}, 13, "TIMER_DELAY_MS is 'soon'"),
        ({"TIMER_DELIVER_MS": ""}, {}, 13, "TIMER_DELIVER_MS is ''"),
        ({"TIMER_DELAY_SEC": 1, "TIMER_DEL_UNIQKEY": "K"}, {}, 13, "recall the message"),
        ({"TIMER_DELAY_SEC": 1}, {"timer_wheel_enable": False}, 1, "timerWheelEnable is false"),
        ({"TIMER_DELAY_SEC": 1, "TRAN_MSG": "true"}, {}, 13, "cannot be delayed"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, properties: dict[str, object], changes: dict[str, Any], code: int, remark: str
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **changes).open()
        reply = await world.send("T", b"x", 0, timed(**properties))
        assert reply.code == code and remark in str(reply.remark)
        assert await now(world) == [] and await now(world, TIMER_TOPIC) == []

    run(test)


def test_too_many_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path, max_timer_messages=3) as world:
            for _ in range(3):
                assert (await world.send("T", b"x", 0, timed(TIMER_DELAY_SEC=60))).code == 0
            await until(lambda: world.features.timer.claims.waiting == 3)
            reply = await world.send("T", b"x", 0, timed(TIMER_DELAY_SEC=60))
            assert reply.code == 1 and "max num limit is 3" in str(reply.remark)

    run(test)


def test_nobody_waits_while_a_member_knows_no_timers(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert world.node.appender is not None
        world.node.appender.state_version = TIMERS.since - 1
        reply = await world.send("T", b"x", 0, timed(TIMER_DELAY_SEC=1))
        assert reply.code == 14 and await now(world, TIMER_TOPIC) == []

    run(test)


def test_they_come_in_order_of_their_times_and_each_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path, **SHORT) as world:
            start = world.clock.value + 1000
            for number in range(120):
                at = start + number * 7 % 100
                await world.send("T", b"%d %d" % (at, number), 0, timed(TIMER_DELIVER_MS=at))
            for tick in range(0, 100, 9):
                set_clock(world, start + tick)
                await asyncio.sleep(0.005)
            set_clock(world, start + 100)
            found = [tuple(map(int, record.body.split())) for record in await all_of(world, 120)]
            assert found == sorted(found)
            assert world.features.timer.service.delivered == 120

    run(test)


def test_a_new_leader_goes_on_where_the_other_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of one time, with recalls of it."""
    monkeypatch.setattr(timer_service, "BATCH_MESSAGES", 7)
    monkeypatch.setattr(timer_service, "FUSED_MESSAGES", 7)

    async def test() -> None:
        log, sent = FakeLog(), 100
        async with standing(tmp_path / "a", log, **SHORT) as world:
            at = world.clock.value + 600
            handles = [
                (await world.send("T", b"%d" % number, 0, timed(TIMER_DELIVER_MS=at))).ext["recallHandle"]
                for number in range(sent)
            ]
            for number in range(0, sent, 3):
                assert (await recall(world, handles[number])).code == 0
            set_clock(world, at)
            async with asyncio.timeout(20):
                while not world.features.timer.service.delivered:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0)
            world.node.follow(None)
            first = world.features.timer.service.delivered
        async with standing(tmp_path / "b", log, **SHORT) as world:
            set_clock(world, at)
            found = [int(record.body) for record in await all_of(world, 66)]
            assert found == [number for number in range(sent) if number % 3]
            assert 0 < first < 66

    run(test)


def test_what_is_not_applied_is_waited_for(tmp_path: Path) -> None:
    """Also a recall: what is due is delivered when all of it is known."""

    async def test() -> None:
        async with standing(tmp_path, **SHORT) as world:
            at = world.clock.value + 100
            first = await world.send("T", b"first", 0, timed(TIMER_DELIVER_MS=at))
            world.node.auto = False
            second = world.send("T", b"second", 0, timed(TIMER_DELIVER_MS=at - 1))
            recalled = asyncio.ensure_future(recall(world, first.ext["recallHandle"]))
            await asyncio.sleep(0.01)
            set_clock(world, at)
            await until(lambda: world.features.timer.service._due is not None)
            await asyncio.sleep(0.02)
            assert world.features.timer.service.delivered == 0 and not recalled.done()
            # Its time is claimed: a recall comes too late, a message is due later.
            assert (await recall(world, first.ext["recallHandle"])).code == 604
            third = world.send("T", b"third", 0, timed(TIMER_DELIVER_MS=at + 1))
            world.node.auto = True
            world.node.commit()
            assert [(await one).code for one in (second, recalled, third)] == [0, 0, 0]
            assert [record.body for record in await all_of(world, 1)] == [b"second"]
            set_clock(world, at + 1)
            assert [record.body for record in await all_of(world, 2)] == [b"second", b"third"]

    run(test)


def test_what_was_recalled_never_comes(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path, **SHORT) as world:
            at = world.clock.value + 150
            told = await world.send("T", b"no", 0, timed(TIMER_DELIVER_MS=at, UNIQ_KEY="K1"))
            await world.send("T", b"yes", 0, timed(TIMER_DELIVER_MS=at, UNIQ_KEY="K2"))
            reply = await recall(world, told.ext["recallHandle"])
            assert (reply.code, reply.ext["msgId"]) == (0, "K1")
            assert (await recall(world, told.ext["recallHandle"])).code == 0
            set_clock(world, at)
            assert [record.body for record in await all_of(world, 1)] == [b"yes"]
            assert world.features.timer.service.recalled == 1
            late = await recall(world, told.ext["recallHandle"])
            assert late.code == 604 and "timestamp invalid" in str(late.remark)

    run(test)


def test_what_was_sent_before_less_was_allowed_is_recalled(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path, timer_max_delay_s=100_000) as world:
            told = await world.send("T", b"no", 0, timed(TIMER_DELAY_SEC=99_000, UNIQ_KEY="K1"))
            world.broker.settings.now = replace(world.config, timer_max_delay_s=100)
            assert (await world.send("T", b"no", 0, timed(TIMER_DELAY_SEC=99_000))).code == 13
            assert (await recall(world, told.ext["recallHandle"])).code == 0

    run(test)


def test_recalls_are_refused_as_rocketmq_does(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send("T", b"x", 0)
        at = world.clock.value + 5000
        good = RecallHandle("T", "broker-a", at, "K")
        for handle, topic, code, remark in (
            ("", "T", 604, "recall handle is invalid"),
            ("äöü", "T", 604, "recall handle is invalid"),
            ("djEgVA==", "T", 604, "recall handle is invalid"),
            ("=" * 9, "T", 604, "recall handle is invalid"),
            ("A" * 5000, "T", 604, "recall handle is invalid"),
            (good._replace(topic="U").encode(), "T", 604, "topic not match"),
            (good._replace(broker_name="b").encode(), "T", 604, "broker service not available"),
            (good._replace(due=world.clock.value).encode(), "T", 604, "timestamp invalid"),
            (good._replace(due=1 << 62).encode(), "T", 604, "timestamp invalid"),
            (good._replace(message_id="a\x01b").encode(), "T", 604, "recall handle is invalid"),
            (good.encode(), "U", 17, "not exist"),
        ):
            reply = await recall(world, handle, topic)
            assert reply.code == code and remark in str(reply.remark), (handle, reply)
        assert await now(world, TIMER_TOPIC) == []
        assert (await recall(world, good.encode())).code == 0  # RocketMQ does not look for the message either

    run(test)


def test_a_broker_may_know_no_recalls(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), recall_enable=False).open()
        told = await world.send("T", b"x", 0, timed(TIMER_DELAY_SEC=60))
        assert told.code == 0 and "recallHandle" not in told.ext
        handle = RecallHandle("T", "broker-a", world.clock.value + 5000, "K").encode()
        assert (await recall(world, handle)).code == 16

    run(test)


def test_what_waits_for_long_is_put_into_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention leaves the newer copy. The message is delivered once, and an earlier recall of it still
    counts."""
    monkeypatch.setattr(timer_service, "KEEP_S", 0.02)
    monkeypatch.setattr(timer_service, "BATCH_MESSAGES", 4)
    monkeypatch.setattr(timer_service, "FUSED_MESSAGES", 4)

    async def test() -> None:
        world = await World(str(tmp_path), timer_roll_window_slots=50, **SHORT).open()
        service = asyncio.ensure_future(world.broker.leadership.services.run())
        at = world.clock.value + 3600_000
        told = [
            await world.send("T", b"%d" % number, 0, timed(TIMER_DELIVER_MS=at + number % 3))
            for number in range(20)
        ]
        assert (await recall(world, told[7].ext["recallHandle"])).code == 0
        first = await world.broker.kept_from()
        world.clock.value += 51
        await until(lambda: world.features.timer.service.rolled == 21)
        assert (await recall(world, told[9].ext["recallHandle"])).code == 0
        (row,) = world.broker.store.state[TIMERS].rows.values()
        assert row.begin == 21
        kept = await world.broker.kept_from()
        assert first is not None and kept is not None and kept > first
        (again,) = (await world.pull(TIMER_TOPIC, 0, 21, maxMsgNums=1)).records
        assert again.body == b"0" and decode_properties(again.properties)["TIMER_ROLL_TIMES"] == "1"
        # What is due soon is not put there again.
        world.clock.value = at - 10
        await asyncio.sleep(0.15)
        assert world.features.timer.service.rolled == 21
        world.clock.value = at + 100
        found = [int(record.body) for record in await all_of(world, 18)]
        wanted = sorted((number % 3, number) for number in range(20) if number not in (7, 9))
        assert found == [number for _, number in wanted]
        await until(lambda: min(world.broker.store.state[TIMERS].rows) == 43)
        assert await world.broker.kept_from() is None
        service.cancel()

    run(test)


@pytest.mark.parametrize("rolled", [False, True], ids=["due", "rolled over"])
def test_what_waits_for_a_deleted_topic_does_not_come_to_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled: bool
) -> None:
    """Also where it would have been put into the log again in between: a copy lies behind the deletion."""
    monkeypatch.setattr(timer_service, "KEEP_S", 0.02)

    async def test() -> None:
        async with standing(tmp_path, timer_roll_window_slots=50, **SHORT) as world:
            timers, at = world.features.timer.service, world.clock.value + 3600_000
            await create(world)
            for number in range(3):
                await world.send("T", b"old", 0, timed(TIMER_DELIVER_MS=at + number))
            await delete(world)
            await create(world)
            if rolled:
                world.clock.value += 51
                await until(lambda: timers.dropped == 3)
            await world.send("T", b"new", 0, timed(TIMER_DELIVER_MS=at + 1))
            set_clock(world, at + 100)
            assert [record.body for record in await all_of(world, 1)] == [b"new"]
            await until(lambda: timers.dropped == 3)
            assert timers.rolled == 0 and timers.delivered == 1

    run(test)


def test_a_clock_that_went_back_loses_and_delays_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **SHORT).open()
        service = asyncio.ensure_future(world.broker.leadership.services.run())
        start = world.clock.value
        world.clock.value = start + 3600_000
        await world.send("T", b"ahead", 0, timed(TIMER_DELAY_MS=5))
        await world.send("T", b"far", 0, timed(TIMER_DELAY_SEC=60))
        await asyncio.sleep(0.01)
        world.clock.value += 5
        assert [record.body for record in await all_of(world, 1)] == [b"ahead"]
        world.clock.value = start
        told = await world.send("T", b"back", 0, timed(TIMER_DELAY_MS=50))
        await world.send("T", b"and forth", 0, timed(TIMER_DELAY_MS=40))
        await world.send("T", b"no", 0, timed(TIMER_DELAY_MS=50, UNIQ_KEY="N"))
        handle = RecallHandle.decode(told.ext["recallHandle"])._replace(message_id="N")
        assert (await recall(world, handle.encode())).code == 0
        assert len(world.broker.store.state[TIMERS].rows) == 2
        await asyncio.sleep(0.05)
        assert len(await now(world)) == 1
        world.clock.value = start + 50
        assert [record.body for record in await all_of(world, 3)] == [b"ahead", b"and forth", b"back"]
        world.clock.value = start + 3600_000 + 60_000 + 5
        assert [record.body for record in await all_of(world, 4)][3:] == [b"far"]
        await until(lambda: len(world.broker.store.state[TIMERS].rows) == 1)
        service.cancel()

    run(test)


def test_one_time_with_more_than_memory_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_service, "NEAR_UNITS", 10)
    monkeypatch.setattr("dledger.broker.timer.timer_wheel.ARRIVED_UNITS", 10)
    monkeypatch.setattr(timer_service, "FOLLOWED_UNITS", 5)
    monkeypatch.setattr(timer_service, "BATCH_MESSAGES", 7)
    monkeypatch.setattr(timer_service, "FUSED_MESSAGES", 7)
    monkeypatch.setattr(timer_service, "FUSED_MESSAGES", 7)

    async def test() -> None:
        async with standing(tmp_path, **SHORT) as world:
            at = world.clock.value + 400
            for number in range(60):
                told = await world.send("T", b"%d" % number, 0, timed(TIMER_DELIVER_MS=at + number % 2))
                if number % 10 == 3:
                    assert (await recall(world, told.ext["recallHandle"])).code == 0
            set_clock(world, at + 1)
            found = [int(record.body) for record in await all_of(world, 54)]
            wanted = sorted((number % 2, number) for number in range(60) if number % 10 != 3)
            assert found == [number for _, number in wanted]

    run(test)


def test_retention_leaves_what_waits(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert await world.broker.kept_from() is None
        await world.send("T", b"first", 0)
        await world.send("T", b"level", 0, "DELAY\x013\x02")
        kept = await world.broker.kept_from()
        assert kept == world.node.log.entries[-1][0]
        await world.send("T", b"timer", 0, timed(TIMER_DELAY_SEC=5))
        assert await world.broker.kept_from() == kept
        other = await World(str(tmp_path / "other")).open()
        await other.send("T", b"timer", 0, timed(TIMER_DELAY_SEC=5))
        kept = await other.broker.kept_from()
        await other.send("T", b"level", 0, "DELAY\x013\x02")
        assert kept is not None and await other.broker.kept_from() == kept

    run(test)
