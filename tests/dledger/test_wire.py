"""Peer frames: round trips, forward compatibility, garbage."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.messages import (
    Append,
    Code,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.peers.wire import (
    PREFIX,
    WireError,
    decode_frame,
    decode_message,
    encode_frame,
    encode_message,
    frame_size,
)

MESSAGES: list[Message] = [
    VoteRequest(4, "n1", 10, 3, pre=True),
    VoteResponse(4, 5, False, VoteResult.REJECT_ALREADY_VOTED),
    Heartbeat(4, "n0"),
    HeartbeatResponse(4, Code.EXPIRED_TERM),
    TimeoutNow(4, "n0"),
    Compare(4, "n0", -1, -1, -1),
    Truncate(4, "n0", 7, 4, 3),
    Append(4, "n0", 6, 3, 7, 8, 1234, 5, b"entry bytes" * 1000),
    Commit(4, "n0", 9),
    PushResponse(4, Code.INCONSISTENT_STATE, 1, 0, 9, 5, 2),
]


def wire_bytes(message: Message, *, compress: bool = False) -> bytes:
    return b"".join(bytes(part) for part in encode_message(message, compress=compress))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("compress", [False, True])
def test_every_message_survives_the_wire(message: Message, compress: bool) -> None:
    data = memoryview(wire_bytes(message, compress=compress))
    assert frame_size(data, 1 << 20) == len(data)
    assert decode_message(decode_frame(data)) == message


def test_large_repetitive_entries_shrink() -> None:
    message = MESSAGES[7]
    assert len(wire_bytes(message, compress=True)) < len(wire_bytes(message)) / 10


def test_fields_of_a_newer_version_are_ignored_and_missing_defaults_filled_in() -> None:
    newer = decode_frame(memoryview(encode_frame(9, [4, "n0", 9, "a field of the future"])))
    assert decode_message(newer) == Commit(4, "n0", 9)
    older = decode_frame(memoryview(encode_frame(1, [4, "n1", 10, 3])))
    assert decode_message(older) == VoteRequest(4, "n1", 10, 3)


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(99, [1]),
        encode_frame(9, [4]),
        encode_frame(9, {"term": 4}),
        encode_frame(9, [4, "n0", [1]]),
        encode_frame(2, [4, 5, False, 77]),
        encode_frame(8, [4, "n0", 6, 3, 7, 8, 0, 5, 1 << 40], 3) + b"abc",
        encode_frame(8, [4, "n0", 6, 3, 7, 8, 0, 5, 100], 3) + b"abc",
    ],
)
def test_malformed_messages_are_wire_errors(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode_message(decode_frame(memoryview(frame)))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_wire_errors(data: bytes) -> None:
    view = memoryview(data)
    try:
        size = frame_size(view, 1 << 16)
        if size is not None and size <= len(view):
            decode_message(decode_frame(view[:size]))
    except WireError:
        pass


def test_an_oversized_frame_is_refused_from_its_first_bytes() -> None:
    with pytest.raises(WireError):
        frame_size(memoryview(PREFIX.pack(1 << 30, 0)), 1 << 20)


def test_headers_are_plain_msgpack() -> None:
    data = encode_frame(3, [4, "n0"])
    assert msgpack.unpackb(data[PREFIX.size :]) == [3, [4, "n0"]]
