"""A broker whose event loop stood still does nothing that it held before (`runtime.standstill`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from dledger.broker.offset.offset_processor import MEMBERS_KNOWN_S
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from tests.broker.harness import FakeConnection, World, run, skip_s
from tests.broker.test_forwarding import follower

PAUSE_S = 10.0


@asynccontextmanager
async def noticing(world: World) -> AsyncIterator[None]:
    """The broker notices pauses of its loop."""
    task = asyncio.ensure_future(world.broker.standstill.run())
    await asyncio.sleep(0)
    yield
    task.cancel()


@pytest.mark.parametrize("who_comes", ["this node", "another leader"])
@pytest.mark.parametrize("paused", [True, False])
def test_what_was_held_for_a_leader_is_not_done(who_comes: str, paused: bool, tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path, hold_while_electing_s=60.0)
        world.node.follow(None)
        async with noticing(world):
            held = world.send(flag_bits=0)
            await asyncio.sleep(0)
            assert not held.done and not wire.sent
            if paused:
                await skip_s(PAUSE_S)
            if who_comes == "this node":
                world.node.lead()
            else:
                world.node.follow("n1")
            await skip_s(0)
            stored = world.broker.store.state.next_offset("T", 0)
            assert (stored, len(wire.sent)) == ((0, 0) if paused else EXPECTED[who_comes])

    run(test)


EXPECTED = {"this node": (1, 0), "another leader": (0, 1)}


@pytest.mark.parametrize("begun", [True, False])
def test_tasks_of_requests_from_before_are_cancelled(begun: bool, tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        running = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        done: list[str] = []

        async def work() -> None:
            await asyncio.Event().wait()
            done.append("executed")

        request = cast(Request, None)
        async with noticing(world):
            world.broker.core.background.start(cast(Connection, world.connection), request, work())
            if begun:
                await asyncio.sleep(0)
            assert world.broker.core.background.count == 1
            if begun:
                await skip_s(PAUSE_S)
                world.broker.standstill.check()
            else:
                world.broker.core.background.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert world.broker.core.background.count == 0 and not running.done()
        running.cancel()

    run(test)


def test_after_a_standstill_a_leader_knows_nobody_again(tmp_path: Path) -> None:
    """All connections are closed, so for a minute no commit sets a group back, as with a new leader."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        async with noticing(world):
            for seconds in (MEMBERS_KNOWN_S / 2, MEMBERS_KNOWN_S / 2):
                with_pause = world.broker.standstill
                await skip_s(seconds)
                with_pause.check()
            assert world.broker.gate.serving_s < MEMBERS_KNOWN_S / 2

    run(test)


class Late(FakeConnection):
    """A connection of before a standstill."""

    def is_current(self) -> bool:
        return False


def test_a_request_from_before_goes_to_no_leader(tmp_path: Path) -> None:
    """Its answer was on the way from the leader before, or it waited for a read point."""

    async def test() -> None:
        world, wire = await follower(tmp_path)
        (request,) = [object()]
        for late in (world.broker.gate.wait_or_refuse, world.broker.gate.wait_for_leader):
            late(cast(Connection, Late()), cast(Request, request))
        world.node.follow(None)
        for late in (world.broker.gate.wait_or_refuse, world.broker.gate.wait_for_leader):
            late(cast(Connection, Late()), cast(Request, request))
        world.node.follow("n1")
        assert not wire.sent

    run(test)
