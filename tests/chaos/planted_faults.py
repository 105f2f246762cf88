"""Faults that are planted in the sound trial of `whole_trial`, and the checker that must name each.

Some faults are planted in the log: the brokers did something wrong. Others are planted in what the clients
observed, or in what the trial saw of the processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dledger.chaos.scenarios.broker_clients import ORDERLY_GROUP, PULL_GROUP, PUSH_GROUP
from dledger.chaos.scenarios.broker_history import Position, QueueEnd, Stood, TopicChange, Turn
from dledger.chaos.scenarios.deletion_history import BriefSend
from dledger.chaos.scenarios.history import ABSENT, ACKNOWLEDGED, REFUSED, UNKNOWN, Call
from dledger.chaos.scenarios.ordered_history import ACK, Settled
from dledger.chaos.scenarios.pop_history import Ack, Handed
from dledger.chaos.scenarios.timer_history import Recall
from dledger.chaos.scenarios.transaction_history import End, Fate
from dledger.chaos.scenarios.user_history import KnownUser
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.injected import Flight, Injected, Served
from tests.chaos.whole_trial import BRIEF_TOPIC, LATER, MS, SECOND, TOPIC, Log, sound_log, taken

QUEUE = (TOPIC, 0)


@dataclass(frozen=True)
class Planted:
    """One fault."""

    rule: str
    """Name of the checker that must find it. No other may, except `also`."""
    fault: str
    said: str
    """Part of the verdict's text."""
    log: Callable[[Log], object] = lambda log: None
    """Plants it in the log."""
    seen: Callable[[Evidence], object] = lambda found: None
    """Plants it in what was observed."""
    also: str = ""
    """Another rule that the same fault breaks, because the two rules overlap."""


def put(name: str, **values: Any) -> Callable[[Log], None]:
    """Change fields of an entry. Those of its operation are changed if it is one."""

    def change(log: Log) -> None:
        entry = log[name]
        if entry.op is not None:
            entry.op |= values
        else:
            log.named[name] = replace(entry, **values)

    return change


def asks(found: Evidence, *calls: Call) -> None:
    """Let the reader of the log have made these calls."""
    found.history.log.calls[:] = calls


def asking(*calls: Call) -> Callable[[Evidence], None]:
    return lambda found: asks(found, *calls)


def without(*names: str) -> Callable[[Log], None]:
    return lambda log: log.remove(*names)


def again(name: str, behind: str = "", **changed: Any) -> Callable[[Log], None]:
    return lambda log: log.repeat(name, behind, **changed)


def late(name: str, behind: str) -> Callable[[Log], None]:
    return lambda log: log.move(name, behind)


def each(*changes: Callable[[Log], object]) -> Callable[[Log], None]:
    """Plant several changes, which together are one fault."""

    def change(log: Log) -> None:
        for one in changes:
            one(log)

    return change


def setting(path: str, value: Any) -> Callable[[Evidence], None]:
    """Set an attribute or an item of the evidence, given as a path such as `history.sends.0.offset`."""

    def change(found: Evidence) -> None:
        *names, last = path.split(".")
        owner: Any = found
        for name in names:
            owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
        if last.isdigit():
            owner[int(last)] = value
        else:
            setattr(owner, last, value)

    return change


# Faults that need more than one change


def _acknowledged_and_nowhere(found: Evidence) -> None:
    lost = replace(found.history.sends[2], values=[b"m9|"], offset=9, begin=SECOND, end=2 * SECOND)
    found.history.sends.append(lost)


def _set_back(log: Log) -> None:
    reset = {"op": "reset", "group": PULL_GROUP, "offsets": [[TOPIC, 0, 2]]}
    log.repeat("reset", op=reset)
    log.repeat("unheard", op=log["unheard"].op | {"group": PULL_GROUP, "queues": {0: 2}})


def _sent_after_it_was_seen(found: Evidence) -> None:
    (send,) = (one for one in found.history.sends if one.outcome == UNKNOWN)
    send.begin, send.end = 2 * SECOND, 3 * SECOND


def _owner_again(begin: int, end: int) -> Callable[[Evidence], None]:
    turn = Turn(ORDERLY_GROUP, "c", 1, QUEUE, 2, begin, 1, end=end)
    return lambda found: found.history.turns.append(turn)


def _second_reader(found: Evidence) -> None:
    message = found.history.ordered.handed[1]
    found.history.ordered.handed[2].between = (message.between[0] + 100 * MS, message.between[1] + 100 * MS)


def _came_again(found: Evidence) -> None:
    pops = found.history.pops
    pops.acks.append(Ack(pops.handed[1], pops.handed[1].between[1] + MS, ACKNOWLEDGED))


def _not_in_the_pop(found: Evidence) -> None:
    message = found.history.ordered.handed[1]
    lost = Settled(message, ACK, message.between[1], message.between[1] + MS, ACKNOWLEDGED)
    found.history.ordered.settled.append(lost)


def _life(number: int, **values: Any) -> Callable[[Evidence], None]:
    send = BriefSend(**({"value": b"x9|", "outcome": ACKNOWLEDGED, "queue": 0, "offset": 1} | values))
    return lambda found: found.history.deletions.lives[number].sends.append(send)


def _judge_that_cannot_follow(found: Evidence) -> None:
    found.history.transactions.ends.append(End(b"t|", 9, commit=True, outcome=ACKNOWLEDGED))


PLANTED: tuple[Planted, ...] = (
    Planted("log", "gap", "the next one is 1", put("m1", offset=2)),
    Planted("log", "doubled offset", "the next one is 3", put("b0", offset=2)),
    Planted("log", "time back", "store time goes back", put("m2", store_ms=5)),
    Planted("log", "unknown operation", "nobody knows", put("made", op="other")),
    Planted("log", "beginning lost", "begins with entry 7", seen=setting("first_index", 7)),
    Planted("sends", "lost", "lost: m9", seen=_acknowledged_and_nowhere),
    Planted("sends", "moved", "moved: m1", seen=setting("history.sends.1.offset", 2), also="linear"),
    Planted("sends", "wrong message id", "the message id of m0 says",
            seen=lambda found: setattr(found.history.sends[0], "ids", found.history.sends[1].ids)),
    Planted("sends", "doubled", "duplicated: m0", again("m0"), also="linear"),
    Planted("sends", "refused and stored", "m2 was refused",
            seen=setting("history.sends.2.outcome", REFUSED)),
    Planted("sends", "never sent", "unexpected: m2", seen=lambda found: found.history.sends.pop(2)),
    Planted("sends", "reordered", "began after",
            seen=setting("history.sends.0.begin", 16 * MS), also="linear"),
    Planted("sends", "batch apart", "is not in one piece in the log", late("made", "b0")),
    Planted("sends", "batch cut", "the batch from b0 on is at", without("b1"),
            setting("history.sends.3.outcome", UNKNOWN)),
    Planted("load", "lost", "of 2 messages of the load, 1 are lost", seen=setting("load", (2, 1))),
    Planted("load", "doubled", "0 are lost and 1 twice", again("load0")),
    Planted("receipts", "dirty read", "which has 5 messages",
            seen=lambda found: found.history.received(replace(found.history.receipts[0], offset=5)),
            also="linear"),
    Planted("receipts", "other body", "the log has", seen=setting("history.receipts.1.value", b"m9|")),
    Planted("receipts", "other place", "the log has", seen=setting("history.receipts.1.position", 5)),
    Planted("receipts", "skipped", "never handed m1", seen=lambda found: taken(found, [b"m1|"])),
    Planted("receipts", "again in one life", "in the same life",
            seen=lambda found: found.history.received(found.history.receipts[1])),
    Planted("receipts", "wrong answer to a lost pull", "was answered over another connection",
            seen=lambda found: found.history.stood.append(Stood(QUEUE, 1, 19, 2))),
    Planted("handed", "pull", f"{PULL_GROUP} ended at 2",
            seen=lambda found: found.history.reached[PULL_GROUP].update({QUEUE: 2})),
    Planted("handed", "push", f"{PUSH_GROUP} ended at 0",
            seen=lambda found: found.history.reached[PUSH_GROUP].pop((LATER, 0))),
    Planted("handed", "pop", "never handed m1", seen=lambda found: found.history.pops.values.pop(b"m1|")),
    Planted("offsets", "answered too low", "but 3 was acknowledged",
            seen=setting("history.positions.0.offset", 2), also="linear"),
    Planted("offsets", "gone back", "the log makes 2", _set_back),
    Planted("offsets", "lost", "the log makes -1", without("offsets")),
    Planted("linear", "acknowledged and not seen", "auto@0: stale read point 3 of c, begun after b1",
            seen=setting("history.ends.0.offset", 4)),
    Planted("linear", "seen and then not seen", "later@0: stale read point 1 of d, begun after a get of c",
            seen=lambda found: found.history.ends.append(
                QueueEnd("d", (LATER, 0), 2, 2 * SECOND, 3 * SECOND))),
    Planted("linear", "end gone back", "auto@1: stale read point 6 of d, begun after a read of c was told 7",
            seen=lambda found: found.history.ends.extend([
                QueueEnd("c", (TOPIC, 1), 8, 2 * SECOND, 3 * SECOND),
                QueueEnd("d", (TOPIC, 1), 7, 4 * SECOND, 5 * SECOND)])),
    Planted("linear", "offset gone back", "the offset of readers in later@0: stale read point 1",
            seen=lambda found: found.history.positions.extend([
                Position(PULL_GROUP, (LATER, 0), 2, 12 * SECOND, 13 * SECOND),
                Position(PULL_GROUP, (LATER, 0), 1, 14 * SECOND, 15 * SECOND)])),
    Planted("linear", "seen before it was sent", "unknown (unknown) is at 5, but began after a get of c",
            again("m2", value=b"unknown|"), _sent_after_it_was_seen),
    Planted("resets", "lost", "which is not in the log", without("reset", "unheard", "heard")),
    Planted("resets", "other offset", "which is not in the log",
            seen=setting("history.resets.0.told", {0: 1})),
    Planted("resets", "set back unasked", "which no operator asked for",
            again("reset", op={"op": "reset", "group": PUSH_GROUP, "offsets": [[TOPIC, 0, 1]]}, remaining=0)),
    Planted("resets", "half", "a reset that is not with it", without("reset")),
    Planted("resets", "told otherwise", "and told", put("unheard", queues={0: 1})),
    Planted("resets", "undone", "of which no consumer has heard", late("heard", "after reset")),
    Planted("owners", "two owners", "two calls at a time", seen=_owner_again(35, 50)),
    Planted("owners", "the same consumer twice", "two calls at a time",
            seen=lambda found: found.history.turns.append(replace(found.history.turns[0], begin=15))),
    Planted("delays", "early", "d0 came 1 ms early",
            put("d0 came", store_ms=sound_log()["d0"].store_ms + 999)),
    Planted("delays", "doubled", "d0 was due 1 times and came 2 times", again("d0 came")),
    Planted("delays", "lost", "d1 was due 1 times and came 0 times", without("d1 came")),
    Planted("timers", "early", "t0 came 5 ms early",
            put("t0 came", store_ms=sound_log()["d1 came"].store_ms)),
    Planted("timers", "set too early", "waits for a time before its own",
            seen=lambda found: found.history.timers.wanted_ms.update({b"t0|": 1 << 40})),
    Planted("timers", "doubled", "t0 waited 1 times", again("t0 came")),
    Planted("timers", "lost", "and came 0 times", without("t0 came")),
    Planted("timers", "recalled and came", "t1 came though it was recalled before",
            again("t0 came", value=b"t1|", properties=sound_log()["t1"].properties)),
    Planted("timers", "recall lost", "the recall of t0 was acknowledged and is lost",
            seen=lambda found: found.history.timers.recalls.append(Recall(b"t0|", ACKNOWLEDGED))),
    Planted("timers", "came and never waited", "came, and never waited",
            again("t0 came", properties={"TIMER_OUT_MS": "1000001"})),
    Planted("transactions", "ends twice", "the transaction of 0 ends", again("end h0")),
    Planted("transactions", "doubled", "the transaction of 0 ends", each(again("h0 came"), again("end h0"))),
    Planted("transactions", "other content", "is no half message of it", put("h0 came", value=b"other|")),
    Planted("transactions", "end apart", "without the end of its transaction", put("h0 came", remaining=0)),
    Planted("transactions", "rolled back and came", "its producer says: roll back",
            seen=lambda found: found.history.transactions.fates.update({b"h0|": Fate.ROLL_BACK})),
    Planted("transactions", "committed and never came", "h1 never came",
            seen=lambda found: found.history.transactions.fates.update({b"h1|": Fate.COMMIT})),
    Planted("transactions", "answered otherwise", "h1 was told to be committed",
            seen=setting("history.transactions.ends.1.commit", True)),
    Planted("transactions", "given up early", "was given up after 3 checks",
            without("check 4", "h2 for check 4")),
    Planted("transactions", "checks counted from 0", "transaction", put("check 2", checks=1)),
    Planted("transactions", "judge cannot follow", "cannot follow the log: KeyError(9)",
            seen=_judge_that_cannot_follow),
    Planted("pops", "acknowledged and came again", "m1 was acknowledged in time, and came again",
            seen=_came_again),
    Planted("pops", "acknowledgement lost", "the log knows nothing of it", without("pop acked")),
    Planted("pops", "early", "m1 came again",
            seen=setting("history.pops.handed.2.between", (2 * SECOND, 3 * SECOND))),
    Planted("pops", "unasked", "nobody acknowledged it", seen=lambda found: found.history.pops.acks.pop(0)),
    Planted("pops", "without a checkpoint", "m2 was handed out without a checkpoint",
            seen=lambda found: found.history.pops.handed.append(Handed(b"m2|", 0, (SECOND, SECOND), (1, 1)))),
    Planted("pops", "acknowledged twice", "takes 0 from", again("pop acked", "pop acked")),
    Planted("pops", "revived twice", "takes 1 from", again("pop revived", "m1 revived")),
    Planted("pops", "one handle for two", "is a checkpoint already", again("pop", "pop")),
    Planted("pops-in-order", "second consumer", "before the end of", seen=_second_reader),
    Planted("pops-in-order", "early", "may come again", put("order 2", time=1_100)),
    Planted("pops-in-order", "gap", "the group is at 1", put("order 2", offsets=[2], counts=[0])),
    Planted("pops-in-order", "acknowledgement forgotten", "were acknowledged before",
            again("order acked", "order acked", op=sound_log()["order acked"].op | {"acked": []})),
    Planted("pops-in-order", "acknowledgement lost", "was acknowledged, and is not", seen=_not_in_the_pop),
    Planted("pops-in-order", "passed by", "nobody acknowledged it",
            seen=lambda found: found.history.ordered.settled.pop(2)),
    Planted("pops-in-order", "count from 0", "counts [0], {1: 1} is right", put("order 2", counts=[0])),
    Planted("pops-in-order", "freed early", "frees", late("order at 3", "order 3 over")),
    Planted("topics", "lost", "topic made1 is lost",
            seen=lambda found: found.history.changes.append(TopicChange("made1", 2, 1, 2, ACKNOWLEDGED))),
    Planted("topics", "older", "possible are [4] queues",
            seen=lambda found: found.history.changes.append(TopicChange("made0", 4, 3, 4, ACKNOWLEDGED))),
    Planted("deletions", "came into a later life", "several lives", again("x0", "x1")),
    Planted("deletions", "never sent", "was never sent", again("x1", value=b"x9|")),
    Planted("deletions", "lost", "lost: ", seen=_life(1)),
    Planted("deletions", "refused and stored", "refused, and stored",
            seen=lambda found: setattr(found.history.deletions.lives[1].sends[0], "outcome", REFUSED)),
    Planted("deletions", "seen after the deletion", "goes on at 3",
            seen=lambda found: found.history.deletions.strange.append(f"{BRIEF_TOPIC} goes on at 3")),
    Planted("deletions", "user lost", "acknowledged was p2, there is None", without("user")),
    Planted("deletions", "older password", "acknowledged was p2, there is p1", put("user", password="p1")),
    Planted("deletions", "policy of the user before", "policies of user1",
            seen=lambda found: found.history.users.users.update({"user1": KnownUser("p2", set())})),
    Planted("openings", "served early", "when it had applied entry -1, and entry 0 opens that term",
            seen=setting("served.0", Served("n0", 1, -1))),
    Planted("openings", "never opened", "term 2, which no entry of the log opens",
            seen=lambda found: found.served.append(Served("n1", 2, 0))),
    Planted("entries", "gone", "log-0 read an entry at 99, and the log has none",
            seen=asking(Call("log-0", "get", 1, b"record", index=99, end=2, outcome=ACKNOWLEDGED))),
    Planted("entries", "changed", "log-0 read an entry at 1, and the log has another entry",
            seen=asking(Call("log-0", "get", 1, b"other", index=1, end=2, outcome=ACKNOWLEDGED))),
    Planted("entries", "older read point", "stale read point 8 of log-0",
            seen=asking(Call("log-0", "read", 1, index=9, end=2, outcome=ACKNOWLEDGED),
                        Call("log-0", "read", 3, index=8, end=4, outcome=ACKNOWLEDGED))),
    Planted("entries", "absent after its read point", "log-0 was told that there is no 9",
            seen=asking(Call("log-0", "read", 1, index=9, end=2, outcome=ACKNOWLEDGED),
                        Call("log-0", "get", 3, index=9, end=4, outcome=ABSENT))),
    Planted("others", "received nothing", "java has 1 acknowledged sends, and received 0 messages",
            seen=lambda found: found.history.receipts.pop()),
    Planted("replicas", "differ", "critical  DIVERGENT",
            seen=setting("replicas", (3, "a picture\n\ninfo  KEY_LAG\ncritical  DIVERGENT_COMMITTED n1\n"))),
    Planted("processes", "ended by itself", "exit code 70",
            seen=setting("ends", ["n1 ended with exit code 70"])),
    Planted("flights", "decides otherwise", "n1: step 4",
            seen=setting("flights.1", Flight("n1", 9, ("step 4: the digest differs",), ()))),
    Planted("faults", "not injected", "no wipe was injected: let the trial last longer",
            seen=setting("planned", ("kill", "wipe"))),
    Planted("faults", "failed", "no kill was injected: n0 did not run",
            seen=setting("injected", [Injected("kill", "leader", ("n0",), 1.0, error="n0 did not run")])),
    Planted("progress", "stuck", "no node leads", seen=setting("delay", "after 60 s no node leads")),
    Planted("progress", "delayed for ever", "1 delayed messages of level 1 wait for ever",
            again("d1", value=b"unknown|")),
    Planted("progress", "timer for ever", "1 timer messages wait for ever",
            put("timer", time=int(sound_log()["t1"].properties["TIMER_OUT_MS"]), next=1)),
)  # fmt: skip
"""All planted faults. A checker without a fault fails a test."""
