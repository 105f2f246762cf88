"""Checks of timer messages. The log is compared with the answers to producers. A comment above each check
says the rule in English.

The log shows what happens to each message. It is put into the topic where it waits. If it waits for long, it
is put there again. It may be recalled; otherwise it is put into its own topic when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_judge import name_of
from dledger.chaos.scenarios.broker_replay import TIMERS, Stored
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.timer_history import TimerHistory

Messages = Mapping[Queue, Sequence[Stored]]


def waiting(stored: Sequence[Stored], rows: Mapping[int, tuple[int, int]]) -> int:
    """How many of the stored messages still wait, according to the rows of the table of timers."""
    found = 0
    begins = sorted(rows)
    for offset, message in enumerate(stored):
        reached = [begin for begin in begins if begin <= offset]
        found += bool(reached) and not message.recalls and (message.due_ms, offset) >= rows[reached[-1]]
    return found


def judge_timers(messages: Messages, history: TimerHistory) -> tuple[int, int]:
    """Compare the messages that waited with those that were delivered. Returns how many were delivered and
    how many were recalled. Raises InvariantViolated if they do not fit."""
    waited: dict[tuple[bytes, int], int] = {}
    noted: dict[tuple[str, int], int] = {}
    keys: dict[bytes, str] = {}
    for message in messages.get((TIMERS, 0), ()):
        if message.recalls:
            noted.setdefault((message.recalls, message.due_ms), message.entry)
        else:
            keys[message.value] = message.key
            # A message is due when it should be delivered, or a little later. The same holds when it is
            # stored again.
            if message.due_ms < history.wanted_ms[message.value]:
                raise InvariantViolated(f"{name_of(message.value)} waits for a time before its own")
            if not message.rolled:
                own = message.value, message.due_ms
                waited[own] = waited.get(own, 0) + 1
    came: dict[tuple[bytes, int], list[Stored]] = {}
    for (topic, _), stored in messages.items():
        if topic != TIMERS:
            for message in stored:
                if message.due_ms and not message.copied:
                    came.setdefault((message.value, message.due_ms), []).append(message)
    recalled = 0
    for (value, due), count in waited.items():
        name, found = name_of(value), came.pop((value, due), [])
        for one in found:
            # No message is delivered before its time.
            if one.store_ms < due:
                raise InvariantViolated(f"{name} came {due - one.store_ms} ms early")
            # A message that was recalled before is not delivered.
            if noted.get((keys[value], due), one.entry) < one.entry:
                raise InvariantViolated(f"{name} came though it was recalled before, for {due}")
        # A message is delivered once for each time it was stored, unless it was recalled.
        if len(found) > count:
            raise InvariantViolated(f"{name} waited {count} times for {due} and came {len(found)} times")
        if len(found) < count and (keys[value], due) not in noted:
            raise InvariantViolated(f"{name} waited {count} times for {due} and came {len(found)} times")
        recalled += count - len(found)
    # A message that never waited is not delivered.
    if came:
        raise InvariantViolated(f"{[name_of(value) for value, _ in came]} came, and never waited")
    told = {key for key, _ in noted}
    for recall in history.recalls:
        # A recall that was acknowledged is in the log.
        if recall.outcome == ACKNOWLEDGED and keys[recall.value] not in told:
            raise InvariantViolated(f"the recall of {name_of(recall.value)} was acknowledged and is lost")
    return sum(waited.values()) - recalled, recalled
