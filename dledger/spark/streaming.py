"""The stream reader: where a query begins, how far each batch reaches, what its tasks read.

The rules are the same for store directories and for live brokers (`Queues`). Offsets are encoded by
`offsets.encode`. Only Spark keeps them, in the checkpoint: no offset of a consumer group changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dledger.runtime.env import monotonic_s
from dledger.spark.offsets import (
    DataLost,
    Encoded,
    Offsets,
    Position,
    There,
    check_all_named,
    check_not_lost,
    decode,
    encode,
    limited,
    named_offsets,
    out_of_range,
    ranges_between,
    resumed,
    waiting,
)
from dledger.spark.option_values import BadOption, Queue
from dledger.spark.options import Options
from dledger.spark.queue_source import Queues, at_times, look
from dledger.spark.selection import Bounds, topic_and_group
from dledger.spark.versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)


class RefusingReader(DataSourceStreamReader):
    """The reader of a stream whose options are wrong: whatever Spark asks first, the answer is the error.

    If `DataSource.streamReader` itself raises, Spark's Python process fails once more while it handles the
    error (a variable of it is not set yet), and the user sees only that second failure.
    """

    def __init__(self, error: BadOption) -> None:
        self._error = error

    def initialOffset(self) -> Encoded:
        raise self._error

    def latestOffset(self, *start_and_limit: object) -> Encoded:  # type: ignore[override,unused-ignore]
        raise self._error

    def partitions(self, start: Encoded, end: Encoded) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def stream_reader(options: Options, queues: Queues) -> BaseReader:
    """Return the reader of one stream that fits this release of Spark. Raises BadOption for options that
    the release does not support."""
    check_release(options)
    return StreamReader(options, queues) if HAS_READ_LIMITS else PlainStreamReader(options, queues)


def check_release(options: Options) -> None:
    """Raises BadOption for options that this release of Spark does not support."""
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        if name in options.given and not HAS_READ_LIMITS:
            raise BadOption(
                f"option {name}: Spark limits the batches of a stream only since 4.2: remove this option, or "
                "upgrade Spark"
            )


class Pace:
    """Decides whether a stream waits until it has `least` messages (minOffsetsPerTrigger; None: it never
    waits). It waits at most `most_ms` since its last batch (maxTriggerDelay).

    The first batch after a start never waits, as in Spark's Kafka source: it is not known when the batch
    before it was made.
    """

    def __init__(self, least: int | None, most_ms: int, clock_s: Callable[[], float] = monotonic_s) -> None:
        self._least = least
        self._most_s = most_ms / 1000
        self._clock_s = clock_s
        self._last_s: float | None = None

    def waits(self, messages: int) -> bool:
        """Whether a batch with so many messages must wait. If not, it counts as made now."""
        if self._least is None:
            return False
        now = self._clock_s()
        enough = messages >= self._least
        if not enough and self._last_s is not None and now - self._last_s < self._most_s:
            return True
        self._last_s = now
        return False


class BaseReader(DataSourceStreamReader):
    """Reads one stream. It runs in a process beside the driver; tasks get copies of it."""

    def __init__(self, options: Options, queues: Queues) -> None:
        self._options = options
        self._queues = queues
        self._target: Offsets | None = None
        """The offsets at which a query with the trigger AvailableNow ends."""
        self._latest = Position({})
        self._pace = Pace(options.min_offsets, options.max_trigger_delay_ms)

    # --- offsets --------------------------------------------------------------------------------------

    def initialOffset(self) -> Encoded:
        self._queues.check_topics()
        there = look(self._queues, qualify=len(self._queues.groups()) > 1)
        return encode(Position(self._first(there.bounds), there.lives))

    def _first(self, there: Mapping[Queue, Bounds]) -> Offsets:
        """Return the offsets at which a query without a checkpoint begins."""
        options = self._options
        strict = options.unmatched == "error"
        if options.starting_ms is not None:
            times = dict.fromkeys(sorted(there), options.starting_ms)
            return at_times(self._queues, "startingTimestamp", times, there, strict=strict)
        if options.starting == "latest":
            return {queue: bounds.high for queue, bounds in there.items()}
        if options.starting_times:
            name, times = "startingOffsetsByTimestamp", dict(options.starting_times)
            start = at_times(self._queues, name, times, there, strict=strict)
            check_all_named(name, times, there, "a time, such as 0 (everything)")
            return start
        if isinstance(options.starting, str):
            return {queue: bounds.low for queue, bounds in there.items()}
        fail = options.fail_on_data_loss
        start = named_offsets(options.starting, there, "startingOffsets", fail=fail)
        values = "-2 (its first message), -1 (its end) or an offset"
        check_all_named("startingOffsets", options.starting, there, values)
        return start

    def _there(self, known: Position) -> There:
        """Return what the source has now. Names have the same form as in `known`: with or without the
        broker group."""
        if any(topic_and_group(name)[1] for name, _ in known.offsets):
            return look(self._queues, qualify=True)
        groups = self._queues.groups()
        if known.offsets and len(groups) > 1:
            raise BadOption(
                "the checkpoint belongs to one broker group, but now there are "
                f"{', '.join(sorted(groups))}: name one with the option group, and read each other "
                "group with its own query"
            )
        return look(self._queues, qualify=len(groups) > 1)

    # --- reading --------------------------------------------------------------------------------------

    def partitions(self, start: Encoded, end: Encoded) -> list[InputPartition]:
        fail = self._options.fail_on_data_loss
        known, planned = decode(start), decode(end)
        if known == planned:
            return []
        there = self._there(planned)
        # If a life has ended since the batch was planned, its messages cannot be read any more.
        stop = resumed(planned, there, fail=fail).offsets
        begin = check_not_lost(resumed(known, there, fail=fail).offsets, there.bounds, fail=fail)
        for queue, at in stop.items():
            bounds = there.bounds.get(queue)
            if begin.get(queue, 0) < at and (bounds is None or bounds.high < at):
                there_is = Bounds(0, 0) if bounds is None else bounds
                raise DataLost(out_of_range(*queue, "a batch planned before ends at", at, there_is))
        return self._queues.plan(ranges_between(begin, stop))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # Spark's stand-in for an empty plan
        return self._queues.read(partition)

    def commit(self, end: Encoded) -> None:
        """Does nothing, as progress is kept only in the checkpoint."""

    def stop(self) -> None:
        self._queues.close()


class StreamReader(BaseReader, SupportsTriggerAvailableNow):
    """The reader for Spark 4.2 and later: batches may be limited, and Spark passes the offset at which the
    last batch ended."""

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: Encoded, limit: ReadLimit) -> Encoded:
        fail = self._options.fail_on_data_loss
        known = decode(start)
        looked = self._there(known)
        position = resumed(known, looked, fail=fail)
        begin, there = position.offsets, looked.bounds
        latest = {**begin, **{queue: bounds.high for queue, bounds in there.items()}}
        self._latest = Position(latest, position.lives)
        if self._target is not None:
            there = {
                queue: Bounds(bounds.low, min(bounds.high, max(self._target[queue], bounds.low)))
                for queue, bounds in there.items()
                if queue in self._target
            }
        go_on = check_not_lost(begin, there, fail=fail)
        if self._waits(go_on, there, limit):
            return start
        end = limited(go_on, there, self._most(begin, limit))
        # An offset that adds nothing must equal the start. So a queue without messages is not named yet.
        if all(begin.get(queue, go_on.get(queue)) == at for queue, at in end.items()):
            return start
        return encode(Position({**begin, **end}, position.lives))

    def reportLatestOffset(self) -> Encoded | None:
        return encode(self._latest) if self._latest.offsets else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = None
        plain = self._queues.bounds(qualify=False)
        qualified = self._queues.bounds(qualify=True)
        self._target = {queue: bounds.high for queue, bounds in {**plain, **qualified}.items()}

    def _waits(self, start: Mapping[Queue, int], there: Mapping[Queue, Bounds], limit: ReadLimit) -> bool:
        """Whether no batch is made yet, because there are fewer messages than minOffsetsPerTrigger. Queries
        with the triggers Once (which passes ReadAllAvailable) and AvailableNow never wait, as they would
        leave the last messages unread."""
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return self._pace.waits(waiting(start, there))

    def _most(self, start: Mapping[Queue, int], limit: ReadLimit) -> int | None:
        """Return the largest number of messages in a batch with this limit; None without a limit."""
        if isinstance(limit, ReadAllAvailable):
            return None
        counts = [limit.max_rows] if isinstance(limit, ReadMaxRows) else []
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if size is not None:
            counts.append(max(1, size // self._queues.message_bytes(start)))
        return min(counts, default=None)


class PlainStreamReader(BaseReader):
    """The reader for Spark before 4.2: a batch takes all messages that the source has, and Spark does not
    pass the offset at which the last batch ended."""

    def latestOffset(self) -> Encoded:  # type: ignore[override,unused-ignore]
        there = self._there(self._latest)
        # After a start the offset at which the last batch ended is not known, and `waits` is false.
        if self._pace.waits(waiting(self._latest.offsets, there.bounds)):
            return encode(self._latest)
        # The start is not known here. `partitions` compares the lives with those of the start.
        known = resumed(self._latest, there, fail=False)
        ends = {queue: bounds.high for queue, bounds in there.bounds.items()}
        self._latest = Position({**known.offsets, **ends}, known.lives)
        return encode(self._latest)

    def partitions(self, start: Encoded, end: Encoded) -> list[InputPartition]:
        self._there(decode(start))  # after a restart nobody else compares the names of queues with its own
        return super().partitions(start, end)
