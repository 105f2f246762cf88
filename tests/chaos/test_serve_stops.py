"""Stops in good order under load: clients learn the new leader, and no request is left without an outcome."""

from __future__ import annotations

import asyncio

import pytest
from serve_group import ServeGroup

from dledger.chaos.machine import World
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

NAMES = ("n0", "n1", "n2")


class Writers:
    """Six clients in a closed loop."""

    def __init__(self, world: World, group: ServeGroup) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.done = False
        self._world = world
        self._peers = group.peers
        for number in range(6):
            world.node(f"w{number}")
            world.spawn(f"w{number}", self._write)

    async def _write(self, env: Env) -> None:
        async with DLedgerClient(env, self._peers, 3.0, group="g") as client:
            while not self.done:
                try:
                    self.acknowledged.append(await client.append(bytes(200)))
                except RequestFailed as error:
                    self.failed.append(str(error))
                await asyncio.sleep(0.004)  # of the six there is always one under way

    def finish(self) -> None:
        self.done = True
        self._world.run_for(2)
        assert len(self.acknowledged) > 1000
        assert len(dict.fromkeys(self.acknowledged)) == len(self.acknowledged)
        assert not self.failed, self.failed[:3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sample(1)
def test_a_rolling_restart_leaves_no_outcome_unknown(seed: int) -> None:
    with World(seed) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"first")
        writers = Writers(world, group)
        for name in NAMES:
            world.run_for(2)
            group.stop(name)
            world.run_for(0.5)
            group.start(name)
            world.run_until(group.all_serve, 10)
        writers.finish()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.sample(2)
def test_a_successor_that_is_stopped_at_once_does_not_hand_over_to_who_is_leaving(seed: int) -> None:
    """The former leader still answers, and is connected and healthy; the third node takes over."""
    with World(seed) as world:
        group = ServeGroup(world, NAMES)
        group.append(b"first")
        world.run_for(2)
        writers = Writers(world, group)
        world.run_for(1)
        first = group.leader()
        group.ask_to_stop(first)

        def successor() -> str | None:
            return next((n for n, nodes in group.nodes.items() if n != first and nodes[0].serving), None)

        world.run_until(lambda: successor() is not None, 5)
        world.run_for(0.03)
        second = successor()
        assert second is not None and group.runs(first)
        group.ask_to_stop(second)
        while group.runs(first):
            world.run_for(0.002)
            assert not group.runs(first) or not group.nodes[first][0].serving
        group.start(first)
        world.run_until(lambda: not group.runs(second), 5)
        group.start(second)
        world.run_until(lambda: len(group.nodes) == len(NAMES) and group.all_serve(), 5)
        assert group.leader() not in (first, second)
        writers.finish()
