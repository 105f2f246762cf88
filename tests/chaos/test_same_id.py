"""Two processes with one id (a copied configuration, an old machine that returns) do no harm."""

from __future__ import annotations

from random import Random

import node_group
import pytest
from member_group import SETTINGS as MEMBER_SETTINGS
from member_group import MemberGroup
from node_group import NAMES, SETTINGS, Group, ListHost

from dledger.chaos.machine import World
from dledger.config import NodeConfig
from dledger.node.node import Node
from dledger.runtime.env import Env

ANYWHERE = ("*",)
"""Allowed sources that let every address in: otherwise the address would give the second process away."""
BODY = Random(1).randbytes(300_000)


def fresh(world: World, machine: str, node_id: str, found: dict[str, Node]) -> None:
    """Start a process with an empty store and this id. Its node will be in `found`, by machine."""

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
    """How many entries, appended one by one, are acknowledged within this time."""
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
    """Regression: it replaced the other process's connections again and again, and no large message arrived
    any more."""
    with World(3, settings=SETTINGS) as world:
        group = Group(world, allowed_sources=ANYWHERE)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"one"]))
        before = acknowledged(world, group, 0.03)
        node_id = leader if whose == "leader" else next(name for name in NAMES if name != leader)
        found: dict[str, Node] = {}
        fresh(world, "x", node_id, found)
        world.run_for(2)
        assert acknowledged(world, group, 0.03) > before / 2 > 5
        assert group.leader() == leader
        told = [
            node.peers.refused().get("same id", 0) for name, node in group.nodes.items() if name != node_id
        ]
        assert all(told), "each says that it refused"
        assert sum(told) < 50, "and is not stormed"
        assert not found["x"].members.identity.cluster


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sample(3)
def test_a_group_is_founded_once_although_two_call_themselves_alike(seed: int) -> None:
    """Regression: of four fresh processes two and two formed a group each, and both groups served."""
    with World(seed, settings=SETTINGS) as world:
        nodes: dict[str, Node] = {}
        chance = world.stream("start")
        starts = [("n0", "n0"), ("n1", "n1"), ("n2", "n2"), ("x", "n1")]
        chance.shuffle(starts)
        for machine, node_id in starts:
            fresh(world, machine, node_id, nodes)
            world.run_for(chance.random() * 0.05)
        world.run_for(8)
        assert len({node.members.identity.cluster for node in nodes.values()} - {""}) == 1
        assert sum(node.serving for node in nodes.values()) == 1


FIVE = ("n0", "n1", "n2", "n3", "n4")


class MovedGroup(MemberGroup):
    """A group of five whose n4 moves to another machine."""

    moved = False

    def address(self, name: str) -> str:
        return "x:40911" if self.moved and name == "n4" else f"{name}:40911"


@pytest.mark.parametrize("seed", range(3))
def test_who_missed_a_replacement_lets_the_successor_in_although_the_removed_process_goes_on(
    seed: int,
) -> None:
    """The node dials the old process, which answers. Regression: it took the new process, its leader, for the
    impostor for ever."""
    with World(seed) as world:
        group = MovedGroup(world, FIVE)
        leader = group.await_leader()
        world.run_for(0.5)
        if leader in ("n3", "n4"):
            group.command(lambda client: client.transfer("n0"))
            group.await_leader()
        world.kill("n3")
        world.run_for(1)
        group.insist(lambda client: client.remove_member("n4"))
        world.run_for(1)
        found: dict[str, Node] = {}

        async def main(env: Env) -> None:
            peers = {name: f"{name}:40911" for name in FIVE[:4]} | {"n4": "x:40911"}
            config = NodeConfig("g0", "n4", peers, "/store", **MEMBER_SETTINGS)
            found["n4"] = Node(env, config, ListHost())
            await found["n4"].run()

        world.node("x")
        world.spawn("x", main)
        group.moved = True
        group.insist(lambda client: client.add_member("n4", "x:40911"))
        world.run_until(lambda: group.voters() == FIVE, 20)
        group.command(lambda client: client.transfer("n4"))
        world.run_for(1)
        new = found["n4"]
        assert new.serving
        group._static["n3"] = {name: f"{name}:40911" for name in FIVE}
        group.start("n3")
        world.run_until(lambda: group.nodes["n3"].commit_index >= new.commit_index, 20)
        assert world.nodes["n4"].process is not None, "the old one still runs"
