"""Live brokers as a source: queues by name, pulled from their leaders through our client.

What an answer shows is applied by the leader, so committed; offsets mean the same at every leader of a group.
Nothing is written anywhere but the name of the consumer group that requests must bear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from client.message import MessageQueue
from client.ranges import OffsetsGone, RangeOptions
from client.subscription import ALL
from client.sync import RangePuller
from spark import columns
from spark.messages import MessageRows, message_columns
from spark.offsets import (
    DataLost,
    Offsets,
    QueueRange,
    by_group,
    divided,
    named_offsets,
    ranges_between,
    wanted_parts,
)
from spark.option_values import Queue
from spark.options import Options
from spark.records import decode
from spark.runs import Ints
from spark.selection import ANY, Bounds, Selection, qualified, wants_queue, wants_topic

_DECODED_BYTES = 4 * 1024 * 1024
"""Bytes of answers that are decoded at once: small answers are not worth a batch each."""
_SAMPLE = 32
_DEFAULT_MESSAGE_BYTES = 1024


@dataclass(frozen=True)
class LivePart(InputPartition):
    """Ranges of queues of one broker group, for one task. Topics are plain names here."""

    group: str
    ranges: tuple[QueueRange, ...]


class LiveQueues:
    """`streaming.Queues` of live brokers. Connections are opened at the first use, and never travel."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._puller: RangePuller | None = None
        self._message_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return LiveQueues, (self._options,)

    def groups(self) -> list[str]:
        return sorted({queue.broker_name for queue in self._queues()})

    def bounds(self, *, qualify: bool) -> dict[Queue, Bounds]:
        found = self._open().bounds(self._queues())
        return {
            (qualified(queue.topic, queue.broker_name if qualify else ""), queue.queue_id): Bounds(*ends)
            for queue, ends in found.items()
        }

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        wanted = {}
        for queue in self._queues():
            for name in (queue.topic, qualified(queue.topic, queue.broker_name)):
                if (name, queue.queue_id) in queues:
                    wanted[queue] = (name, queue.queue_id)
        found = self._open().at_time(wanted, timestamp_ms)
        return {wanted[queue]: offset for queue, offset in found.items()}

    def message_bytes(self, start: Mapping[Queue, int]) -> int:
        """From some messages of the fullest queue, once."""
        if not self._message_bytes:
            found = self._open().bounds(self._queues())
            fullest = max(found, key=lambda queue: found[queue][1] - found[queue][0], default=None)
            if fullest is None or found[fullest][0] >= found[fullest][1]:
                return _DEFAULT_MESSAGE_BYTES
            end = found[fullest][1]
            first = max(found[fullest][0], end - _SAMPLE)
            size = sum(len(records) for _, records in self._open().pull([(fullest, first, end)]))
            self._message_bytes = max(1, size // (end - first))
        return self._message_bytes

    def plan(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        for group, mine in by_group(ranges).items():
            count = wanted_parts(sum(item.high - item.low for item in mine), self._options.min_partitions)
            name = group or "".join(self.groups())
            parts += [LivePart(name, tuple(part)) for part in divided(mine, count)]
        return parts

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, LivePart)
        try:
            yield from self._read(part)
        except OffsetsGone as error:
            raise DataLost(str(error)) from error
        finally:
            self.close()

    def close(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            puller.close()

    def _open(self) -> RangePuller:
        if self._puller is None:
            options = self._options
            ranges = RangeOptions(
                consumer_group=options.consumer_group,
                batch_size=options.pull_batch,
                timeout_s=options.pull_timeout_ms / 1000,
                skip_removed=not options.fail_on_data_loss,
            )
            self._puller = RangePuller(options.servers, ranges).start()
        return self._puller

    def _queues(self) -> list[MessageQueue]:
        """All queues that are wanted."""
        puller, choice, groups = self._open(), self._options.topics, self._options.groups
        named = choice.named if choice.named is not None else choice.assign
        if named is not None:
            topics = sorted(named)
        else:
            own = [] if choice.system else puller.system_topics()
            topics = [topic for topic in puller.topics() if topic not in own and wants_topic(choice, topic)]
        return [
            queue
            for topic in topics
            for queue in puller.queues(topic)
            if wants_queue(choice, topic, queue.queue_id) and (not groups or queue.broker_name in groups)
        ]

    def _read(self, part: LivePart) -> Iterator[pa.RecordBatch]:
        options, puller = self._options, self._open()
        bounds = {(item.topic, item.queue_id): Bounds(item.low, item.high) for item in part.ranges}
        named = replace(options.topics, named=tuple(sorted({topic for topic, _ in bounds})), pattern=None)
        high = ANY.high if options.ending_ms is None else options.ending_ms
        selection = Selection(
            topics=replace(named, assign=None),
            tags=frozenset(options.tags) if options.tags else None,
            offsets=bounds,
            time_ms=Bounds(options.starting_ms or 0, high),
        )
        rows = MessageRows(selection, message_columns(options), options.corrupt_records, part.group)
        expression = " || ".join(options.tags) or ALL
        for topic in sorted({item.topic for item in part.ranges}):
            puller.queues(topic)  # where its brokers are
        ranges = [
            (MessageQueue(item.topic, part.group, item.queue_id), item.low, item.high) for item in part.ranges
        ]
        missing = sum(item.high - item.low for item in part.ranges)
        for data in _joined(records for _, records in puller.pull(ranges, expression)):
            starts, sizes = _records_in(data)
            records = decode(np.frombuffer(data, np.uint8), starts, sizes)
            missing -= int(replace(selection, tags=None, time_ms=ANY).mask(records).sum())
            missing -= int((~records.good).sum())
            yield from rows.of_answer(records, starts, sizes)
        if missing > 0 and expression == ALL and options.fail_on_data_loss:
            raise DataLost(f"{part.group}: {missing} messages of {part.ranges} did not come")


def _joined(answers: Iterator[bytes]) -> Iterator[bytes]:
    """Answers together, to about _DECODED_BYTES."""
    pending: list[bytes] = []
    size = 0
    for answer in answers:
        pending.append(answer)
        size += len(answer)
        if size >= _DECODED_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)


def _records_in(data: bytes) -> tuple[Ints, Ints]:
    """Where records lie that are back to back, and their sizes."""
    starts = []
    at = 0
    while at + 4 <= len(data):
        starts.append(at)
        size = int.from_bytes(data[at : at + 4], "big")
        at = at + size if size > 4 else len(data)
    edges = np.array([*starts, min(at, len(data))], np.int64)
    return edges[:-1], np.diff(edges)


@dataclass(frozen=True)
class LiveMessagesView:
    """User messages of live brokers, as far as they are committed when the query is planned."""

    options: Options

    @property
    def columns(self) -> columns.Columns:
        return message_columns(self.options)

    def plan(self) -> list[InputPartition]:
        queues, options = LiveQueues(self.options), self.options
        try:
            there = queues.bounds(qualify=len(queues.groups()) > 1)
            start = {queue: bounds.low for queue, bounds in there.items()}
            end = {queue: bounds.high for queue, bounds in there.items()}
            start |= _asked(queues, there, "startingOffsets", options.starting, options.starting_ms)
            end |= _asked(queues, there, "endingOffsets", options.ending, options.ending_ms)
            return queues.plan(ranges_between(start, end))
        finally:
            queues.close()

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        return LiveQueues(self.options).read(part)


def _asked(
    queues: LiveQueues,
    there: Mapping[Queue, Bounds],
    option: str,
    offsets: str | Mapping[Queue, int],
    timestamp_ms: int | None,
) -> Offsets:
    """Offsets that an option or a time gives; none where neither says anything."""
    if timestamp_ms is not None:
        return queues.at_time(sorted(there), timestamp_ms)
    return {} if isinstance(offsets, str) else named_offsets(offsets, there, option, fail=True)


@dataclass(frozen=True)
class WholePart(InputPartition):
    """All there is: few rows."""

    servers: str


@dataclass(frozen=True)
class LiveQueuesView:
    """Ranges of offsets of the queues of live brokers."""

    options: Options
    columns: columns.Columns = columns.QUEUES

    def plan(self) -> list[InputPartition]:
        return [WholePart(self.options.servers)]

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        queues = LiveQueues(self.options)
        try:
            found = queues.bounds(qualify=True)
        finally:
            queues.close()
        rows = [
            (group, None, topic, queue_id, bounds.low, bounds.high, None, None)
            for (name, queue_id), bounds in sorted(found.items())
            for topic, _, group in [name.partition("@")]
        ]
        return columns.batches(self.columns, rows)
