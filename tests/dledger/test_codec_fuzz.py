"""Every codec of the Raft layer: values survive a round trip; bytes that somebody changed raise the own error
of the codec or give a value, never anything else, and never need much more memory than what came."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args
from zlib import crc32

import lz4.block
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger import messages as all_messages
from dledger.config import NodeConfig
from dledger.context.config_entries import decode_config
from dledger.election.identity import Hello, HelloRefused, decode_hello, encode_hello
from dledger.formats.entry import (
    HEADER_SIZE,
    CorruptEntry,
    Kind,
    check_entry,
    encode_entry,
    unpack_header,
)
from dledger.formats.record import CorruptRecord, decode_record, decode_records, encode_record, system_record
from dledger.formats.store_files import (
    SLOT_SIZE,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    decode_checkpoint,
    decode_hard_state,
    decode_identity,
    decode_json,
    encode_checkpoint,
    encode_json,
    encode_slot,
)
from dledger.log.incoming import check_run
from dledger.messages import Code, Holding, Message, VoteResult
from dledger.node.requests import ClientRequests
from dledger.peers.links import Unsent
from dledger.peers.wire import (
    CLIENT_REQUEST,
    HELLO,
    WireError,
    decode_frame,
    decode_message,
    encode_frame,
    encode_message,
    frame_size,
)
from tests.dledger.node_context import context

LIMIT = 1 << 20
FUZZ = settings(max_examples=80, deadline=None)

longs = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=20)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "Number": st.integers(-1, (1 << 63) - 1),
    "bool": st.booleans(),
    "Code": st.sampled_from(list(Code)),
    "VoteResult": st.sampled_from(list(VoteResult)),
    "Holding": st.sampled_from(list(Holding)),
    "bytes | memoryview": st.binary(max_size=6000),
}


def values(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a message type."""
    return st.builds(kind, **{name: FIELDS[kind.__annotations__[name]] for name in kind.__struct_fields__})


KINDS: list[type[Any]] = list(get_args(all_messages.Message))
any_message: st.SearchStrategy[Message] = st.one_of([values(kind) for kind in KINDS])


def on_the_wire(message: Message, compress: bool) -> bytes:
    return b"".join(bytes(part) for part in encode_message(message, compress=compress))


def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes after some damage: bits, pieces lost, doubled or replaced."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(result) - 1, 0)))
        kind = draw(st.sampled_from(["bit", "byte", "drop", "insert", "double", "cut"]))
        if kind == "bit" and result:
            result[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and result:
            result[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xD9, 0xDC, 0xDF, 0xFF]))
        elif kind == "drop":
            del result[at : at + draw(st.integers(1, 9))]
        elif kind == "insert":
            result[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "double":
            result[at:at] = result[at : at + 20]
        else:
            del result[at:]
    return bytes(result)


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    return changed(draw, on_the_wire(draw(any_message), draw(st.booleans())))


def receive(data: bytes) -> None:
    """What a connection does with what it read."""
    view = memoryview(data)
    size = frame_size(view, LIMIT)
    if size is not None and size <= len(view):
        decode_message(decode_frame(view[:size]))


# Peer frames


@FUZZ
@given(any_message, st.booleans())
def test_every_message_survives_the_wire(message: Message, compress: bool) -> None:
    data = memoryview(on_the_wire(message, compress))
    assert frame_size(data, LIMIT) == len(data)
    assert decode_message(decode_frame(data)) == message


@settings(max_examples=200, deadline=None)
@given(damaged_frames())
def test_damaged_frames_raise_wire_errors_only(data: bytes) -> None:
    try:
        receive(data)
    except WireError:
        return


json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), longs, st.floats(), texts, st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100), json_like, st.binary(max_size=60))
def test_well_packed_nonsense_raises_wire_errors_only(number: int, header: object, payload: bytes) -> None:
    try:
        receive(encode_frame(number, header, len(payload)) + payload)
    except WireError:
        return


@pytest.mark.parametrize(
    "header",
    [
        b"\x81\x90\x01",  # a map with a list as key
        b"\x92\x09\x81\x81\x01\x02\x03",  # a map as key of a map
        b"\x91" * 5000,  # nested deeper than anybody reads
        b"\xd6\xff\xff\xff\xff\xff",  # a time stamp
        b"\xc7\x0c\xff" + b"\xff" * 12,  # a time stamp out of range
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x90",
    ],
)
def test_odd_msgpack_raises_wire_errors_only(header: bytes) -> None:
    frame = (2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header
    with pytest.raises(WireError):
        receive(frame)


def peak(work: Callable[[], None], error: type[Exception]) -> int:
    """Bytes allocated at most."""
    tracemalloc.start()
    try:
        with pytest.raises(error):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw_size", [1 << 20, 63 << 20, (64 << 20) + 1, 1 << 40, 1 << 70, -1])
def test_a_small_frame_cannot_ask_for_much_memory(raw_size: int) -> None:
    payload = lz4.block.compress(b"x" * 100, store_size=False)
    header = [4, "n0", 6, 3, 7, 8, 0, 5]
    packed = msgpack.packb([8, [*header, min(raw_size, (1 << 64) - 1)]])
    size = 2 + len(packed) + len(payload)
    frame = size.to_bytes(4, "big") + len(packed).to_bytes(2, "big") + packed + payload
    assert peak(lambda: receive(frame), WireError) < 200_000


@FUZZ
@given(st.binary(max_size=12), st.integers(6, LIMIT))
def test_an_oversized_frame_is_refused_by_its_prefix(data: bytes, limit: int) -> None:
    try:
        size = frame_size(memoryview(data), limit)
    except WireError:
        return
    assert size is None or 6 <= size <= limit


# Hello


hellos = st.builds(
    Hello,
    group=texts,
    node=texts,
    incarnation=texts,
    cluster=texts,
    protocol_min=st.integers(0, 9),
    protocol_max=st.integers(0, 9),
    segment_size=st.integers(0, 1 << 40),
    sync_flush=st.booleans(),
    members=st.dictionaries(texts, texts, max_size=3),
    meta=st.dictionaries(texts, texts, max_size=3),
)


@FUZZ
@given(hellos)
def test_a_hello_survives_the_wire(hello: Hello) -> None:
    frame = decode_frame(memoryview(encode_frame(HELLO, encode_hello(hello))))
    assert decode_hello(frame.header()) == hello


@st.composite
def odd_hellos(draw: st.DrawFn) -> object:
    value: Any = encode_hello(draw(hellos))
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.booleans()):
            value[key] = draw(json_like)
        else:
            value.pop(key)
        if not value:
            return draw(json_like)
    return value


@settings(max_examples=250, deadline=None)
@given(st.one_of(odd_hellos(), json_like))
def test_an_odd_hello_is_refused_or_read(value: object) -> None:
    try:
        decode_hello(value)
    except HelloRefused:
        return


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment_size", float("inf")),
        ("protocol", [1]),
        ("protocol", {0: 1}),
        ("protocol", [float("inf"), 2]),
        ("members", [1]),
        ("meta", [[1, 2, 3]]),
        ("group", "x" * 10_000),
        ("node", "n" * 129),
        ("incarnation", "i" * 129),
        ("incarnation", "\N{GRINNING FACE}" * 33),
    ],
)
def test_a_hello_with_an_odd_field_is_refused(key: str, value: object) -> None:
    good = encode_hello(Hello("g", "n0", "i", "c", 1, 2, 4096, True))
    with pytest.raises(HelloRefused):
        decode_hello({**good, key: value})


# Entries and records


entries = st.lists(st.binary(max_size=120), min_size=1, max_size=5)


def run_of(bodies: list[bytes], chain: int = 7, *, covered: bool = True) -> bytes:
    data = b""
    for place, body in enumerate(bodies):
        entry = encode_entry(10 + place, 3, 4096 + len(data), body, chain, Kind.MESSAGE, covered=covered)
        chain = unpack_header(entry).chain_crc
        data += entry
    return data


@FUZZ
@given(entries)
def test_a_run_of_entries_survives(bodies: list[bytes]) -> None:
    run = check_run(run_of(bodies), 10, 9 + len(bodies), 4096, 3, 3, 7)
    assert [run.body(index) for index in range(10, 10 + len(bodies))] == bodies


@st.composite
def damaged_runs(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    bodies = draw(entries)
    good = run_of(bodies, covered=draw(st.booleans()))
    return len(bodies), good, changed(draw, good)


@settings(max_examples=200, deadline=None)
@given(damaged_runs())
def test_a_damaged_run_is_refused_unless_only_an_uncovered_channel_differs(
    case: tuple[int, bytes, bytes],
) -> None:
    count, good, bad = case
    try:
        run = check_run(bad, 10, 9 + count, 4096, 3, 3, 7)
    except CorruptEntry:
        return
    offset = 0
    if good[32] & 0x80:
        assert bad == good
    for size in run.sizes:  # of older programs: kind and batch remainder are in no CRC
        assert bad[offset : offset + 32] == good[offset : offset + 32]
        assert bad[offset + 36 : offset + size] == good[offset + 36 : offset + size]
        offset += size
    assert offset == len(good)


@settings(max_examples=200, deadline=None)
@given(damaged_runs(), st.integers(-3, 300))
def test_an_entry_read_anywhere_in_damaged_bytes_is_believed_or_corrupt(
    case: tuple[int, bytes, bytes], offset: int
) -> None:
    _, _, bad = case
    try:
        header = check_entry(bad, max(offset, 0), 10, 4096, 3, 7)
    except CorruptEntry:
        return
    assert header.size >= HEADER_SIZE


records = st.builds(
    encode_record,
    topic=st.text(max_size=200),
    body=st.binary(max_size=200),
    properties=st.text(max_size=50),
    queue_id=st.integers(0, 1000),
    queue_offset=st.integers(0, 1 << 40),
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    store_timestamp=st.integers(0, 1 << 45),
)


@FUZZ
@given(st.lists(records, max_size=4))
def test_records_survive(packed: list[bytes]) -> None:
    decoded = decode_records(b"".join(packed))
    assert [record.size for record in decoded] == [len(data) for data in packed]


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    return changed(draw, draw(records))


@settings(max_examples=250, deadline=None)
@given(st.one_of(damaged_records(), st.binary(max_size=200)), st.booleans())
def test_a_damaged_record_is_read_or_corrupt(data: bytes, with_body: bool) -> None:
    try:
        decode_record(data, with_body=with_body)
    except CorruptRecord:
        return


@st.composite
def config_records(draw: st.DrawFn) -> bytes:
    members = {"members": draw(json_like), "extra": draw(json_like)}
    body = draw(st.one_of(st.binary(max_size=60), st.just(msgpack.packb(members)), st.just(b"\x81\x90\x01")))
    data = system_record(body, 0, 0)
    return changed(draw, data) if draw(st.booleans()) else data


@settings(max_examples=200, deadline=None)
@given(config_records())
def test_a_configuration_entry_is_read_or_ignored(data: bytes) -> None:
    members = decode_config(data)
    assert members is None or members


# Small files


@FUZZ
@given(st.integers(0, 1 << 62), texts, st.integers(0, 1 << 62))
def test_term_and_vote_survive(term: int, vote: str, sequence: int) -> None:
    state = HardState(term, vote or None)
    slot = encode_slot(sequence, state)
    assert decode_hard_state(bytes(SLOT_SIZE) + slot) == (sequence, state)


@st.composite
def damaged_slots(draw: st.DrawFn) -> bytes:
    old, new = encode_slot(4, HardState(7, "n1")), encode_slot(5, HardState(8, "n2"))
    return changed(draw, old + new)


@settings(max_examples=200, deadline=None)
@given(damaged_slots())
def test_damaged_slots_give_one_of_the_two_or_nothing(data: bytes) -> None:
    assert decode_hard_state(data) in (None, (4, HardState(7, "n1")), (5, HardState(8, "n2")))


identities = st.builds(
    Identity,
    group=texts,
    node=texts,
    incarnation=texts,
    segment_size=st.integers(0, 1 << 40),
    cluster=texts,
    members=st.dictionaries(texts, texts, max_size=3),
)


@FUZZ
@given(identities)
def test_an_identity_survives(identity: Identity) -> None:
    assert decode_identity(encode_json(identity)) == identity


@st.composite
def damaged_identities(draw: st.DrawFn) -> tuple[Identity, bytes]:
    identity = draw(identities)
    return identity, changed(draw, encode_json(identity))


@settings(max_examples=200, deadline=None)
@given(damaged_identities())
def test_a_damaged_identity_is_corrupt_or_the_same(case: tuple[Identity, bytes]) -> None:
    identity, data = case
    try:
        assert decode_identity(data) == identity
    except CorruptFile:
        return


@settings(max_examples=200, deadline=None)
@given(st.one_of(json_like.map(repr).map(str.encode), st.binary(max_size=80)))
def test_content_with_a_fitting_crc_that_is_no_identity_is_corrupt(content: bytes) -> None:
    """Somebody else's file, or a newer version's."""
    data = content + b"\n" + f"{crc32(content):08x}\n".encode()
    for decode in (decode_json, decode_identity):
        try:
            decode(data)
        except CorruptFile:
            continue


def test_a_file_nested_too_deep_is_corrupt() -> None:
    content = b"[" * 100_000
    with pytest.raises(CorruptFile):
        decode_json(content + b"\n" + f"{crc32(content):08x}\n".encode())


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts, json_like.filter(lambda value: not _has_bytes(value)), max_size=6))
def test_an_identity_file_with_odd_fields_is_corrupt_or_well_typed(value: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "group": "g", "node": "n0", "incarnation": "i", "segment_size": 1, "format_version": 1
    }  # fmt: skip
    for key, name in zip(
        sorted(value), ("members", "segment_size", "group", "cluster", "node", "x"), strict=False
    ):
        base[name] = value[key]
    try:
        identity = decode_identity(encode_json(base))
    except CorruptFile:
        return
    assert isinstance(identity.group, str) and isinstance(identity.node, str)
    assert isinstance(identity.cluster, str) and isinstance(identity.segment_size, int)
    assert all(isinstance(item, str) for pair in identity.members.items() for item in pair)


def _has_bytes(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_bytes(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_bytes(item) for item in value)
    return isinstance(value, bytes)


@FUZZ
@given(longs, longs)
def test_a_checkpoint_survives(end: int, committed: int) -> None:
    checkpoint = Checkpoint(end, committed)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@st.composite
def damaged_checkpoints(draw: st.DrawFn) -> bytes:
    return changed(draw, encode_checkpoint(Checkpoint(draw(longs), draw(longs))))


@settings(max_examples=200, deadline=None)
@given(st.one_of(damaged_checkpoints(), st.binary(max_size=200)))
def test_a_damaged_checkpoint_is_read_or_ignored(data: bytes) -> None:
    found = decode_checkpoint(data)
    assert found is None or isinstance(found.end_index, int)


# Client protocol


class FakeLog:
    first_index, last_index, begin_pos, end_pos = 0, 4, 0, 500


class FakeReads:
    """Never has a read point."""

    def ask(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        done(None)

    def why(self) -> str:
        return "nobody leads"


def client_requests() -> ClientRequests:
    """With as much of a node as a request can reach before it appends."""
    parts = context(
        config=NodeConfig(
            "g", "n0", {"n0": "127.0.0.1:1"}, "unused", segment_size=8192, max_entry_bytes=4096
        ),
        log=FakeLog(),
        elector=SimpleNamespace(leader_id=None, term=1),
        replicator=SimpleNamespace(commit_index=3),
        peers=SimpleNamespace(sources=SimpleNamespace(admits=lambda host: True), unsent=Unsent()),
    )
    leadership = SimpleNamespace(appender=None, serving=False)
    others: Any = SimpleNamespace(
        leadership=leadership, membership=None, reads=FakeReads(), snapshots=None, reconfiguration=None
    )
    status: Any = SimpleNamespace(report=dict)
    return ClientRequests(parts, others, status)


class Answers:
    host = "127.0.0.1"

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, parts: list[bytes]) -> None:
        self.frames.append(b"".join(parts))


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        json_like,
        st.fixed_dictionaries(
            {
                "id": st.one_of(longs, json_like),
                "op": st.one_of(st.sampled_from(["append", "metadata"]), json_like),
            },
            optional={"index": json_like, "timeout_ms": json_like, "target": json_like},
        ),
        st.fixed_dictionaries(
            {
                "id": st.just(7),
                "op": st.just("get"),
                "index": st.one_of(st.integers(5, 1 << 62), texts, st.none()),
            }
        ),
    ),
    st.binary(max_size=50),
)
def test_an_odd_request_is_answered_or_closes_its_connection(header: object, payload: bytes) -> None:
    answers = Answers()
    frame = decode_frame(memoryview(encode_frame(CLIENT_REQUEST, header, len(payload)) + payload))
    try:
        client_requests().handle(answers, frame)  # type: ignore[arg-type]
    except WireError:
        assert not answers.frames
        return
    assert len(answers.frames) == 1
