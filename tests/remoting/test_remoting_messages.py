"""The body of a batch of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting_kit import decode_one, java_bytes, recorded_frames

from dledger.formats.properties import decode_properties
from dledger.remoting.errors import BadBody
from dledger.remoting.messages import BatchMessage, batch_message, decode_batch, encode_batch

MESSAGES = st.lists(
    st.builds(BatchMessage, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)),
    max_size=6,
)


def test_javas_batch_is_read_and_written_byte_for_byte() -> None:
    body = java_bytes("batchBody")
    messages = decode_batch(body)
    assert [message.body for message in messages] == [b"b1", b"b22"]
    assert decode_properties(messages[0].properties.decode())["TAGS"] == "TagA"
    assert encode_batch(messages) == body


def test_recorded_batches_are_read() -> None:
    batches = [frame for frame in recorded_frames() if frame["header"]["code"] == 320]
    assert batches
    for frame in batches:
        body = decode_one(bytes.fromhex(frame["frame_hex"])).body
        assert encode_batch(decode_batch(body)) == body


@given(MESSAGES)
def test_what_is_written_is_read(messages: list[BatchMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


@given(MESSAGES.filter(bool), st.integers(1, 30))
def test_a_cut_batch_is_illegal(messages: list[BatchMessage], cut: int) -> None:
    body = encode_batch(messages)
    last = encode_batch(messages[-1:])
    with pytest.raises(BadBody) as caught:
        decode_batch(body[: len(body) - 1 - cut % (len(last) - 1)])
    assert caught.value.code == 13


@given(st.binary(max_size=80))
def test_any_bytes_are_a_batch_or_illegal(data: bytes) -> None:
    try:
        messages = decode_batch(data)
    except BadBody as error:
        assert error.code == 13
    else:
        assert len(encode_batch(messages)) == len(data)


def test_properties_that_are_too_long_are_refused() -> None:
    with pytest.raises(ValueError, match="32768 bytes; the limit is 32767"):
        encode_batch([BatchMessage(0, b"", bytes(32768))])


def test_a_message_is_made_from_a_mapping() -> None:
    assert batch_message(b"x", {"KEYS": "a"}, 7) == BatchMessage(7, b"x", b"KEYS\x01a\x02")
