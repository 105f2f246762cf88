"""The checkers of trials find planted faults. Each fault is named by the checker of the rule that it breaks,
and by no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_history import BrokerHistory, QueueEnd
from dledger.chaos.scenarios.history import ABSENT, ACKNOWLEDGED, UNKNOWN, Call
from dledger.chaos.scenarios.linear_judge import judge_linear
from dledger.chaos.scenarios.user_history import KnownUser
from dledger.chaos.trials.checkers import CHECKERS, Verdict, judge
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.log_reader import outcome_of
from dledger.formats.entry import HEADER_SIZE, EntryHeader
from dledger.messages import Code
from dledger.peers.log_client import RequestFailed
from tests.chaos.planted_faults import PLANTED, Planted, asks
from tests.chaos.whole_trial import MS, SECOND, Log, evidence

NAMES = [checker.name for checker in CHECKERS]


def broken(found: Evidence) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in judge(found) if not verdict.holds}


def test_a_sound_trial_keeps_all_rules_and_every_rule_has_facts() -> None:
    verdicts = judge(evidence())
    assert [verdict.name for verdict in verdicts] == NAMES
    assert all(verdict.holds and verdict.checked > 0 for verdict in verdicts), verdicts


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.rule}: {planted.fault}")
def test_a_planted_fault_is_named_by_the_checker_of_its_rule_and_by_no_other(planted: Planted) -> None:
    found = evidence(planted.log)
    planted.seen(found)
    wrong = {name: one.text for name, one in broken(found).items() if not one.text.startswith("not judged")}
    assert sorted(wrong) == sorted({planted.rule, planted.also or planted.rule}), wrong
    assert planted.said in wrong[planted.rule]


def test_the_verdict_of_the_audit_begins_with_its_first_finding() -> None:
    found = evidence()
    found.replicas = (3, "replica  first  end\n\ninfo  KEY_LAG n1\nerror  BIT_ROT n2\n")
    assert broken(found)["replicas"].text.splitlines()[0] == "error  BIT_ROT n2"


def test_every_checker_has_a_planted_fault() -> None:
    tried = {planted.rule for planted in PLANTED}
    missing = [name for name in NAMES if name not in tried]
    assert not missing, f"plant a fault for {missing} in tests/chaos/planted_faults.py"


@pytest.mark.parametrize(("stale_ms", "holds"), [(0, False), (500, False), (501, True)])
def test_a_read_need_only_include_what_was_known_when_a_leader_may_have_been_cut_off(
    stale_ms: int, holds: bool
) -> None:
    found, end = evidence(), 100 * MS
    history = BrokerHistory()
    history.sends = [replace(found.history.sends[0], begin=0, end=end)]
    history.ends = [QueueEnd("c", ("auto", 0), 0, end + 501 * MS, end + SECOND)]
    messages = found.replay.messages
    if holds:
        assert judge_linear(history, messages, stale_ms * MS) == 0, "the read was compared"
    else:
        with pytest.raises(InvariantViolated, match="stale read point -1 of c, begun after m0 was told 0"):
            judge_linear(history, messages, stale_ms * MS)


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
    found.history.deletions.lives.clear()
    found.history.users.users = {"user1": KnownUser()}
    found.history.users.unsure["user1"] = None
    assert "was never sent" in broken(found)["deletions"].text  # the messages of the topics
    for queue in [queue for queue in found.replay.messages if queue[0].startswith("brief")]:
        found.replay.messages[queue].clear()
        found.replay.deleted[queue].clear()
    assert "nothing was checked" in broken(found)["deletions"].text


def test_what_needs_the_log_is_not_judged_if_the_log_is_broken() -> None:
    def gap(log: Log) -> None:
        log["m1"].offset = 2

    wrong = broken(evidence(gap))
    assert "not judged" in wrong["sends"].text and "not judged" in wrong["handed"].text
    assert "processes" not in wrong and "progress" not in wrong


def test_reads_of_the_log_that_overlap_may_come_in_any_order() -> None:
    found = evidence()
    asks(
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
    asks(found, Call("log-0", "get", 1, b"two", index=2, end=2, outcome=ACKNOWLEDGED))
    found.first_index = -1
    found.entries.clear()
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
    assert len(set(NAMES)) == len(NAMES)
    assert all(checker.rule.endswith(".") for checker in CHECKERS)
