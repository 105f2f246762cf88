"""The client of the DLedger protocol in simulated time: what it does when a leader falls silent."""

from __future__ import annotations

import asyncio

import msgpack
import node_group

from chaos.sim import World
from dledger.client import DLedgerClient, RequestFailed
from dledger.wire import CLIENT_REQUEST, HELLO, PREFIX, encode_frame
from runtime.env import Env


def test_a_silent_leader_costs_one_time_out_and_not_all_that_follow() -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        answers: list[str] = []

        async def main(env: Env) -> None:
            peers = {name: f"{name}:40911" for name in node_group.NAMES}
            async with DLedgerClient(env, peers, timeout_s=2.0) as client:
                answers.append(str(await client.append(b"before")))
                world.isolate(leader)  # nobody resets the connection
                for number in range(3):
                    try:
                        answers.append(str(await client.append(b"%d" % number)))
                    except RequestFailed:
                        answers.append("failed")

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 20)
        assert answers[1] == "failed" and "failed" not in answers[2:], answers


def clients_of(group: node_group.Group, name: str) -> int:
    """How many connections of the machine `client` a node has."""
    process, client = group.world.nodes[name].process, group.world.nodes["client"]
    assert process is not None
    return sum(end.remote[0] == client.address for end in process.endpoints.values() if not end.gone)


def test_calls_at_once_share_a_connection_and_leave_none() -> None:
    """Each call had dialled one of its own, and all but the last stayed open for ever."""
    with World(4, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        seen: list[int] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, {leader: f"{leader}:40911"}) as client:
                await asyncio.gather(*(client.append(b"%d" % number) for number in range(100)))
                seen.append(clients_of(group, leader))
                given_up = [
                    asyncio.create_task(client.metadata(f"{name}:40911")) for name in node_group.NAMES
                ]
                await asyncio.sleep(0)
                for task in given_up:
                    task.cancel()
                await asyncio.gather(*given_up, return_exceptions=True)
            await asyncio.sleep(0.1)
            seen.extend(clients_of(group, name) for name in node_group.NAMES)

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 20)
        assert seen == [1, 0, 0, 0]


def test_a_request_of_a_thousand_lists_in_one_another_ends_its_connection() -> None:
    with World(5, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        packed = msgpack.packb([CLIENT_REQUEST, {"id": 1, "op": 7}])[:-1] + b"\x91" * 1000 + b"\x07"

        async def main(env: Env) -> None:
            reader, writer = await asyncio.open_connection(leader, 40911)
            writer.write(encode_frame(HELLO, {"client": True}))
            writer.write(PREFIX.pack(2 + len(packed), len(packed)) + packed)
            await reader.read()
            writer.close()

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 5)
        world.run_for(1)
        assert group.leader() == leader
