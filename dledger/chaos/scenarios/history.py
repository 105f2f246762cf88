"""What clients observed, and the oracle that says which observations are allowed.

An append ends in one of three ways. *Acknowledged*: the value is in the log exactly once, at the index in the
answer. *Refused* with a code that says so: it is not in the log. *Unknown*, for anything else: it is in the
log at most once. Values are unique. So a value in the log that was never sent is *unexpected*, and a value
that is there twice is *duplicated*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dledger.chaos.invariants import InvariantViolated

ACKNOWLEDGED, REFUSED, UNKNOWN, RUNNING = "acknowledged", "refused", "unknown", "running"
ABSENT = "absent"
"""Outcome of a linearizable get that found no committed entry at its index."""


@dataclass
class Call:
    """One operation of a client. Times are world time in ns; `end` is -1 while the operation runs."""

    client: str
    kind: str
    begin: int
    value: bytes = b""
    index: int = -1
    end: int = -1
    outcome: str = RUNNING
    text: str = ""


@dataclass
class Verdict:
    """Counts of what the judge saw in one history."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    recovered: int = 0
    """Appends whose client did not learn the outcome, but whose values are in the log."""
    reads: int = 0
    absent: int = 0
    """Gets whose answer says that there is no such entry."""
    failed_reads: int = 0
    read_points: int = 0


@dataclass
class History:
    """All calls of all clients, in the order in which they began."""

    calls: list[Call] = field(default_factory=list)
    batches: list[list[bytes]] = field(default_factory=list)
    """The client batches. Each is the list of values that were appended as one batch."""

    def begin(self, call: Call) -> Call:
        """Note that a client sends a request."""
        self.calls.append(call)
        return call

    def known_indexes(self) -> list[int]:
        """The indexes of acknowledged appends, in the order in which the appends began."""
        return [call.index for call in self.calls if call.kind == "append" and call.outcome == ACKNOWLEDGED]


def judge(calls: list[Call], log: Mapping[int, bytes]) -> Verdict:
    """Compare a history with the values in the final log. Raises InvariantViolated, which says what
    differs."""
    places: dict[bytes, int] = {}
    for index in sorted(log):
        value = log[index]
        if value in places:
            raise InvariantViolated(f"duplicated: {_name(value)} at {places[value]} and at {index}")
        places[value] = index
    verdict = Verdict()
    sent = {call.value: None for call in calls if call.kind == "append"}
    for call in calls:
        if call.kind == "append":
            _judge_append(call, places.get(call.value), verdict)
        elif call.kind == "read":
            verdict.read_points += call.outcome == ACKNOWLEDGED
        else:
            _judge_read(call, log, sent, verdict)
    for value, index in places.items():
        if value not in sent:
            raise InvariantViolated(f"unexpected: {_name(value)} at {index} was never sent")
    judge_order(calls, places)
    return verdict


def judge_reads(calls: list[Call], log: Mapping[int, bytes]) -> int:
    """Check reads of a log whose values were appended by others. `log` has at least the entries of the final
    log that were asked for.

    Each entry that a client was shown is in the final log. No call shows an older state than a call that
    ended before it began. Returns how many calls were answered. Raises InvariantViolated.
    """
    answered = 0
    for call in calls:
        if call.kind == "get" and call.outcome == ACKNOWLEDGED and log.get(call.index) != call.value:
            there = "another entry" if call.index in log else "none"
            raise InvariantViolated(f"{call.client} read an entry at {call.index}, and the log has {there}")
        answered += call.outcome in (ACKNOWLEDGED, ABSENT)
    judge_order(calls, {})
    return answered


def judge_batches(batches: list[list[bytes]], log: Mapping[int, bytes]) -> int:
    """Check that each client batch is either completely in the log, with its values one after another, or not
    at all (S11).

    Returns how many batches are in the log.
    """
    places = {value: index for index, value in log.items()}
    there = 0
    for values in batches:
        found = [places[value] for value in values if value in places]
        if found and found != list(range(found[0], found[0] + len(values))):
            raise InvariantViolated(
                f"the batch from {_name(values[0])} on is at {found}: {len(values)} values"
            )
        there += bool(found)
    return there


def _judge_append(call: Call, place: int | None, verdict: Verdict) -> None:
    if call.outcome == ACKNOWLEDGED:
        verdict.acknowledged += 1
        if place is None:
            raise InvariantViolated(f"lost: {_name(call.value)}, acknowledged at {call.index}")
        if place != call.index:
            raise InvariantViolated(
                f"moved: {_name(call.value)}, acknowledged at {call.index}, is at {place}"
            )
    elif call.outcome == REFUSED:
        verdict.refused += 1
        if place is not None:
            raise InvariantViolated(f"{_name(call.value)} was refused ({call.text}), but it is at {place}")
    else:
        verdict.unknown += 1
        verdict.recovered += place is not None


def _judge_read(call: Call, log: Mapping[int, bytes], sent: Mapping[bytes, None], verdict: Verdict) -> None:
    """Check that a value that a client was shown is in the final log at the same index.

    `log` holds only values of clients. A client may also be shown entries that the group appended for itself,
    but not at the index of a client's value. If a client's value was shown at an index that has no value in
    the final log, the value was cut after it was shown; that is an error.
    """
    if call.outcome != ACKNOWLEDGED:
        verdict.absent += call.outcome == ABSENT
        verdict.failed_reads += call.outcome != ABSENT
        return
    verdict.reads += 1
    if log.get(call.index) != call.value and (call.index in log or call.value in sent):
        there = _name(log[call.index]) if call.index in log else "no value"
        raise InvariantViolated(
            f"{call.client} read {_name(call.value)} at {call.index}, the log has {there}"
        )


def judge_order(calls: Sequence[Call], places: Mapping[bytes, int]) -> int:
    """Check that all calls are linearizable (docs/internals/simulator.md says why this check is enough).
    `places` maps a value to its index in the final log. Returns how many calls were compared with an earlier
    one. Raises InvariantViolated for the first call that contradicts one.

    If a client was told an index, that index is committed for every call that begins later:

    * An append that begins later is at a higher index, even if its outcome is unknown.
    * A later read point, of any node, is not lower.
    * A later get never finds an entry up to that index absent.
    """
    told = sorted((call for call in calls if call.outcome == ACKNOWLEDGED), key=lambda call: call.end)
    highest: Call | None = None
    place = compared = 0
    for call in sorted(calls, key=lambda one: one.begin):
        while place < len(told) and told[place].end < call.begin:
            if highest is None or told[place].index > highest.index:
                highest = told[place]
            place += 1
        if highest is not None:
            compared += _judge_after(call, highest, places)
    return compared


def _judge_after(call: Call, highest: Call, places: Mapping[bytes, int]) -> bool:
    """Check one call. `highest` is the call with the highest index among those that ended before this call
    began. Returns whether the call says anything about the highest index when it began."""
    seen = f"{_what(highest)} was told {highest.index}"
    if call.kind == "append":
        index = places.get(call.value)
        if index is not None and index <= highest.index:
            raise InvariantViolated(f"{_what(call)} ({call.outcome}) is at {index}, but began after {seen}")
        return index is not None
    if call.kind == "read":
        if call.outcome == ACKNOWLEDGED and call.index < highest.index:
            raise InvariantViolated(f"stale read point {call.index} of {call.client}, begun after {seen}")
        return call.outcome == ACKNOWLEDGED
    if call.outcome == ABSENT and call.index <= highest.index:
        raise InvariantViolated(f"{call.client} was told that there is no {call.index}, asked after {seen}")
    return call.outcome == ABSENT


def _what(call: Call) -> str:
    return _name(call.value) if call.kind == "append" else f"a {call.kind} of {call.client}"


def _name(value: bytes) -> str:
    return value.partition(b"|")[0].decode(errors="replace") or "an empty value"
