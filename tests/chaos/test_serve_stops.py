"""Stops in good order under load: clients learn who leads, and no request is left without an outcome."""

from __future__ import annotations

import asyncio

import pytest
from serve_group import ServeGroup

from chaos.sim import World
from dledger.client import DLedgerClient, RequestFailed
from runtime.env import Env

NAMES = ("n0", "n1", "n2")


@pytest.mark.parametrize("seed", range(3))
def test_a_rolling_restart_leaves_no_outcome_unknown(seed: int) -> None:
    with World(seed) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"first")
        acknowledged: list[int] = []
        failed: list[str] = []
        done = False

        async def write(env: Env) -> None:
            async with DLedgerClient(env, group.peers, 3.0, group="g") as client:
                while not done:
                    try:
                        acknowledged.append(await client.append(bytes(200)))
                    except RequestFailed as error:
                        failed.append(str(error))
                    await asyncio.sleep(0.001)

        for number in range(6):
            world.node(f"w{number}")
            world.spawn(f"w{number}", write)
        for name in NAMES:
            world.run_for(2)
            group.stop(name)
            world.run_for(0.5)
            group.start(name)
            world.run_until(group.all_serve, 10)
        done = True
        world.run_for(2)
        assert len(acknowledged) > 1000 and len(dict.fromkeys(acknowledged)) == len(acknowledged)
        assert not failed, failed[:3]
