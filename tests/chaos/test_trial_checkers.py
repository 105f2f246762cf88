"""The checkers of trials find planted faults: histories that do not fit the log are called broken, by the
right checker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.chaos.scenarios.broker_clients import PULL_GROUP
from dledger.chaos.scenarios.broker_history import (
    BrokerHistory,
    Commit,
    Position,
    Receipt,
    Send,
    TopicChange,
    Turn,
)
from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.history import ABSENT, ACKNOWLEDGED, REFUSED, UNKNOWN, Call
from dledger.chaos.scenarios.oracle import Offsets
from dledger.chaos.scenarios.transaction_history import End
from dledger.chaos.scenarios.user_history import KnownUser
from dledger.chaos.trials.checkers import CHECKERS, Verdict, judge
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.injected import Flight, Injected
from dledger.chaos.trials.log_reader import outcome_of
from dledger.formats.entry import HEADER_SIZE, EntryHeader
from dledger.formats.message_ids import encode_message_id, pack_ipv4_host
from dledger.messages import Code
from dledger.peers.log_client import RequestFailed

QUEUE = ("auto", 0)
MS = 1_000_000


def stored(number: int, **changed: object) -> Stored:
    value = Stored(f"m{number}|".encode(), number, 1000 * number, 100, 0, 1_000_000 + number, False)
    return value._replace(**changed)  # type: ignore[arg-type]


def send(number: int, **changed: object) -> Send:
    ident = encode_message_id(pack_ipv4_host("127.0.0.1", 1), 1000 * number)
    one = Send("p", "auto", [f"m{number}|".encode()], number * MS, end=number * MS + 10, outcome=ACKNOWLEDGED)
    one.queue, one.offset, one.ids, one.begun = 0, number, (ident,), 0
    for name, value in changed.items():
        setattr(one, name, value)
    return one


def receipt(number: int, **changed: object) -> Receipt:
    one = Receipt(
        PULL_GROUP, "c", 1, QUEUE, number, f"m{number}|".encode(), 1000 * number, 1_000_000 + number
    )
    for name, value in changed.items():
        setattr(one, name, value)
    return one


def evidence() -> Evidence:
    """Three messages that were sent, stored and received, and their consumer offset."""
    history = BrokerHistory()
    history.sends = [send(number) for number in range(3)]
    for number in range(3):
        history.received(receipt(number))
    history.commits = [Commit(PULL_GROUP, QUEUE, 3, 10, 20, ACKNOWLEDGED)]
    history.positions = [Position(PULL_GROUP, QUEUE, 3, 30)]
    history.turns = [Turn("in-order", "a", 1, QUEUE, 0, 10, 1, end=20)]
    found = Evidence(history, clients=("producers", "pull"))
    found.replay.messages[QUEUE] = [stored(number) for number in range(3)]
    found.replay.table(Offsets).rows.setdefault(PULL_GROUP, {})[QUEUE] = 3
    found.replay.index, found.first_index, found.load = 2, 0, (5, 0)
    found.replicas, found.planned = (0, ""), ("kill",)
    found.injected = [Injected("kill", "leader", ("n0",), 1.0, 2.0)]
    return found


def broken(found: Evidence) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in judge(found) if not verdict.holds}


def test_an_honest_history_keeps_all_rules() -> None:
    verdicts = judge(evidence())
    assert all(verdict.holds for verdict in verdicts), verdicts
    assert {"sends", "receipts", "handed", "offsets", "owners", "load", "replicas"} <= {
        v.name for v in verdicts
    }
    assert all(verdict.checked > 0 for verdict in verdicts)


def test_a_rule_that_nobody_could_break_gives_no_verdict() -> None:
    names = {verdict.name for verdict in judge(Evidence(BrokerHistory()))}
    assert names == {"replicas", "processes", "faults", "progress"}


def test_a_rule_whose_clients_took_part_and_that_has_nothing_to_check_is_broken() -> None:
    found = Evidence(BrokerHistory(), clients=("producers", "pull", "pop", "users"))
    found.replicas = (0, "")
    wrong = broken(found)
    assert {"log", "sends", "receipts", "handed", "offsets", "pops", "deletions", "replicas"} <= set(wrong)
    assert wrong["sends"].text.startswith("nothing was checked") and wrong["sends"].checked == 0


def test_users_whose_last_change_is_unknown_are_no_facts() -> None:
    found = evidence()
    found.clients = ("users",)
    found.history.users.users["user1-0"] = KnownUser()
    found.history.users.unsure["user1-0"] = None
    assert "nothing was checked" in broken(found)["deletions"].text


def _lost(found: Evidence) -> None:
    found.history.sends.append(send(3))


def _moved(found: Evidence) -> None:
    found.history.sends[1].offset = 2


def _twice(found: Evidence) -> None:
    found.replay.messages[QUEUE].append(stored(3, value=b"m0|"))


def _refused_and_stored(found: Evidence) -> None:
    found.history.sends[2].outcome = REFUSED


def _never_sent(found: Evidence) -> None:
    found.history.sends.pop()


def _out_of_order(found: Evidence) -> None:
    found.history.sends[0].begin, found.history.sends[0].end = 5 * MS, 6 * MS


def _dirty_read(found: Evidence) -> None:
    found.history.received(receipt(3))


def _other_body(found: Evidence) -> None:
    found.history.receipts[1].value = b"m9|"


def _skipped(found: Evidence) -> None:
    found.history.receipts.pop(1)


def _never_handed(found: Evidence) -> None:
    found.history.reached[PULL_GROUP][QUEUE] = 2


def _offset_back(found: Evidence) -> None:
    found.history.positions[0].offset = 2


def _offset_lost(found: Evidence) -> None:
    found.replay.table(Offsets).rows[PULL_GROUP][QUEUE] = 2


def _two_owners(found: Evidence) -> None:
    found.history.turns.append(Turn("in-order", "b", 1, QUEUE, 0, 15, 1, end=25))


def _topic_lost(found: Evidence) -> None:
    found.history.changes.append(TopicChange("made0", 2, 1, 2, ACKNOWLEDGED))


def _time_back(found: Evidence) -> None:
    found.replay.messages[QUEUE][2] = stored(2, store_ms=5)


def _early_delay(found: Evidence) -> None:
    waits = stored(7, value=b"d|", store_ms=1_000_000)
    found.replay.messages["SCHEDULE_TOPIC_XXXX", 0] = [waits]
    found.replay.messages["late", 0] = [waits._replace(delivered=True, store_ms=1_000_999)]
    found.replay.table(_delays()).rows[1] = 1
    sent = send(0, topic="SCHEDULE_TOPIC_XXXX", values=[b"d|"], outcome=UNKNOWN)
    found.history.sends.append(sent)
    found.history.received(receipt(0, queue=("late", 0), value=b"d|", position=7000, store_ms=1_000_999))


def _delays() -> type:
    from dledger.chaos.scenarios.oracle import Delays

    return Delays


def _load_lost(found: Evidence) -> None:
    found.load = (5, 1)


def _load_twice(found: Evidence) -> None:
    found.replay.messages["Load", 0] = [stored(8, key="k1"), stored(9, key="k1")]


def _ended_by_itself(found: Evidence) -> None:
    found.ends = ["n1 ended with exit code 70 before 3.0 s"]


def _decides_otherwise(found: Evidence) -> None:
    found.flights = [Flight("n0", 10, (), ()), Flight("n1", 9, ("step 4: the digest differs",), ())]


def _not_injected(found: Evidence) -> None:
    found.planned = ("kill", "wipe")


def _fault_failed(found: Evidence) -> None:
    found.injected = [Injected("kill", "leader", ("n0",), 1.0, error="n0 did not run")]


def _begins_late(found: Evidence) -> None:
    found.first_index = 7


def _judge_cannot_follow(found: Evidence) -> None:
    found.history.transactions.ends.append(End(b"t|", 3, commit=True, outcome=ACKNOWLEDGED))


def _waits_for_ever(found: Evidence) -> None:
    found.replay.ends["SCHEDULE_TOPIC_XXXX", 1] = 4


def test_what_needs_the_log_is_not_judged_if_the_log_is_broken() -> None:
    found = evidence()
    _log_broken(found)
    wrong = broken(found)
    assert "not judged" in wrong["sends"].text and "not judged" in wrong["handed"].text
    assert "processes" not in wrong and "progress" not in wrong


def _log_broken(found: Evidence) -> None:
    found.broken["log"] = "entry 5 has offset 3 of a queue, the next one is 2"


def _replicas_differ(found: Evidence) -> None:
    found.replicas = (3, "DIVERGENT_COMMITTED")


def _asks(found: Evidence, *calls: Call) -> None:
    found.history.log.calls[:] = calls


def _entry_gone(found: Evidence) -> None:
    _asks(found, Call("log-0", "get", 1, b"record", index=9, end=2, outcome=ACKNOWLEDGED))


def _entry_changed(found: Evidence) -> None:
    _entry_gone(found)
    found.entries = {9: b"another record"}


def _older_read_point(found: Evidence) -> None:
    _asks(
        found,
        Call("log-0", "read", 1, index=9, end=2, outcome=ACKNOWLEDGED),
        Call("log-0", "read", 3, index=8, end=4, outcome=ACKNOWLEDGED),
    )


def _absent_after_its_read_point(found: Evidence) -> None:
    _asks(
        found,
        Call("log-0", "read", 1, index=9, end=2, outcome=ACKNOWLEDGED),
        Call("log-0", "get", 3, index=9, end=4, outcome=ABSENT),
    )


def _stuck(found: Evidence) -> None:
    found.delay = "after 60 s no node leads"


@pytest.mark.parametrize(
    ("plant", "checker", "said"),
    [
        (_lost, "sends", "lost: m3"),
        (_moved, "sends", "moved: m1"),
        (_twice, "sends", "duplicated: m0"),
        (_refused_and_stored, "sends", "m2 was refused"),
        (_never_sent, "sends", "unexpected: m2"),
        (_out_of_order, "sends", "began after"),
        (_dirty_read, "receipts", "which has 3 messages"),
        (_other_body, "receipts", "the log has"),
        (_skipped, "receipts", "it was never handed m1"),
        (_never_handed, "handed", "it was never handed m2"),
        (_offset_back, "offsets", "but 3 was acknowledged"),
        (_offset_lost, "offsets", "the log makes 2"),
        (_two_owners, "owners", "two calls at a time"),
        (_topic_lost, "topics", "topic made0 is lost"),
        (_time_back, "log", "store time goes back"),
        (_early_delay, "delays", "d came 1 ms early"),
        (_load_lost, "load", "of 5 messages of the load, 1 are lost"),
        (_load_twice, "load", "0 are lost and 1 twice"),
        (_ended_by_itself, "processes", "exit code 70"),
        (_decides_otherwise, "flights", "n1: step 4: the digest differs"),
        (_not_injected, "faults", "no wipe was injected: let the trial last longer"),
        (_fault_failed, "faults", "no kill was injected: n0 did not run"),
        (_begins_late, "log", "the log begins with entry 7"),
        (_judge_cannot_follow, "transactions", "the judge cannot follow the log: KeyError(3)"),
        (_waits_for_ever, "progress", "4 delayed messages of level 2 wait for ever"),
        (_log_broken, "log", "the next one is 2"),
        (_replicas_differ, "replicas", "DIVERGENT_COMMITTED"),
        (_entry_gone, "entries", "log-0 read an entry at 9, and the log has none"),
        (_entry_changed, "entries", "log-0 read an entry at 9, and the log has another entry"),
        (_older_read_point, "entries", "stale read point 8 of log-0"),
        (_absent_after_its_read_point, "entries", "log-0 was told that there is no 9"),
        (_stuck, "progress", "no node leads"),
    ],
)
def test_a_planted_fault_is_named_by_its_checker(
    plant: Callable[[Evidence], None], checker: str, said: str
) -> None:
    found = evidence()
    plant(found)
    wrong = broken(found)
    assert checker in wrong, wrong
    assert said in wrong[checker].text


def test_reads_of_the_log_that_overlap_may_come_in_any_order() -> None:
    found = evidence()
    _asks(
        found,
        Call("log-0", "get", 1, b"record", index=9, end=2, outcome=ACKNOWLEDGED),
        Call("log-0", "read", 1, index=8, end=5, outcome=ACKNOWLEDGED),
        Call("log-0", "get", 3, index=10, end=4, outcome=ABSENT),
        Call("log-0", "get", 5, index=2, end=6, outcome=UNKNOWN),
    )
    found.entries = {9: b"record"}
    (entries,) = (verdict for verdict in judge(found) if verdict.name == "entries")
    assert entries.holds and entries.checked == 3


def test_entries_that_were_asked_for_are_kept_when_the_log_is_read() -> None:
    found = evidence()
    _asks(found, Call("log-0", "get", 1, b"two", index=2, end=2, outcome=ACKNOWLEDGED))
    found.first_index = -1
    for index, record in enumerate([b"one", b"", b"two"]):
        header = EntryHeader(0, HEADER_SIZE + len(record), index, 1, 0, 0, 0, 0, len(record))
        found.apply(header, record)
    assert found.entries == {2: b"two"}


@pytest.mark.parametrize(
    ("index", "code", "text", "outcome"),
    [
        (8, Code.UNEXPECTED_ARGUMENT, "committed entries are 0..7", ABSENT),
        (7, Code.UNEXPECTED_ARGUMENT, "committed entries are 0..7", UNKNOWN),
        (1, Code.UNEXPECTED_ARGUMENT, "committed entries are 5..7", UNKNOWN),
        (8, Code.UNEXPECTED_ARGUMENT, "unknown operation 'get'", UNKNOWN),
        (8, Code.WAIT_QUORUM_ACK_TIMEOUT, "no read point in time", UNKNOWN),
    ],
)
def test_only_an_answer_that_says_so_means_that_an_entry_is_absent(
    index: int, code: Code, text: str, outcome: str
) -> None:
    assert outcome_of(index, RequestFailed(text, code)) == outcome


def test_each_checker_has_a_rule_that_is_a_sentence() -> None:
    names = [checker.name for checker in CHECKERS]
    assert len(set(names)) == len(names)
    assert all(checker.rule.endswith(".") for checker in CHECKERS)
