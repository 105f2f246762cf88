"""28009 AUDIT_LOG: the applied entries of the log, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dledger.broker.audit import log_processor
from dledger.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import Reply, World, run


def serving(path: Path, test: Callable[[World], Awaitable[None]], segment_size: int = 1 << 40) -> None:
    """Run the test with a broker that reads from the device."""

    async def running() -> None:
        world = World(str(path))
        world.node.log.segment_size = segment_size
        await world.open()
        background = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        try:
            await test(world)
        finally:
            background.cancel()

    run(running)


async def ask(world: World, first: int, most: int = 1 << 20) -> Reply:
    return await world.ask(RequestCode.AUDIT_LOG, {"first": str(first), "maxBytes": str(most)})


def test_the_log_comes_as_it_is_stored_from_any_entry_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for number in range(5):
            await world.send(body=b"%d" % number)
        log = world.node.log
        for cold in (0, log.end_pos):
            log.cold_below = cold
            for first, (position, _) in enumerate(log.entries):
                reply = await ask(world, first)
                assert reply.code == ResponseCode.SUCCESS
                assert reply.body == log.data[position:]
                said = {"position": str(position), "applied": str(log.last_index), "begin": "0"}
                assert reply.ext.items() >= said.items()

    serving(tmp_path, test)


def test_a_small_request_gets_at_least_one_entry_and_never_more_than_is_applied(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.send(body=b"x" * 1000)
        await world.send()
        log = world.node.log
        position, size = log.entries[-2]
        assert (await ask(world, log.last_index - 1, 1)).body == log.data[position : position + size]
        assert len((await ask(world, log.last_index - 1, size + 10)).body) == size + 10
        world.node.auto = False
        end = log.end_pos
        world.send()
        reply = await ask(world, 0)
        assert log.end_pos > end == len(reply.body)
        behind = await ask(world, log.last_index)
        assert (behind.code, behind.ext["position"], behind.body) == (ResponseCode.SUCCESS, "-1", b"")

    serving(tmp_path, test)


def test_an_answer_ends_with_the_segment(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        log = world.node.log
        await world.send(body=b"x" * 1000)
        log.roll()
        await world.send(body=b"y")
        assert len((await ask(world, 0)).body) == 4096
        reply = await ask(world, log.last_index)
        assert (reply.ext["position"], reply.body) == ("4096", bytes(log.data[4096:]))

    serving(tmp_path, test, segment_size=4096)


def test_entries_that_retention_took_are_told_from_entries_to_come(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.send()
        await world.send()
        log = world.node.log
        log.first_index, log.begin_pos = log.last_index, log.entries[-1][0]
        reply = await ask(world, 0)
        assert (reply.ext["position"], reply.ext["begin"], reply.body) == ("-1", str(log.last_index), b"")

    serving(tmp_path, test)


@pytest.mark.parametrize(("first", "most"), [(-1, 100), (0, 0), (0, -1)])
def test_a_wrong_range_is_refused(tmp_path: Path, first: int, most: int) -> None:
    async def test(world: World) -> None:
        reply = await ask(world, first, most)
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert reply.remark is not None and "ask for 1 or more" in reply.remark

    serving(tmp_path, test)


def test_too_many_readers_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        await world.send()
        world.node.log.cold_below = world.node.log.end_pos
        monkeypatch.setattr(log_processor, "MAX_LOG_READS", 2)
        header = {"first": "0", "maxBytes": "100"}
        asked = [world.ask(RequestCode.AUDIT_LOG, header) for _ in range(3)]
        codes = sorted([(await one).code for one in asked])
        assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
        assert (await ask(world, 0)).code == ResponseCode.SUCCESS

    serving(tmp_path, test)
