"""Leaders of a real group are killed under load; the recording of each replays with the digest of every step.

`DLEDGER_FLIGHT_KILLS` sets the number of kills.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from dledger.audit.store_directory import open_store
from dledger.chaos.flight_replay import replay_path
from dledger.chaos.workload import Load, check_log
from dledger.flight.blocks import file_number
from dledger.flight.recorder import FILES
from dledger.flight.steps import Replay
from dledger.formats.store_files import FLIGHT_DIR
from dledger.local.cluster import LocalCluster
from dledger.runtime.environment_variables import variable
from dledger.runtime.files import OsFiles

TOPIC = "Flight"
QUEUES = 4
KILLS = int(variable("DLEDGER_FLIGHT_KILLS") or 5)
ACKNOWLEDGED = 300
"""Messages between two kills, at least."""


def recording(group: LocalCluster, node: str) -> Path:
    """The directory of a node's recording."""
    return group.store(node) / f"dledger-{node}" / FLIGHT_DIR


def check(replay: Replay, node: str, bare: bool = False) -> int:
    """Check the replay of a killed node, and return the number of its steps."""
    assert replay.agrees, (node, replay.problems[:5], replay.steps[-5:])
    assert replay.node == node and (bare or replay.total_steps > ACKNOWLEDGED // 10)
    return replay.total_steps


def test_each_kill_leaves_a_recording_that_replays(
    new_group: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    group = new_group(broker={"flightRecorderMb": "4"})
    group.create_topic(TOPIC, QUEUES)
    load = Load(group.namesrv_addr, TOPIC)
    steps: list[int] = []

    def examine(node: str) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(recording(group, node), copy)
        steps.append(check(replay_path(str(copy)), node))
        shutil.rmtree(copy)

    async def session() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            try:
                for _ in range(KILLS):
                    await load.wait_acked(ACKNOWLEDGED)
                    killed = await asyncio.to_thread(group.kill_leader)
                    await load.wait_failover(killed.at)
                    await asyncio.to_thread(examine, killed.node)
                    await asyncio.to_thread(group.start_node, killed.node)
                    await asyncio.to_thread(group.wait_caught_up)
            finally:
                load.stop()

    asyncio.run(session())
    report = check_log(load.history, group.addr(group.wait_leader()), TOPIC, QUEUES)
    assert report.clean, report
    assert all(group.stop().values())
    for node in group.spec.node_ids:
        result = replay_path(str(recording(group, node)))
        check(result, node)
        assert result.stretches[-1].clean_end
        numbers = [file_number(path.name) for path in recording(group, node).iterdir()]
        assert 1 <= len(numbers) <= FILES and None not in numbers
        assert open_store(OsFiles(), str(group.store(node)))[0].problems == ()
    print(f"\n{KILLS} kills, {sum(steps)} steps of killed leaders replayed")
