"""Offsets of queues: how they are written, where reading starts, how a batch is bounded and divided. Pure
functions.

An offset of a stream is `{"topic/queue": n}`, with the next message to read of each queue. If several
broker groups are read, it is `{"topic@group/queue": n}`, as queues with the same number in two groups are
different queues.

An offset also names the life of each topic (`formats.life`), which is the time from the topic's creation
to its deletion: `{"topic": "cluster.position"}`. A topic that was deleted and created again has another
life, in which the offsets of the first life mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from dledger.formats.life import Life
from dledger.spark.option_values import EARLIEST, LATEST, BadOption, Queue
from dledger.spark.options import Options
from dledger.spark.selection import ANY, Bounds, topic_and_group

Offsets = dict[Queue, int]
"""Maps a queue, as (topic or topic@group, queue id), to an offset in it."""
SHOWN_QUEUES = 10
"""Largest number of queues that an error text names."""
Encoded = dict[str, int | str]
"""An offset in the form in which Spark keeps it."""


Lives = dict[str, str]
"""Maps a topic, or topic@group, to its life."""


@dataclass(frozen=True)
class Position:
    """How far a stream has read. `lives` has the life of each topic to which `offsets` belong. A topic is
    missing in `lives` if its source does not report lives, or if the checkpoint was written by a version
    that did not record them."""

    offsets: Offsets
    lives: Lives = field(default_factory=dict)


@dataclass(frozen=True)
class There:
    """What a source has: the range of committed messages of each queue, and the life of each topic.

    `lives` are those of now. `older` are those of a snapshot after which much was written. They show that a
    topic was created again, and are not recorded in a checkpoint.
    """

    bounds: dict[Queue, Bounds]
    lives: Lives = field(default_factory=dict)
    older: Lives = field(default_factory=dict)

    def life(self, topic: str) -> str | None:
        """Return the newest life of a topic that is known; None if none is."""
        return self.lives.get(topic) or self.older.get(topic)


class DataLost(Exception):
    """Messages that were asked for do not exist, or were deleted."""


@dataclass(frozen=True)
class QueueRange:
    """Messages [low, high) of one queue."""

    topic: str
    queue_id: int
    low: int
    high: int


def encode(position: Position) -> Encoded:
    """Encode a position in the form in which Spark keeps it in a checkpoint."""
    return {**encode_offsets(position.offsets), **dict(sorted(position.lives.items()))}


def encode_offsets(offsets: Mapping[Queue, int]) -> dict[str, int]:
    """Encode only how far each queue was read, without lives."""
    return {f"{topic}/{queue_id}": offset for (topic, queue_id), offset in sorted(offsets.items())}


def decode(value: Encoded) -> Position:
    """Decode what `encode` wrote. Raises ValueError for a value that is no offset of this source."""
    offsets: Offsets = {}
    lives: Lives = {}
    for key, item in value.items():
        topic, slash, queue_id = key.rpartition("/")
        if slash and queue_id.isdecimal() and isinstance(item, int):
            offsets[topic, int(queue_id)] = item
        elif not slash and isinstance(item, str):
            lives[key] = str(Life.parse(item))
        else:
            raise ValueError(
                f"{key!r}: {item!r} is not an offset of this source: check that the checkpoint belongs to it"
            )
    return Position(offsets, lives)


def batch_bounds(options: Options) -> dict[Queue, Bounds]:
    """Return the range of offsets of each queue that the options `startingOffsets` and `endingOffsets` of
    a batch query name."""
    starting = options.starting if isinstance(options.starting, Mapping) else {}
    ending = options.ending if isinstance(options.ending, Mapping) else {}
    found: dict[Queue, Bounds] = {}
    for queue in sorted({**starting, **ending}):
        high = ending.get(queue, LATEST)
        found[queue] = Bounds(max(starting.get(queue, EARLIEST), 0), ANY.high if high == LATEST else high)
    return found


def time_bounds(options: Options) -> Bounds:
    """Return the range of store times, in ms, that `startingTimestamp` and `endingTimestamp` allow."""
    return Bounds(options.starting_ms or 0, ANY.high if options.ending_ms is None else options.ending_ms)


def batch_times(options: Options) -> dict[Queue, Bounds]:
    """Return the range of store times, in ms, of each queue that the options `startingOffsetsByTimestamp` and
    `endingOffsetsByTimestamp` of a batch query name."""
    return {
        queue: Bounds(options.starting_times.get(queue, 0), options.ending_times.get(queue, ANY.high))
        for queue in sorted({**options.starting_times, **options.ending_times})
    }


def no_queue(option: str, queue: Queue, there: Iterable[Queue]) -> BadOption:
    """Return the error for an option that names a queue that does not exist."""
    known = ", ".join(encode_offsets(dict.fromkeys(there, 0))) or "none"
    return BadOption(f"option {option}: there is no queue {queue[0]}/{queue[1]}; the queues are {known}")


def check_all_named(option: str, named: Mapping[Queue, int], there: Iterable[Queue], values: str) -> None:
    """Raises BadOption if an option that says where a stream starts leaves out a queue, as Spark's Kafka
    source does. `values`: what may be given for it."""
    missing = encode_offsets(dict.fromkeys((queue for queue in there if queue not in named), 0))
    if missing:
        shown = [*missing][:SHOWN_QUEUES]
        more = f" and {len(missing) - len(shown)} more" if len(missing) > len(shown) else ""
        raise BadOption(
            f"option {option}: a stream needs the start of every queue, and it leaves out "
            f"{', '.join(shown)}{more}: give each {values}, or choose fewer topics with subscribe"
        )


def nothing_stored(option: str, queue: Queue, timestamp_ms: int) -> BadOption:
    """Return the error for a starting time at or after which a queue has no message."""
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return BadOption(
        f"option {option}: {queue[0]}/{queue[1]} has no message stored at or after {timestamp_ms} ({time}): "
        "startingOffsetsByTimestampStrategy=latest starts at the end of such a queue"
    )


def out_of_range(topic: str, queue_id: int, what: str, offset: int, there: Bounds) -> str:
    """Return the error text for an offset outside of the range of its queue."""
    return (
        f"{what}: {topic}/{queue_id}: offset {offset} is outside of the stored range {there.low} to "
        f"{there.high}: retention deleted it, or it is not written yet"
    )


def named_offsets(
    named: Mapping[Queue, int], there: Mapping[Queue, Bounds], option: str, *, fail: bool
) -> Offsets:
    """Return the offsets that an option names. Raises BadOption for a queue that does not exist, and
    DataLost for an offset out of range."""
    found = {}
    for queue, offset in named.items():
        if queue not in there:
            raise no_queue(option, queue, there)
        bounds = there[queue]
        found[queue] = {EARLIEST: bounds.low, LATEST: bounds.high}.get(offset, offset)
        if not bounds.low <= found[queue] <= bounds.high:
            if fail:
                raise DataLost(out_of_range(*queue, f"option {option}", offset, bounds))
            found[queue] = min(max(found[queue], bounds.low), bounds.high)
    return found


def resumed(start: Position, there: There, *, fail: bool) -> Position:
    """Return the position from which a stream resumes: those offsets of `start` that are still valid, with
    the lives of their topics.

    Offsets of a topic whose life has ended are dropped, so its queues are read from their first message if it
    was created again. With `fail`, raises DataLost instead. A life in `start` is kept if the source reports
    an older one or none: its state is behind, or cannot be read. A topic without a life in `start` gets its
    present life.
    """
    with_queues = {topic for topic, _ in there.bounds}
    ended = [topic for topic, life in start.lives.items() if _has_ended(topic, life, there, with_queues)]
    if ended and fail:
        raise DataLost(_ended_text(ended[0], start.lives[ended[0]], there))
    offsets = {queue: offset for queue, offset in start.offsets.items() if queue[0] not in ended}
    kept = {topic: life for topic, life in start.lives.items() if topic not in ended}
    return Position(offsets, {**there.lives, **kept})


def _has_ended(topic: str, life: str, there: There, with_queues: Set[str]) -> bool:
    """Whether a topic was deleted since `life` was recorded. Unknown counts as no."""
    now = there.life(topic)
    if now is None:
        return topic not in with_queues
    recorded, reported = Life.parse(life), Life.parse(now)
    return recorded.cluster != reported.cluster or reported.born > recorded.born


def _ended_text(topic: str, life: str, there: There) -> str:
    now = there.life(topic)
    goes_on = "failOnDataLoss=false continues with the stored messages, from their beginning"
    if now is None:
        return f"topic {topic} was deleted; the stream has read its life {life} (cluster.position). {goes_on}"
    what = (
        "was deleted and made again"
        if Life.parse(now).cluster == Life.parse(life).cluster
        else "is now read from the log of another group"
    )
    return (
        f"topic {topic} {what}: the stream has read the life {life} (cluster.position), and now there is "
        f"{now}. {goes_on}"
    )


def check_not_lost(start: Mapping[Queue, int], there: Mapping[Queue, Bounds], *, fail: bool) -> Offsets:
    """Return the offsets from which to resume: `start`, moved up to the first message of each queue. With
    `fail`, raises DataLost instead of moving an offset.

    A queue that `start` does not name is new and begins at its first message. An offset in `start` beyond
    the end of its queue does not mean a loss, as the source that answers may lag behind. It is kept.
    """
    found = dict(start)
    for queue, bounds in there.items():
        known = start.get(queue)
        if known is None:
            found[queue] = bounds.low
        elif known < bounds.low:
            if fail:
                text = out_of_range(*queue, "the stream continues at", known, bounds)
                raise DataLost(f"{text}; failOnDataLoss=false continues with the stored messages")
            found[queue] = bounds.low
    return found


def waiting(start: Mapping[Queue, int], there: Mapping[Queue, Bounds]) -> int:
    """Return how many messages a source has after `start`."""
    return sum(_backlog(start, there).values())


def _backlog(start: Mapping[Queue, int], there: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    return {queue: max(0, there[queue].high - start.get(queue, there[queue].low)) for queue in sorted(there)}


def limited(start: Mapping[Queue, int], there: Mapping[Queue, Bounds], limit: int | None) -> Offsets:
    """Return the end of a batch of at most `limit` messages. The queues share the batch in proportion to
    their waiting messages. Every queue with messages gets at least one message while the limit allows it,
    so that no queue starves."""
    backlog = _backlog(start, there)
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
    """Return the ranges by broker group, with plain topics. The key is "" if the names do not contain a
    group."""
    found: dict[str, list[QueueRange]] = {}
    for item in ranges:
        topic, group = topic_and_group(item.topic)
        found.setdefault(group, []).append(replace(item, topic=topic))
    return found


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """Return the ranges between two offsets of a stream. A queue that `start` does not name begins at 0."""
    return [
        QueueRange(*queue, start.get(queue, 0), high)
        for queue, high in sorted(end.items())
        if start.get(queue, 0) < high
    ]


def divided(ranges: Iterable[QueueRange], parts: int) -> list[list[QueueRange]]:
    """Divide the ranges into at most `parts` parts.

    Every range is cut into slices, and slices with the same number are put together, as they are close to
    each other in time, and therefore in the log. There are as many slices as parts or, if that would be more
    than MOST_RANGES pieces, fewer. Then the queues of a slice are divided among several parts.
    """
    known = list(ranges)
    slices = max(1, min(parts, MOST_RANGES // max(1, len(known))))
    each = -(-parts // slices)
    """How many parts a slice is divided into; the last slice may have fewer."""
    found: list[list[QueueRange]] = []
    for start in range(0, parts, each):
        end = min(start + each, parts)
        cut = [
            QueueRange(
                item.topic,
                item.queue_id,
                item.low + (item.high - item.low) * start // parts,
                item.low + (item.high - item.low) * end // parts,
            )
            for item in known
        ]
        some = [item for item in cut if item.low < item.high]
        messages = sum(item.high - item.low for item in some)
        found += _at_most(some, -(-messages // (end - start))) if messages and each > 1 else [some]
    return [part for part in found if part]


def parts_of(ranges: Iterable[QueueRange], options: Options) -> list[list[QueueRange]]:
    """Divide the ranges of a batch among tasks: as many tasks as minPartitions and maxRecordsPerPartition ask
    for, or else enough for the size of the batch. More would be slower, as each task has a cost."""
    known = list(ranges)
    messages = sum(item.high - item.low for item in known)
    least, most = options.min_partitions, options.max_records
    count = min(MOST_PARTS, messages // PART_MESSAGES) if least is None else min(least, messages)
    if most is None:
        return divided(known, max(1, count))
    parts = divided(known, max(1, count, -(-messages // most)))
    return [cut for part in parts for cut in _at_most(part, most)]


def _at_most(ranges: Iterable[QueueRange], most: int) -> Iterator[list[QueueRange]]:
    """Cut ranges into lists of at most `most` messages."""
    pending: list[QueueRange] = []
    room = most
    for item in ranges:
        low = item.low
        while low < item.high:
            high = min(item.high, low + room)
            pending.append(replace(item, low=low, high=high))
            room -= high - low
            low = high
            if not room:
                yield pending
                pending, room = [], most
    if pending:
        yield pending


MOST_RANGES = 200_000
"""Largest number of pieces into which the ranges of a batch are cut, as each takes memory of the driver."""
MOST_PARTS = 16
PART_MESSAGES = 25_000
"""Number of messages for which a batch gets one task."""
