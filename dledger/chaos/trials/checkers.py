"""The verdicts of a trial. Each checker states one rule, and says whether the evidence keeps it.

The rules are those of the simulator's judges. A checker whose clients did not take part gives no verdict:
nothing is called proven that was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from dledger.chaos.failover import LOAD_TOPIC
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_clients import ORDERLY_GROUP, PULL_GROUP, PUSH_GROUP
from dledger.chaos.scenarios.broker_judge import (
    BrokerVerdict,
    judge_completeness,
    judge_delays,
    judge_offsets,
    judge_receipts,
    judge_sends,
    judge_stood,
    judge_times,
    judge_topics,
    judge_turns,
)
from dledger.chaos.scenarios.broker_replay import HALF, UNREAD, Stored
from dledger.chaos.scenarios.deletion_history import is_brief, judge_deletions
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.oracle import Delays, Offsets, Queue, Topics
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP
from dledger.chaos.scenarios.pop_judge import copies_of, judge_popped
from dledger.chaos.scenarios.timer_judge import judge_timers
from dledger.chaos.scenarios.unaware_reader import UNAWARE_GROUP
from dledger.chaos.scenarios.user_history import judge_users
from dledger.chaos.trials.evidence import Evidence

GROUPS: Mapping[str, str] = {
    "pull": PULL_GROUP,
    "push": PUSH_GROUP,
    "push-slow": PUSH_GROUP,
    "orderly": ORDERLY_GROUP,
    "pop-orderly": ORDERED_GROUP,
    "unaware": UNAWARE_GROUP,
}
"""Maps a kind of client to its consumer group, if its group must receive every message."""


@dataclass(frozen=True)
class Verdict:
    """The result of one checker."""

    name: str
    rule: str
    holds: bool
    checked: int
    """How many facts were checked. At least 1."""
    text: str = ""
    """The first fact that breaks the rule; empty if it holds."""


@dataclass(frozen=True)
class Checker:
    """One rule. `check` returns how many facts it checked, and raises InvariantViolated for one that breaks
    the rule."""

    name: str
    rule: str
    check: Callable[[Evidence], int]


def judge(evidence: Evidence) -> list[Verdict]:
    """Apply every checker."""
    found = []
    for checker in CHECKERS:
        try:
            checked, text = checker.check(evidence), ""
        except InvariantViolated as error:
            checked, text = 1, str(error)
        if checked:
            found.append(Verdict(checker.name, checker.rule, not text, checked, text))
    return found


def lasting(messages: Mapping[Queue, list[Stored]]) -> dict[Queue, list[Stored]]:
    """The messages of topics that no client of a trial deletes, without those of the load process, which
    checks its own."""
    return {
        queue: stored
        for queue, stored in messages.items()
        if not is_brief(queue[0]) and queue[0] != LOAD_TOPIC
    }


def judge_handed(evidence: Evidence) -> None:
    """Check that every consumer group has received every message. Raises InvariantViolated if not."""
    messages, history = lasting(evidence.replay.messages), evidence.history
    groups = [group for kind, group in GROUPS.items() if kind in evidence.clients]
    judge_completeness(history.reached, groups, messages, 0)
    if "pop" in evidence.clients:
        judge_popped(history.pops.values, messages, 0, UNREAD)


# The checks


def _log(evidence: Evidence) -> int:
    _broken(evidence, "log")
    judge_times(evidence.replay.messages)
    return evidence.replay.index + 1


def _broken(evidence: Evidence, name: str) -> None:
    if name in evidence.broken:
        raise InvariantViolated(evidence.broken[name])


def _sends(evidence: Evidence) -> int:
    sends = evidence.history.sends
    judge_sends(sends, lasting(evidence.replay.messages), BrokerVerdict(), 0)
    return sum(len(send.values) for send in sends if send.outcome == ACKNOWLEDGED)


def _receipts(evidence: Evidence) -> int:
    history, messages = evidence.history, lasting(evidence.replay.messages)
    judge_receipts(history.receipts, messages, (PULL_GROUP, UNAWARE_GROUP), BrokerVerdict())
    judge_stood(history.stood)
    return len(history.receipts)


def _handed(evidence: Evidence) -> int:
    judge_handed(evidence)
    consumers = [kind for kind in (*GROUPS, "pop") if kind in evidence.clients]
    return len(consumers) and sum(map(len, lasting(evidence.replay.messages).values()))


def _offsets(evidence: Evidence) -> int:
    history, rows = evidence.history, evidence.replay.table(Offsets).rows
    judge_offsets(history.commits, history.positions, rows, evidence.stale_ns, BrokerVerdict())
    return len(history.commits) + len(history.positions)


def _turns(evidence: Evidence) -> int:
    judge_turns(evidence.history.turns, BrokerVerdict())
    return len(evidence.history.turns)


def _resets(evidence: Evidence) -> int:
    _broken(evidence, "resets")
    return evidence.resets.judge(evidence.history.resets)


def _delays(evidence: Evidence) -> int:
    verdict = BrokerVerdict()
    rows, right = evidence.replay.table(Delays).rows, evidence.clocks_are_right
    judge_delays(lasting(evidence.replay.messages), rows, 0, verdict, clocks_are_right=right)
    return verdict.delivered


def _timers(evidence: Evidence) -> int:
    return sum(judge_timers(lasting(evidence.replay.messages), evidence.history.timers))


def _transactions(evidence: Evidence) -> int:
    _broken(evidence, "transactions")
    evidence.transactions.judge(evidence.history.transactions, evidence.history.sends, 0)
    return evidence.transactions.ended


def _pops(evidence: Evidence) -> int:
    _broken(evidence, "pops")
    evidence.pops.judge(evidence.history.pops, copies_of(lasting(evidence.replay.messages), (HALF,)))
    return evidence.pops.acknowledged


def _pops_in_order(evidence: Evidence) -> int:
    _broken(evidence, "pops-in-order")
    return evidence.ordered.judge(evidence.history.ordered)


def _topics(evidence: Evidence) -> int:
    judge_topics(evidence.history.changes, evidence.replay.table(Topics).rows, BrokerVerdict())
    return len(evidence.history.changes)


def _deletions(evidence: Evidence) -> int:
    again, _ = judge_deletions(evidence.history.deletions, evidence.replay)
    judge_users(evidence.history.users, evidence.replay)
    return again + len(evidence.history.users.users)


def _replicas(evidence: Evidence) -> int:
    code, report = evidence.replicas
    if code:
        raise InvariantViolated(report)
    return evidence.replay.index + 1


def _load(evidence: Evidence) -> int:
    acknowledged, lost, twice = evidence.load
    if lost or twice:
        raise InvariantViolated(f"of {acknowledged} messages of the load, {lost} are lost and {twice} twice")
    return acknowledged


def _progress(evidence: Evidence) -> int:
    if evidence.delay:
        raise InvariantViolated(evidence.delay)
    return 1


CHECKERS: Sequence[Checker] = (
    Checker("log", "Queue offsets have no gaps, and store time never goes back.", _log),
    Checker(
        "sends",
        "Every acknowledged message is where its acknowledgement said, exactly once, and in order. What was "
        "refused is nowhere.",
        _sends,
    ),
    Checker("load", "No message of the load is lost, and none is stored twice.", _load),
    Checker(
        "receipts",
        "Consumers received only messages that are in the log in the end, each queue in order, and without "
        "a gap.",
        _receipts,
    ),
    Checker("handed", "In the end every consumer group has received every message.", _handed),
    Checker("offsets", "No acknowledged consumer offset went back.", _offsets),
    Checker("resets", "Every acknowledged reset of consumer offsets is in the log.", _resets),
    Checker("owners", "A queue that is consumed in order had one consumer at a time.", _turns),
    Checker("delays", "Every delayed message came once, and not early.", _delays),
    Checker("timers", "Every timer message came once, and not early; none that was recalled came.", _timers),
    Checker("transactions", "Every transaction ended once, as its producer decided.", _transactions),
    Checker("pops", "No popped message came again after its acknowledgement, and none early.", _pops),
    Checker("pops-in-order", "A queue that is popped in order had one consumer at a time.", _pops_in_order),
    Checker("topics", "Every acknowledged change of a topic is there.", _topics),
    Checker(
        "deletions",
        "A topic or user that was made again has nothing of the one before.",
        _deletions,
    ),
    Checker("replicas", "The audit finds the stores of all nodes sound and equal.", _replicas),
    Checker("progress", "After the last fault everything came to its end in time.", _progress),
)
"""All checkers, in the order of the report."""


def names() -> list[str]:
    """Names of all checkers."""
    return list(chain(checker.name for checker in CHECKERS))
