"""Recordings of simulated nodes under all families of faults: each replay gives the digests of every step."""

from __future__ import annotations

from pathlib import Path

import fault_storm
import node_group
import pytest
from flight_recordings import copy, replayed
from random_faults import Run

from dledger.chaos.machine import World
from dledger.flight import recorder
from dledger.flight.reading import UnusableRecording
from dledger.flight.steps import Replay

NAMES = node_group.NAMES
STEPS_PER_LOOK = 15


def copied(world: World, name: str, directory: Path) -> Path:
    """Copy the recording of a node to a new directory."""
    return copy(world, name, directory / f"{name}-{len(list(directory.iterdir()))}")


def replayed_or_empty(directory: Path) -> Replay:
    """Replay a recording. If there is no usable file yet, the replay has no steps."""
    try:
        return replayed(directory)
    except UnusableRecording as nothing:
        return Replay("", "", (), (), 0, (), (str(nothing),))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(12))
def test_a_recording_replays_after_a_storm_of_faults(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 4096)  # several files in a short run
    monkeypatch.setattr(recorder, "MIB", 64 * 1024)
    steps, roles = 0, dict[str, None]()
    with World(seed, settings=fault_storm.SETTINGS) as world:
        run = Run(world, seed, node_group.Group(world, flight_recorder_mb=1))
        storm = fault_storm.Storm(world, run)
        run.group.await_leader()
        for number in range(fault_storm.STEPS):
            storm.step()
            for name in NAMES if number % STEPS_PER_LOOK == 0 else ():
                result = replayed_or_empty(copied(world, name, tmp_path))
                assert result.agrees, (name, result.problems, result.steps[-5:])
                steps += result.total_steps
                roles |= {step.role: None for step in result.steps}
        storm.peace()
        run.finish()
    assert steps > 1000
    assert {"LEADER", "FOLLOWER", "CANDIDATE"} <= set(roles)


def test_a_power_cut_leaves_a_recording_that_says_what_is_missing(tmp_path: Path) -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        group.await_applied((leader,), group.append(leader, [b"entry"] * 20))
        world.run_for(2.0)
        before = replayed_or_empty(copied(world, leader, tmp_path))
        world.power_cut(leader, "none")
        after = replayed_or_empty(copied(world, leader, tmp_path))
        group.start(leader)
        world.run_for(5.0)
        again = replayed_or_empty(copied(world, leader, tmp_path))
    assert before.agrees and before.total_steps > 100
    assert after.agrees and after.total_steps < before.total_steps and after.missing
    assert again.agrees and again.total_steps > 0


def test_a_node_that_stops_in_good_order_says_so(tmp_path: Path) -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        process = world.nodes[leader].process
        assert process is not None
        process.cancel()
        world.run_for(3.0)
        result = replayed_or_empty(copied(world, leader, tmp_path))
    assert result.agrees and result.stretches[-1].clean_end and not result.missing


def test_an_error_of_the_disk_ends_the_recording_and_not_the_node(tmp_path: Path) -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        node = group.nodes[leader]

        def broken(work: object) -> int:
            raise OSError(28, "No space left on device")

        node.recorder._ring.write = broken  # type: ignore[method-assign,assignment]
        world.run_for(2.0)
        group.await_applied((leader,), group.append(leader, [b"entry"]))
        status = node.status()
        assert status["flight_recorder"] == "stopped"
        assert any("flight recorder" in text for text in status["warnings"])  # type: ignore[attr-defined]
        assert node.serving and not node.recorder._tape.running
        result = replayed_or_empty(copied(world, leader, tmp_path))
    assert result.agrees
