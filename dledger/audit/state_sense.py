"""Checks that a replicated state makes sense by itself. If a leader wrote a wrong operation, the states of
all replicas follow from their logs and are wrong nevertheless.

* No row goes beyond the end of its queue: consumer offsets, resets, pops, delays, timers.
* Nothing happened later than the newest entry: progress of timers, deletions, births of topics and groups.
* Messages that wait for a time were delivered when it came (`Overdue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dledger.audit.entries import Array
from dledger.audit.unit_files import UnitFiles
from dledger.formats.consume_queue import UNIT_SIZE
from dledger.formats.state import (
    DELAYS,
    DELETIONS,
    GROUP_BIRTHS,
    POP_ORDERS,
    POPS,
    RESETS,
    TIMERS,
    TOPIC_BIRTHS,
    TRANSACTIONS,
    Birth,
    PopCheckpoint,
    PopOrder,
    ReplicatedState,
    TimerProgress,
)
from dledger.formats.state.timers import in_order
from dledger.formats.timers import TIMER_TOPIC
from dledger.runtime import Files

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OVERDUE_MS = 3_600_000
"""Time, in ms, by which the store time of the newest entry must be later than the time of a timer message
before the message counts as overdue. Leaders deliver within seconds, but a group may have been down."""
_AHEAD_MS = 1000
"""How much later than the newest store time, in ms, the progress of timers may be. A leader takes the time of
a delivery before it appends the messages."""
_MOST = 3
"""Largest number of rows that one finding names."""
_UNITS = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
_CHUNK_UNITS = 1 << 16


def nonsense(state: ReplicatedState, end_pos: int, newest_ms: int) -> str:
    """Return what is impossible in a state, with its first rows; an empty text if there is nothing.

    `end_pos` is the log offset up to which the state is applied. `newest_ms` is the store time of the newest
    entry up to there, -1 if it is not known.
    """
    found = list(_all(state, end_pos, newest_ms))
    more = f" (and {len(found) - _MOST} more)" if len(found) > _MOST else ""
    return "; ".join(found[:_MOST]) + more


def _all(state: ReplicatedState, end_pos: int, newest_ms: int) -> Iterator[str]:
    yield from _beyond_queues(state)
    for topic, queues in sorted(state.queues.items()):
        for queue, bounds in sorted(queues.items()):
            if not 0 <= bounds.min <= bounds.next:
                yield f"queue {topic}/{queue} has the offsets from {bounds.min} up to {bounds.next}"
            elif bounds.first_position >= end_pos:
                yield f"queue {topic}/{queue} has its message 0 at {bounds.first_position}, behind the log"
    for deletion in state[DELETIONS].rows.values():
        if deletion.at > end_pos:
            yield f"topic {deletion.name} was deleted at {deletion.at}, behind the log"
    births: list[Birth] = [*state[TOPIC_BIRTHS].rows.values(), *state[GROUP_BIRTHS].rows.values()]
    for birth in births:
        if birth.at > end_pos:
            yield f"{birth.name} was made at {birth.at}, behind the log"
    if newest_ms >= 0:
        yield from _too_late(state, newest_ms)


def _beyond_queues(state: ReplicatedState) -> Iterator[str]:
    for group, offsets in sorted(state.offsets.items()):
        for (topic, queue), offset in sorted(offsets.items()):
            yield from _beyond(state, topic, queue, offset, f"group {group} is at offset")
    for reset in state[RESETS].rows.values():
        for queue, offset in reset.queues:
            yield from _beyond(state, reset.topic, queue, offset, f"group {reset.group} was reset to offset")
    popped: list[PopCheckpoint | PopOrder] = [*state[POPS].rows.values(), *state[POP_ORDERS].rows.values()]
    for row in popped:
        text = f"group {row.group} has popped up to offset"
        yield from _beyond(state, row.topic, row.queue, max(row.offsets) + 1, text)
    for one in state[TRANSACTIONS].rows.values():
        yield from _beyond(state, HALF_TOPIC, 0, max(one.half, one.at) + 1, "a transaction is open at offset")
    for delay in state[DELAYS].rows.values():
        text = f"delay level {delay.level} is delivered up to offset"
        yield from _beyond(state, SCHEDULE_TOPIC, delay.level - 1, delay.next, text)
    for timer in state[TIMERS].rows.values():
        yield from _beyond(
            state, TIMER_TOPIC, 0, max(timer.begin, timer.next), "timers are delivered to offset"
        )


def _beyond(state: ReplicatedState, topic: str, queue: int, offset: int, what: str) -> Iterator[str]:
    end = state.next_offset(topic, queue)
    if offset > end:
        yield f"{what} {offset} of {topic}/{queue}, which ends at {end}"


def _too_late(state: ReplicatedState, newest_ms: int) -> Iterator[str]:
    if state.last_store_time_ms > newest_ms:
        yield f"the newest store time is {state.last_store_time_ms}, that of the newest entry {newest_ms}"
    for row in state[TIMERS].rows.values():
        if row.time > newest_ms + _AHEAD_MS:
            yield f"timers are delivered up to the time {row.time}, and the newest entry is of {newest_ms}"


def overdue_timers(files: Files, queue_root: str, state: ReplicatedState, newest_ms: int) -> str:
    """Return a text about timer messages that should have been delivered; an empty text if there are none.
    Raises OSError.

    The units of the ConsumeQueue have the time of each message (`formats.timers.timer_code`).
    """
    rows = in_order(state[TIMERS].rows.values())
    bounds = state.queues.get(TIMER_TOPIC, {}).get(0)
    if not rows or bounds is None or not queue_root:
        return ""
    units = UnitFiles(files, f"{queue_root}/{TIMER_TOPIC}/0", UNIT_SIZE)
    count, first, oldest = 0, -1, 0
    try:
        begin = max(rows[0].begin, bounds.min, units.first)
        end = min(bounds.next, units.end())
        for at in range(begin, end, _CHUNK_UNITS):
            part = np.frombuffer(units.read(at, min(_CHUNK_UNITS, end - at)), _UNITS)
            due = part["code"].astype(np.int64) >> 1
            offset = np.arange(at, at + len(part))
            late = (due > 0) & (due < newest_ms - OVERDUE_MS) & (part["code"] & 1 == 0)
            late &= _waits(rows, due, offset)
            numbers = np.flatnonzero(late)
            if len(numbers):
                count += len(numbers)
                first = int(offset[numbers[0]]) if first < 0 else first
                oldest = min(oldest or newest_ms, int(due[numbers].min()))
    finally:
        units.close()
    if not count:
        return ""
    minutes = (newest_ms - oldest) // 60_000
    return (
        f"{count} timer messages were not delivered for up to {minutes} minutes, the first at offset {first}"
    )


def _waits(rows: Iterable[TimerProgress], due: Array, offset: Array) -> Array:
    """Mask of the messages that wait (`formats.state.timers.still_waits`)."""
    waiting = np.zeros(len(due), bool)
    for row in rows:  # a later row applies to later offsets
        applies = offset >= row.begin
        waits = (due > row.time) | ((due == row.time) & (offset >= row.next))
        waiting = np.where(applies, waits, waiting)
    return waiting
