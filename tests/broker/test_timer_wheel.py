"""The wheel against a sorted list: whatever is in the queue, arrives and is done, what comes next is that."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.timer import timer_wheel
from dledger.broker.timer.timer_wheel import END, Progress, QueueUnits, Timer, Wheel, first_waiting, look
from dledger.broker.timer.waited import unpack_waited
from dledger.formats.consume_queue import UNIT
from dledger.formats.properties import decode_properties, encode_properties
from dledger.formats.record import decode_record, encode_record
from dledger.formats.state import TimerProgress
from dledger.runtime.files import OsFiles

TIMES = st.integers(1, 12)
UNITS = st.lists(st.tuples(TIMES, st.sampled_from([0, 0, 0, 1])), max_size=60)
ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, 60)), min_size=1, max_size=4)
Listed = list[tuple[int, int]]
"""Due time, whether it is a recall."""


def packed(units: Listed, first: int = 0) -> bytes:
    return b"".join(
        UNIT.pack(1000 + first + number, 10, due << 1 | recall) for number, (due, recall) in enumerate(units)
    )


def progress_of(rows: list[tuple[int, int, int]]) -> Progress:
    return Progress([TimerProgress(*row) for row in {row[0]: row for row in rows}.values()])


def expected(units: Listed, progress: Progress, first: int = 0) -> list[Timer]:
    """All messages that wait, in order of delivery: as the table's meaning is written down."""
    found = []
    for number, (due, recall) in enumerate(units):
        offset = first + number
        rows = [row for row in progress.rows if row.begin <= offset]
        if rows and not recall and (due, offset) >= (rows[-1].time, rows[-1].next):
            found.append(Timer(due, offset, 1000 + offset, 10))
    return sorted(found)


@given(UNITS, ROWS, st.integers(1, 20), st.integers(0, 60))
@settings(deadline=None)
def test_a_look_finds_what_is_due_first(
    units: Listed, rows: list[tuple[int, int, int]], most: int, first: int
) -> None:
    progress = progress_of(rows)
    begin = min(first, len(units))
    listed = QueueUnits("nowhere", begin, begin, len(units), packed(units[begin:], begin))
    found = look(OsFiles(), listed, progress, most)
    wanted = [one for one in expected(units, progress) if one.offset >= begin]
    got = found.messages.timers(0, len(found.messages))
    assert got == [one for one in wanted if (one.due, one.offset) < found.horizon]
    assert len(got) <= most and (len(got) == len(wanted) or found.horizon != END)
    # All recalls are known of what was found.
    times = {one.due for one in got}
    recalls = {
        offset for offset, (due, recall) in enumerate(units) if recall and due in times and offset >= begin
    }
    assert recalls <= set(found.recalls.offset.tolist())
    waits = [
        offset for offset, (due, _) in enumerate(units) if offset >= begin and progress.waits(due, offset)
    ]
    assert (found.waiting, found.first) == (len(waits), waits[0] if waits else len(units))
    assert first_waiting(OsFiles(), listed, progress, 0) == found.first


@given(UNITS, UNITS, st.integers(1, 20), st.lists(st.integers(0, 12), max_size=8), st.integers(0, 70))
@settings(deadline=None)
def test_a_wheel_gives_all_in_order(
    before: Listed, after: Listed, most: int, ticks: list[int], heap: int
) -> None:
    progress = progress_of([(0, 0, 0)])
    units = before + after

    def looked() -> Wheel:
        last = len(before) if not taken else len(units)
        wheel = Wheel.of(look(OsFiles(), QueueUnits("", 0, 0, last, packed(units[:last])), progress, most))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timer_wheel, "HEAP_UNITS", heap)
            half = (last + len(units)) // 2
            wheel.arrive(packed(units[last:half], last), progress)
            wheel.arrive(packed(units[half:], half), progress)
        return wheel

    taken: list[Timer] = []
    wheel = looked()
    heard: set[int] = set()
    for until in [*sorted(ticks), 20]:
        while True:
            some = wheel.take(until, 5).timers(0, 5)
            heard |= {one.offset for one in wheel.take_recalls(until)}
            taken += some
            # Whoever is given a message has heard of its recalls.
            times = {one.due for one in some}
            assert {offset for offset, (due, recall) in enumerate(units) if recall and due in times} <= heard
            if not some:
                if wheel.horizon[0] > until:
                    break
                place = wheel.horizon
                progress = progress_of([(0, *place)])
                wheel = looked()
    assert taken == expected(units, progress_of([(0, 0, 0)]))
    assert wheel.next_due() is None


@pytest.mark.parametrize("heap", [3, 100])
def test_no_more_arrives_than_memory_is_for(monkeypatch: pytest.MonkeyPatch, heap: int) -> None:
    monkeypatch.setattr(timer_wheel, "ARRIVED_UNITS", 10)
    monkeypatch.setattr(timer_wheel, "HEAP_UNITS", heap)
    progress = progress_of([(0, 0, 0)])
    wheel = Wheel.of(look(OsFiles(), QueueUnits("", 0, 0, 0, b""), progress, 100))
    units = [(100 - number % 50, number % 7 == 0) for number in range(200)]
    for start in range(0, 200, 5):
        some = units[start : start + 5]
        wheel.arrive(packed([(due, int(recall)) for due, recall in some], start), progress)
        assert wheel.came <= 10 and len(wheel.recalls) <= 10
    assert not wheel.complete and wheel.seen == 200
    got = wheel.take(1000, 1000).timers(0, 1000)
    wanted = expected([(due, int(recall)) for due, recall in units], progress)
    assert got == wanted[: len(got)] and got


def test_units_in_files_are_read_as_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_wheel, "UNITS_PER_FILE", 7)
    units = [(number * 5 % 11 + 1, 0) for number in range(50)]
    (tmp_path / ("0" * 20)).write_bytes(packed(units[:40]))
    progress = progress_of([(0, 0, 0)])
    for flushed in (40, 33, 10):
        listed = QueueUnits(str(tmp_path), 3, flushed, 50, packed(units[flushed:], flushed))
        found = look(OsFiles(), listed, progress, 1000)
        wanted = [one for one in expected(units, progress) if one.offset >= 3]
        assert found.messages.timers(0, 50) == wanted
    with pytest.raises(FileNotFoundError):
        look(OsFiles(), QueueUnits(str(tmp_path / "gone"), 0, 40, 50, b""), progress, 1000)


NAMES = st.sampled_from(["REAL_TOPIC", "REAL_QID", "UNIQ_KEY", "XREAL_TOPIC", "REAL_TOPICX", "TAGS", "é"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)


@given(
    st.dictionaries(NAMES, VALUES, max_size=8),
    st.binary(max_size=40),
    st.sampled_from([0, 1, 0x4, 0x101]),
    st.integers(0, 99),
)
@settings(deadline=None)
def test_what_waited_goes_on_as_it_was(
    properties: dict[str, str], body: bytes, sys_flag: int, number: int
) -> None:
    data = encode_record(
        topic="rmq_sys_wheel_timer",
        body=body,
        flag=number,
        sys_flag=sys_flag,
        born_timestamp=number + 7,
        born_host=bytes(range(8)),
        reconsume_times=number % 5,
        properties=encode_properties(properties),
    )
    found = unpack_waited(data)
    told = decode_properties(encode_properties(properties))
    assert (found.topic, found.queue) == (properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", ""))
    assert found.key == properties.get("UNIQ_KEY", "")
    told.pop("REAL_TOPIC", None), told.pop("REAL_QID", None)
    assert decode_properties(found.properties.decode()) == told
    record = decode_record(data)
    assert (found.body, found.flag, found.reconsume_times) == (body, number, number % 5)
    assert found.sys_flag == sys_flag & ~0xC
    assert (found.born_timestamp, found.born_host) == (number + 7, record.born_host)
