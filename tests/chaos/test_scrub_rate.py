"""The background scrub keeps to its rate and to its share of the time, and gets on (L5)."""

from __future__ import annotations

from typing import Any

from disk_group import DiskGroup
from node_group import NAMES, SETTINGS

from dledger.chaos.machine import World
from dledger.log.scrub import PIECE, SHARE

RATE = 200_000
STEP_S = 0.25


def test_the_scrub_reads_no_more_bytes_a_second_than_it_may() -> None:
    with World(1, settings=SETTINGS) as world:
        group = DiskGroup(world, scrub_bytes_per_s=RATE, scrub_pause_s=0.05)
        group.fill(700)  # three pieces
        assert group.nodes["n0"].log.end_pos > 2 * PIECE
        scrubs = [group.nodes[name].scrubber for name in NAMES]
        world.run_for(5)
        began, before = world.time, [scrub.checked_bytes for scrub in scrubs]
        passes = [scrub.passes for scrub in scrubs]
        while world.time < began + 20:
            world.run_for(STEP_S)
            for scrub, start in zip(scrubs, before, strict=True):
                assert scrub.checked_bytes - start <= RATE * (world.time - began) + PIECE
        for scrub, start, earlier in zip(scrubs, before, passes, strict=True):
            assert scrub.checked_bytes - start >= 0.9 * RATE * 20 - PIECE, "it does not stand still either"
            assert scrub.passes >= earlier + 3 and scrub.found == 0


def test_the_scrub_of_a_slow_disk_rests_most_of_the_time() -> None:
    with World(2, settings=SETTINGS) as world:
        group = DiskGroup(world, scrub_bytes_per_s=1 << 40, scrub_pause_s=0.05)
        group.fill(700)
        victim = group.followers()[0]
        log, took = group.nodes[victim].log, [0.0]
        look = log.look

        async def timed(*arguments: Any) -> Any:
            began = world.time
            try:
                return await look(*arguments)
            finally:
                took[0] += world.time - began

        log.look = timed  # type: ignore[method-assign, assignment]
        world.nodes[victim].disk.slow(1000)
        began = world.time
        world.run_for(20)
        assert 0 < took[0] <= (world.time - began) / SHARE
