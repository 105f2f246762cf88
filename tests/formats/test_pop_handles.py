"""Handles of popped messages: RocketMQ's texts, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.formats.pop_handles import (
    Handle,
    decode_handle,
    decode_info,
    offsets_info,
    order_counts,
    real_topic,
    retry_mark,
    retry_topic_v1,
    retry_topic_v2,
    start_info,
)

NUMBERS = st.integers(0, 2**62)
NAMES = st.text("abcXYZ019-_%|", min_size=1, max_size=20)
RECORDED = "0 1795217229010 60000 0 0 broker-a 0 2"
"""The handle of an acknowledgement that Apache's Java client 5.4 sent."""


def test_a_handle_is_what_apache_s_client_makes_of_our_answer() -> None:
    handle = decode_handle(RECORDED)
    assert handle == Handle(0, 1795217229010, 60000, 0, "0", "broker-a", 0, 2)
    assert handle.encode() == RECORDED and not handle.in_order
    assert start_info("TopicJava_pop", 1, 0) == "0 1 0"
    assert offsets_info("TopicJava_pop", 1, range(7)) == "0 1 0,1,2,3,4,5,6"
    assert order_counts("%RETRY%CG_T", 3, [(7, 2), (8, 0)]) == ["1 qo3%7 2", "1 3 0"]


HANDLES = st.builds(
    Handle, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 999), st.sampled_from("012"), NAMES, NUMBERS, NUMBERS
)


@given(HANDLES)
def test_handles_come_back(handle: Handle) -> None:
    assert decode_handle(handle.encode()) == handle
    assert decode_handle(handle._replace(offset=None).encode()) == handle._replace(offset=None)


@given(HANDLES, st.one_of(st.integers(-1, 2**63 - 1).map(str), st.text("ab-09", min_size=1, max_size=9)))
def test_parts_behind_the_eighth_are_not_read(handle: Handle, part: str) -> None:
    """Apache's proxy adds the position in the commit log; -1 where it does not know it."""
    assert decode_handle(f"{handle.encode()} {part}") == handle
    assert decode_handle(f"{handle.encode()} {part} {part}") == handle
    assert decode_handle(f"{handle.encode()} ") == handle


@given(NAMES, NAMES, st.integers(0, 1023), st.lists(NUMBERS, min_size=1, max_size=32))
def test_topics_and_offsets_come_back(topic: str, group: str, queue: int, offsets: list[int]) -> None:
    if topic.startswith("%RETRY%"):
        return
    for real in (topic, retry_topic_v1(topic, group), retry_topic_v2(topic, group)):
        assert real_topic(topic, group, retry_mark(real)) == real
        text = ";".join((offsets_info(real, queue, offsets), offsets_info("other", queue + 1, [1])))
        told = decode_info(text)[retry_mark(real), str(queue)]
        assert [int(part) for part in told.split(",")] == offsets


@given(st.text(max_size=60))
def test_other_texts_are_refused(text: str) -> None:
    try:
        handle = decode_handle(text)
    except ValueError:
        return
    assert decode_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    ["", "1", "a 1 1 0 0 b 0 0", "-1 1 1 0 0 b 0 0", "0 1 1 0 0 b", "0 1 1 0 0 b 0 x 9", "0" * 600],
)
def test_these_are_no_handles(text: str) -> None:
    with pytest.raises(ValueError, match="handle"):
        decode_handle(text)


def test_these_are_no_marks_nor_lists() -> None:
    with pytest.raises(ValueError, match="expected"):
        real_topic("T", "CG", "3")
    with pytest.raises(ValueError, match="three parts"):
        decode_info("0 1")
    assert decode_info("") == {}
