"""Byte layouts against vectors of real RocketMQ and their own inverses."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.formats.consume_queue import UNIT, unpack_unit
from dledger.formats.entry import CorruptEntry, Kind, check_entry, encode_entry, pack_channel, unpack_header
from dledger.formats.message_ids import (
    decode_message_id,
    encode_message_id,
    java_hash,
    pack_ipv4_host,
    tags_code,
)
from dledger.formats.properties import decode_properties, encode_properties, find_property
from dledger.formats.record import (
    CorruptRecord,
    check_body_crc,
    decode_record,
    decode_records,
    encode_record,
    system_record,
    system_record_size,
)
from dledger.formats.store_files import (
    SLOT_SIZE,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    decode_checkpoint,
    decode_hard_state,
    decode_identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
)

# spec/namesrv-producer-store.md A16: figures of a real broker's log.
UNIQ = "C0A8010325B46D06D69C70A211400000"
PROPERTIES = f"UNIQ_KEY\x01{UNIQ}\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def test_a_record_has_the_size_and_crc_of_rocketmqs() -> None:
    record = encode_record(topic="TopicTest", body=b"Hello RocketMQ 0", properties=PROPERTIES)
    assert len(record) == 178
    decoded = decode_record(record)
    assert decoded.body_crc == 613185359
    assert check_body_crc(decoded)


def test_message_ids_are_those_of_rocketmq() -> None:
    host = pack_ipv4_host("192.168.1.3", 10911)
    assert encode_message_id(host, 356) == "C0A8010300002A9F0000000000000164"
    assert decode_message_id("C0A8010300002A9F00000000000000B2") == (host, 178)
    with pytest.raises(ValueError, match="32 or 56"):
        decode_message_id("ABCD")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("Aa", 2112),
        ("BB", 2112),
        ("标签", 0x6807 * 31 + 0x7B7E),
    ],
)
def test_tag_codes_are_java_hashes(text: str, value: int) -> None:
    assert tags_code(text) == value


def test_java_hashes_wrap_to_negative() -> None:
    assert java_hash("polygenelubricants") == -(2**31)


texts = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), max_size=30)


@given(
    st.binary(max_size=500),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=200),
    texts,
    st.integers(0, 2**40),
)
def test_records_survive(body: bytes, topic: str, properties: str, offset: int) -> None:
    record = encode_record(
        topic=topic, body=body, properties=properties, queue_offset=offset, physical_offset=offset
    )
    decoded = decode_record(record)
    assert (decoded.body, decoded.topic, decoded.properties) == (body, topic, properties)
    assert (decoded.queue_offset, decoded.physical_offset, decoded.size) == (offset, offset, len(record))
    assert decode_records(record * 2) == [decoded, decoded]


@given(st.binary(max_size=300))
def test_garbage_is_no_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(data)


@given(st.integers(0, 177))
def test_a_cut_record_is_no_record(size: int) -> None:
    record = encode_record(topic="TopicTest", body=b"Hello RocketMQ 0", properties=PROPERTIES)
    with pytest.raises(CorruptRecord):
        decode_record(record[:size])


def test_system_records_have_the_announced_size_and_are_never_dispatched_by_apache() -> None:
    record = system_record(b"abc", 48, 1)
    assert len(record) == system_record_size(3)
    assert decode_record(record).sys_flag & 0xC == 0x4


@given(st.dictionaries(texts.filter(lambda name: len(name) > 1), texts, max_size=8))
def test_properties_survive(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    for name, value in properties.items():
        assert find_property(text.encode(), name.encode()) == value.encode()
    assert find_property(text.encode(), b"surely not there, as it is longer than thirty") is None


def test_properties_are_parsed_leniently_and_written_strictly() -> None:
    assert decode_properties("a\x01b") == {"a": "b"}
    assert decode_properties("ab\x02\x01\x02a\x01b\x02") == {"a": "b"}
    with pytest.raises(ValueError, match="separator"):
        encode_properties({"a": "b\x02"})


def test_a_property_is_not_found_inside_a_value() -> None:
    assert find_property(b"X\x01KEYS\x02KEYS\x01k\x02", b"KEYS") == b"k"
    assert find_property(b"MYKEYS\x01no\x02", b"KEYS") is None


def entry(index: int = 5, term: int = 2, pos: int = 1000, chain: int = 9) -> bytes:
    return encode_entry(index, term, pos, b"0123456789", chain, Kind.MESSAGE)


def test_an_entry_is_believed_only_if_everything_fits() -> None:
    data = entry()
    assert len(data) == 58
    assert check_entry(data, 0, 5, 1000, 2, 9).body_size == 10
    for index, pos, term, chain in ((6, 1000, 2, 9), (5, 1001, 2, 9), (5, 1000, 3, 9), (5, 1000, 2, 8)):
        with pytest.raises(CorruptEntry):
            check_entry(data, 0, index, pos, term, chain)
    for cut in (0, 10, 47, 57):
        with pytest.raises(CorruptEntry):
            check_entry(data[:cut], 0, 5, 1000, 2, 9)


def test_an_apache_entry_without_crcs_is_believed_by_its_structure() -> None:
    data = bytearray(entry())
    data[32:44] = bytes(12)
    assert check_entry(data, 0, 5, 1000, 2, 9).chain_crc == 0


def test_kind_and_batch_share_the_channel() -> None:
    header = unpack_header(encode_entry(0, 1, 0, b"", 0, Kind.SYSTEM, 31))
    assert (header.kind, header.batch_remaining) == (Kind.SYSTEM, 31)
    with pytest.raises(ValueError, match="batch"):
        pack_channel(0, 1 << 24)


def test_a_crc_begins_with_the_channel_where_it_says_so() -> None:
    for kind, remaining in ((Kind.MESSAGE, 0), (Kind.SYSTEM, 31)):
        data = encode_entry(5, 2, 1000, b"0123456789", 9, kind, remaining, covered=True)
        header = check_entry(data, 0, 5, 1000, 2, 9)
        assert (header.kind, header.batch_remaining) == (kind, remaining)
        assert header.body_crc == zlib.crc32(b"0123456789", header.channel)
        for bit in range(32):
            wrong = bytearray(data)
            wrong[32 + bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptEntry, match="body CRC"):
                check_entry(wrong, 0, 5, 1000, 2, 9)


def test_queue_units() -> None:
    assert unpack_unit(UNIT.pack(48, 178, -5)) == (48, 178, -5)
    assert UNIT.size == 20


@given(st.integers(0, 2**62), st.one_of(st.none(), st.text(min_size=1, max_size=20)), st.integers(1, 1000))
def test_the_newer_valid_slot_counts(term: int, vote: str | None, sequence: int) -> None:
    old = encode_slot(sequence, HardState(1, "n9"))
    new = encode_slot(sequence + 1, HardState(term, vote))
    assert decode_hard_state(old + new) == (sequence + 1, HardState(term, vote))
    assert decode_hard_state(new + old) == (sequence + 1, HardState(term, vote))
    torn = bytearray(new)
    torn[30] ^= 1
    assert decode_hard_state(old + bytes(torn)) == (sequence, HardState(1, "n9"))
    assert decode_hard_state(bytes(torn) + bytes(SLOT_SIZE)) is None


def test_identity_files_are_believed_whole_or_not_at_all() -> None:
    identity = Identity("g", "n0", "abc", 4096, "c", {"n0": "abc"})
    data = encode_json(identity)
    assert decode_identity(data) == identity
    with pytest.raises(CorruptFile):
        decode_identity(data.replace(b"abc", b"abd", 1))
    with pytest.raises(CorruptFile, match="newer"):
        decode_identity(encode_json({"format_version": 99}))


def test_checkpoints() -> None:
    data = encode_checkpoint(Checkpoint(7, 5))
    assert len(data) == 128
    assert decode_checkpoint(data) == Checkpoint(7, 5)
    assert decode_checkpoint(data.replace(b"7", b"8")) is None
    assert decode_checkpoint(b"") is None
    assert decode_checkpoint(b"#Apache\ncommittedIndex=3\nendIndex=4\n") == Checkpoint(4, 3)
