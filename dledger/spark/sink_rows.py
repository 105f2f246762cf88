"""Turn rows into messages. A row that cannot be a message is refused, with its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dledger.client import Message
from dledger.formats import properties as names

DEDUP_ID = "DEDUP_ID"
"""Property with an id for recognizing duplicates. Repeated attempts give all copies of a message the same
id."""
SLICE_BYTES = 1 << 20
"""Approximate size, in bytes of Arrow columns, of the rows that are converted to Python objects at the
same time."""
FIRST_LIFE = (
    names.TAGS,
    names.KEYS,
    names.UNIQ_KEY,
    names.WAIT,
    names.DELAY,
    names.RETRY_TOPIC,
    names.REAL_TOPIC,
    names.REAL_QID,
    names.TRAN_MSG,
    names.PGROUP,
    names.CLUSTER,
    names.MSG_REGION,
    names.TRACE_ON,
    names.MIN_OFFSET,
    names.MAX_OFFSET,
    names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES,
    names.ORIGIN_MESSAGE_ID,
    names.CONSUME_START_TIME,
    names.POP_CK,
    "__RESEND",
)
"""Properties that describe how a copied message was first sent, and properties that the client sets
itself. They are not copied."""
_LATER = (names.DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class SinkError(ValueError):
    """A row that cannot be sent, or a batch that was not acknowledged."""


class Outgoing(NamedTuple):
    """A message to be sent, the number of its row in its task, and the number of the queue that the row
    names, if any."""

    row: int
    message: Message
    partition: int | None


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a task, which Spark passes as Arrow batches."""
    for batch in batches:
        for part in _slices(batch):
            yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def outgoing(
    rows: Iterable[tuple[object, ...]], columns: Sequence[str], topic: str, dedup: str | None
) -> Iterator[Outgoing]:
    """Yield the messages of a task's rows, in order. `topic` takes precedence over the column `topic`;
    `dedup`: prefix of the ids."""
    for number, fields in enumerate(rows):
        row: dict[str, Any] = dict(zip(columns, fields, strict=True))
        try:
            message = message_of(row, topic, None if dedup is None else f"{dedup}:{number}")
        except ValueError as error:
            raise SinkError(f"row {number} of the task: {error}") from error
        yield Outgoing(number, message, row.get("partition"))


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def message_of(row: Mapping[str, Any], topic: str, dedup_id: str | None) -> Message:
    """Return the message of one row. Raises ValueError, whose text does not contain the row's number."""
    value = row["value"]
    if value is None:
        raise ValueError("value is null, and a message needs a body")
    body = value.encode() if isinstance(value, str) else bytes(value)
    if not body:
        raise ValueError("value is empty, and brokers refuse messages without a body")
    to = topic or row["topic"]
    if not to:
        raise ValueError("topic is null or empty, and the option topic is not set")
    headers = dict(row.get("headers") or ())
    _refuse(headers)
    properties = {name: text for name, text in headers.items() if name not in FIRST_LIFE}
    if dedup_id is not None:
        properties[DEDUP_ID] = dedup_id
    keys = row.get("key") or headers.get(names.KEYS)
    tags = row.get("tags") or headers.get(names.TAGS)
    message = Message(to, body, keys=keys, properties=properties, flag=row.get("flag") or 0)
    message.tags = tags  # also one that no subscription can name, as of a copied message
    return message


def _refuse(headers: Mapping[str, str | None]) -> None:
    """Raises ValueError for headers that ask for a kind of delivery which the sink does not support."""
    for name, text in headers.items():
        if text is None:
            raise ValueError(f"header {name!r} is null: remove it")
        if name in _LATER and not (name == names.DELAY and text == "0"):
            raise ValueError(f"header {name}: the sink cannot delay messages: remove it")
        if name == names.TRAN_MSG and text == "true":
            raise ValueError(f"header {name}: the sink cannot send transactions: remove it")
