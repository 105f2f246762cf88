"""Bodies of REGISTER_BROKER in both forms."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import zlib
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting_kit import java_bytes, java_samples

from dledger.remoting import registration as module
from dledger.remoting.errors import BadBody
from dledger.remoting.registration import (
    DataVersion,
    KnownTopics,
    Registration,
    TopicConfig,
    body_crc,
    decode_registration,
    decode_topic_config,
    decode_topic_line,
    decode_topic_table,
    encode_registration,
    encode_topic_line,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters=" \n"), min_size=1, max_size=12)
CONFIGS = st.builds(
    TopicConfig,
    NAMES,
    st.integers(0, 1024),
    st.integers(0, 1024),
    st.integers(0, 15),
    attributes=st.dictionaries(
        st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")), max_size=2
    ),
)
REGISTRATIONS = st.builds(
    Registration,
    st.lists(CONFIGS, max_size=5).map(lambda configs: {config.topicName: config for config in configs}),
    st.builds(DataVersion, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**50)),
    st.lists(NAMES, max_size=2),
)


def check_java_sample(registration: Registration) -> None:
    assert registration.data_version == DataVersion(0, 3, 1700000000000)
    assert registration.filter_servers == []
    assert registration.topics == {
        "T": TopicConfig("T", 4, 4, 6, attributes={"message.type": "NORMAL"}),
        "TBW102": TopicConfig("TBW102", 8, 8, 7),
    }


def test_javas_json_body_is_read_and_its_crc_fits() -> None:
    crc = java_samples()["registerBrokerBody.crc32.uncompressed"]["value"]
    check_java_sample(decode_registration(java_bytes("registerBrokerBody.uncompressed"), crc=crc))


def test_javas_compressed_body_is_read() -> None:
    check_java_sample(decode_registration(java_bytes("registerBrokerBody.compressed"), compressed=True))


def test_javas_topic_line_is_read_and_written() -> None:
    line = java_samples()["topicConfig.encode-line"]["text"]
    config = decode_topic_line(line)
    assert config == TopicConfig("T", 4, 4, 6, attributes={"message.type": "NORMAL"})
    assert encode_topic_line(config) == line


def test_javas_topic_table_is_read() -> None:
    table = decode_topic_table(java_bytes("topicConfigSerializeWrapper"))
    assert sorted(table.topicConfigTable) == ["T", "TBW102"]
    assert table.dataVersion.counter == 3


@given(REGISTRATIONS, st.booleans())
def test_what_is_written_is_read(registration: Registration, compressed: bool) -> None:
    body = encode_registration(registration, compressed=compressed)
    assert decode_registration(body, compressed=compressed, crc=body_crc(body)) == registration


@given(st.lists(REGISTRATIONS, max_size=6))
def test_what_is_known_of_a_table_changes_nothing_but_the_work(registrations: list[Registration]) -> None:
    known = KnownTopics()
    for registration in registrations:
        body = encode_registration(registration)
        for _ in range(2):
            assert decode_registration(body, known=known) == registration


AWKWARD = st.text(st.sampled_from(list('{}[],:"\\ax+')), max_size=12)
"""Texts that look like ends of a topic."""
MANY = st.lists(
    st.builds(
        TopicConfig,
        st.one_of(AWKWARD, NAMES),
        attributes=st.dictionaries(AWKWARD, AWKWARD, max_size=2),
    ),
    max_size=20,
).map(lambda configs: Registration({one.topicName: one for one in configs}, DataVersion(), []))


@given(st.lists(MANY, min_size=1, max_size=3), st.integers(150, 2000))
def test_a_table_in_pieces_is_the_table(registrations: list[Registration], piece: int) -> None:
    known = KnownTopics()
    with mock.patch.object(module, "PIECE_BYTES", piece):
        for registration in registrations:
            body = encode_registration(registration)
            assert decode_registration(body, known=known) == registration


@given(MANY.filter(lambda one: len(one.topics) > 1), st.data())
def test_a_broken_table_in_pieces_is_refused_as_the_whole_one_is(
    many: Registration, data: st.DataObject
) -> None:
    body = bytearray(encode_registration(many))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from(b'{}",:[]x'))

    def outcome() -> Registration | str:
        try:
            return decode_registration(bytes(body))
        except BadBody as error:
            return str(error)

    whole = outcome()
    with mock.patch.object(module, "PIECE_BYTES", 150):
        assert outcome() == whole


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_registration_comes_in_many_pieces(compressed: bool) -> None:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4, 6) for number in range(3000)}
    body = encode_registration(Registration(topics, DataVersion()), compressed=compressed)
    pieces = module.registration_in_pieces(body, compressed=compressed)
    assert sum(1 for _ in pieces) >= 8
    spaced = body if compressed else body.replace(b'},"', b'}, "')
    assert decode_registration(spaced, compressed=compressed).topics == topics


def test_what_is_known_keeps_the_table_and_not_the_body() -> None:
    known = KnownTopics()
    body = encode_registration(Registration({"T": TopicConfig("T", 4, 4, 6)}, DataVersion(), ["x" * 100_000]))
    before = sys.getrefcount(body)
    assert list(decode_registration(body, known=known).topics) == ["T"]
    assert sys.getrefcount(body) == before
    assert 600 < known.size < 1200, "with the objects"


def test_of_a_table_that_is_known_only_what_differs_is_decoded() -> None:
    def decode(**perms: int) -> dict[str, TopicConfig]:
        topics = {name: TopicConfig(name, perm=perm) for name, perm in perms.items()}
        return decode_registration(
            encode_registration(Registration(topics, DataVersion())), known=known
        ).topics

    known = KnownTopics()
    first = decode(A=6, B=6)
    assert decode(A=6, B=6) is first
    second = decode(A=6, B=4, C=6)
    assert second["A"] is first["A"] and second["B"].perm == 4 and "C" in second
    with pytest.raises(BadBody):
        decode_registration(b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}', known=known)
    assert decode(A=6, B=4, C=6) is second
    unusual = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"perm":2}}}}'
    assert decode_registration(unusual, known=known).topics == {"A": TopicConfig("A", perm=2)}
    assert decode(A=6) == {"A": TopicConfig("A")}


def test_a_line_without_attributes_is_read() -> None:
    assert decode_topic_line("T 4 8 6 MULTI_TAG") == TopicConfig("T", 4, 8, 6, "MULTI_TAG")


def test_unusual_json_is_read() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":{"value":7},"timestamp":"5"},'
        b'"topicConfigTable":{"T":{"readQueueNums":"4","topicFilterType":1,"attributes":null}}}}'
    )
    registration = decode_registration(body)
    assert registration.data_version == DataVersion(0, 7, 5)
    assert registration.topics == {"T": TopicConfig("T", 4, 16, 6, "MULTI_TAG")}
    assert registration.filter_servers is None


def test_an_empty_body_is_an_empty_table() -> None:
    assert decode_registration(b"") == Registration({}, DataVersion())


def test_a_wrong_crc_is_refused_as_java_says_it() -> None:
    body = java_bytes("registerBrokerBody.uncompressed")
    with pytest.raises(BadBody, match="crc32 not match"):
        decode_registration(body, crc=body_crc(body) ^ 1)


LONG = struct.pack(">i", 1 << 30)


@pytest.mark.parametrize(
    "body",
    [
        b"not zlib",
        zlib.compress(b""),
        zlib.compress(LONG),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 2) + b"{}" + LONG),
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, 3) + b"T x"),
        zlib.compress(b"x" * 1000)[:-4],
    ],
)
def test_damaged_compressed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BadBody):
        decode_registration(body, compressed=True)


def test_a_small_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DECOMPRESSED", 1000)
    with pytest.raises(BadBody, match="larger than 1000 bytes"):
        decode_registration(zlib.compress(bytes(100_000)), compressed=True)


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_are_a_registration_or_a_bad_body(data: bytes, packed: bool) -> None:
    for compressed in (False, True):
        with contextlib.suppress(BadBody):
            decode_registration(zlib.compress(data) if packed else data, compressed=compressed)


def test_data_versions_order_by_term_first() -> None:
    assert DataVersion(2, 0, 0) > DataVersion(1, 9, 9)


def test_a_topic_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadBody, match="not a JSON object"):
        decode_topic_config(json.dumps([1]).encode())
