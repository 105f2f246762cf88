"""The verdicts of a trial. Each checker states one rule, and says whether the evidence keeps it.

The rules are those of the simulator's judges. A checker whose clients did not take part gives no verdict. If
its clients took part and there is nothing to check, the rule counts as broken: nothing is called proven that
was not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dledger.audit.findings import Severity
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.pressure import LOAD_TOPIC
from dledger.chaos.scenarios.broker_clients import PULL_GROUP
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
from dledger.chaos.scenarios.history import ACKNOWLEDGED, judge_reads
from dledger.chaos.scenarios.linear_judge import judge_linear
from dledger.chaos.scenarios.oracle import Delays, Offsets, Queue, Topics
from dledger.chaos.scenarios.pop_judge import copies_of, judge_popped
from dledger.chaos.scenarios.timer_judge import judge_timers
from dledger.chaos.scenarios.unaware_reader import UNAWARE_GROUP
from dledger.chaos.scenarios.user_history import judge_users
from dledger.chaos.trials.client_kinds import CLIENTS
from dledger.chaos.trials.evidence import UNREADABLE, Evidence, what_waits

GROUPS: Mapping[str, str] = {name: kind.group for name, kind in CLIENTS.items() if kind.group}
"""Maps a kind of client to its consumer group, if its group must receive every message."""
SENDERS = tuple(name for name, kind in CLIENTS.items() if kind.sends)
"""Kinds of clients of which each trial must have acknowledged messages."""

OTHERS = tuple(name for name, kind in CLIENTS.items() if kind.sends_again)
"""Kinds of clients that are clients of other projects."""


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
    clients: tuple[str, ...] = ()
    """Kinds of clients of which one has to take part, so that this rule must have facts to check. If empty,
    a rule without facts gives no verdict."""
    reads_log: bool = True
    """Whether nothing can be said if the log cannot be read to its end."""


def judge(evidence: Evidence) -> list[Verdict]:
    """Apply every checker, except those that are left out."""
    checkers = [checker for checker in CHECKERS if checker.name not in evidence.left_out]
    return [verdict for checker in checkers if (verdict := _verdict(checker, evidence)) is not None]


def _verdict(checker: Checker, evidence: Evidence) -> Verdict | None:
    tried = any(kind in evidence.clients for kind in checker.clients)
    if checker.name != "log" and checker.reads_log and "log" in evidence.broken:
        text = "not judged, because the log breaks the rule `log`" if tried else ""
        return Verdict(checker.name, checker.rule, False, 0, text) if text else None
    try:
        checked, text = checker.check(evidence), ""
    except InvariantViolated as error:
        checked, text = 0, str(error)
    except UNREADABLE as error:
        checked, text = 0, f"the judge cannot follow the log: {error!r}"
    if not checked and not text and tried:
        text = "nothing was checked, though clients took part that this rule is about"
    return Verdict(checker.name, checker.rule, not text, checked, text) if checked or text else None


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
    for kind, group in GROUPS.items():
        if kind in evidence.clients:
            topic = CLIENTS[kind].topic
            read = {queue: stored for queue, stored in messages.items() if topic in ("", queue[0])}
            judge_completeness(history.reached, [group], read, 0)
    if "pop" in evidence.clients:
        judge_popped(history.pops.values, messages, 0, UNREAD)


# The checks


def _log(evidence: Evidence) -> int:
    _broken(evidence, "log")
    if evidence.first_index > evidence.begin:
        raise InvariantViolated(f"the log begins with entry {evidence.first_index}: earlier ones are gone")
    judge_times(evidence.replay.messages)
    return evidence.entry_count


def _broken(evidence: Evidence, name: str) -> None:
    if name in evidence.broken:
        raise InvariantViolated(evidence.broken[name])


def _sends(evidence: Evidence) -> int:
    sends = evidence.history.sends
    judge_sends(sends, lasting(evidence.replay.messages), BrokerVerdict(), 0, _repeatable(evidence))
    return sum(len(send.values) for send in sends if send.outcome == ACKNOWLEDGED)


def _repeatable(evidence: Evidence) -> set[bytes]:
    """Bodies that may be stored more than once, because their clients send again without our mark."""
    checked = "*" in evidence.checked_topics
    kinds = [
        name
        for name, kind in CLIENTS.items()
        if kind.sends_again and not (kind.keeps_id and (checked or kind.topic in evidence.checked_topics))
    ]
    sends = (send for send in evidence.history.sends if send.client.rpartition("-")[0] in kinds)
    return {value for send in sends for value in send.values}


def stored_again(evidence: Evidence) -> int:
    """How many further copies of such messages the log holds."""
    repeatable = _repeatable(evidence)
    found = [
        message.value
        for stored in lasting(evidence.replay.messages).values()
        for message in stored
        if message.value in repeatable
    ]
    return len(found) - len(set(found))


def _others(evidence: Evidence) -> int:
    history, facts = evidence.history, 0
    for kind in [kind for kind in OTHERS if kind in evidence.clients]:
        sent = sum(send.outcome == ACKNOWLEDGED and send.client == f"{kind}-0" for send in history.sends)
        received = sum(receipt.group == GROUPS[kind] for receipt in history.receipts)
        if not sent or not received:
            raise InvariantViolated(f"{kind} has {sent} acknowledged sends, and received {received} messages")
        facts += sent + received
    return facts


def _receipts(evidence: Evidence) -> int:
    history, messages = evidence.history, lasting(evidence.replay.messages)
    judge_receipts(history.receipts, messages, (PULL_GROUP, UNAWARE_GROUP), BrokerVerdict())
    judge_stood(history.stood)
    return len(history.receipts)


def _handed(evidence: Evidence) -> int:
    judge_handed(evidence)
    consumers = [kind for kind in (*GROUPS, "pop") if kind in evidence.clients]
    return len(consumers) and sum(map(len, lasting(evidence.replay.messages).values()))


def _entries(evidence: Evidence) -> int:
    return judge_reads(evidence.history.log.calls, evidence.entries)


def _offsets(evidence: Evidence) -> int:
    history, rows = evidence.history, evidence.replay.table(Offsets).rows
    judge_offsets(history.commits, history.positions, rows, evidence.stale_ns, BrokerVerdict())
    return len(history.commits) + len(history.positions)


def _linear(evidence: Evidence) -> int:
    return judge_linear(evidence.history, lasting(evidence.replay.messages), evidence.stale_ns)


def _openings(evidence: Evidence) -> int:
    for one in evidence.served:
        opening = evidence.openings.get(one.term)
        if opening is None:
            raise InvariantViolated(f"{one.node} served in term {one.term}, which no entry of the log opens")
        if one.applied < opening:
            raise InvariantViolated(
                f"{one.node} served in term {one.term} when it had applied entry {one.applied}, "
                f"and entry {opening} opens that term"
            )
    return len(evidence.served)


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
    users = evidence.history.users
    return again + sum(name not in users.unsure for name in users.users)


def _replicas(evidence: Evidence) -> int:
    code, report = evidence.replicas
    if code:
        worse = tuple(one.name.lower() for one in Severity if one > Severity.INFO)
        first = next((line for line in report.splitlines() if line.startswith(worse)), "")
        raise InvariantViolated(f"{first}\n\n{report}".strip())
    return evidence.replay.index + 1


def _load(evidence: Evidence) -> int:
    acknowledged, lost = evidence.load
    seen: dict[str, None] = {}
    twice = 0
    for queue, stored in evidence.replay.messages.items():
        for message in stored if queue[0] == LOAD_TOPIC else ():
            twice += message.key in seen
            seen[message.key] = None
    if lost or twice:
        raise InvariantViolated(f"of {acknowledged} messages of the load, {lost} are lost and {twice} twice")
    return acknowledged


def _processes(evidence: Evidence) -> int:
    if evidence.ends:
        raise InvariantViolated("; ".join(evidence.ends))
    return 1


def _flights(evidence: Evidence) -> int:
    for flight in evidence.flights:
        if flight.problems:
            raise InvariantViolated(f"{flight.node}: {flight.problems[0]}")
    return sum(flight.steps for flight in evidence.flights)


def _faults(evidence: Evidence) -> int:
    done = {one.kind for one in evidence.injected if not one.error}
    if missing := [kind for kind in evidence.planned if kind not in done]:
        why = "; ".join(one.error for one in evidence.injected if one.kind in missing)
        names = " and no ".join(missing)
        raise InvariantViolated(f"no {names} was injected: {why or 'let the trial last longer'}")
    if not done:
        raise InvariantViolated("the plan has no fault: let the trial last longer")
    return len([one for one in evidence.injected if not one.error])


def _progress(evidence: Evidence) -> int:
    if evidence.delay:
        raise InvariantViolated(evidence.delay)
    if "log" not in evidence.broken and (waits := what_waits(evidence.replay)):
        raise InvariantViolated(f"{waits} wait for ever")
    return 1


CHECKERS: Sequence[Checker] = (
    Checker("log", "Queue offsets have no gaps, and store time never goes back.", _log, SENDERS),
    Checker(
        "sends",
        "Every acknowledged message is where its acknowledgement said, exactly once, and in order. What was "
        "refused is nowhere.",
        _sends,
        SENDERS,
    ),
    Checker("others", "Each client of another project sent and received.", _others, OTHERS),
    Checker("load", "No message of the load is lost, and none is stored twice.", _load),
    Checker(
        "receipts",
        "Consumers received only messages that are in the log in the end, each queue in order, and without "
        "a gap.",
        _receipts,
        tuple(GROUPS),
    ),
    Checker(
        "handed", "In the end every consumer group has received every message.", _handed, (*GROUPS, "pop")
    ),
    Checker(
        "entries",
        "Every entry that was read from the log of any node is in the log in the end, and no later read "
        "showed an older state.",
        _entries,
        ("log",),
    ),
    Checker("offsets", "No acknowledged consumer offset went back.", _offsets, ("pull",)),
    Checker(
        "linear",
        "What clients were shown and told is linearizable: what was acknowledged is seen from then on, and "
        "no read goes back.",
        _linear,
        ("pull",),
    ),
    Checker("resets", "Every acknowledged reset of consumer offsets is in the log.", _resets),
    Checker("owners", "A queue that is consumed in order had one consumer at a time.", _turns, ("orderly",)),
    Checker("delays", "Every delayed message came once, and not early.", _delays),
    Checker("timers", "Every timer message came once, and not early; none that was recalled came.", _timers),
    Checker("transactions", "Every transaction ended once, as its producer decided.", _transactions),
    Checker(
        "pops", "No popped message came again after its acknowledgement, and none early.", _pops, ("pop",)
    ),
    Checker(
        "pops-in-order",
        "A queue that is popped in order had one consumer at a time.",
        _pops_in_order,
        ("pop-orderly",),
    ),
    Checker("topics", "Every acknowledged change of a topic is there.", _topics),
    Checker(
        "deletions",
        "A topic or user that was made again has nothing of the one before.",
        _deletions,
        ("topics", "users"),
    ),
    Checker(
        "openings", "A leader served only after it had applied the entry that opened its term.", _openings
    ),
    Checker("replicas", "The audit finds the stores of all nodes sound and equal.", _replicas, SENDERS),
    Checker(
        "processes",
        "No broker ended by itself, and each ended after SIGTERM.",
        _processes,
        reads_log=False,
    ),
    Checker(
        "flights",
        "What the core of each node saw, replayed, gives the same decisions and breaks no invariant.",
        _flights,
        reads_log=False,
    ),
    Checker("faults", "Every kind of fault of the plan was injected.", _faults, reads_log=False),
    Checker(
        "progress",
        "After the last fault everything came to its end in time.",
        _progress,
        reads_log=False,
    ),
)
"""All checkers, in the order of the report."""
