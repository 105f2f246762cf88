"""The members are known after rot, and however fast the log moves on (safety.md S19)."""

from __future__ import annotations

import errno
from collections.abc import Iterable

import node_group
import pytest
from member_group import MemberGroup

from dledger.chaos.machine import World
from dledger.election.configuration import Configuration
from dledger.files.identity import StoreFiles
from dledger.host import LogReader
from dledger.log.retention import RetentionSettings

SEGMENT = 64 * 1024
FIVE = ("n0", "n1", "n2", "n3", "n4")


def small_group(world: World) -> MemberGroup:
    retention = RetentionSettings(interval_s=0.1, snapshots_kept=8)
    return MemberGroup(world, segment_size=SEGMENT, max_entry_bytes=16 * 1024, retention=retention)


def fill(group: MemberGroup, segments: int) -> None:
    """Append until the leader's log is this many segments longer."""
    log = group.nodes[group.await_leader()].log
    goal = log.end_pos + segments * SEGMENT
    while log.end_pos < goal:
        group.command(lambda client: client.append(bytes(8000)))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_rotten_snapshot_does_not_bring_the_founding_members_back(
    restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of three grew to five, and every record of that on one node's disk rots. This node and another
    founder, cut off from the other three, must not elect a leader."""

    async def keeps_its_state(host: node_group.ListHost, log: LogReader) -> int:
        host.begins = log.first_index
        return log.first_index - 1

    with World(1) as world:
        group = small_group(world)
        group.grow("n3", "n4")
        fill(group, 4)
        node = group.nodes["n0"]
        process = world.nodes["n0"].process
        assert process is not None
        process.loop.call_soon(node.snapshots.retainer.delete_before, node.log.last_index)
        world.run_until(lambda: len(node.snapshots.catalog.manifests) == 1 and node.log.begin_pos > 0, 5)
        assert node.members.index < node.log.first_index
        world.kill("n0")
        if restarted:  # what it knows of its members is the snapshot's from now on
            group.start("n0")
            world.run_for(1.0)
            assert group.nodes["n0"].members.voters == FIVE
            world.kill("n0")
        begins = node.snapshots.catalog.manifests[0].pos
        world.nodes["n0"].disk.flip(f"/store/dledger-n0/snapshots/{begins:020d}/manifest", 20, 1)
        for name in ("n0", "n1"):
            for other in ("n2", "n3", "n4"):
                world.partition(name, other)
        world.run_for(2.0)  # if n1 led, it has noticed
        monkeypatch.setattr(node_group.ListHost, "open", keeps_its_state)
        group.start("n0")
        for _ in range(100):
            world.run_for(0.05)
            assert not any(group.nodes[name].serving for name in ("n0", "n1")), "a minority has a leader"
        assert group.nodes["n0"].members.voters == FIVE


def test_the_log_does_not_run_away_from_the_note_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the last segment only. So what an earlier segment says of the members has to be noted
    before the log continues in the next segment, even while there is no room for the note."""
    full = True
    save = StoreFiles.save_configs

    async def no_room(
        files: StoreFiles, entries: list[tuple[int, int, Configuration]], unsure: Iterable[tuple[int, int]]
    ) -> None:
        if full and files._dir.endswith(victim):
            raise OSError(errno.ENOSPC, "no space left on device")
        await save(files, entries, unsure)

    with World(2) as world:
        group = small_group(world)
        leader = group.await_leader()
        world.run_for(0.5)
        victim = next(name for name in group.founders if name != leader)
        monkeypatch.setattr(StoreFiles, "save_configs", no_room)
        group.grow("n3")
        fill(group, 3)
        world.run_for(2.0)
        node = group.nodes[victim]
        assert node.log.last_index > node.members.index > 0
        world.kill(victim)
        full = False
        world.isolate(victim)
        group.start(victim)
        world.run_for(0.5)
        assert group.nodes[victim].members.voters == ("n0", "n1", "n2", "n3")
        world.heal()
        group.settle(("n0", "n1", "n2", "n3"))
