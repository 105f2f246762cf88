"""Bytes <-> commands: recorded frames, round trips, limits, garbage."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remoting_kit import decode_one, feed, java_bytes, recorded_frames

from dledger.remoting.codes import LanguageCode, RequestCode
from dledger.remoting.commands import Request, SerializeType
from dledger.remoting.errors import BadHeader, FrameError
from dledger.remoting.frames import (
    MAX_HEADER_SIZE,
    MAX_REMARK,
    FrameReader,
    decode_header,
    encode_binary_header,
    encode_request,
    encode_response,
    encode_response_json,
)
from dledger.remoting.headers import REQUEST_HEADERS, SendMessageV2Header
from dledger.remoting.limits import MAX_REQUEST_HEADER

JSON, BINARY = SerializeType.JSON, SerializeType.ROCKETMQ
FRAMES = recorded_frames()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=6)
INT32 = st.integers(-(2**31), 2**31 - 1)


def as_java_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- recorded frames ----------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f"{f['client']}-{f['header']['code']}")
def test_a_recorded_frame_decodes_to_what_was_recorded(frame: dict[str, Any]) -> None:
    command = decode_one(bytes.fromhex(frame["frame_hex"]))
    header = frame["header"]
    assert (command.code, command.opaque, command.flag) == (
        header["code"],
        header["opaque"],
        header["flag"],
    )
    assert (command.language, command.version) == (header["language"], header["version"])
    assert command.ext() == {k: as_java_text(v) for k, v in header.get("extFields", {}).items()}
    assert len(command.body) == frame["body_len"]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f"{f['client']}-{f['header']['code']}")
def test_the_typed_header_of_a_recorded_request_holds_the_recorded_values(frame: dict[str, Any]) -> None:
    command = decode_one(bytes.fromhex(frame["frame_hex"]))
    if command.is_response or command.code not in REQUEST_HEADERS:
        return
    typed = command.header(REQUEST_HEADERS[RequestCode(command.code)])
    for field in msgspec.structs.fields(type(typed)):
        recorded = frame["header"].get("extFields", {}).get(field.encode_name)
        value = getattr(typed, field.name)
        if recorded is None:
            assert value == field.default
        elif isinstance(value, bool):
            assert value == (as_java_text(recorded) in ("true", "1"))
        else:
            assert str(value) == str(recorded)


@pytest.mark.parametrize("serialize", [JSON, BINARY])
@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f"{f['client']}-{f['header']['code']}")
def test_a_recorded_header_encoded_anew_says_the_same(
    frame: dict[str, Any], serialize: SerializeType
) -> None:
    command = decode_one(bytes.fromhex(frame["frame_hex"]))
    encoded = encode_request(
        command.code, command.opaque, command.ext(), len(command.body), command.flag, serialize
    )
    again = decode_one(encoded + command.body)
    assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
    assert again.body == command.body
    assert again.ext() == {k: v for k, v in command.ext().items() if v or serialize is JSON}


@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
def test_javas_send_request_reads_the_same_in_both_serializations(serialize: str) -> None:
    command = decode_one(java_bytes(f"frame.SEND_MESSAGE_V2.{serialize}"))
    header = command.header(SendMessageV2Header)
    assert (command.code, command.opaque, command.version, command.body) == (310, 7, 479, b"hello")
    assert (header.producerGroup, header.topic, header.queueId) == ("PG", "T", 1)
    assert header.properties == "TAGS\x01TagA\x02"
    assert header.brokerName == "broker-a"
    assert not header.batch


@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
def test_javas_error_response_reads_the_same_in_both_serializations(serialize: str) -> None:
    command = decode_one(java_bytes(f"frame.error17.{serialize}"))
    assert command.is_response
    assert (command.code, command.opaque, command.remark) == (17, 8, "No topic route info")
    assert command.ext() == {}


def test_our_binary_response_is_javas_byte_for_byte() -> None:
    sample = java_bytes("frame.SEND_response.ROCKETMQ")
    ext = decode_one(sample).ext()
    request = Request(310, 7, serialize=BINARY)
    assert encode_response(request, 0, ext) == sample


def test_our_json_answers_are_javas_byte_for_byte() -> None:
    """Rust's client takes no frame without all of its fields."""
    sample = java_bytes("frame.SEND_response.JSON")
    assert encode_response(Request(310, 7), 0, decode_one(sample).ext()) == sample
    sample = java_bytes("frame.error17.JSON")
    remark = decode_one(sample).remark
    ours = json.loads(encode_response(Request(310, 8), 17, None, remark)[8:])
    assert ours == json.loads(sample[8:]) | {"extFields": {}}


def test_our_json_requests_have_the_fields_of_javas() -> None:
    sample = java_bytes("frame.SEND_MESSAGE_V2.JSON")
    size = int.from_bytes(sample[5:8], "big")
    ours = json.loads(encode_request(310, 7, language=LanguageCode.JAVA)[8:])
    assert ours == json.loads(sample[8 : 8 + size]) | {"extFields": {}}


# --- round trips --------------------------------------------------------------------------------------


@given(code=st.sampled_from(RequestCode), opaque=INT32, fields=FIELDS, body=st.binary(max_size=50))
def test_requests_survive_the_way_in_both_serializations(
    code: int, opaque: int, fields: dict[str, str], body: bytes
) -> None:
    for serialize in (JSON, BINARY):
        command = decode_one(encode_request(code, opaque, fields, len(body), serialize=serialize) + body)
        assert (command.code, command.opaque, command.body) == (code, opaque, body)
        assert command.serialize is serialize
        assert command.ext() == {k: v for k, v in fields.items() if v or serialize is JSON}


@given(code=st.integers(0, 32767), opaque=INT32, fields=FIELDS, remark=st.none() | TEXT)
def test_responses_survive_the_way_in_both_serializations(
    code: int, opaque: int, fields: dict[str, str], remark: str | None
) -> None:
    for serialize in (JSON, BINARY):
        request = Request(10, opaque, serialize=serialize)
        command = decode_one(encode_response(request, code, fields, remark, 3) + b"abc")
        assert command.is_response
        assert (command.code, command.opaque, command.body) == (code, opaque, b"abc")
        assert (command.remark or "") == (remark or "")
        assert command.ext() == {k: v for k, v in fields.items() if v or serialize is JSON}


@given(
    bodies=st.lists(st.binary(max_size=300), max_size=8),
    chunk=st.integers(1, 200),
    buffer_size=st.integers(8, 64),
)
def test_cuts_in_the_stream_do_not_matter(bodies: list[bytes], chunk: int, buffer_size: int) -> None:
    stream = b"".join(
        encode_request(10, number, {"n": str(number)}, len(body)) + body for number, body in enumerate(bodies)
    )
    reader = FrameReader(buffer_size=buffer_size, max_buffer_size=128)
    commands = feed(reader, stream, chunk)
    assert reader.error is None
    assert [command.body for command in commands] == bodies
    assert [command.ext() for command in commands] == [{"n": str(n)} for n in range(len(bodies))]


def test_typed_fields_travel_as_numbers_in_json_and_as_text_in_binary() -> None:
    header = SendMessageV2Header("PG", "T", "TBW102", 4, 1, 0, 170, 0, "p", unitMode=True)
    in_json = decode_one(encode_request(310, 1, header))
    in_binary = decode_one(encode_request(310, 1, header, serialize=BINARY))
    assert in_json.header(SendMessageV2Header) == header
    assert in_binary.header(SendMessageV2Header) == header
    assert in_binary.ext()["k"] == "true"
    assert "l" not in in_binary.ext()


def test_response_values_are_json_text_and_ext_fields_are_always_there() -> None:
    """The Go client drops frames with numbers, the C++ client reads them as 0, Java wants the key."""
    header = json.loads(encode_response_json(5, 0, {"queueId": "3", "msgId": 'a"\n\x01'})[8:])
    assert header["extFields"] == {"queueId": "3", "msgId": 'a"\n\x01'}
    assert header["language"] == "JAVA"
    assert header["version"] >= 401
    assert json.loads(encode_response_json(5, 1)[8:])["extFields"] == {}


@pytest.mark.parametrize("serialize", [JSON, BINARY])
def test_a_remark_that_repeats_a_whole_frame_is_cut(serialize: SerializeType) -> None:
    request = Request(10, 1, serialize=serialize)
    for char in ("x", "\x01", "\u4e2d"):
        command = decode_one(encode_response(request, 1, {"a": "b"}, char * 6_000_000))
        remark = command.remark or ""
        assert (len(remark), remark[-1], command.ext()) == (MAX_REMARK, char, {"a": "b"})
    with pytest.raises(ValueError, match="the header has"):
        encode_response(request, 1, {"a": "x" * (MAX_HEADER_SIZE + 1)})


def test_a_lone_surrogate_does_not_break_an_answer() -> None:
    remark = decode_one(encode_response_json(1, 1, {"a": "\ud800"}, remark="x\udfffy")).remark
    assert remark == "x?y"


@pytest.mark.parametrize(
    ("cut", "read"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\udc00\ud83dx", "\ufffd\ufffdx"),
        (rb"whole \ud83d\ude00 \uD83D", "whole \U0001f600 \ufffd"),
        (rb"no escape \\ud83d, \ud83d", "no escape \\ud83d, \ufffd"),
    ],
)
def test_half_of_a_surrogate_pair_spoils_no_neighbour(cut: bytes, read: str) -> None:
    """JavaScript writes it for a text that was cut in an emoji: the connection was closed, with 40 others."""
    good = [encode_request(310, opaque, {"i": "KEYS\x01k\x02"}) for opaque in range(40)]
    header = b'{"code":310,"opaque":99,"extFields":{"i":"KEYS\\u0001%b\\u0002"}}' % cut
    reader = FrameReader()
    commands = feed(reader, b"".join([*good[:20], frame(header), *good[20:]]))
    assert reader.error is None and len(commands) == 41
    assert (commands[20].opaque, commands[20].ext()) == (99, {"i": f"KEYS\x01{read}\x02"})


def test_bytes_that_are_no_text_spoil_no_neighbour_in_a_binary_header() -> None:
    header = encode_request(10, 7, {"a": "xyz"}, serialize=BINARY)
    reader = FrameReader()
    [command] = feed(reader, header.replace(b"xyz", b"\xed\xa0\xbd"))
    assert (command.opaque, command.ext()) == (7, {"a": "\ufffd\ufffd\ufffd"})


@pytest.mark.parametrize("code, short", [(200050, 3442), (200053, 3445), (200151, 3543)])
def test_pop_codes_travel_modulo_65536_in_binary_headers(code: int, short: int) -> None:
    frame = encode_request(code, 1, {}, serialize=BINARY)
    assert struct.unpack_from(">h", frame, 8) == (short,)
    assert decode_one(frame).code == code


def test_a_response_code_is_never_taken_for_a_pop_code() -> None:
    header = encode_binary_header(3442, 0, 1, 1, None, {})
    assert decode_header(1, header).code == 3442


# --- lenient envelopes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"code":"10","opaque":"5","flag":"0","version":"63","language":1,"remark":null}',
        '{"code":10,"opaque":5,"extFields":null}\n',
        '{"code":10,"opaque":5,"extFields":{},"(body)":7,"(size)":"x"}',
        '{ "opaque" : 5 , "code" : 10, "serializeTypeCurrentRPC":"JSON", "unknown":[1,{"a":2}] }',
    ],
)
def test_json_headers_in_unusual_forms_are_read(text: str) -> None:
    command = decode_header(0, text.encode())
    assert (command.code, command.opaque, command.flag) == (10, 5, 0)
    assert command.ext() == {}


def test_a_peer_cannot_set_what_the_reader_sets() -> None:
    header = b'{"code":10,"(body)":"aGk=","(serialize)":1,"(size)":0}'
    command = decode_one(struct.pack(">II", 4 + len(header), len(header)) + header)
    assert (command.body, command.serialize, command.size) == (b"", JSON, 4 + len(header))


def test_numbers_and_booleans_are_taken_where_text_is_declared() -> None:
    raw = b'{"a":1,"b":true,"c":"x","d":"4","e":1,"f":"0","g":"9","h":0.0,"k":"1","m":0,"i":null}'
    command = decode_header(0, b'{"code":310,"extFields":%b}' % raw)
    header = command.header(SendMessageV2Header)
    assert (header.producerGroup, header.topic) == ("1", "true")
    assert (header.unitMode, header.batch, header.properties) == (True, False, None)


@pytest.mark.parametrize("missing", list("abcdefgh"))
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {**dict.fromkeys("abc", "x"), **dict.fromkeys("defgh", "1")}
    del fields[missing]
    with pytest.raises(BadHeader, match=rf"SEND_MESSAGE_V2 lacks the field {missing} \("):
        decode_one(encode_request(310, 1, fields)).header(SendMessageV2Header)


@pytest.mark.parametrize("value", ["abc", "", "1.5", str(2**31), str(2**70), "[]"])
def test_a_field_of_a_wrong_type_is_named(value: str) -> None:
    fields = {**dict.fromkeys("abc", "x"), **dict.fromkeys("defgh", "1"), "e": value}
    with pytest.raises(BadHeader, match=r"wrong e \(queueId\)") as caught:
        decode_one(encode_request(310, 1, fields)).header(SendMessageV2Header)
    assert caught.value.field == "queueId"
    assert caught.value.code == 1


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"7", b'{"a":'])
def test_ext_fields_that_are_no_object_are_a_bad_header(raw: bytes) -> None:
    command = Request(10, ext_fields=msgspec.Raw(raw))
    with pytest.raises(BadHeader, match="extFields"):
        command.ext()
    with pytest.raises(BadHeader, match="extFields"):
        command.header(SendMessageV2Header)


# --- garbage ------------------------------------------------------------------------------------------


def frame(header: bytes, serialize: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header), serialize << 24 | len(header)) + header


BROKEN = {
    "frame too large": struct.pack(">II", 16 * 1024 * 1024 + 1, 2) + b"{}",
    "bad frame length": struct.pack(">II", 3, 0),
    "bad header length": struct.pack(">II", 20, 4000) + bytes(16),
    "unknown serialization": frame(b"{}", 9),
    "header too large": frame(b'{"code":10,"remark":"' + b"x" * MAX_REQUEST_HEADER + b'"}'),
    "bad JSON header": frame(b"[1, 2]"),
    "bad binary header": frame(b"\x00\x0a\x01", 1),
}


@pytest.mark.parametrize("cause", BROKEN)
def test_each_kind_of_broken_frame_has_its_cause(cause: str) -> None:
    reader = FrameReader()
    good = encode_request(10, 1, {})
    commands = feed(reader, good + BROKEN[cause] + good)
    assert len(commands) == 1
    assert reader.error is not None
    assert reader.error.cause == cause
    assert reader.capacity == 0


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b'{"opaque":1}',
        b'{"code":null}x',
        b'{"code":[]}',
        b'{"code":"x"}',
        b'{"code":1e999}',
        b"[" * 100_000,
        b'{"code":1,"extFields":' + b"[" * 100_000,
        b'{"code": "\xff"}',
    ],
)
def test_json_that_is_no_header_is_a_frame_error(header: bytes) -> None:
    with pytest.raises(FrameError, match="bad JSON header"):
        decode_header(0, header)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(1, 64))
def test_random_bytes_raise_nothing(data: bytes, chunk: int) -> None:
    feed(FrameReader(buffer_size=16), data, chunk)


@settings(max_examples=300)
@given(
    st.sampled_from([bytes.fromhex(f["frame_hex"]) for f in FRAMES[::5]]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
)
def test_damaged_frames_raise_only_what_they_should(
    data: bytes, damage: list[tuple[int, int]], binary: bool
) -> None:
    if binary:
        command = decode_one(data)
        data = encode_request(command.code, 1, command.ext(), len(command.body), serialize=BINARY)
        data += command.body
    changed = bytearray(data)
    for at, value in damage:
        changed[at % len(changed)] = value
    for command in feed(FrameReader(), bytes(changed)):
        try:
            command.ext()
            command.header(SendMessageV2Header)
        except BadHeader:
            pass


# --- memory -------------------------------------------------------------------------------------------


def test_an_announced_frame_costs_no_memory_before_it_arrives() -> None:
    reader = FrameReader(buffer_size=1024)
    feed(reader, struct.pack(">II", 16 * 1024 * 1024, 100) + b"x" * 1000)
    assert reader.error is None
    assert reader.capacity <= 2048


def test_a_large_frame_is_read_and_its_memory_given_back() -> None:
    body = bytes(3_000_000)
    reader = FrameReader(buffer_size=1024, max_buffer_size=4096)
    commands = feed(reader, encode_request(10, 1, {}, len(body)) + body, 65536)
    assert [len(command.body) for command in commands] == [3_000_000]
    feed(reader, encode_request(10, 1, {}))
    assert reader.capacity <= 4096
    reader.shrink()
    assert reader.capacity == 0


def test_the_buffer_grows_while_reads_fill_it() -> None:
    reader = FrameReader(buffer_size=1024, max_buffer_size=8192)
    feed(reader, (encode_request(10, 1, {}, 9) + b"x" * 9) * 500)
    assert reader.capacity == 8192


def test_shrinking_never_loses_a_partial_frame() -> None:
    data = encode_request(10, 1, {"a": "b"})
    reader = FrameReader()
    assert feed(reader, data[:20]) == []
    reader.shrink()
    assert [command.ext() for command in feed(reader, data[20:])] == [{"a": "b"}]
