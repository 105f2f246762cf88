"""The client of the DLedger protocol in simulated time: what it does when a leader falls silent."""

from __future__ import annotations

import node_group

from chaos.sim import World
from dledger.client import DLedgerClient, RequestFailed
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
