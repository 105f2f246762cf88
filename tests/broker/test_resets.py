"""Resets: done as a whole or not at all, heard by each consumer, and not undone by one that has not heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.offset.offset_processor import MEMBERS_KNOWN_S
from dledger.broker.offset.pending_offsets import MAX_RESETS
from dledger.formats.entry import unpack_header
from dledger.formats.state import RESETS, OffsetReset
from dledger.remoting.bodies import MessageQueue, decode_queue_table
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import QueryConsumerOffsetHeader, ResetOffsetHeader, UpdateConsumerOffsetHeader
from dledger.remoting.operator_headers import CloneGroupOffsetHeader
from dledger.runtime.files import Buffer
from tests.broker.fake_node import FakeLog
from tests.broker.harness import FakeConnection, Pending, Reply, World, pull_header, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading

QUEUES = 4
MOVED = ResponseCode.PULL_OFFSET_MOVED


async def consumed(world: World, messages: int = 6, offset: int = 5) -> None:
    """Group CG is at this offset in queues 0 and 1 of T."""
    for queue in (0, 1):
        for _ in range(messages):
            await world.send(queue=queue)
    for queue in (0, 1):
        await pull(world, 0, queue)
        await report(world, offset, queue)


async def report(world: World, offset: int, queue: int = 0, **how: Any) -> Reply:
    header = UpdateConsumerOffsetHeader("CG", "T", queue, offset)
    return await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header, **how)


async def where(world: World, queue: int = 0, group: str = "CG") -> int:
    reply = await world.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, "T", queue))
    return int(reply.ext["offset"])


def pull(
    world: World, offset: int, queue: int = 0, connection: FakeConnection | None = None, **more: Any
) -> Pending:
    header = pull_header("T", queue, offset, **more)
    return world.ask(RequestCode.PULL_MESSAGE, header, connection=connection)


async def reset(
    world: World,
    *,
    force: bool = True,
    timestamp: int = 0,
    queueId: int = -1,
    offset: int | None = None,
    **how: Any,
) -> Reply:
    header = ResetOffsetHeader("CG", "T", timestamp, force, queueId, offset)
    return await world.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, **how)


def told(reply: Reply) -> dict[int, int]:
    table = decode_queue_table(reply.body, "offsetTable", int)
    assert all(queue == MessageQueue("T", "broker-a", queue.queueId) for queue in table)
    return {queue.queueId: offset for queue, offset in table.items()}


def test_a_reset_sets_every_queue_and_consumers_hear_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            java, cpp = FakeConnection(serial=7), FakeConnection(serial=8)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("j"), connection=java)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"), connection=cpp)
            world.broker.core.clients.consumers["CG"].members["c"].language = "CPP"
            held = pull(world, 6, sysFlag=2, suspendTimeoutMillis=30_000)
            assert not held.done

            reply = await reset(world)
            assert told(reply) == dict.fromkeys(range(QUEUES), 0)
            assert [await where(world, queue) for queue in (0, 1)] == [0, 0]
            moved = await held
            assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, "0"), "it heard at once"

            code, fields = java.notices[-1]
            assert code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            assert fields == {"topic": "T", "group": "CG", "timestamp": "-1", "isForce": "true"}
            assert set(decode_queue_table(java.bodies[-1], "offsetTable", int).values()) == {0}
            listed = json.loads(cpp.bodies[-1])["offsetTable"]
            assert listed[1] == {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": "T"}

    run(test)


def heard(consumer: FakeConnection) -> list[dict[str, str]]:
    """The 220 that it got."""
    return [fields for code, fields in consumer.notices if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]


def test_a_waiting_pull_is_answered_before_its_consumer_is_notified(tmp_path: Path) -> None:
    """A consumer in Java drops its queue with the 220, and leaves an answer that comes behind it unread."""
    order: list[str] = []

    class Ordered(FakeConnection):
        def respond_parts(self, request: Request, parts: Sequence[Buffer]) -> None:
            if request.code == RequestCode.PULL_MESSAGE:
                order.append("answer of the pull")
            super().respond_parts(request, parts)

        def send_oneway(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
            if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                order.append("220")
            super().send_oneway(code, ext, body)

    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            java = Ordered(serial=7)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("j"), connection=java)
            held = pull(world, 6, connection=java, sysFlag=2, suspendTimeoutMillis=30_000)
            await reset(world)
            assert (await held).code == MOVED
            assert order == ["answer of the pull", "220"]

    run(test)


def test_a_reset_of_one_queue_reaches_a_consumer_that_runs(tmp_path: Path) -> None:
    """DefaultMQAdminExt.resetOffsetByQueueId: a commit (15) and a reset (222) of the same queue, without
    `isForce`. A consumer in Java stands still for 10 s with each 220, so it gets one."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            await skip_s(MEMBERS_KNOWN_S)
            java, tool = FakeConnection(serial=7), FakeConnection(serial=8)
            await world.ask(RequestCode.HEART_BEAT, None, heartbeat("j"), connection=java)
            held = [pull(world, 6, queue, sysFlag=2, suspendTimeoutMillis=3_600_000) for queue in (0, 1)]
            how = {"connection": tool, "language": LanguageCode.JAVA}
            assert (await report(world, 0, **how)).code == 0
            assert told(await reset(world, force=False, queueId=0, offset=0, **how)) == {0: 0}
            assert len(heard(java)) == 1
            table = decode_queue_table(java.bodies[-1], "offsetTable", int)
            assert table == {MessageQueue("T", "broker-a", 0): 0}
            moved = await held[0]
            assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, "0"), "it heard at once"
            assert not held[1].done, "the other queue goes on"
            assert await where(world) == 0 and await where(world, queue=1) == 5
            assert len((await pull(world, 0)).records) == 6

            assert told(await reset(world, queueId=0, offset=0, **how)) == {0: 0}
            assert len(heard(java)) == 2, "it has heard of the one before: this is another one"

    run(test)


def test_what_a_consumer_reports_that_has_not_heard_does_not_count(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
            await reset(world)
            assert (await report(world, 6)).remark == "Offset has been previously reset"
            await report(world, 6, queue=1)
            for offset in (6, 3):
                moved = await pull(world, offset, sysFlag=1, commitOffset=6)
                assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, "0")
                assert moved.remark == "OFFSET_RESET"
            assert await where(world) == 0
            assert len((await pull(world, 0)).records) == 6
            await report(world, 2)
            assert await where(world) == 2, "it has heard"
            assert len((await pull(world, 3)).records) == 3
            assert (await pull(world, 3, queue=1)).code == MOVED, "of this queue it has not"
            assert await where(world, queue=1) == 0

    run(test)


def test_the_next_leader_knows_who_has_not_heard(tmp_path: Path) -> None:
    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path / "a", log) as world:
            await consumed(world)
            await reset(world)
            await pull(world, 0, queue=1)
        async with leading(tmp_path / "b", log) as world:
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
            await report(world, 6)
            assert (await pull(world, 6)).ext["nextBeginOffset"] == "0"
            assert await where(world) == 0
            assert len((await pull(world, 4, queue=1)).records) == 2, "this one had heard"

    run(test)


def test_a_reset_is_one_batch_of_the_log(tmp_path: Path) -> None:
    """Its offsets, and who has not heard: never one of them alone."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            world.node.auto = False
            before = len(world.node.log.entries)
            header = ResetOffsetHeader("CG", "T", 0, True)
            asked = world.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            async with asyncio.timeout(20):
                while len(world.node.log.entries) == before:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.001)
            log = world.node.log
            headers = [unpack_header(log.data, position) for position, _ in log.entries[before:]]
            assert [header.batch_remaining for header in headers] == [0, 1, 0], "behind a note of the version"
            assert not asked.done
            assert len((await pull(world, 5)).records) == 1, "it is not told before it is committed"
            world.node.commit()
            assert told(await asked)[0] == 0

    run(test)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"timestamp": -1}, {0: 6, 1: 6}),
        ({"timestamp": 0}, {0: 0, 1: 0}),
        ({"timestamp": 1 << 50}, {0: 6, 1: 6}),
        ({"timestamp": 1 << 50, "force": False}, {0: 5, 1: 5}),
        ({"queueId": 1, "offset": 3}, {0: 5, 1: 3}),
        ({"queueId": 0, "timestamp": -1, "offset": -1}, {0: 6, 1: 5}),
    ],
)
def test_where_a_reset_may_go(wanted: dict[str, Any], expected: dict[int, int], tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            reply = await reset(world, **wanted)
            assert {queue: offset for queue, offset in told(reply).items() if queue in expected} == {
                queue: offset for queue, offset in expected.items() if wanted.get("queueId", queue) == queue
            }
            assert {queue: await where(world, queue) for queue in expected} == expected

    run(test)


def test_what_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, auto_create_group=False) as world:
            await world.send()
            assert (await reset(world)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        async with leading(tmp_path / "b") as world:
            await consumed(world)
            groups = dict(world.broker.store.state.groups)
            header = ResetOffsetHeader("GC", "T", 0, True)
            clone = CloneGroupOffsetHeader("GC", "new", None)
            for code, asked in (
                (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header),
                (RequestCode.CLONE_GROUP_OFFSET, clone),
            ):
                reply = await world.call(code, asked)
                assert (reply.code, reply.remark) == (
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    "Group GC does not exist",
                )
            assert world.broker.store.state.groups == groups  # none came to be
            beyond = await reset(world, queueId=0, offset=7)
            assert "Target offset 7 not in consume queue range [0-6]" in (beyond.remark or "")
            assert (await reset(world, queueId=9, offset=0)).code == ResponseCode.INVALID_PARAMETER
            header = ResetOffsetHeader("CG", "nowhere", 0, True)
            reply = await world.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        async with leading(tmp_path / "c") as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 4
            await consumed(world)
            reply = await reset(world)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and "upgrade it first" in (
                reply.remark or ""
            )
            assert await where(world) == 5

    run(test)


def test_resets_that_nobody_hears_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            rows = world.broker.store.state[RESETS].rows
            for number in range(MAX_RESETS):
                rows[str(number), "T"] = OffsetReset(str(number), "T", ((0, 0),))
            reply = await reset(world)
            assert reply.code == ResponseCode.SYSTEM_BUSY and str(MAX_RESETS) in (reply.remark or "")
            assert await where(world) == 5

    run(test)


def test_a_group_goes_on_where_another_one_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            for topic in ("T", None):
                name = f"copy-{topic}"
                header = CloneGroupOffsetHeader("CG", name, topic)
                assert (await world.call(RequestCode.CLONE_GROUP_OFFSET, header)).code == 0
                assert [await where(world, queue, name) for queue in (0, 1)] == [5, 5]

    run(test)


@pytest.mark.parametrize("code", [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET])
def test_who_waits_for_a_reset_hears_of_the_end_of_the_leader(code: RequestCode, tmp_path: Path) -> None:
    """Requests that wait for a reset are answered when leadership ends, and none of them waits on."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await consumed(world)
            world.node.auto = False
            before = len(world.node.log.entries)
            header: Any = ResetOffsetHeader("CG", "T", 0, True)
            if code is RequestCode.CLONE_GROUP_OFFSET:
                header = CloneGroupOffsetHeader("CG", "copy")
            asked = world.ask(code, header)
            async with asyncio.timeout(20):
                while len(world.node.log.entries) < before + 2:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.001)
            assert not asked.done
            world.node.follow("n1")
            reply = await asked
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert world.broker.core.background.count == 0

    run(test)
