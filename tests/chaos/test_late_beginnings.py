"""Logs of one group begin at different snapshots, as each node decides for itself what it deletes. A
snapshot's index is not taken for the index of a newer configuration."""

from __future__ import annotations

import pytest
from member_group import SETTINGS, MemberGroup, Writer
from node_group import ListHost

from dledger.chaos.machine import World
from dledger.commands.backup import backup
from dledger.config import NodeConfig
from dledger.log.retention import RetentionSettings
from dledger.node.node import Node
from dledger.runtime import Lane
from dledger.runtime.env import Env

RETENTION = RetentionSettings(interval_s=0.2)


def delete_before(group: MemberGroup, begins: dict[str, int]) -> None:
    """Let each node free its own segments below its index, and wait until it has done so."""
    for name, index in begins.items():
        process = group.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(group.nodes[name].snapshots.retainer.delete_before, index)
    group.world.run_for(2)
    for name in begins:
        assert group.nodes[name].log.first_index > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sample(1)
def test_two_that_lost_power_follow_the_third_whose_log_begins_later(seed: int) -> None:
    """ASYNC_FLUSH, members never changed. The third node was restarted since its log begins later, so it
    reports the index of that snapshot; its log reaches further. It is no majority: all three have to go on
    together."""
    with World(seed) as world:
        group = MemberGroup(
            world, segment_size=16 * 1024, max_entry_bytes=4 * 1024, index_units_per_file=64,
            sync_flush=False, retention=RETENTION,
        )  # fmt: skip
        group.fill(group.await_leader(), 60, 1500)
        world.run_for(1)
        delete_before(group, {"n0": 20, "n1": 20, "n2": 40})
        world.kill("n2")
        world.run_for(1)
        group.start("n2")
        world.run_for(2)
        kept = group.fill(group.await_leader(), 5, 1000)
        world.run_for(1)  # fsynced on all
        writers = [Writer(group, f"w{number}", 0.001) for number in range(4)]
        world.run_for(1.013)
        for writer in writers:
            writer.stopped = True
        for name in ("n0", "n1"):
            world.power_cut(name)
        world.run_for(2)
        for name in ("n0", "n1"):
            group.start(name)
        world.run_for(1)
        shown = {name: group.nodes[name].membership.config_index() for name in group.nodes}
        assert shown["n2"] > shown["n0"], "the scenario: the same configuration through a later snapshot"
        leader = group.await_leader()
        assert group.nodes[leader].log.last_index > kept
        assert group.fill(leader, 5, 100) > kept


@pytest.mark.parametrize("late", [False, True])
def test_a_restored_backup_beside_the_node_that_still_runs_is_refused(late: bool) -> None:
    """With `late` the log of the backup begins at a snapshot. Members that were started before that do not
    report its index; the backup is refused all the same."""
    with World(7) as world:
        settings = {
            "segment_size": 1 << 20,
            "max_entry_bytes": 1 << 18,
            "retention": RETENTION,
            "allowed_sources": ("*",),  # else its address gives it away
        }
        group = MemberGroup(world, **settings)
        group.fill(group.await_leader(), 60, 50_000)
        world.run_for(1)
        if late:
            delete_before(group, dict.fromkeys(group.nodes, 40))
        taken = files_of(world, "n2", "/store")
        write(world, "y", "/store", taken, "/backup")
        write(world, "x", "/store", files_of(world, "y", "/backup"))
        if group.leader() == "n2":
            group.command(lambda client: client.transfer("n0"))
            group.await_leader()
        restored: list[Node] = []

        async def main(env: Env) -> None:
            peers = {"n0": "n0:40911", "n1": "n1:40911", "n2": "x:40911"}
            changes = {**SETTINGS, **settings}
            restored.append(Node(env, NodeConfig("g0", "n2", peers, "/store", **changes), ListHost()))
            await restored[0].run()

        world.restart("x", main)
        world.run_for(1)
        leader = group.await_leader()
        heard: list[str] = []
        on_hello = group.nodes[leader].inbox.on_hello
        group.nodes[leader].inbox.on_hello = lambda hello: (heard.append(hello.node), on_hello(hello))[1]  # type: ignore[method-assign]
        world.run_for(5)
        assert (restored[0].membership.config_index() > 0) is late
        assert "n2" not in heard, "it took the place of the one that runs"
        assert group.nodes[leader].peers.refused()["same id"] > 1


def files_of(world: World, machine: str, directory: str) -> dict[str, bytes]:
    disk = world.nodes[machine].disk
    return {path[len(directory) :]: bytes(disk.inode(path).content) for path in disk.files(directory)}


def write(world: World, machine: str, directory: str, files: dict[str, bytes], to: str = "") -> None:
    """Write these files to the machine's disk, and take a backup of that store if `to` is given."""

    async def main(env: Env) -> None:
        run = env.workers.run
        for name, content in files.items():
            path = directory + name
            await run(Lane.DISK, env.files.mkdir, path.rpartition("/")[0])
            file = await run(Lane.DISK, env.files.open, path, True)
            await run(Lane.DISK, file.pwritev, [content], 0)
            await run(Lane.DISK, file.fdatasync)
            file.close()
            await run(Lane.DISK, env.files.sync_dir, path.rpartition("/")[0])
        if to:
            await backup(env, directory, to)

    world.node(machine)
    world.spawn(machine, main)
    world.run_until(lambda: world.nodes[machine].process is None, 60)
