"""Compiled twins (`dledger._fast`) against the Python ones: the same for good input and for broken.

That of `seal_sends` is in tests/broker/test_plain_sends.py. Where they are not built this skips; CI builds
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger import _fast
from dledger._fast import FAST
from dledger.broker.intake.send_processor import _BATCH_HEAD
from dledger.broker.store import dispatch, key_files
from dledger.broker.store.consume_queue import QueueTable
from dledger.broker.store.dispatch import Dispatcher
from dledger.broker.store.key_files import keys_in
from dledger.client import encoding
from dledger.client.encoding import received_all
from dledger.errors import InvariantBroken, NodeFailed
from dledger.formats import entry, plain_messages, record
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    CorruptEntry,
    Kind,
    encode_entry,
    unpack_header,
)
from dledger.formats.index_file import key_hash
from dledger.formats.properties import MAX_PROPERTIES_SIZE
from dledger.formats.record import CorruptRecord, encode_record, system_record
from dledger.formats.state import ReplicatedState, TopicConfig, pack_op
from dledger.formats.timers import TIMER_TOPIC
from dledger.host import Chunk
from dledger.log import incoming
from dledger.log.incoming import check_run
from dledger.remoting import limits

pytestmark = pytest.mark.skipif(FAST is None, reason="the compiled twins are not built")
POS = 4096


def outcome(work: Callable[[], Any]) -> Any:
    """What it gives, or which error."""
    try:
        return work()
    except (CorruptEntry, CorruptRecord, InvariantBroken) as error:
        return type(error), str(error)


def by_both(monkeypatch: pytest.MonkeyPatch, module: Any, work: Callable[[], Any]) -> tuple[Any, Any]:
    """By the compiled twin, and by the Python one alone."""
    outcomes = []
    for twin in (FAST, None):
        with monkeypatch.context() as patch:
            patch.setattr(module, "FAST", twin)
            outcomes.append(outcome(work))
    return outcomes[0], outcomes[1]


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_sums_of_small_pieces(data: bytes, begin: int) -> None:
    assert FAST is not None and FAST.crc32(data, begin) == crc32(data, begin)


def test_one_that_was_built_from_another_tree_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _fast._load() is FAST
    monkeypatch.setattr(_fast, "get_data", lambda package, name: b"another")
    with pytest.warns(RuntimeWarning, match="built from another version of the source"):
        assert _fast._load() is None


def test_an_installed_wheel_has_no_source_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str, name: str) -> bytes:
        raise FileNotFoundError(name)

    monkeypatch.setattr(_fast, "get_data", absent)
    assert _fast._load() is FAST


def test_too_many_marks_are_no_reason_to_do_without_twins() -> None:
    assert FAST is not None
    with pytest.raises(ValueError, match="MAX_MARKS"):
        FAST.set_up((b"mark",) * 17, 0)


def test_the_twins_know_the_same_numbers() -> None:
    """What is special about a message they take from `plain_messages`; sizes and bits are written twice."""
    assert FAST is not None
    assert {name: number & 0xFFFFFFFF for name, number in FAST.NUMBERS.items()} == {
        "ENTRY": HEADER_SIZE,
        "FIXED": record.FIXED_SIZE,
        "MIN_RECORD": record.FIXED_SIZE + 3,
        "MAGIC_V1": record.MAGIC_V1 & 0xFFFFFFFF,
        "ENTRY_MAGIC": entry.MAGIC,
        "MIN_BLANK": entry.MIN_BLANK_SIZE,
        "COVERED_SHIFT": entry.COVERED.bit_length() - 1,
        "TRANSACTION_ROLLBACK": record.TRANSACTION_ROLLBACK,
        "IPV6_FLAGS": plain_messages.WIDE_HOSTS,
        "UNPLAIN_FLAGS": plain_messages.SPECIAL_FLAGS | record.COMPRESSED | record.COMPRESSION_TYPE_MASK,
        "KIND_MESSAGE": entry.Kind.MESSAGE,
        "KIND_CONFIG": entry.Kind.CONFIG,
        "MAX_ENTRY": entry.MAX_ENTRY_SIZE,
        "MAX_HEADER": limits.MAX_REQUEST_HEADER,
        "MAX_PROPERTIES": MAX_PROPERTIES_SIZE,
        "OVERHEAD": limits.REQUEST_OVERHEAD,
        "BATCH_HEAD": _BATCH_HEAD.size,
    }


def test_a_variable_switches_them_off() -> None:
    program = "from dledger._fast import FAST; print(FAST is None)"
    for value, off in (("0", "True"), ("1", "False")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, _fast.SWITCH: value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == off


# -- a follower's check -----------------------------------------------------------------------------------


def entries(bodies: list[tuple[bytes, int, int, int]], index: int = 10, chain: int = 7) -> bytes:
    """Encode entries, each given by its body, its term, its kind and how many entries of its batch follow."""
    data = b""
    for body, term, kind, rest in bodies:
        entry = encode_entry(index, term, POS + len(data), body, chain, kind, rest, covered=term % 2 == 0)
        chain, index = unpack_header(entry).chain_crc, index + 1
        data += entry
    return data


bodies = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.integers(3, 4),
        st.sampled_from([0, 0, 2, 3, 9]),
        st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=5,
)


def broken(draw: st.DrawFn, data: bytes) -> bytes:
    """As it is, with one other byte, or cut off."""
    how = draw(st.sampled_from(["whole", "whole", "byte", "header", "cut"]))
    if how == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if how != "whole":
        at = draw(st.integers(0, min(len(data), HEADER_SIZE if how == "header" else len(data)) - 1))
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_frame_is_believed_by_both_or_by_none(data: st.DataObject) -> None:
    draw: Any = data.draw
    what = sorted(draw(bodies), key=lambda one: one[1])
    frame = broken(draw, entries(what))
    index = draw(st.sampled_from([10, 10, 10, 11, 2**63, -1]))
    last = index + len(what) - 1 + draw(st.sampled_from([0, 0, 0, 1]))
    pos = draw(st.sampled_from([POS, POS, POS, 0, 2**63]))
    terms = draw(st.sampled_from([(3, 4), (3, 4), (4, 4), (3, 3), (0, 2**70)]))
    chain = draw(st.sampled_from([7, 7, None, 8, -1, 2**40]))
    with pytest.MonkeyPatch.context() as patch:
        one, two = by_both(patch, incoming, lambda: check_run(frame, index, last, pos, *terms, chain))
    assert one == two


# -- committed entries to queues --------------------------------------------------------------------------


class Views:
    """What a dispatcher made of some chunks."""

    def __init__(self) -> None:
        self.state = ReplicatedState()
        self.queues = QueueTable(self.state)
        self.dispatcher = Dispatcher(self.state, self.queues)

    def told(self) -> Any:
        found = {
            (queue.topic, queue.queue_id): (bytes(queue.tail), queue.bounds.next, queue.bounds.first_position)
            for queues in self.queues.by_raw_topic.values()
            for queue in queues.values()
        }
        one = self.dispatcher
        counts = one.messages, one.malformed, one.applied_index, one.applied_end
        return found, counts, self.state.last_store_time_ms, list(self.state.topics), one.system_ops


messages = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "T", "T", "Other", "\xe9", TIMER_TOPIC, "x" * 130]),
        "queue_id": st.sampled_from([0, 0, 1, -1]),
        "sys_flag": st.sampled_from([0, 0, 0, 1, 4, 8, 12]),
        "store_timestamp": st.integers(-5, 2**40),
        "body": st.binary(max_size=30),
        "properties": st.sampled_from(
            [
                "",
                "A\x01b\x02",
                "TAGS\x01a\x02",
                "A\x01b\x02TAGS\x01Tag \xe9\x02",
                "A\x01b\x02TAGS\x01TagAB\x02B\x01c\x02",
                "NOTAGS\x01a\x02TAGS\x01b\x02",
                "TAGS\x01end",
                "TAGS\x01\x02",
                "TIMER_OUT_MS\x01123\x02",
            ]
        ),
    }
)


def chunk_of(what: list[Any], offsets: dict[tuple[str, int], int], index: int, pos: int) -> bytes:
    data = b""
    for one in what:
        position = pos + len(data) + HEADER_SIZE
        if one == "system":
            body, kind = system_record(pack_op(TopicConfig("New", 1, 1, 6).op()), position, 5), Kind.SYSTEM
        elif one == "opening":
            body, kind = system_record(b"", position, 5), Kind.TERM_OPENING
        elif one == "rubbish":
            body, kind = b"r" * 100, Kind.MESSAGE
        else:
            place = one["topic"], one["queue_id"]
            offset = offsets.get(place, 0)
            if one["sys_flag"] in (0, 1, 8) and one["queue_id"] >= 0:
                offsets[place] = offset + 1
            body = encode_record(**one, queue_offset=offset, physical_offset=position)
            kind = Kind.MESSAGE
        data += encode_entry(index, 1, pos + len(data), body, 0, kind, covered=bool(index % 3))
        index += 1
    return data


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_both_dispatch_the_same(data: st.DataObject) -> None:
    draw: Any = data.draw
    kinds = st.one_of(messages, messages, messages, st.sampled_from(["system", "opening", "rubbish"]))
    offsets: dict[tuple[str, int], int] = {}
    chunks: list[Chunk] = []
    index, pos = 0, 0
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.lists(kinds, min_size=1, max_size=8))
        raw = chunk_of(what, offsets, index, pos)
        if draw(
            st.sampled_from([False, False, True])
        ):  # in the record of the first entry: lengths, flags, offsets
            at = draw(st.integers(HEADER_SIZE, unpack_header(raw).size - 1))
            raw = raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
        chunks.append(Chunk(index, len(what), pos, memoryview(raw)))
        index, pos = index + len(what), pos + len(raw)

    def work() -> Any:
        views = Views()
        touched = []
        for chunk in chunks:
            try:
                touched.append([(queue.topic, queue.queue_id) for queue in views.dispatcher.apply(chunk)])
            except (InvariantBroken, NodeFailed) as error:  # of an operation with a name that nobody knows
                return str(error), touched
        return views.told(), touched

    with pytest.MonkeyPatch.context() as patch:
        one, two = by_both(patch, dispatch, work)
    assert one == two


def test_messages_in_a_row_are_for_the_compiled_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"topic": "T", "queue_id": 0, "properties": "A\x01b\x02TAGS\x01t\x02"}
    views = Views()
    offsets: dict[tuple[str, int], int] = {}
    one = {"sys_flag": 0, "store_timestamp": 1, "body": b"b", **plain}
    first = chunk_of([one], offsets, 0, 0)
    views.dispatcher.apply(Chunk(0, 1, 0, memoryview(first)))  # makes the queue, and knows the tag

    def none(*_: object) -> None:
        raise AssertionError("the Python twin was asked")

    monkeypatch.setattr(Dispatcher, "_message", none)
    rest = chunk_of([one] * 5, offsets, 1, len(first))
    views.dispatcher.apply(Chunk(1, 5, len(first), memoryview(rest)))
    assert views.dispatcher.messages == 6


# -- records to messages of a client ----------------------------------------------------------------------

hosts = st.sampled_from(
    [b"\x7f\0\0\1\0\0\x1f\x90", b"\xff" * 8, b"\xff\x00\x0a\x02\xff\xff\xff\xff", bytes(8)]
)
longs = st.sampled_from([0, 1, 2**62, -1, -(2**63)])
ints = st.sampled_from([0, 1, 2**31 - 1, -1])
received = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "T", "Other", "", "\xe9", "%RETRY%g", "x" * 130]),
        "body": st.binary(max_size=30),
        "queue_id": ints,
        "flag": ints,
        "queue_offset": longs,
        "physical_offset": longs,
        "sys_flag": st.sampled_from([0, 0, 0, 2, 0x40, 1, 0x100, 0x301, 4, 8, -(2**31)]),
        "born_timestamp": longs,
        "store_timestamp": longs,
        "born_host": hosts,
        "store_host": hosts,
        "reconsume_times": ints,
        "properties": st.sampled_from(
            [
                "",
                "UNIQ_KEY\x01id\x02WAIT\x01true\x02",
                "UNIQ_KEY\x01id\x02UNIQ_KEY\x01other",
                "RETRY_TOPIC\x01T\x02",
                "\x02\x02A\x01\x02A\x01b\x02\x01no name\x02no value\x02C\x01d\x01e\x02",
                "name\x01\xe9\x02",
                "p\x01" + "v" * 1000 + "\x02",
            ]
        ),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_both_read_the_same_messages(data: st.DataObject) -> None:
    draw: Any = data.draw
    body = b"".join(encode_record(**one) for one in draw(st.lists(received, min_size=1, max_size=5)))
    body = broken(draw, body)
    with pytest.MonkeyPatch.context() as patch:
        one, two = by_both(patch, encoding, lambda: received_all(body, "broker"))
    assert one == two


def test_plain_messages_of_an_answer_are_for_the_compiled_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise AssertionError("the Python twin was asked")

    body = encode_record(topic="T", body=b"b", queue_id=3, properties="UNIQ_KEY\x01id\x02TAGS\x01t\x02") * 5
    expected = [*received_all(body, "broker")]
    monkeypatch.setattr(encoding, "received", none)
    assert received_all(body, "broker") == expected
    assert [(one.body, one.tags, one.message_id, one.queue.queue_id) for one in expected] == [
        (b"b", "t", "id", 3)
    ] * 5


# -- keys of messages for the index -----------------------------------------------------------------------

keyed = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "T", "Other", "", "\xe9", "x" * 130]),
        "queue_id": st.just(0),
        "sys_flag": st.sampled_from([0, 0, 0, 1, 4, 8, 12, 0x10]),
        "store_timestamp": st.integers(-5, 2**40),
        "body": st.binary(max_size=30),
        "properties": st.sampled_from(
            [
                "",
                "UNIQ_KEY\x010A0B\x02KEYS\x01one\x02",
                "KEYS\x01 one  two \x02WAIT\x01true\x02UNIQ_KEY\x01id\x02",
                "KEYS\x01\x02UNIQ_KEY\x01\x02",
                "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02KEYS\x01c\x01d\x02KEYS\x01e",
                "MYKEYS\x01a\x02NOT_UNIQ_KEY\x01b\x02\x02KEYS",
                "UNIQ_KEY\x01\xe9\x02",
                "A\x01\xe9\x02KEYS\x01polygenelubricants\x02",
            ]
        ),
    }
)


def keys_found(data: bytes, pos: int) -> Any:
    try:
        found = keys_in(data, pos)
    except (ValueError, IndexError) as error:  # the log has checked what it gives out
        return str(error)
    keys = None if found.keys is None or not len(found.keys.position) else found.keys
    columns = None if keys is None else [column.tolist() for column in keys]
    return columns, found.end, found.wanted, found.blank


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_both_find_the_same_keys(data: st.DataObject) -> None:
    draw: Any = data.draw
    kinds = st.one_of(keyed, keyed, keyed, st.sampled_from(["system", "opening"]))
    window = chunk_of(draw(st.lists(kinds, min_size=1, max_size=5)), {}, 3, POS)
    if draw(st.booleans()):
        window += BLANK.pack(BLANK_MAGIC, 60).ljust(draw(st.sampled_from([8, 60])), b"\0")
    window = broken(draw, window)
    pos = POS + draw(st.sampled_from([0, 0, 0, 0, 8]))
    with pytest.MonkeyPatch.context() as patch:
        one, two = by_both(patch, key_files, lambda: keys_found(window, pos))
    assert one == two


def test_keys_of_plain_messages_are_for_the_compiled_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise AssertionError("the Python twin was asked")

    one = {"topic": "T", "queue_id": 0, "sys_flag": 0, "store_timestamp": 7, "body": b"b"}
    rolled_back = one | {"sys_flag": 12, "properties": "KEYS\x01c\x02"}
    plain = one | {"properties": "UNIQ_KEY\x01a\x02KEYS\x01b c\x02"}
    window = chunk_of([plain, "system", rolled_back, plain], {}, 3, POS)
    monkeypatch.setattr(key_files, "_keys_of", none)
    found = keys_in(window, POS).keys
    assert found is not None
    assert found.hashed.tolist() == [key_hash("T", key) for key in "abc"] * 2
    assert found.index.tolist() == [3, 3, 3, 6, 6, 6]
    assert set(found.store_ms.tolist()) == {7}
