"""Messages that waited go on by the compiled twin as by the Python way: the same bytes, the same counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger._fast import FAST
from dledger.broker.commit_log import CommitLogWriter, Outgoing
from dledger.broker.schedule.delay_service import DelayService
from dledger.broker.stats.stats_item import Puts
from dledger.broker.timer.waited import unpack_waited
from dledger.formats.entry import COVERED, HEADER_SIZE, CorruptEntry
from dledger.formats.properties import decode_properties, encode_properties
from dledger.formats.record import decode_record, encode_record
from dledger.formats.state import ReplicatedState, TimerProgress, TopicConfig
from dledger.log import incoming
from dledger.log.appender import Run
from dledger.log.incoming import check_run
from tests.broker.fake_node import FakeAppender, FakeLog

pytestmark = pytest.mark.skipif(FAST is None, reason="the compiled twins are not built")
HOST = b"\x7f\0\0\1\0\0\0\0"
ROOM = 1 << 20

values = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=6)
properties = st.fixed_dictionaries(
    {},
    optional={
        "A": values,
        "REAL_TOPIC": st.sampled_from(["T", "T", "T", "Other", "Other", "none", "\xe9", ""]),
        "REAL_TOPICS": values,
        "REAL_QID": st.sampled_from(["0", "1", "1", "7", "", "x", "\u0661", "1" * 12]),
        "UNIQ_KEY": st.sampled_from(["K1", "K2", "\xe9"]),
        "DELAY": st.sampled_from(["1", "18"]),
        "é": values,
        "DELAYS": values,
    },
)
whole = st.builds(
    lambda first, rest: {"UNIQ_KEY": "K3", **rest, **first},
    st.fixed_dictionaries(
        {"REAL_TOPIC": st.sampled_from(["T", "T", "Other"]), "REAL_QID": st.sampled_from("0123")}
    ),
    properties,
)
records = st.builds(
    lambda properties, body, number, order: encode_record(
        topic="rmq_sys_wheel_timer",
        body=body,
        flag=number,
        sys_flag=(0, 1, 4, 0x10C)[number % 4],
        born_timestamp=number + 7,
        born_host=b"\1\2\3\4\0\0\5\6",
        reconsume_times=number % 5,
        properties=encode_properties(dict(sorted(properties.items(), reverse=order))),
    ),
    st.one_of(whole, whole, whole, properties),
    st.binary(max_size=40),
    st.integers(0, 99),
    st.booleans(),
)


class Log:
    """A log, and the writer of a leader."""

    def __init__(self) -> None:
        self.log, self.puts = FakeLog(), Puts()
        state = ReplicatedState()
        appender = FakeAppender(self.log, 3, lambda: None, lambda: 1234)
        self.writer = CommitLogWriter(appender, state, {}, HOST, 0, lambda topic: self.puts)
        for name in ("T", "Other"):
            self.writer.put_topic(TopicConfig(name, 2, 2, 6))

    def told(self) -> Any:
        writer, puts = self.writer, self.puts
        slots = {name: slot.next for name, slot in writer.slots.items()}
        counts = writer.messages, writer.last_index, puts.messages, puts.size, puts.batched
        return bytes(self.log.data), self.log.entries, self.log.chain, slots, counts


def restored(log: Log, data: list[Any], room: int = ROOM, delayed: bool = False, recalled: Any = None) -> Any:
    assert FAST is not None
    return FAST.restore(data, log.writer.slots, {}, recalled, delayed, room)


def by_python(log: Log, data: bytes, delayed: bool) -> Outgoing:
    """What goes on of a record, one by one."""
    if not delayed:
        waited = unpack_waited(data)
        slot = log.writer.slots[waited.topic]
        return waited.to(slot, int(waited.queue) % slot.queues)
    service: Any = None  # only of what cannot be delivered it tells
    found = DelayService._restored(service, log.writer, decode_record(data), ())
    assert found is not None
    return found


OPS = [TimerProgress(0, 5, 6).op()]


@settings(max_examples=50, deadline=None)
@given(st.lists(records, max_size=6), st.booleans(), st.integers(150, 2000), st.integers(0, 1))
def test_the_same_goes_on(data: list[bytes], delayed: bool, room: int, ops: int) -> None:
    one, two = Log(), Log()
    found = restored(one, data, room, delayed)
    wanted = [by_python(two, each, delayed) for each in data[: found.taken]]
    assert (found.messages, found.recalled) == (found.taken, 0)
    assert found.size == sum(message.size for message in wanted) <= room
    if found.taken:
        one.writer.add_restored(found, OPS[:ops])
        two.writer.add_together(wanted, OPS[:ops])
    assert one.told() == two.told()
    if found.taken < len(data):  # it stopped for a reason
        told = decode_properties(decode_record(data[found.taken]).properties)
        plain = told.get("REAL_TOPIC") in ("T", "Other") and told.get("REAL_QID") in ("0", "1", "2", "3", "7")
        # A short text that is not ASCII may have fewer than three characters: it is looked at one by one.
        short = any(
            len(f"{name}\x01{value}".encode()) < 6 and not (name + value).isascii()
            for name, value in told.items()
        )
        plain = plain and not (delayed and short)
        assert not plain or found.size + len(data[found.taken]) + HEADER_SIZE > room


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize(
    "more",
    ["A\x01x\x02A\x01y\x02", "MSG_REGION\x01\x02", "a\x01\x02", "\xe9\x01\x02", "\x02", "x\x02", "\x01v\x02"],
)
def test_texts_that_python_writes_anew(more: str, delayed: bool) -> None:
    """Names that come twice, and what is no pair."""
    text = encode_properties({"UNIQ_KEY": "K", "REAL_TOPIC": "T", "REAL_QID": "1", "MSG_REGION": "r"}) + more
    data = encode_record(topic="SCHEDULE_TOPIC_XXXX", body=b"b", properties=text)
    one, two = Log(), Log()
    found = restored(one, [data], delayed=delayed)
    assert found.taken or delayed, "timers are cut, and so plain"
    if found.taken:
        one.writer.add_restored(found, OPS)
        two.writer.add_together([by_python(two, data, delayed)], OPS)
        assert one.told() == two.told()


@settings(max_examples=50, deadline=None)
@given(records, st.integers(0, 10_000), st.integers(0, 255))
def test_of_a_broken_record_nothing_is_made_up(data: bytes, at: int, byte: int) -> None:
    """Whatever the twin takes, the Python way takes the same."""
    at %= len(data)
    data = data[:at] + bytes([byte]) + data[at + 1 :]
    one, two = Log(), Log()
    found = restored(one, [data])
    if found.taken:
        one.writer.add_restored(found, OPS)
        two.writer.add_together([by_python(two, data, False)], OPS)
        assert one.told() == two.told()


def plain(number: int, topic: str = "T", key: str = "") -> bytes:
    told = {"UNIQ_KEY": key or f"K{number}", "REAL_TOPIC": topic, "REAL_QID": str(number % 2)}
    return encode_record(
        topic="rmq_sys_wheel_timer", body=b"%d" % number * 9, properties=encode_properties(told)
    )


def test_a_batch_counts_down_and_is_believed_by_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "FAST", None)
    log = Log()
    for covered in (0, COVERED):
        found = restored(log, [plain(number) for number in range(5)])
        run = Run(70, 4096, 9, 3, covered, 55, [], [], 0, 0, 0, 0)
        found.seal(run, HOST, 2)
        data = b"".join(run.parts)
        with pytest.raises(CorruptEntry, match="client batch is split"):
            check_run(data, 70, 74, 4096, 3, 3, 9)
        found = restored(log, [plain(number) for number in range(5)])
        run = Run(70, 4096, 9, 3, covered, 55, [], [], 0, 0, 0, 0)
        found.seal(run, HOST, 0)
        checked = check_run(b"".join(run.parts), 70, 74, 4096, 3, 3, 9)
        assert checked.remaining == [4, 3, 2, 1, 0]
        assert (run.index, run.pos, run.chain) == (75, 4096 + len(data), checked.chains[-1])
        record = decode_record(checked.data, HEADER_SIZE)
        assert (record.store_timestamp, record.store_host, record.topic) == (55, HOST, "T")
        with pytest.raises(ValueError, match="once"):
            found.seal(run, HOST, 0)


def test_recalled_ones_do_not_come() -> None:
    log = Log()
    recalled = [{("T", "K1"), ("Other", "K2")}, {("T", "K1"), ("Other", "K2")}, None, set(), {("T", "K4")}]
    found = restored(log, [plain(number) for number in range(5)], recalled=recalled)
    assert (found.taken, found.messages, found.recalled) == (5, 3, 2)
    bodies = []
    before = len(log.log.entries)
    log.writer.add_restored(found, [])
    for at, size in log.log.entries[before:]:
        bodies.append(decode_record(bytes(log.log.data[at : at + size]), HEADER_SIZE).body[:1])
    assert bodies == [b"0", b"2", b"3"]


@pytest.mark.parametrize("what", ["none", "deleted", "no slot", "host of IPv6", "nothing"])
def test_where_it_stops(what: str) -> None:
    assert FAST is not None
    log = Log()
    data: list[Any] = [plain(0), plain(1), plain(2)]
    deleted: Any = {}
    if what == "none":
        data[1] = None
    elif what == "deleted":
        data[1], deleted = plain(1, "Other"), {"Other": 1}
    elif what == "no slot":
        data[1] = plain(1, "nowhere")
    elif what == "host of IPv6":
        data[1] = data[1][:39] + b"\x10" + data[1][40:]
    found = FAST.restore(data, log.writer.slots, deleted, None, False, ROOM)
    assert found.taken == (3 if what == "nothing" else 1)
