"""Topics where only the broker writes: no client sends there, and nothing that waits goes there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType

import pytest

from dledger._fast import FAST
from dledger.broker.schedule import delay_service
from dledger.broker.timer import timer_service
from dledger.broker.topic.topic_names import DISCARD_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, SELF_TEST_TOPIC
from dledger.formats.properties import encode_properties
from dledger.formats.timers import TIMER_TOPIC
from dledger.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import World, run, send_header
from tests.broker.test_delays import came, leading, now
from tests.broker.test_plain_sends import KEY, V1, Side, compare, frame, ways
from tests.broker.test_send import batch_body
from tests.broker.test_signed_sends import frame as signed_frame
from tests.broker.test_signed_sends import ways as signed_ways

OWN = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, DISCARD_TOPIC, SELF_TEST_TOPIC, "rmq_sys_other")
USES = {
    "properties": "DELAY\x0118\x02",
    "timer": "TIMER_DELAY_SEC\x0150\x02",
    "half": "TRAN_MSG\x01true\x02PGROUP\x01P\x02",
}
KINDS = pytest.mark.parametrize(
    "fast",
    [pytest.param(FAST, id="compiled", marks=pytest.mark.skipif(FAST is None, reason="not built")),
     pytest.param(None, id="python")],
)  # fmt: skip


async def use(world: World) -> None:
    """Have the leader write into each of its topics itself."""
    for text in USES.values():
        assert (await world.send("T", properties=text)).code == 0
    writer = world.broker.gate.writer
    assert writer is not None and writer.slot(DISCARD_TOPIC) is not None


@pytest.mark.parametrize("topic", OWN)
def test_nobody_sends_where_the_broker_writes_itself(tmp_path: Path, topic: str) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await use(world)
        entries = len(world.node.log.entries)
        told = f"Sending message to topic[{topic}] is forbidden."
        plain, odd = b"UNIQ_KEY\x01abc\x02", b"A\x01b\x02"
        for text in ("", KEY.format(1), *USES.values(), "DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"):
            for queue in (0, -1):
                reply = await world.send(topic, b"x", queue, text)
                assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, told)
        for properties in (plain, odd):
            body = batch_body((b"a", properties))
            reply = await world.call(RequestCode.SEND_BATCH_MESSAGE, send_header(topic, 0, ""), body)
            assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, told)
        assert len(world.node.log.entries) == entries

    run(test)


async def refused(sides: list[Side], data: bytes) -> None:
    entries = [len(side.world.node.log.entries) for side in sides]
    for side in sides:
        side.wire.written.clear()
    await compare(sides, data)
    for side, before in zip(sides, entries, strict=True):
        assert b'"code":16,' in side.wire.written and b"is forbidden." in side.wire.written
        assert len(side.world.node.log.entries) == before


def test_plain_sends_there_are_refused_as_well(tmp_path: Path) -> None:
    async def test() -> None:
        sides = await ways(str(tmp_path))
        for side in sides:
            await use(side.world)
        for topic in OWN:
            await refused(sides, frame({"topic": topic, "queueId": 0}))
            await refused(sides, frame({"topic": topic, "queueId": 0}, code=V1))

    run(test)


@pytest.mark.skipif(FAST is None, reason="not built")
def test_and_signed_ones(tmp_path: Path) -> None:
    async def test() -> None:
        sides = await signed_ways(str(tmp_path))
        for side in sides:
            await use(side.world)
        for topic in OWN:
            await refused(sides, signed_frame("default", topic=topic, queueId=0))

    run(test)


def put(world: World, topic: str, **properties: str) -> None:
    """A message in a topic of the broker's own, as earlier versions let clients send it there."""
    writer = world.broker.gate.writer
    assert writer is not None
    slot = writer.slot(topic)
    assert slot is not None
    writer.add_message(slot, 0, 0, 0, 0, bytes(8), 0, b"loop", encode_properties(properties).encode())


@KINDS
@pytest.mark.parametrize("to", [SCHEDULE_TOPIC, HALF_TOPIC])
def test_a_delayed_message_for_such_a_topic_ends_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: ModuleType | None, to: str
) -> None:
    monkeypatch.setattr(delay_service, "FAST", fast)

    async def test() -> None:
        async with leading(tmp_path) as world:
            assert (await world.send("T", b"first", 0, "DELAY\x011\x02")).code == 0
            await came(world)
            put(world, SCHEDULE_TOPIC, DELAY="1", REAL_TOPIC=to, REAL_QID="0")
            assert (await world.send("T", b"last", 0, "DELAY\x011\x02")).code == 0
            await came(world, count=2)
            assert world.features.schedule.delays.dropped == 1
            await asyncio.sleep(0.1)
            assert len(await now(world, SCHEDULE_TOPIC)) == 3 and await now(world, HALF_TOPIC) == []

    run(test)


@KINDS
def test_and_so_does_a_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: ModuleType | None
) -> None:
    monkeypatch.setattr(timer_service, "FAST", fast)

    async def test() -> None:
        async with leading(tmp_path, timer_precision_ms=10) as world:
            assert (await world.send("T", b"first", 0, "TIMER_DELAY_MS\x0120\x02")).code == 0
            await came(world)
            due = str(world.clock.value + 30)
            put(world, TIMER_TOPIC, TIMER_OUT_MS=due, REAL_TOPIC=SCHEDULE_TOPIC, REAL_QID="0")
            assert (await world.send("T", b"last", 0, "TIMER_DELAY_MS\x0180\x02")).code == 0
            await came(world, count=2)
            assert world.features.timer.service.dropped == 1 and await now(world, SCHEDULE_TOPIC) == []

    run(test)
