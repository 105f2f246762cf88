"""Offsets of queues: how they are written, where reading starts, how a batch is bounded and divided. Pure.

An offset of a stream is `{"topic/queue": n}`: the next message to read of each queue. Where several broker
groups are read, `{"topic@group/queue": n}`, as queues of the same number are different queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dledger.spark.option_values import EARLIEST, LATEST, BadOption, Queue
from dledger.spark.options import Options
from dledger.spark.selection import ANY, Bounds, topic_and_group

Offsets = dict[Queue, int]
"""(topic or topic@group, queue id) -> offset."""


class DataLost(Exception):
    """Messages that were asked for are not there (any more)."""


@dataclass(frozen=True)
class QueueRange:
    """Messages [low, high) of one queue."""

    topic: str
    queue_id: int
    low: int
    high: int


def encode(offsets: Mapping[Queue, int]) -> dict[str, int]:
    """As Spark keeps it."""
    return {f"{topic}/{queue_id}": offset for (topic, queue_id), offset in sorted(offsets.items())}


def decode(value: Mapping[str, int]) -> Offsets:
    """Inverse of `encode`; ValueError for what is no offset of this source."""
    found = {}
    for key, offset in value.items():
        topic, slash, queue_id = key.rpartition("/")
        if not slash or not queue_id.isdecimal() or not isinstance(offset, int):
            raise ValueError(
                f"{key!r}: {offset!r} is no offset of this source: is it another one's checkpoint?"
            )
        found[topic, int(queue_id)] = offset
    return found


def batch_bounds(options: Options) -> dict[Queue, Bounds]:
    """What `startingOffsets` and `endingOffsets` of a batch say, for the queues that they name."""
    starting = options.starting if isinstance(options.starting, Mapping) else {}
    ending = options.ending if isinstance(options.ending, Mapping) else {}
    found: dict[Queue, Bounds] = {}
    for queue in sorted({**starting, **ending}):
        high = ending.get(queue, LATEST)
        found[queue] = Bounds(max(starting.get(queue, EARLIEST), 0), ANY.high if high == LATEST else high)
    return found


def out_of_range(topic: str, queue_id: int, what: str, offset: int, there: Bounds) -> str:
    """The complaint about an offset."""
    return (
        f"{what}: {topic}/{queue_id}: offset {offset} is outside of what is there, "
        f"{there.low} to {there.high}: retention deleted it, or it is not written yet"
    )


def named_offsets(
    named: Mapping[Queue, int], there: Mapping[Queue, Bounds], option: str, *, fail: bool
) -> Offsets:
    """What an option says, as offsets. BadOption for a queue that is not there, DataLost for an offset."""
    found = {}
    for queue, offset in named.items():
        if queue not in there:
            known = ", ".join(encode(dict.fromkeys(there, 0))) or "none"
            raise BadOption(f"option {option}: no queue {queue[0]}/{queue[1]}; there are {known}")
        bounds = there[queue]
        found[queue] = {EARLIEST: bounds.low, LATEST: bounds.high}.get(offset, offset)
        if not bounds.low <= found[queue] <= bounds.high:
            if fail:
                raise DataLost(out_of_range(*queue, f"option {option}", offset, bounds))
            found[queue] = min(max(found[queue], bounds.low), bounds.high)
    return found


def check_not_lost(start: Mapping[Queue, int], there: Mapping[Queue, Bounds], *, fail: bool) -> Offsets:
    """Where to go on: `start`, moved into what is there. DataLost instead, if that is to `fail`.

    A queue without a start (it is new) begins at its first message. An end that lies before the start is not
    loss by itself: the source that answers may be behind; the start stays.
    """
    found = dict(start)
    for queue, bounds in there.items():
        known = start.get(queue)
        if known is None:
            found[queue] = bounds.low
        elif known < bounds.low:
            if fail:
                text = out_of_range(*queue, "the stream goes on at", known, bounds)
                raise DataLost(f"{text}; failOnDataLoss=false goes on with what is there")
            found[queue] = bounds.low
    return found


def limited(start: Mapping[Queue, int], there: Mapping[Queue, Bounds], limit: int | None) -> Offsets:
    """The end of a batch of at most `limit` messages, divided among queues by what each has waiting.

    Every queue with messages gets at least one, as long as there are some to give: none starves.
    """
    backlog = {
        queue: max(0, there[queue].high - start.get(queue, there[queue].low)) for queue in sorted(there)
    }
    total = sum(backlog.values())
    end = {queue: start.get(queue, there[queue].low) for queue in there}
    if limit is None or total <= limit:
        return {**start, **{queue: end[queue] + backlog[queue] for queue in there}}
    waiting = sorted((count, queue) for queue, count in backlog.items() if count)
    left, rest = limit, total
    for count, queue in waiting:  # the shortest first: what rounding leaves goes to the longest
        share = min(count, max(1, left * count // rest) if left else 0)
        end[queue] += share
        left -= share
        rest -= count
    return {**start, **end}


def by_group(ranges: Iterable[QueueRange]) -> dict[str, list[QueueRange]]:
    """Ranges of each group, with plain topics; "" where names are not qualified."""
    found: dict[str, list[QueueRange]] = {}
    for item in ranges:
        topic, group = topic_and_group(item.topic)
        found.setdefault(group, []).append(replace(item, topic=topic))
    return found


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """What lies between two offsets. A queue that the start does not know begins at 0."""
    return [
        QueueRange(*queue, start.get(queue, 0), high)
        for queue, high in sorted(end.items())
        if start.get(queue, 0) < high
    ]


def divided(ranges: Iterable[QueueRange], parts: int) -> list[list[QueueRange]]:
    """Every range cut into `parts`, part by part: neighbours in time, so neighbours in the log, together."""
    known = list(ranges)
    found = []
    for part in range(parts):
        cut = [
            QueueRange(
                item.topic,
                item.queue_id,
                item.low + (item.high - item.low) * part // parts,
                item.low + (item.high - item.low) * (part + 1) // parts,
            )
            for item in known
        ]
        found.append([item for item in cut if item.low < item.high])
    return [part for part in found if part]


def wanted_parts(messages: int, min_partitions: int | None) -> int:
    """Tasks for a batch: as asked for, else enough for its size; a task has its price."""
    if min_partitions is not None:
        return max(1, min(min_partitions, messages))
    return max(1, min(MOST_PARTS, messages // PART_MESSAGES))


MOST_PARTS = 16
PART_MESSAGES = 25_000
"""Messages that are worth a task of their own."""
