"""The checker of histories finds each kind of fault."""

from __future__ import annotations

from dledger.chaos.workload import Load, Sent, check
from dledger.client.errors import OutcomeUnknown
from dledger.client.message import MessageQueue, SendResult, SendStatus


def acked(sender: str, number: int, queue: int, offset: int) -> Sent:
    result = SendResult(SendStatus.OK, "id", "oid", MessageQueue("T", "broker-a", queue), offset)
    return Sent(sender, number, started_at=float(number), acked_at=float(number) + 0.5, result=result)


def unknown(sender: str, number: int) -> Sent:
    return Sent(sender, number, started_at=float(number), result=OutcomeUnknown("time-out"))


HISTORY = [acked("q0", 0, 0, 0), acked("q0", 1, 0, 1), acked("flood", 0, 1, 0), unknown("flood", 1)]


def test_a_log_that_holds_what_was_acknowledged_is_clean() -> None:
    report = check(HISTORY, {0: ["q0:0", "q0:1"], 1: ["flood:0"]})
    assert report.clean
    assert (report.acked, report.unknown, report.recovered, report.duplicated) == (3, 1, 0, 0)


def test_a_send_with_unknown_outcome_may_be_there() -> None:
    report = check(HISTORY, {0: ["q0:0", "q0:1"], 1: ["flood:0", "flood:1"]})
    assert report.clean
    assert report.recovered == 1


def test_a_lost_message_is_found() -> None:
    assert check(HISTORY, {0: ["q0:0"], 1: ["flood:0"]}).lost == ["q0:1"]


def test_a_message_at_another_place_is_found() -> None:
    report = check(HISTORY, {0: ["q0:0", "q0:1"], 1: ["flood:1", "flood:0"]})
    assert not report.clean
    assert report.moved[0].startswith("flood:0 ")


def test_a_copy_is_counted_and_no_fault() -> None:
    report = check(HISTORY, {0: ["q0:0", "q0:1", "q0:1"], 1: ["flood:0"]})
    assert report.clean
    assert report.duplicated == 1


def test_broken_order_of_a_steady_sender_is_found() -> None:
    report = check(HISTORY, {0: ["q0:0", "q0:1", "q0:0"], 1: ["flood:0"]})
    assert report.unordered == ["q0:0 at offset 2 behind 1"]


def test_a_message_that_nobody_sent_is_found() -> None:
    assert check(HISTORY, {0: ["q0:0", "q0:1", "q0:7"], 1: ["flood:0"]}).unexpected == ["q0:7"]


def test_failover_counts_messages_first_sent_after_the_kill() -> None:
    load = Load("127.0.0.1:1", "T")
    load.history = [acked("probe", 0, 0, 0), acked("probe", 2, 0, 2), acked("probe", 3, 0, 1)]
    load.history[0].acked_at = 1.9  # sent before the kill, acknowledged after it
    assert load.failover_s(killed_at=1.0) == 1.5
    assert load.failover_s(killed_at=5.0) is None
