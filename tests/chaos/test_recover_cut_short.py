"""`recover --force-single` cut short before any of its effects (a kill, a loss of power), and repeated."""

from __future__ import annotations

import pytest
from test_derived_states import Server

from dledger.chaos.machine import World
from dledger.commands.recover import force_single
from dledger.formats.entry import HEADER_SIZE
from dledger.runtime.env import Env

SEGMENT = 64 * 1024
ROOM = 68
"""Bytes that the last entry leaves in its segment: too few for the entry of the new cluster."""


def filled(world: World) -> tuple[Server, int]:
    """A stopped server whose log ends shortly before the end of its second segment, and its last index."""
    server = Server(world)
    while (rest := 2 * SEGMENT - (server.node.log.end_pos if server.node else 0)) > 14_000:
        server.applied(server.append(bytes(6000)))
    last = server.append(bytes(rest - HEADER_SIZE - ROOM))
    server.applied(last)
    world.run_for(1.5)  # a checkpoint
    server.stop()
    return server, last


def recovers(effect: int, power: str | None) -> int:
    """Cut a run short before this effect (0: not at all), repeat it, and start. Returns the effects of the
    last run."""
    with World(1) as world:
        server, last = filled(world)

        async def main(env: Env) -> None:
            server.report = await force_single(env, "/store/g", yes=True)

        process = world.spawn("n0", main)
        if effect:
            process.crash_at, process.crash_power = effect, power
            world.run_until(lambda: server.machine.process is None, 10)
            server.report = None
            process = world.restart("n0", main)
        world.run_until(lambda: server.machine.process is None, 10)
        assert server.report is not None and server.report.last_index >= last
        server.start()
        after = server.append(b"after")
        server.applied(after)
        assert server.node is not None and not server.node.log.faulty
        server.stop()
        world.power_cut("n0")
        server.start()
        assert server.node.log.last_index >= after
        assert {inode_size(server, path) for path in segments(server)} == {SEGMENT}
        return process.effects


def segments(server: Server) -> list[str]:
    return [path for path in server.machine.disk.files("/store") if "/data/" in path]


def inode_size(server: Server, path: str) -> int:
    return len(server.machine.disk.inode(path).content)


@pytest.mark.parametrize("power", [None, "none", "torn"])
@pytest.mark.sample(1)
def test_a_run_that_is_cut_short_making_a_segment_is_made_good_by_the_next(power: str | None) -> None:
    """Regression: a short file in `data` ended each further run, or was taken as it was."""
    effects = recovers(0, None)
    assert effects > 20
    for effect in range(1, effects + 1):
        recovers(effect, power)
