"""Versions of the peer protocol and of the store: what is understood, ignored, refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from test_node import Group, ListHost

from dledger.config import NodeConfig
from dledger.election.identity import Hello, HelloRefused, check_hello, decode_hello, encode_hello
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.formats.entry import Kind
from dledger.formats.store_files import (
    FORMAT_VERSION,
    CorruptFile,
    Identity,
    decode_identity,
    decode_json,
    encode_json,
)
from dledger.messages import SINCE_2, Code, Heartbeat, HeartbeatResponse, Message, TimeoutNow, VoteRequest
from dledger.node.node import Node
from dledger.peers.wire import decode_frame, decode_message, encode_frame, encode_message
from dledger.protocol import PROTOCOL_MAX
from dledger.runtime.env import production_env
from dledger.runtime.settings import ConfigError
from dledger.versions import KIND_SINCE, Versions

CONFIG = NodeConfig("g", "n0", {"n0": "h:1", "n1": "h:2", "n2": "h:3"}, "unused")
HELLO = Hello("g", "n1", "i1", "c", 1, PROTOCOL_MAX, 1 << 30, True)


def fields(message: Message, version: int) -> list[object]:
    (data, *_) = encode_message(message, version=version)
    header: list[object] = decode_frame(memoryview(data)).header()
    return header


def test_to_an_old_peer_go_only_the_fields_that_it_had() -> None:
    heartbeat = Heartbeat(3, "n0", 17, 5000)
    answer = HeartbeatResponse(3, Code.SUCCESS, 17, 1, 5000)
    assert fields(heartbeat, 1) == [3, "n0"] and fields(heartbeat, 2) == [3, "n0", 17, 5000]
    assert fields(answer, 1) == [3, 0] and fields(answer, 2) == [3, 0, 17, 1, 5000]
    hand_over = TimeoutNow(3, "n0", True)
    request = VoteRequest(4, "n1", 10, 3, False, True, True)
    assert fields(hand_over, 1) == [3, "n0"] and fields(hand_over, 2) == [3, "n0", True]
    assert fields(request, 1) == [4, "n1", 10, 3, False, True]


def test_missing_new_fields_get_their_default_and_unknown_ones_are_ignored() -> None:
    def decoded(number: int, values: list[object]) -> Message:
        return decode_message(decode_frame(memoryview(encode_frame(number, values))))

    assert decoded(3, [3, "n0"]) == Heartbeat(3, "n0", 0)
    assert decoded(3, [3, "n0", 7]) == Heartbeat(3, "n0", 7, 0)
    assert decoded(3, [3, "n0", 7, 5000, "of version 9", 1.5]) == Heartbeat(3, "n0", 7, 5000)
    assert decoded(4, [3, 0, 7, 32]) == HeartbeatResponse(3, Code.SUCCESS, 7, 32, 0)
    request = VoteRequest(4, "n1", 10, 3, False, True, True)
    assert decoded(1, [4, "n1", 10, 3, False, True, True, {"more": 1}]) == request
    assert decoded(1, [4, "n1", 10, 3, False, True]) == msgspec.structs.replace(request, commanded=False)
    assert decoded(5, [4, "n1"]) == TimeoutNow(4, "n1", False)


def test_unknown_fields_of_a_hello_are_ignored_and_missing_ones_filled_in() -> None:
    value = encode_hello(HELLO)
    assert decode_hello(value | {"new in version 9": [1, 2]}) == HELLO
    del value["lease_ms"], value["meta"], value["members"]
    assert decode_hello(value).lease_ms == 0


def test_peers_must_agree_on_lease_reads_and_on_their_promise() -> None:
    mine = replace(HELLO, node="n0")
    assert check_hello(mine, HELLO, CONFIG.peers) == PROTOCOL_MAX
    for other in (0, 300):
        with pytest.raises(HelloRefused, match="lease reads in ms is 400 on n0"):
            check_hello(replace(mine, lease_ms=400), replace(HELLO, lease_ms=other), CONFIG.peers)
    assert replace(CONFIG, lease_reads=True).lease_promise_ms == 400
    assert CONFIG.lease_promise_ms == 0


def test_the_version_of_a_group_is_that_of_its_oldest_voter() -> None:
    versions = Versions(CONFIG)
    voters = tuple(CONFIG.peers)
    assert versions.group(voters) == 1
    versions.heard(HELLO)
    versions.heard(replace(HELLO, node="n2", protocol_max=9))
    assert versions.group(voters) == PROTOCOL_MAX
    versions.heard(replace(HELLO, node="n2", protocol_max=1))
    assert versions.group(voters) == 1
    assert versions.group(("n0", "n1")) == PROTOCOL_MAX
    assert Versions(replace(CONFIG, protocol_min=1, protocol_max=1)).group(()) == 1


def test_every_kind_has_a_version_and_an_unknown_one_is_never_written() -> None:
    assert sorted(KIND_SINCE) == sorted(Kind)
    assert not Versions(CONFIG).may_write(200, ())


def test_a_version_that_does_not_exist_cannot_be_configured() -> None:
    for wrong in (0, PROTOCOL_MAX + 1):
        with pytest.raises(ConfigError, match="protocol_max"):
            replace(CONFIG, protocol_max=wrong)
        with pytest.raises(ConfigError, match="peerProtocolMin"):
            replace(CONFIG, protocol_min=wrong)
    with pytest.raises(ConfigError, match=r"peerProtocolMin 2: from 1 to peerProtocolMax \(1\)"):
        replace(CONFIG, protocol_min=2, protocol_max=1)


def test_messages_of_version_2_are_in_the_catalogue() -> None:
    assert [kind.__name__ for kind in SINCE_2][:2] == ["InstallSnapshot", "InstallResponse"]


FORMAT_1 = (
    b'{"cluster": "c", "format_version": 1, "group": "g", "incarnation": "i", "members": {"n0": "i"}, '
    b'"node": "n0", "segment_size": 16777216}\naa5fdf1a\n'
)
"""An identity file as the first version wrote it."""


def test_an_identity_of_format_1_is_read() -> None:
    identity = decode_identity(FORMAT_1)
    assert identity == Identity("g", "n0", "i", 16777216, "c", {"n0": "i"}, 1)


def test_a_store_of_a_newer_format_is_refused_with_a_clear_text(
    tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]
) -> None:
    value = json.loads(FORMAT_1.split(b"\n")[0]) | {"format_version": FORMAT_VERSION + 1, "unknown": 1}
    with pytest.raises(CorruptFile, match=f"format version {FORMAT_VERSION + 1} is newer than"):
        decode_identity(encode_json(value))

    group = Group(tmp_path, unused_tcp_ports(1))
    directory = Path(group.config("n0").node_dir)
    directory.mkdir(parents=True)
    (directory / "identity").write_bytes(encode_json(value))

    async def scenario() -> None:
        with pytest.raises(NodeFailed, match="is newer than this program's") as failure:
            await Node(production_env("n0"), group.config("n0"), ListHost()).run()
        assert failure.value.exit_code == EXIT_STORE

    asyncio.run(scenario())
    assert decode_json((directory / "identity").read_bytes()) == value, "it was left as it is"
