"""Sink of the data source `dledger`: sends rows of DataFrames and streams to live brokers as messages.

A task succeeds only when a quorum has acknowledged every row. If it fails, the rows that it has sent remain
stored, and the next attempt sends them again. What comes of that depends on the ids of the rows
(`sink_rows.IdColumn`):

* Rows without ids are stored again, so delivery is at least once.
* A row with an id has the same unique id (UNIQ_KEY) in every attempt, and is marked as possibly sent before
  (`__RESEND`). Brokers look it up. They recognise a single message, and a batch that holds the same messages
  in the same order as before (S27 in docs/internals/safety.md).
* With `exactlyOnce` the unique ids are idempotency keys (`__IDEMPOTENT`). Brokers look up each row of a
  batch, in whatever order the attempts send them, and store nothing of a batch that they know in part. They
  say which rows are stored, and the sink sends the others again. A key with another body is refused.

Rows of one task keep their order in every queue, as at most one batch per queue is in flight. Up to
`maxInFlight` batches to different queues are in flight at the same time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
    TopicNotFound,
)
from dledger.client.errors import AlreadyStored
from dledger.client.producing.preset_ids import unique_id_of, with_unique_id
from dledger.formats.checksum import crc32
from dledger.formats.properties import IDEMPOTENT
from dledger.runtime.env import monotonic_s, pause_s, production_env
from dledger.spark.sink_brokers import no_topic
from dledger.spark.sink_options import SinkOptions
from dledger.spark.sink_rows import Outgoing, SinkError, outgoing, rows_of
from dledger.spark.versions import HAS_ARROW_STREAM_SINK, DataSourceStreamArrowWriter

PRODUCER_GROUP = "SPARK_SINK"
BATCH_MESSAGES = 1000
"""Largest number of messages in one request. Brokers refuse larger batches."""
KEPT_TWICE = ("%RETRY%", "%DLQ%")
"""Prefixes of topics in which brokers do not look for messages that are sent again."""
BUFFERED_BATCHES = 4
"""Largest size of the rows that wait in a task, over all queues, as a multiple of `maxBatchBytes`."""
GROUP_WAIT_S = 60.0
"""How long a task with `exactlyOnce` waits for a broker group that is not registered, in seconds."""
LOOK_AGAIN_S = 1.0
"""Seconds between two looks whether the group is registered."""
MESSAGE_OVERHEAD = 512
"""Largest size, in bytes, of what a stored message has besides body and properties: lengths, unique id,
topic."""

Acknowledgement = Callable[[], SendResult]
"""A function that waits for the answer to one request and returns the result. Raises ClientError."""


class Sending(Protocol):
    """The methods of `client.Producer` that the sink uses."""

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]: ...
    def has_route(self, topic: str) -> bool: ...
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


class _UnderWay(NamedTuple):
    """One request in flight."""

    rows: list[Outgoing]
    acknowledged: Acknowledgement


class QueueWriter:
    """Sends the rows of one task. Raises SinkError or ClientError; messages that were sent before the
    error remain stored.

    The queue of a row depends only on the row and the rows before it, and with `exactlyOnce` only on the
    row. So a task that runs again with the same rows sends each row to the same queue.
    """

    def __init__(self, producer: Sending, options: SinkOptions, turn: int, attempt: str = "") -> None:
        """`turn`: queue at which rows begin that name none. `attempt`: a name that only this attempt of the
        task has."""
        self.sent: int = 0
        self._producer = producer
        self._options = options
        self._turn = turn
        self._attempt = attempt
        self._queues: dict[str, list[MessageQueue]] = {}
        self._absent: set[MessageQueue] = set()
        """Queues of the driver's list whose broker group is not registered now."""
        self._waiting: dict[MessageQueue, _Waiting] = {}
        self._current: dict[str, MessageQueue] = {}
        self._size = 0
        self._under_way: dict[MessageQueue, _UnderWay] = {}
        """Requests in flight, in the order in which they were sent. There is at most one per queue, so that
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
        topic's current queue, which changes with each batch; with `exactlyOnce` its id decides, because only
        the broker group that has a row can recognise it."""
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            if self._options.exactly_once and topic.startswith(KEPT_TWICE):
                raise SinkError(
                    f"row {row.row} of the task: brokers store equal messages of {topic} again, as consumers "
                    "give messages back to such topics on purpose: remove the option exactlyOnce"
                )
            queues = self._queues[topic] = self._queues_of(topic, row.row)
        if row.partition is not None:
            if not 0 <= row.partition < len(queues):
                raise SinkError(
                    f"row {row.row} of the task: partition {row.partition} is not a queue of the "
                    f"topic {topic!r}, which has 0 to {len(queues) - 1}"
                )
            return queues[row.partition]
        by = row.message.keys or (row.ident if self._options.exactly_once else None)
        if by:
            return queues[crc32(str(by).encode()) % len(queues)]
        queue = self._current.get(topic)
        if queue is None:
            queue = self._current[topic] = queues[self._turn % len(queues)]
            self._turn += 1
        return queue

    def _queues_of(self, topic: str, row: int) -> list[MessageQueue]:
        """Return the queues of a topic, sorted. Raises SinkError for a topic that does not exist, unless the
        option `createTopic` lets brokers create it."""
        there = sorted(self._producer.queues(topic))
        if topic == self._options.topic and self._options.queues:
            fixed = list(self._options.queues)
            self._absent.update(set(fixed).difference(there))
            return fixed
        if not self._options.create_topic and not self._producer.has_route(topic):
            raise SinkError(f"row {row} of the task: {no_topic(self._options, topic)}")
        return there

    def _wait_for(self, queue: MessageQueue, where: str) -> None:
        """Wait until the broker group of a queue is registered again. Raises SinkError after GROUP_WAIT_S."""
        warnings.warn(
            f"{where}: broker group {queue.broker_name} is not registered: waiting up to {GROUP_WAIT_S:g} s",
            stacklevel=2,
        )
        end = monotonic_s() + GROUP_WAIT_S
        while queue in self._absent:
            if monotonic_s() > end:
                raise SinkError(
                    f"{where}: broker group {queue.broker_name} has not been registered for "
                    f"{GROUP_WAIT_S:g} s, and with exactlyOnce only it can recognise these rows: start its "
                    "brokers, and start the write again"
                )
            pause_s(LOOK_AGAIN_S)
            with suppress(TopicNotFound):
                self._absent.difference_update(self._producer.queues(queue.topic, refresh=True))

    def _flush(self, queue: MessageQueue) -> None:
        """Send the waiting rows of a queue as one request. First wait for the acknowledgement of the batch
        in flight to this queue, if there is one, and until fewer requests are in flight than are allowed."""
        waiting = self._waiting.pop(queue)
        self._size -= waiting.size
        if self._current.get(queue.topic) == queue:
            del self._current[queue.topic]
        if queue in self._under_way:
            self._settle(queue)
        while len(self._under_way) >= self._options.max_in_flight:
            self._settle(next(iter(self._under_way)))
        self._under_way[queue] = _UnderWay(waiting.rows, self._begin(waiting.rows, queue, again=False))

    def _settle(self, queue: MessageQueue) -> None:
        """Wait until a request in flight is acknowledged. If it is not, send the same rows again, up to
        `retries` times. Of a batch that is stored in part, send the rows again that are not stored."""
        rows, acknowledged = self._under_way.pop(queue)
        where = f"rows {rows[0].row} to {rows[-1].row} of the task, to {queue}"
        failures = 0
        while rows:
            try:
                result = acknowledged()
                if result.status is not SendStatus.OK:
                    raise SinkError(f"{where}: stored, but not on a quorum: {result.status.value}")
                if self._options.exactly_once and result.keys_looked_up < len(rows):
                    raise SinkError(
                        f"{where}: stored, but the broker did not look up the ids of all rows, so rows that "
                        "were sent before are stored twice now: a broker of an older version has become the "
                        "leader. Upgrade all brokers of the topic, and start the write again"
                    )
                self.sent += len(rows)
                return
            except AlreadyStored as error:
                left = [row for number, row in enumerate(rows) if number not in error.stored]
                if len(left) == len(rows):
                    raise SinkError(f"{where}: the broker does not say which rows are stored") from error
                self.sent += len(rows) - len(left)
                rows = left
            except (NoBroker, OutcomeUnknown) as error:
                failures += 1
                if failures > self._options.retries:
                    raise SinkError(f"{where}: not acknowledged in {failures} attempts: {error}") from error
            except ClientError as error:
                raise SinkError(f"{where}{_refused_row(rows, error)}: {error}") from error
            if rows:
                acknowledged = self._begin(rows, queue, again=True)

    def _begin(self, rows: list[Outgoing], queue: MessageQueue, *, again: bool) -> Acknowledgement:
        if queue in self._absent:
            self._wait_for(queue, f"rows {rows[0].row} to {rows[-1].row} of the task, to {queue}")
        messages = [self._named(row, again) for row in rows]
        if len(messages) == 1 and not self._options.exactly_once:
            return self._producer.begin(messages[0], queue)  # may be compressed, and larger than a batch
        return self._producer.begin_batch(messages, queue)

    def _named(self, row: Outgoing, again: bool) -> Message:
        """Give a message the unique id that follows from the id of its row. Any attempt of the task may have
        sent it before. Without an id only this attempt knows the message."""
        if row.ident is not None:
            named = with_unique_id(row.message, unique_id_of(row.ident), again=True)
            if self._options.exactly_once:
                named.properties = {**(named.properties or {}), IDEMPOTENT: "1"}
            return named
        return with_unique_id(row.message, unique_id_of(f"{self._attempt}:{row.row}"), again)


def _refused_row(rows: Sequence[Outgoing], error: ClientError) -> str:
    """Return a text that says which row was refused, if the broker's text has its unique id."""
    for row in rows:
        if row.ident is not None and unique_id_of(row.ident) in str(error):
            return f", row {row.row} with the id {row.ident!r}"
    return ""


def _size(message: Message) -> int:
    """Return an upper bound of the bytes that a message takes in a request."""
    texts = [*(message.properties or {}).keys(), *(message.properties or {}).values()]
    texts += [message.tags or "", str(message.keys or "")]
    return MESSAGE_OVERHEAD + len(message.body) + sum(len(text.encode()) + 1 for text in texts)


@dataclass(frozen=True)
class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    options: SinkOptions
    columns: tuple[str, ...]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(rows_of(iterator), self.options, self.columns)


def stream_writer(options: SinkOptions, columns: tuple[str, ...]) -> DataSourceStreamWriter:
    """Return the writer of `writeStream` that fits this release of Spark, which passes rows as Arrow
    batches or one by one."""
    return (StreamWriter if HAS_ARROW_STREAM_SINK else RowStreamWriter)(options, columns)


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """The stream writer since Spark 4.1, which gets rows as Arrow batches."""

    options: SinkOptions
    columns: tuple[str, ...]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(rows_of(iterator), self.options, self.columns)


@dataclass(frozen=True)
class RowStreamWriter(DataSourceStreamWriter):
    """The stream writer of Spark 4.0, which gets rows one by one."""

    options: SinkOptions
    columns: tuple[str, ...]

    def write(self, iterator: Iterator[tuple[object, ...]]) -> Written:
        return _write(iterator, self.options, self.columns)


def _attempt_name() -> str:
    """Return a name that no other attempt of a task has."""
    env = production_env("sink")
    try:
        return f"{env.random.getrandbits(128):032x}"
    finally:
        env.workers.close()


def _write(rows: Iterator[tuple[object, ...]], options: SinkOptions, columns: tuple[str, ...]) -> Written:
    """Send the rows of a task. This runs in the task."""
    context = TaskContext.get()
    if context is None:
        raise SinkError("the sink can write only inside Spark tasks")
    messages = outgoing(rows, columns, options.topic, options.ids)
    with Producer(PRODUCER_GROUP, options.servers, client=options.access.client()) as producer:
        writer = QueueWriter(producer, options, context.partitionId(), _attempt_name())
        return Written(writer.write(messages))
