"""Inside a node the real world is out of reach; outside, nothing changes."""

from __future__ import annotations

import io
import os
import random
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from dledger.chaos.machine import Guard, OutsideWorldError, World
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

FORBIDDEN: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.sleep": lambda: time.sleep(0),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.Random": lambda: random.Random(),
    "os.urandom": lambda: os.urandom(4),
    "os.open": lambda: os.open("/", os.O_RDONLY),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "secrets.token_hex": lambda: secrets.token_hex(),
    "Thread.start": lambda: threading.Thread(target=int).start(),
    "socket.__init__": lambda: socket.socket(),
    "builtins.open": lambda: open("/dev/null"),  # noqa: SIM115
    "io.open": lambda: io.open("/dev/null"),  # noqa: UP020, SIM115
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_node_cannot_reach_outside(name: str) -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        for where in ("loop", "job"):
            with pytest.raises(OutsideWorldError, match=name):
                if where == "loop":
                    FORBIDDEN[name]()
                else:
                    await env.workers.run(Lane.DISK, FORBIDDEN[name])
            seen.append(where)

    world = World(1)
    world.spawn(world.node("n0"), main)
    world.run_for(1)
    assert seen == ["loop", "job"]


def test_seeded_generators_and_the_doors_are_allowed() -> None:
    seen: list[object] = []

    async def main(env: Env) -> None:
        seen.extend([random.Random(1).random(), env.random.random(), env.ids.uuid(), env.wall.now_ms()])

    world = World(1)
    world.spawn(world.node("n0"), main)
    world.run_for(1)
    assert len(seen) == 4


def test_outside_of_turns_everything_works_and_is_restored() -> None:
    before = (time.time, os.urandom, open)
    world = World(1)

    async def main(env: Env) -> None:
        pass

    process = world.spawn(world.node("n0"), main)
    world.run_until(lambda: time.time() and os.urandom(1) and process.exit, 1)
    assert (time.time, os.urandom, open) == before


def test_a_guard_can_be_installed_for_longer() -> None:
    with Guard() as guard:
        world = World(1, guard=guard)
        world.run_for(1)
        assert guard.installed and time.time() > 0
        with pytest.raises(RuntimeError, match="already"):
            guard.__enter__()
    assert not guard.installed
