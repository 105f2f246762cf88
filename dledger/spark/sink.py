"""Sink of the data source `dledger`: sends rows of DataFrames and streams to live brokers as messages.

Delivery is at least once. A task succeeds only when a quorum has acknowledged every row. If it fails, the
rows that it has sent remain stored, and the next attempt sends them again.

Rows of one task keep their order in every queue, as at most one batch per queue is in flight. Up to
`maxInFlight` batches to different queues are in flight at the same time. Messages that are sent again have
the same ids as before if the rows of a partition are read in the same order again.
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
"""Largest number of messages in one request. Brokers refuse larger batches."""
BUFFERED_BATCHES = 4
"""Largest size of the rows that wait in a task, over all queues, as a multiple of `maxBatchBytes`."""
MESSAGE_OVERHEAD = 512
"""Largest size, in bytes, of what a stored message has besides body and properties: lengths, unique id,
topic."""
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


Acknowledgement = Callable[[], SendResult]
"""A function that waits for the answer to one request and returns the result. Raises ClientError."""


class Sending(Protocol):
    """The methods of `client.Producer` that the sink uses."""

    def queues(self, topic: str) -> list[MessageQueue]: ...
    def begin(self, message: Message, queue: MessageQueue) -> Acknowledgement: ...
    def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Acknowledgement: ...


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task sent. All of it was acknowledged."""

    messages: int


@dataclass
class _Waiting:
    """Rows for one queue that are not sent yet. `size`: their size in bytes."""

    rows: list[Outgoing] = field(default_factory=list)
    size: int = 0


class QueueWriter:
    """Sends the rows of one task. Raises SinkError or ClientError; messages that were sent before the
    error remain stored.

    The queue of a row depends only on the row and the rows before it. So a task that runs again with the
    same rows sends each row to the same queue.
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
        """Batches in flight, in the order in which they were sent. There is at most one per queue, so that
        the rows of a queue keep their order."""

    def write(self, rows: Iterable[Outgoing]) -> int:
        """Send all rows and wait for the acknowledgements. Return how many rows were sent."""
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
        """Choose the queue of a row: by its partition or else by its key. A row with neither gets the
        topic's current queue, which changes with each batch."""
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
        """Send the waiting rows of a queue as one batch. First wait for the acknowledgement of the batch
        in flight to this queue, if there is one, and until fewer than `maxInFlight` batches are in flight."""
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
        """Wait until the batch in flight to a queue is acknowledged. If it is not, send the same batch
        again, up to `retries` times."""
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
    """Return an upper bound of the bytes that a message takes in a request."""
    texts = [*(message.properties or {}).keys(), *(message.properties or {}).values()]
    texts += [message.tags or "", str(message.keys or "")]
    return MESSAGE_OVERHEAD + len(message.body) + sum(len(text.encode()) + 1 for text in texts)


@dataclass(frozen=True)
class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. `job`: prefix of the ids of the messages that it writes."""

    options: SinkOptions
    columns: tuple[str, ...]
    job: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(rows_of(iterator), self.options, self.columns, self.job)


def stream_writer(options: SinkOptions, columns: tuple[str, ...]) -> DataSourceStreamWriter:
    """Return the writer of `writeStream` that fits this release of Spark, which passes rows as Arrow
    batches or one by one.

    If a micro-batch is sent again, also after a restart, its messages have the ids of the first attempt.
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
    """Return a unique name for one write."""
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
    """Send the rows of a task. This runs in the task."""
    partition = _context().partitionId()
    dedup = f"{prefix}:{partition}" if options.dedup_id else None
    messages = outgoing(rows, columns, options.topic, dedup)
    with Producer(PRODUCER_GROUP, options.servers, client=options.access.client()) as producer:
        return Written(QueueWriter(producer, options, partition).write(messages))
