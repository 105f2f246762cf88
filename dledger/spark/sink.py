"""Sink of the data source `dledger`: DataFrames and streams as messages of live brokers.

Delivery is at least once. A task succeeds only when a quorum has acknowledged every row. If it fails, the
rows that it sent before stay, and are sent again by the next attempt. Rows of one task keep their order in
every queue, as at most one batch per queue is in flight; up to `maxInFlight` batches to different queues are
in flight at the same time. Repeated messages have the same ids if the rows of a partition come again in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from dledger.client import (
    ClientError,
    Message,
    MessageQueue,
    NoBroker,
    OutcomeUnknown,
    Producer,
    SendResult,
    SendStatus,
)
from dledger.formats.checksum import crc32
from dledger.runtime.env import production_env
from dledger.spark.sink_options import SinkOptions
from dledger.spark.sink_rows import Outgoing, SinkError, outgoing, rows_of
from dledger.spark.versions import HAS_ARROW_STREAM_SINK, DataSourceStreamArrowWriter

PRODUCER_GROUP = "SPARK_SINK"
BATCH_MESSAGES = 1000
"""At most this many messages go into one request: brokers refuse more."""
BUFFERED_BATCHES = 4
"""A task holds at most this many times `maxBatchBytes` of rows that wait, over all queues."""
MESSAGE_OVERHEAD = 512
"""The most bytes that a stored message has besides body and properties: lengths, unique id, topic."""
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


Acknowledgement = Callable[[], SendResult]
"""Waits for the answer to one request. ClientError."""


class Sending(Protocol):
    """The methods of `client.Producer` that the sink uses."""

    def queues(self, topic: str) -> list[MessageQueue]: ...
    def begin(self, message: Message, queue: MessageQueue) -> Acknowledgement: ...
    def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Acknowledgement: ...


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task sent; all of it was acknowledged."""

    messages: int


@dataclass
class _Waiting:
    """Rows for one queue that are not sent yet; `size` is in bytes."""

    rows: list[Outgoing] = field(default_factory=list)
    size: int = 0


class QueueWriter:
    """Sends the rows of one task. SinkError, ClientError; messages that were sent before the error stay.

    The queue of a row depends only on the rows before it, so a repeated task sends each row to the same
    queue.
    """

    def __init__(self, producer: Sending, options: SinkOptions, turn: int) -> None:
        self.sent: int = 0
        self._producer = producer
        self._options = options
        self._turn = turn
        self._queues: dict[str, list[MessageQueue]] = {}
        self._waiting: dict[MessageQueue, _Waiting] = {}
        self._current: dict[str, MessageQueue] = {}
        self._size = 0
        self._under_way: dict[MessageQueue, tuple[list[Outgoing], Acknowledgement]] = {}
        """Batches in flight, in the order in which they were sent; at most one per queue, so that its rows
        keep their order."""

    def write(self, rows: Iterable[Outgoing]) -> int:
        """Send all rows and wait for the acknowledgements. Return how many were sent."""
        limit = self._options.max_batch_bytes
        for row in rows:
            size = _size(row.message)
            queue = self._queue_of(row)
            waiting = self._waiting.get(queue)
            if waiting and (waiting.size + size > limit or len(waiting.rows) >= BATCH_MESSAGES):
                self._flush(queue)
                queue = self._queue_of(row)
            while self._waiting and self._size + size > BUFFERED_BATCHES * limit:
                self._flush(max(self._waiting, key=lambda one: self._waiting[one].size))
            waiting = self._waiting.setdefault(queue, _Waiting())
            waiting.rows.append(row)
            waiting.size += size
            self._size += size
        for queue in list(self._waiting):
            self._flush(queue)
        for queue in list(self._under_way):
            self._settle(queue)
        return self.sent

    def _queue_of(self, row: Outgoing) -> MessageQueue:
        """Choose the queue: by partition, else by key, else another queue for each batch."""
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = sorted(self._producer.queues(topic))
        if row.partition is not None:
            if not 0 <= row.partition < len(queues):
                raise SinkError(
                    f"row {row.row} of the task: partition {row.partition} is not a queue of the "
                    f"topic {topic!r}, which has 0 to {len(queues) - 1}"
                )
            return queues[row.partition]
        if row.message.keys:
            return queues[crc32(str(row.message.keys).encode()) % len(queues)]
        queue = self._current.get(topic)
        if queue is None:
            queue = self._current[topic] = queues[self._turn % len(queues)]
            self._turn += 1
        return queue

    def _flush(self, queue: MessageQueue) -> None:
        """Send the rows that wait for a queue, as soon as the batch before them is acknowledged."""
        waiting = self._waiting.pop(queue)
        self._size -= waiting.size
        if self._current.get(queue.topic) == queue:
            del self._current[queue.topic]
        if queue in self._under_way:
            self._settle(queue)
        while len(self._under_way) >= self._options.max_in_flight:
            self._settle(next(iter(self._under_way)))
        self._under_way[queue] = waiting.rows, self._begin(waiting.rows, queue)

    def _settle(self, queue: MessageQueue) -> None:
        """Wait for the acknowledgement of the batch in flight to a queue. If it does not come, send the same
        batch again."""
        rows, acknowledged = self._under_way.pop(queue)
        where = f"rows {rows[0].row} to {rows[-1].row} of the task, to {queue}"
        for attempt in range(self._options.retries + 1):
            try:
                result = (self._begin(rows, queue) if attempt else acknowledged)()
                break
            except (NoBroker, OutcomeUnknown) as error:
                if attempt == self._options.retries:
                    raise SinkError(
                        f"{where}: not acknowledged in {attempt + 1} attempts: {error}"
                    ) from error
            except ClientError as error:
                raise SinkError(f"{where}: {error}") from error
        if result.status is not SendStatus.OK:
            raise SinkError(f"{where}: stored, but not on a quorum: {result.status.value}")
        self.sent += len(rows)

    def _begin(self, rows: list[Outgoing], queue: MessageQueue) -> Acknowledgement:
        if len(rows) == 1:
            return self._producer.begin(rows[0].message, queue)  # may be compressed, and larger than a batch
        return self._producer.begin_batch([row.message for row in rows], queue)


def _size(message: Message) -> int:
    """Upper bound of the bytes of a message in a request."""
    texts = [*(message.properties or {}).keys(), *(message.properties or {}).values()]
    texts += [message.tags or "", str(message.keys or "")]
    return MESSAGE_OVERHEAD + len(message.body) + sum(len(text.encode()) + 1 for text in texts)


@dataclass(frozen=True)
class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. `job`: prefix of the ids of this write."""

    options: SinkOptions
    columns: tuple[str, ...]
    job: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(rows_of(iterator), self.options, self.columns, self.job)


def stream_writer(options: SinkOptions, columns: tuple[str, ...]) -> DataSourceStreamWriter:
    """The writer of `writeStream`, for the form in which this release of Spark hands over rows.

    The ids of a micro-batch are those of its first attempt, also after a restart.
    """
    return (StreamWriter if HAS_ARROW_STREAM_SINK else RowStreamWriter)(options, columns)


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """The stream writer since Spark 4.1, which gets rows as Arrow batches."""

    options: SinkOptions
    columns: tuple[str, ...]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write_batch(rows_of(iterator), self.options, self.columns)


@dataclass(frozen=True)
class RowStreamWriter(DataSourceStreamWriter):
    """The stream writer of Spark 4.0, which gets rows one by one."""

    options: SinkOptions
    columns: tuple[str, ...]

    def write(self, iterator: Iterator[tuple[object, ...]]) -> Written:
        return _write_batch(iterator, self.options, self.columns)


def _write_batch(
    rows: Iterator[tuple[object, ...]], options: SinkOptions, columns: tuple[str, ...]
) -> Written:
    context = _context()
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if options.dedup_id and (query is None or batch is None):
        raise SinkError("Spark did not pass the id of this batch: set the option dedupId to false")
    return _write(rows, options, columns, f"{query}:{batch}")


def new_job() -> str:
    """A unique name for one write."""
    env = production_env("sink")
    try:
        return f"{env.random.getrandbits(128):032x}"
    finally:
        env.workers.close()


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("the sink can write only inside Spark tasks")
    return context


def _write(
    rows: Iterator[tuple[object, ...]], options: SinkOptions, columns: tuple[str, ...], prefix: str
) -> Written:
    """Runs in a task: send its rows."""
    partition = _context().partitionId()
    dedup = f"{prefix}:{partition}" if options.dedup_id else None
    messages = outgoing(rows, columns, options.topic, dedup)
    with Producer(PRODUCER_GROUP, options.servers) as producer:
        return Written(QueueWriter(producer, options, partition).write(messages))
