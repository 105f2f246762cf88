"""A client of the DLedger protocol reads at a node of its choice: reads are linearizable on every node
(R10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.config import NodeConfig
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

PEERS = {name: f"{name}:40911" for name in node_group.NAMES}
APPENDS = 20
SEEDS = 3


def run(world: World, program: Callable[[Env], Coroutine[object, object, None]]) -> None:
    """Run a program to its end, on a machine of its own."""
    world.node("client")
    world.spawn("client", program)
    world.run_until(lambda: world.nodes["client"].process is None, 30)
    assert world.nodes["client"].process is None, "still running"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_follower_has_what_was_acknowledged_a_moment_ago(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        followers = [name for name in node_group.NAMES if name != leader]
        behind = 0

        async def program(env: Env) -> None:
            nonlocal behind
            async with DLedgerClient(env, PEERS) as client:
                for number in range(APPENDS):
                    body = b"%d" % number
                    index = await client.append(body)
                    behind += sum(group.nodes[name].commit_index < index for name in followers)
                    entries = await asyncio.gather(
                        *(client.get(index, address=PEERS[name]) for name in followers)
                    )
                    assert [(entry.index, entry.body) for entry in entries] == [(index, body)] * 2
                with pytest.raises(RequestFailed, match="committed entries are") as refused:
                    await client.get(index + 1, address=PEERS[followers[0]])
                assert refused.value.code is Code.UNEXPECTED_ARGUMENT, "not there, and it is known"

        run(world, program)
        assert behind > APPENDS / 2, "a follower mostly hears of a commit after the client"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_follower_answers_a_client_that_cannot_reach_the_leader(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        follower = next(name for name in node_group.NAMES if name != leader)

        async def program(env: Env) -> None:
            async with DLedgerClient(env, PEERS) as client:
                index = await client.append(b"x")
                world.partition("client", leader)
                assert (await client.get(index, address=PEERS[follower])).body == b"x"
                assert await client.read_index(PEERS[follower]) >= index
                with pytest.raises(OSError):  # within the time-out
                    await client.get(index, address=PEERS[leader])

        run(world, program)
        assert group.leader() == leader


@pytest.mark.parametrize("was_leader", [False, True])
@pytest.mark.parametrize("lease", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.sample(4)
def test_a_node_that_is_cut_off_fails_in_time_and_does_not_answer_stale(
    seed: int, lease: bool, was_leader: bool
) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, lease_reads=lease)
        leader = group.await_leader()
        cut = leader if was_leader else next(name for name in node_group.NAMES if name != leader)
        others = {name: address for name, address in PEERS.items() if name != cut}

        async def program(env: Env) -> None:
            loop = asyncio.get_running_loop()
            async with DLedgerClient(env, PEERS) as client, DLedgerClient(env, others) as majority:
                before = await client.append(b"before")
                await client.get(before, address=PEERS[cut])
                for other in others:
                    world.partition(cut, other)  # clients reach it
                after = await append(majority, b"after")
                began = loop.time()
                with pytest.raises(RequestFailed, match="no read point in time") as refused:
                    await client.get(after, address=PEERS[cut])
                assert refused.value.code is Code.WAIT_QUORUM_ACK_TIMEOUT
                assert loop.time() - began < NodeConfig.read_timeout_s + 0.1
                known = await client.get(before, address=PEERS[cut])
                assert known.body == b"before", "what is committed never changes"
                with pytest.raises(RequestFailed, match=f"committed entries are 0..{before}"):
                    await client.get(after, address=PEERS[cut], linearizable=False)
                world.heal()
                await asyncio.sleep(3)
                assert (await client.get(after, address=PEERS[cut])).body == b"after"

        async def append(client: DLedgerClient, body: bytes) -> int:
            for _ in range(5):
                try:
                    return await client.append(body)
                except RequestFailed:  # asked of the old leader
                    await asyncio.sleep(0.5)
            raise AssertionError("the majority takes nothing")

        run(world, program)
