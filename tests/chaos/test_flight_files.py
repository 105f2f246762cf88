"""Recordings of a simulated group: their files, what damage does to them, and the command that replays."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import node_group
import pytest
from flight_recordings import copy, replayed
from hypothesis import given
from hypothesis import strategies as st

from dledger.chaos.flight_replay import check_invariants
from dledger.chaos.machine import World
from dledger.flight import reading, recorder
from dledger.flight.blocks import (
    HEADER_SIZE,
    Block,
    Damage,
    Kind,
    decode_begin,
    decode_calls,
    encode_begin,
    encode_block,
    file_name,
    file_number,
    read_blocks,
)
from dledger.flight.calls import pack_message, unpack_message
from dledger.flight.reading import UnusableRecording
from dledger.flight.replaying import CoreAfterStep
from dledger.flight.tape import ENCODER
from dledger.formats.checksum import crc32
from dledger.formats.store_files import FLIGHT_DIR
from dledger.host import Role
from dledger.messages import Append
from tests.command_line import run

NAMES = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of three nodes, one directory each, of several files."""
    directory = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch, World(5, settings=node_group.SETTINGS) as world:
        patch.setattr(recorder, "BLOCK_BYTES", 512)
        patch.setattr(recorder, "MIB", 16 * 1024)
        group = node_group.Group(world, flight_recorder_mb=1)
        for _ in range(6):
            leader = group.await_leader()
            for _ in range(5):
                group.await_applied((leader,), group.append(leader, [b"SECRET"] * 10))
            world.isolate(leader)
            world.run_for(3.0)
            world.heal()
            world.run_for(1.0)
        for name in NAMES:
            copy(world, name, directory / name)
    return directory


@pytest.fixture
def ring(recorded: Path, tmp_path: Path) -> Path:
    """A copy of one node's recording, to be damaged."""
    target = tmp_path / "ring"
    target.mkdir()
    for file in sorted((recorded / "n0").iterdir()):
        (target / file.name).write_bytes(file.read_bytes())
    return target


def names(ring: Path) -> list[Path]:
    return sorted(ring.iterdir())


def blocks_of(path: Path) -> list[Block]:
    return [block for block in read_blocks(path.read_bytes()) if isinstance(block, Block)]


# Files


@given(st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=300))))
def test_blocks_are_read_as_they_were_written(blocks: list[tuple[Kind, int, bytes]]) -> None:
    data = b"".join(encode_block(kind, number, 7, content) for kind, number, content in blocks)
    found = read_blocks(data)
    assert [(one.kind, one.number, one.content) for one in found if isinstance(one, Block)] == blocks
    assert len(found) == len(blocks)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_a_changed_byte_costs_one_block_at_most(contents: list[bytes], data: st.DataObject) -> None:
    parts = [encode_block(Kind.CALLS, number, 1, content) for number, content in enumerate(contents)]
    whole = bytearray(b"".join(parts))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found = read_blocks(bytes(whole))
    numbers = [block.number for block in found if isinstance(block, Block)]
    hit = next(at for at in range(len(parts)) if place < sum(map(len, parts[: at + 1])))
    assert numbers == [number for number in range(len(parts)) if number != hit]
    assert any(isinstance(one, Damage) for one in found)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    found = read_blocks(data)
    covered = sum(one.end - one.begin if isinstance(one, Damage) else 0 for one in found)
    assert covered <= len(data) and (found or not data)


def test_a_header_with_a_huge_size_is_damage() -> None:
    head = struct.pack(">4sBQIII", b"DLFR", Kind.CALLS, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF)
    assert isinstance(read_blocks(head + struct.pack(">I", crc32(head)))[0], Damage)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.lists(_VALUES, max_size=5), max_size=8))
def test_calls_are_read_as_they_were_noted(calls: list[list[Any]]) -> None:
    assert decode_calls(b"".join(ENCODER.encode(call) for call in calls)) == calls


def test_calls_that_end_within_a_value_are_an_error() -> None:
    with pytest.raises(ValueError):
        decode_calls(ENCODER.encode([1, 2, "text"])[:-1])


@given(st.binary(max_size=200), st.integers(-1, 2**62))
def test_an_append_is_noted_without_its_bodies(data: bytes, commit: int) -> None:
    message = Append(3, "n1", 4, 2, 5, 6, 7, commit, memoryview(data))
    number, note = pack_message(message)
    fields = msgspec.to_builtins(note)
    again, body = unpack_message(number, fields)
    assert again == Append(3, "n1", 4, 2, 5, 6, 7, commit, b"")
    assert body is not None and (body.size, body.crc) == (len(data), crc32(data))


def test_only_the_names_of_a_ring_have_numbers() -> None:
    assert file_number(file_name(17)) == 17
    assert [file_number(name) for name in ("17.flight", "x", "00000000001a.flight", file_name(1) + "~")] == [
        None
    ] * 4


# Replays


def test_each_recording_replays_with_equal_digests(recorded: Path) -> None:
    roles: dict[str, None] = {}
    for name in NAMES:
        result = replayed(recorded / name, keep=10**6)
        assert result.agrees, result.problems
        assert result.total_steps == len(result.steps) > 250
        assert len(result.stretches) == 1, "all files follow each other"
        assert len(result.stretches[0].files) == recorder.FILES
        roles |= {step.role: None for step in result.steps}
        times = [step.time_s for step in result.steps]
        assert times == sorted(times)
    assert set(roles) == {"LEADER", "FOLLOWER", "CANDIDATE"}


def test_a_recording_holds_no_bodies(recorded: Path) -> None:
    for name in NAMES:
        for file in names(recorded / name):
            for block in blocks_of(file):
                assert b"SECRET" not in block.content


def test_the_oldest_files_are_removed(recorded: Path) -> None:
    for name in NAMES:
        numbers = [file_number(file.name) for file in names(recorded / name)]
        first = numbers[0]
        assert first is not None and first > 1
        assert numbers == list(range(first, first + recorder.FILES))


def test_one_file_alone_replays(ring: Path) -> None:
    result = replayed(names(ring)[1])
    assert result.agrees and result.total_steps > 0


def test_a_missing_file_is_named_and_the_others_replay(ring: Path) -> None:
    gone = names(ring)[1]
    gone.unlink()
    result = replayed(ring)
    assert result.agrees and len(result.stretches) == 2
    assert any("are missing" in text for text in result.missing)


def test_a_flipped_byte_is_named_and_the_rest_of_the_file_is_left_out(ring: Path) -> None:
    whole = replayed(ring)
    file = names(ring)[1]
    data = bytearray(file.read_bytes())
    data[blocks_of(file)[1].offset + HEADER_SIZE + 5] ^= 1
    file.write_bytes(data)
    result = replayed(ring)
    assert result.agrees and 0 < result.total_steps < whole.total_steps
    assert any("checksum" in text and file.name in text for text in result.missing)
    assert any("cannot be replayed" in text for text in result.missing)


def test_a_torn_block_at_the_end_is_named(ring: Path) -> None:
    file = names(ring)[-1]
    file.write_bytes(file.read_bytes()[:-3])
    result = replayed(ring)
    assert result.agrees
    assert any("the file ends after" in text for text in result.missing)


def test_a_block_that_was_left_out_is_named(ring: Path) -> None:
    file = names(ring)[1]
    blocks = blocks_of(file)
    data = file.read_bytes()
    file.write_bytes(data[: blocks[1].offset] + data[blocks[2].offset :])
    result = replayed(ring)
    assert result.agrees
    assert any(
        f"blocks {blocks[1].number} to {blocks[1].number} are missing" in text for text in result.missing
    )


def changed_calls(file: Path, change: Any) -> None:
    """Replace the calls of the second block of a file, with a right checksum."""
    data = file.read_bytes()
    block = blocks_of(file)[1]
    end = blocks_of(file)[2].offset
    calls = decode_calls(block.content)
    change(calls)
    content = b"".join(ENCODER.encode(call) for call in calls)
    new = encode_block(block.kind, block.number, block.events, content)
    file.write_bytes(data[: block.offset] + new + data[end:])


def test_another_input_is_found_by_the_digest(ring: Path) -> None:
    def change(calls: list[list[Any]]) -> None:
        for call in calls:
            call[1] = [value + 0.25 if isinstance(value, float) else value for value in call[1]]

    changed_calls(names(ring)[1], change)
    result = replayed(ring)
    assert not result.agrees
    assert any("differs" in text for text in result.problems)


def test_a_lost_call_is_found(ring: Path) -> None:
    changed_calls(names(ring)[1], lambda calls: calls.__delitem__(1))
    result = replayed(ring)
    assert any("calls instead of" in text for text in result.problems)


def test_a_value_too_many_is_found(ring: Path) -> None:
    changed_calls(names(ring)[1], lambda calls: calls[3][2].append(1))
    assert not replayed(ring).agrees


def test_a_call_that_cannot_be_decoded_is_a_problem(ring: Path) -> None:
    changed_calls(names(ring)[1], lambda calls: calls[3].__setitem__(0, 999))
    result = replayed(ring)
    assert any("call 999 is not known" in text for text in result.problems)


def test_a_state_that_does_not_follow_from_the_calls_is_found(ring: Path) -> None:
    file = names(ring)[2]
    first = blocks_of(file)[0]
    begin = decode_begin(first.content)
    begin.state.elector["patience_s"] += 1.0
    rest = file.read_bytes()[blocks_of(file)[1].offset :]
    file.write_bytes(encode_block(Kind.BEGIN, first.number, 0, encode_begin(begin)) + rest)
    result = replayed(ring)
    assert any("elector.patience_s" in text for text in result.problems)


def test_another_version_is_refused(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "core_version", lambda: "0123456789abcdef")
    with pytest.raises(UnusableRecording, match="this program has version 0123456789abcdef"):
        replayed(ring)


def test_invariants_are_checked() -> None:
    before = CoreAfterStep("n0", 1, Role.FOLLOWER, 3, "n1", 7)
    assert check_invariants(None, before) == ""
    assert "commit_never_falls" in check_invariants(before, CoreAfterStep("n0", 1, Role.FOLLOWER, 3, "n1", 6))
    assert "vote_stays" in check_invariants(before, CoreAfterStep("n0", 1, Role.FOLLOWER, 3, "n2", 7))
    assert "term_never_falls" in check_invariants(before, CoreAfterStep("n0", 1, Role.FOLLOWER, 2, None, 7))
    assert "leader_voted" in check_invariants(before, CoreAfterStep("n0", 1, Role.LEADER, 4, "n1", 7))


# The command


def test_the_command_prints_steps_and_verdict(ring: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chaos", "replay", str(ring)) == 0
    text = capsys.readouterr().out
    assert "digests of all" in text and "committed" in text and "missing: after" in text


def test_the_command_finds_the_recording_of_a_node(ring: Path, tmp_path: Path) -> None:
    node_dir = tmp_path / "dledger-n0"
    node_dir.mkdir()
    ring.rename(node_dir / FLIGHT_DIR)
    assert run("chaos", "replay", str(node_dir)) == 0


def test_the_command_reports_json(ring: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chaos", "replay", "--json", str(ring)) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert value["agrees"] is True and value["problems"] == []
    assert len(value["steps"]) == 20 and value["steps"][-1]["number"] == value["total_steps"] - 1
    assert run("chaos", "replay", "--json", "--steps", str(ring)) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(value["steps"]) == value["total_steps"] > 250


def test_the_command_ends_with_1_if_a_step_differs(ring: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed_calls(names(ring)[1], lambda calls: calls[3][2].append(1))
    assert run("chaos", "replay", str(ring)) == 1
    assert "problem: step" in capsys.readouterr().out


def test_the_command_ends_with_2_without_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("chaos", "replay", str(tmp_path)) == 2
    assert "flightRecorderMb" in capsys.readouterr().err
    assert run("chaos", "replay", str(tmp_path / "none")) == 2
    (tmp_path / "x").write_bytes(b"something else")
    assert run("chaos", "replay", str(tmp_path / "x")) == 2
