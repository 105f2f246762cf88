"""Recordings of simulated nodes under all families of faults: each replay gives the digests of every step."""

from __future__ import annotations

from pathlib import Path

import fault_storm
import node_group
import pytest
from flight_recordings import copy, replayed
from random_faults import Run

from dledger.broker.config import SETTINGS
from dledger.chaos.machine import World
from dledger.election.elector import Elector
from dledger.flight import recorder
from dledger.flight.reading import UnusableRecording
from dledger.flight.steps import Replay
from dledger.runtime.properties_file import parse_properties
from dledger.runtime.settings import ConfigError

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
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 512)  # several files in a short run
    monkeypatch.setattr(recorder, "MIB", 16 * 1024)
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


@pytest.mark.parametrize("mode", ["none", "torn", "prefix"])
def test_a_power_cut_leaves_a_recording_that_says_what_is_missing(mode: str, tmp_path: Path) -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        group.await_applied((leader,), group.append(leader, [b"entry"] * 20))
        world.run_for(2.0)
        before = replayed_or_empty(copied(world, leader, tmp_path))
        world.power_cut(leader, mode)
        after = replayed_or_empty(copied(world, leader, tmp_path))
        group.start(leader)
        world.run_for(5.0)
        again = replayed_or_empty(copied(world, leader, tmp_path))
    assert before.agrees and before.total_steps > 50
    assert after.agrees and after.total_steps <= before.total_steps and after.missing
    assert mode != "none" or after.total_steps == 0
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

        node.recorder._ring.write = broken  # type: ignore[method-assign]
        world.run_for(2.0)
        group.await_applied((leader,), group.append(leader, [b"entry"]))
        status = node.status()
        assert status["flight_recorder"] == "stopped"
        assert any("flight recorder" in text for text in status["warnings"])  # type: ignore[attr-defined]
        assert node.serving and not node.recorder._tape.running
        result = replayed_or_empty(copied(world, leader, tmp_path))
    assert result.agrees


def test_calls_that_a_slow_disk_drops_are_counted_and_the_rest_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 512)
    monkeypatch.setattr(recorder, "MAX_BUFFER", 2048)
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        node = group.nodes[leader]
        node.recorder._writing = True  # as if a write took very long
        world.run_for(10.0)
        lost = node.recorder._lost
        assert lost > 0 and node.status()["flight_recorder_lost"] == lost
        assert len(node.recorder._tape.buffer) <= 4096
        node.recorder._writing = False
        world.run_for(5.0)
        result = replayed(copied(world, leader, tmp_path))
    assert result.agrees and len(result.stretches) == 2
    assert any("because the disk was slow" in text for text in result.missing)


def test_a_call_that_cannot_be_encoded_ends_the_recording_and_not_the_node() -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world, flight_recorder_mb=1)
        leader = group.await_leader()
        node = group.nodes[leader]
        node.elector.feels(1 << 70, may_stand=True)
        assert node.status()["flight_recorder"] == "stopped"
        group.await_applied((leader,), group.append(leader, [b"entry"]))


PROPERTIES = "brokerName=b1\ndLegerPeers=n0-127.0.0.1:40911\ndLegerSelfId=n0\nflightRecorderMb="


@pytest.mark.parametrize("megabytes", [0, 1, 1024])
def test_the_setting_takes_its_bounds(megabytes: int) -> None:
    config, _ = SETTINGS.load(parse_properties(f"{PROPERTIES}{megabytes}\n"))
    assert config.node.flight_recorder_mb == megabytes


@pytest.mark.parametrize("wrong", ["-1", "1025", "many"])
def test_the_setting_refuses_what_is_out_of_bounds(wrong: str) -> None:
    with pytest.raises(ConfigError, match="flightRecorderMb"):
        SETTINGS.load(parse_properties(f"{PROPERTIES}{wrong}\n"))


def test_without_the_setting_nothing_is_recorded(tmp_path: Path) -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        assert group.nodes[leader].status()["flight_recorder"] == "off"
        assert type(group.nodes[leader].elector) is Elector
        assert list(copied(world, leader, tmp_path).iterdir()) == []
