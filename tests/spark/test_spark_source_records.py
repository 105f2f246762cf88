"""Bulk decoding says what the decoders of dledger/formats/ say, record by record. Without Spark."""

from __future__ import annotations

import zlib

import pytest

pytest.importorskip("pyarrow")

import lz4.frame
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client.compression import CorruptBody, decompress
from dledger.formats.properties import KEYS, TAGS, decode_properties, encode_properties
from dledger.formats.record import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZSTD,
    STORE_HOST_V6,
    CorruptRecord,
    decode_record,
    encode_record,
)
from dledger.spark.records import Records, decode, slices
from dledger.spark.texts import parse_properties

TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=12)
RAW_PROPERTIES = st.text(st.sampled_from("ab\x01\x02é"), max_size=40)
PROPERTIES = st.one_of(
    RAW_PROPERTIES,
    st.dictionaries(st.one_of(st.sampled_from([KEYS, TAGS, "WAIT"]), TEXT), TEXT).map(encode_properties),
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A record as `encode_record` makes them: both versions, both kinds of hosts."""
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    topic = draw(
        st.one_of(st.sampled_from(["a", "orders", "Ünï"]), st.text("xyz", min_size=128, max_size=200))
    )
    record = encode_record(
        topic=topic,
        body=draw(st.binary(max_size=60)),
        properties=draw(PROPERTIES),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**63 - 1)),
        physical_offset=draw(st.integers(0, 2**63 - 1)),
        sys_flag=draw(st.sampled_from([0, 4, 8, 12])),
        born_timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
        store_timestamp=draw(st.integers(0, 2**63 - 1)),
    )
    return wide(record, born_v6, store_v6)


def wide(record: bytes, born_v6: bool, store_v6: bool) -> bytes:
    """The record with IPv6 hosts."""
    flag = int.from_bytes(record[36:40]) | BORN_HOST_V6 * born_v6 | STORE_HOST_V6 * store_v6
    data = record[:36] + flag.to_bytes(4) + record[40:48] + bytes(20 if born_v6 else 8)
    data += record[56:64] + bytes(20 if store_v6 else 8) + record[72:]
    return len(data).to_bytes(4) + data[4:]


def decoded(items: list[bytes]) -> Records:
    """Records with rubbish between them."""
    data, starts = b"", []
    for item in items:
        starts.append(len(data))
        data += item + b"??"
    return decode(
        np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array([len(i) for i in items], np.int64)
    )


def same(found: Records, number: int, item: bytes) -> None:
    try:
        wanted = decode_record(item)
    except CorruptRecord:
        assert found.problem[number], "a record that is none was believed"
        return
    if wanted.size != len(item) or not wanted.topic:
        assert found.problem[number]
        return
    assert found.problem[number] == ""
    start, size = int(found.body_at[number]), int(found.body_size[number])
    assert found.buffer[start : start + size].tobytes() == wanted.body
    assert found.topics[found.topic[number]] == wanted.topic
    assert [
        int(column[number])
        for column in (
            found.queue_id,
            found.flag,
            found.queue_offset,
            found.physical_offset,
            found.sys_flag,
            found.born,
            found.stored,
            found.body_crc,
        )
    ] == [
        wanted.queue_id,
        wanted.flag,
        wanted.queue_offset,
        wanted.physical_offset,
        wanted.sys_flag,
        wanted.born_timestamp,
        wanted.store_timestamp,
        wanted.body_crc,
    ]
    text = found.properties(np.array([number]))
    assert text.to_pylist() == [wanted.properties]


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), max_size=8))
def test_records_are_decoded_as_one_by_one(items: list[bytes]) -> None:
    found = decoded(items)
    for number, item in enumerate(items):
        same(found, number, item)


@settings(max_examples=200, deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_damaged_records_are_refused_as_one_by_one(items: list[bytes], data: st.DataObject) -> None:
    hit = data.draw(st.integers(0, len(items) - 1))
    item = bytearray(items[hit])
    if data.draw(st.booleans()):
        item[data.draw(st.integers(0, len(item) - 1))] = data.draw(st.integers(0, 255))
    else:
        del item[data.draw(st.integers(0, len(item) - 1)) :]
    items[hit] = bytes(item)
    found = decoded(items)
    for number, one in enumerate(items):
        try:
            decode_record(one)
        except CorruptRecord as error:
            if "UTF-8" in str(error) and not found.problem[number]:
                found.properties(np.array([number]))  # texts of properties are looked at on demand
        same(found, number, one)


@settings(max_examples=200, deadline=None)
@given(st.lists(PROPERTIES, max_size=8))
def test_properties_are_parsed_as_one_by_one(texts: list[str]) -> None:
    found = parse_properties(pa.array(texts, pa.string()))
    wanted = [decode_properties(text) for text in texts]
    assert [dict(row) for row in found.maps().to_pylist()] == wanted
    assert all(len(row) == len(dict(row)) for row in found.maps().to_pylist()), "a name twice"
    for name in (KEYS, TAGS, "a"):
        assert found.values(name.encode()).to_pylist() == [row.get(name) for row in wanted]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10))
def test_slices_are_the_bytes_of_each_range(steps: list[tuple[int, int]]) -> None:
    starts, ends, at = [], [], 0
    for gap, size in steps:
        starts.append(at + gap)
        at += gap + size
        ends.append(at)
    data = bytes(range(200))
    found = slices(np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64))
    assert found.to_pylist() == [data[start:end] for start, end in zip(starts, ends, strict=True)]


def test_the_record_crc_counts_where_it_is_the_only_one() -> None:
    good = encode_record(topic="a", body=b"12345")
    bad = bytearray(good)
    bad[90] ^= 1
    found = decoded([good, bytes(bad)])
    found.check_body_crcs(np.array([True, True]))
    assert [bool(problem) for problem in found.problem] == [False, True]


def test_bodies_of_all_kinds_are_unfolded() -> None:
    zstandard = pytest.importorskip("zstandard")
    body = b"some body " * 100
    assert decompress(zlib.compress(body), COMPRESSED) == body
    assert decompress(lz4.frame.compress(body), COMPRESSED | COMPRESSION_LZ4) == body
    assert decompress(zstandard.ZstdCompressor().compress(body), COMPRESSED | COMPRESSION_ZSTD) == body
    streamed = zstandard.ZstdCompressor().compressobj()  # as zstd-jni streams: no size in the frame
    assert decompress(streamed.compress(body) + streamed.flush(), COMPRESSED | COMPRESSION_ZSTD) == body


@pytest.mark.parametrize("kind", [0, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x700])
def test_damaged_bodies_are_damage(kind: int) -> None:
    zstandard = pytest.importorskip("zstandard")
    body = b"some body " * 100
    packed = {
        0: zlib.compress(body),
        COMPRESSION_LZ4: lz4.frame.compress(body),
        COMPRESSION_ZSTD: zstandard.ZstdCompressor().compress(body),
    }.get(kind, b"x")
    for damaged in (packed[:-3], b"\0" + packed[1:]):
        with pytest.raises(CorruptBody):
            decompress(damaged, COMPRESSED | kind)
