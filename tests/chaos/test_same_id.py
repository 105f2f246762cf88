"""Two processes with one id (a copied configuration, an old machine that returns) do no harm."""

from __future__ import annotations

from random import Random

import node_group
import pytest
from node_group import NAMES, SETTINGS, Group, ListHost

from chaos.sim import World
from dledger.config import NodeConfig
from dledger.node import Node
from runtime.env import Env

BODY = Random(1).randbytes(300_000)


def fresh(world: World, machine: str, node_id: str, found: dict[str, Node]) -> None:
    """Start a process with an empty store and this id; its node will be in `found`, by machine."""

    async def main(env: Env) -> None:
        config = NodeConfig(
            group="g0",
            self_id=node_id,
            peers={name: f"{name}:40911" for name in NAMES},
            store_dir="/store",
            segment_size=node_group.SEGMENT,
            index_units_per_file=1000,
            pool_segments=1,
        )
        found[machine] = Node(env, config, ListHost())
        await found[machine].run()

    world.node(machine)
    world.spawn(machine, main)


def acknowledged(world: World, group: Group, seconds: float) -> int:
    """Entries appended one by one within so many seconds."""
    until = world.time + seconds
    count = 0
    while world.time < until:
        leader = group.await_leader()
        index = group.append(leader, [BODY])
        node = group.nodes[leader]
        world.run_until(lambda: node.commit_index >= index or world.time > until, 5)  # noqa: B023
        count += node.commit_index >= index
    return count


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_second_process_with_a_members_id_is_refused_and_costs_nothing(whose: str) -> None:
    """It took the place of the other one's connections again and again: nothing large arrived any more."""
    with World(3, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"one"]))
        before = acknowledged(world, group, 0.3)
        node_id = leader if whose == "leader" else next(name for name in NAMES if name != leader)
        found: dict[str, Node] = {}
        fresh(world, "x", node_id, found)
        world.run_for(2)
        assert acknowledged(world, group, 0.3) > before / 2 > 5
        assert group.leader() == leader
        told = [
            node._peers.refused().get("same id", 0) for name, node in group.nodes.items() if name != node_id
        ]
        assert all(told), "each says that it refused"
        assert sum(told) < 50, "and is not stormed"
        assert not found["x"].identity.cluster


@pytest.mark.parametrize("seed", range(12))
def test_a_group_is_founded_once_although_two_call_themselves_alike(seed: int) -> None:
    """Of four fresh processes two and two formed a group each, and both groups served."""
    with World(seed, settings=SETTINGS) as world:
        nodes: dict[str, Node] = {}
        chance = world.stream("start")
        starts = [("n0", "n0"), ("n1", "n1"), ("n2", "n2"), ("x", "n1")]
        chance.shuffle(starts)
        for machine, node_id in starts:
            fresh(world, machine, node_id, nodes)
            world.run_for(chance.random() * 0.05)
        world.run_for(8)
        assert len({node.identity.cluster for node in nodes.values()} - {""}) == 1
        assert sum(node.serving for node in nodes.values()) == 1
