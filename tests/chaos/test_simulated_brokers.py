"""Runs with whole brokers: a seed of each profile, their determinism, and the findings of the judge."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.store.dispatch import Dispatcher
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.machine import Trace
from dledger.chaos.scenarios.broker_history import Commit, Position, Receipt, Send, TopicChange
from dledger.chaos.scenarios.broker_judge import (
    BrokerVerdict,
    judge_completeness,
    judge_offsets,
    judge_receipts,
    judge_sends,
    judge_times,
    judge_topics,
)
from dledger.chaos.scenarios.broker_replay import BrokerReplay, Stored
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, RUNNING, UNKNOWN
from dledger.chaos.scenarios.oracle import Offsets, Queue
from dledger.chaos.scenarios.plan import Plan, draw_plan
from dledger.chaos.scenarios.profiles import PROFILES
from dledger.chaos.scenarios.runner import run_plan
from dledger.chaos.scenarios.shrink import shrink
from dledger.chaos.scenarios.totals import Totals
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.message_ids import encode_message_id
from dledger.formats.record import encode_record, system_record
from dledger.formats.state import ReplicatedState, TopicConfig, offsets_op, pack_op, pack_parts

BROKER_PROFILES = [name for name, profile in PROFILES.items() if profile.brokers]
ROOT = Path(__file__).resolve().parents[2]
HOST = bytes((10, 0, 0, 2)) + (10911).to_bytes(4, "big")
QUEUE = ("T", 0)
SECOND = 1_000_000_000


# Whole runs


@pytest.mark.parametrize("profile", BROKER_PROFILES)
@pytest.mark.sample(3)  # `.ci/run` plays seeds of all of them each day
def test_one_seed_of_whole_brokers_violates_nothing(profile: str) -> None:
    outcome = run_plan(draw_plan(len(profile), profile))
    totals = Totals()
    totals.add(outcome)
    assert not outcome.violation
    assert not totals.thin, f"less than a seed must do: {outcome}"
    assert outcome.history["acknowledged"] > 250
    # Two groups read everything; what waited for its time may have expired.
    read = outcome.history["acknowledged"] - outcome.history["halves"]
    assert outcome.history["received"] >= (1.8 if "retention" in profile else 1.9) * read
    assert outcome.history["halves"] > 10
    assert outcome.history["delivered"] > 10
    assert outcome.history["popped"] > 300 and outcome.history["revived"] > 50
    assert outcome.history["committed"] > 50 and outcome.history["topic_changes"]
    for name in (
        "log matching",
        "committed is durable on a quorum",
        "state equals a rebuild from the log",
        "ConsumeQueue unit equals the log",
        "the NameServer knows the leader and the others",
    ):
        assert outcome.checks.get(name, 0), name


def short(seed: int, profile: str, duration_ms: int) -> Plan:
    """The beginning of a plan, up to `duration_ms`."""
    plan = draw_plan(seed, profile)
    return replace(
        plan,
        duration_ms=duration_ms,
        operations=tuple(one for one in plan.operations if one.at_ms < duration_ms),
        faults=tuple(one for one in plan.faults if one.at_ms < duration_ms),
    )


def test_one_seed_of_brokers_is_one_course_of_events_here_and_elsewhere(tmp_path: Path) -> None:
    plan = short(4, "brokers-power", 12_000)
    trace = Trace()
    here = run_plan(plan, trace)
    ballast = [bytearray(number) for number in range(3000)]  # other addresses
    assert run_plan(plan) == replace(here, digest="") and ballast, "watching changes nothing"
    path = tmp_path / "plan.json"
    path.write_text(plan.encode())
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dledger.chaos", "sim", "--replay", str(path), "--trace"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert trace.digest == here.digest and trace.count > 10_000
    assert done.stdout.splitlines() == trace.lines


def plant(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., object]) -> None:
    """Replace a method by `wrong(original, self, ...)`."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *args: wrong(original, self, *args))


def test_a_queue_offset_that_is_given_twice_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(
        original: Callable[..., object], self: CommitLogWriter, slot: object, queue: int, *rest: object
    ) -> object:
        result = original(self, slot, queue, *rest)
        slot.next[queue] -= self.messages == 9
        return result

    plant(monkeypatch, CommitLogWriter, "add_message", again)
    plan = short(0, "brokers", 12_000)
    assert plan.faults
    outcome = run_plan(plan)
    assert "has offset" in outcome.violation and "the next one is" in outcome.violation
    small = shrink(plan, lambda smaller: run_plan(smaller).kind == outcome.kind, 10)
    assert not small.faults and run_plan(small).kind == outcome.kind
    monkeypatch.undo()
    assert not run_plan(small).violation


def test_a_consumer_offset_that_is_answered_before_its_commit_and_lost_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`flush` forgets every third group of offsets, but reports them as stored."""
    count = [0]

    def forgetful(original: Callable[..., object], self: PendingOffsets) -> object:
        count[0] += bool(self._offsets)
        if self._offsets and count[0] % 3 == 0:
            for waiters in self._waiters.values():
                for _, _, answer in waiters:
                    answer()
            self._waiters.clear()
            self._offsets.clear()
        return original(self)

    plant(monkeypatch, PendingOffsets, "flush", forgetful)
    plan = replace(short(2, "brokers", 12_000), faults=())
    assert "was acknowledged" in run_plan(plan).violation


def test_a_wrong_unit_of_a_consume_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Dispatcher, "_tags_code", lambda original, self, tags: 1 + original(self, tags))  # type: ignore[operator]
    plan = replace(short(2, "brokers", 12_000), faults=())
    assert "in memory is not the log's" in run_plan(plan).violation


# The judge of producers


def stored(value: bytes, entry: int = 0, *, resent: bool = False, store_ms: int = 1) -> Stored:
    return Stored(value, entry, 1000 * entry, 100, 0, store_ms, resent)


def send(
    value: bytes, offset: int = -1, begin: int = 0, end: int = 1, outcome: str = ACKNOWLEDGED, entry: int = 0
) -> Send:
    return Send(
        "c0", "T", [value], begin, False, end, outcome, 0, offset, (encode_message_id(HOST, 1000 * entry),)
    )


def batch(*values: bytes, outcome: str = UNKNOWN) -> Send:
    return Send("c0", "T", list(values), 0, True, 9, outcome)


def test_an_honest_history_of_producers_is_counted() -> None:
    sends = [
        send(b"a|", 0, entry=0),
        send(b"b|", outcome=UNKNOWN),
        send(b"c|", outcome=REFUSED),
        send(b"d|", outcome=RUNNING, end=-1),
        batch(b"e|", b"f|"),
        send(b"g|", 4, 2, 3, entry=7),
    ]
    messages = {
        QUEUE: [stored(b"a|"), stored(b"b|", 1), stored(b"e|", 3, resent=True),
                stored(b"f|", 4, resent=True), stored(b"g|", 7)],
    }  # fmt: skip
    verdict = BrokerVerdict()
    judge_sends(sends, messages, verdict)
    assert (verdict.acknowledged, verdict.refused, verdict.unknown) == (2, 1, 4)
    assert (verdict.recovered, verdict.resent, verdict.batches) == (3, 2, 1)


def test_a_copy_that_retention_took_while_it_was_sent_again_does_not_count() -> None:
    twice = {QUEUE: [stored(b"a|"), stored(b"a|", 1, resent=True)]}
    acknowledged = send(b"a|", 1, entry=1)
    acknowledged.begun = 0
    with pytest.raises(InvariantViolated, match="duplicated: a"):
        judge_sends([acknowledged], twice, BrokerVerdict(), begun=1000)
    acknowledged.begun = 1000
    judge_sends([acknowledged], twice, BrokerVerdict())


@pytest.mark.parametrize(
    ("words", "sends", "queue"),
    [
        ("lost: a", [send(b"a|", 0)], []),
        ("moved: a", [send(b"a|", 0), send(b"b|", outcome=UNKNOWN)], [stored(b"b|"), stored(b"a|", 1)]),
        ("message id of a says 0", [send(b"a|", 0)], [stored(b"a|", 3)]),
        ("a was refused", [send(b"a|", outcome=REFUSED)], [stored(b"a|")]),
        ("unexpected: x", [], [stored(b"x|")]),
        ("duplicated: a", [send(b"a|", outcome=UNKNOWN)], [stored(b"a|"), stored(b"a|", 1)]),
        ("duplicated: a", [send(b"a|", 0)], [stored(b"a|"), stored(b"a|", 1, resent=True)]),
        ("b is at 0 of .* but began after a", [send(b"a|", 1, 0, 1, entry=1), send(b"b|", 0, 2, 3)],
         [stored(b"b|"), stored(b"a|", 1)]),
        ("batch from a on is at", [batch(b"a|", b"b|")], [stored(b"a|")]),
        ("batch from a on is at", [batch(b"a|", b"b|")], [stored(b"b|")]),
        ("batch from a on is at", [batch(b"a|", b"b|"), send(b"x|", outcome=UNKNOWN)],
         [stored(b"a|"), stored(b"x|", 1), stored(b"b|", 2)]),
        ("batch from a on is not in one piece", [batch(b"a|", b"b|")], [stored(b"a|"), stored(b"b|", 2)]),
    ],
)  # fmt: skip
def test_the_judge_of_producers_finds(words: str, sends: list[Send], queue: list[Stored]) -> None:
    with pytest.raises(InvariantViolated, match=words):
        judge_sends(sends, {QUEUE: queue}, BrokerVerdict())


# The judge of consumers


def receipt(offset: int, value: bytes, *, group: str = "g", life: int = 1, begun: int = 0) -> Receipt:
    return Receipt(group, f"c-{group}", life, QUEUE, offset, value, 1000 * offset, 1, 1, begun)


LOG = {QUEUE: [stored(b"a|"), stored(b"b|", 1), stored(b"c|", 2)]}


def test_honest_consumers_pass() -> None:
    verdict = BrokerVerdict()
    receipts = [
        receipt(0, b"a|"),
        receipt(1, b"b|"),
        receipt(1, b"b|", life=2),  # what was not committed comes again
        receipt(2, b"c|", life=2),
        receipt(2, b"c|", group="late", begun=2000),  # retention took the others
    ]
    judge_receipts(receipts, LOG, ("g",), verdict)
    assert (verdict.received, verdict.repeated) == (5, 1)
    judge_completeness({"g": {QUEUE: 3}}, ("g",), LOG, 0)
    judge_completeness({"g": {QUEUE: 1}}, ("g",), LOG, 3000)


@pytest.mark.parametrize(
    ("words", "receipts"),
    [
        ("which has 3 messages", [receipt(3, b"d|")]),
        ("the log has", [receipt(0, b"x|")]),
        ("never handed b", [receipt(0, b"a|"), receipt(2, b"c|")]),
        ("never handed a", [receipt(1, b"b|", begun=0)]),
        ("never handed b", [receipt(2, b"c|", begun=1000)]),
        ("in the same life", [receipt(0, b"a|"), receipt(1, b"b|"), receipt(1, b"b|")]),
        ("in the same life", [receipt(0, b"a|"), receipt(1, b"b|"), receipt(0, b"a|")]),
    ],
)  # fmt: skip
def test_the_judge_of_consumers_finds(words: str, receipts: list[Receipt]) -> None:
    with pytest.raises(InvariantViolated, match=words):
        judge_receipts(receipts, LOG, ("g",), BrokerVerdict())


def test_a_group_that_was_not_handed_everything_is_found() -> None:
    for reached in ({"g": {QUEUE: 2}}, {}):
        with pytest.raises(InvariantViolated, match="g ended at"):
            judge_completeness(reached, ("g",), LOG, 0)


def test_store_time_that_goes_back_is_found() -> None:
    judge_times({QUEUE: [stored(b"a|", store_ms=5), stored(b"b|", store_ms=5)]})
    with pytest.raises(InvariantViolated, match="store time goes back"):
        judge_times({QUEUE: [stored(b"a|", store_ms=5), stored(b"b|", store_ms=4)]})


# The judge of offsets and topics


def commit(offset: int, begin: int, end: int, outcome: str = ACKNOWLEDGED) -> Commit:
    return Commit("g", QUEUE, offset, begin * SECOND, end * SECOND, outcome)


def test_consumer_offsets_go_back_for_nobody() -> None:
    commits = [commit(5, 0, 1), commit(9, 2, 3, UNKNOWN), commit(7, 4, 5)]
    asked = [Position("g", QUEUE, offset, at * SECOND) for offset, at in ((5, 3), (9, 4), (5, 5), (7, 8))]
    judge_offsets(commits, asked, {"g": {QUEUE: 7}}, SECOND, BrokerVerdict())
    with pytest.raises(InvariantViolated, match=r"goes on at 5 .* 7 was acknowledged"):
        judge_offsets(
            commits, [Position("g", QUEUE, 5, 7 * SECOND)], {"g": {QUEUE: 7}}, SECOND, BrokerVerdict()
        )
    for final in ({"g": {QUEUE: 6}}, {}):
        with pytest.raises(InvariantViolated, match=r"offset [57] of g"):
            judge_offsets(commits, [], final, SECOND, BrokerVerdict())


def change(queues: int, outcome: str = ACKNOWLEDGED) -> TopicChange:
    return TopicChange("T", queues, 0, 1, outcome)


@pytest.mark.parametrize(
    ("found", "fine"),
    [(2, False), (3, True), (5, True), (None, False)],
    ids=["old", "last", "unknown", "lost"],
)
def test_an_acknowledged_topic_stays(found: int | None, fine: bool) -> None:
    changes = [change(2), change(3), change(5, UNKNOWN)]
    topics = {} if found is None else {"T": {"read": found, "write": found}}
    if fine:
        judge_topics(changes, topics, BrokerVerdict())
        return
    with pytest.raises(InvariantViolated, match="topic T"):
        judge_topics(changes, topics, BrokerVerdict())


def test_a_try_that_its_client_gave_up_may_change_the_topic_later() -> None:
    """Found by simulation: profile brokers, seed 262400277."""
    given_up = change(2)
    given_up.unanswered = True
    judge_topics([given_up, change(3)], {"T": {"read": 2, "write": 2}}, BrokerVerdict())


# The judge's own replay


class Log:
    """Consecutive entries, for a replay."""

    def __init__(self) -> None:
        self.replay = BrokerReplay()
        self.pos = 0

    def add(self, kind: Kind, record: bytes) -> None:
        size = HEADER_SIZE + len(record)
        header = EntryHeader(
            magic=1, size=size, index=self.replay.index + 1, term=1, pos=self.pos, channel=kind << 24,
            chain_crc=0, body_crc=0, body_size=len(record),
        )  # fmt: skip
        self.replay.apply(header, record)
        self.pos += size

    def message(self, offset: int, store_ms: int = 1, shift: int = 0, queue: Queue = QUEUE) -> None:
        position = self.pos + HEADER_SIZE + shift
        self.add(
            Kind.MESSAGE,
            encode_record(
                topic=queue[0], body=b"x", queue_id=queue[1], queue_offset=offset,
                physical_offset=position, store_timestamp=store_ms,
            ),
        )  # fmt: skip

    def operation(self, op: dict[str, object]) -> None:
        self.add(Kind.SYSTEM, system_record(pack_op(op), 0, 0))


def test_the_replay_and_the_product_make_the_same_state() -> None:
    log, state = Log(), ReplicatedState()
    log.message(0, 7)
    bounds = state.bounds(*QUEUE)
    bounds.next, bounds.first_position, state.last_store_time_ms = 1, HEADER_SIZE, 7
    row = (*QUEUE, 1)
    for op in (
        TopicConfig("T", 2, 2, 6).op(),
        TopicConfig("T", 3, 3, 6).op(),
        offsets_op("g", [row]),
        offsets_op("g", [(*QUEUE, 0), ("U", 0, 5)]),  # neither back nor beyond the end
        offsets_op("h", []),
        offsets_op("h", [row]),
        offsets_op("h", [(*QUEUE, 0)], reset=True),
    ):
        log.operation(op)
        state.apply(pack_op(op))
    same = BrokerReplay.from_parts(pack_parts(state), log.replay.index)
    assert log.replay.encode() == same.encode()
    assert log.replay.table(Offsets).rows == {"g": {QUEUE: 1}, "h": {QUEUE: 0}}


def test_the_replay_finds_what_no_log_may_hold() -> None:
    log = Log()
    log.message(0, 5)
    for words, wrong in (
        ("has offset 0", lambda: log.message(0, 5)),
        ("has offset 2", lambda: log.message(2, 5)),
        ("store time goes back", lambda: log.message(0, 4, queue=("T", 1))),
        ("says", lambda: log.message(1, 5, shift=1)),
        ("nobody knows", lambda: log.operation({"op": "other"})),
    ):
        with pytest.raises(InvariantViolated, match=words):
            wrong()
