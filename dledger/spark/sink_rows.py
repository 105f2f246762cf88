"""Turn rows into messages. A row that cannot be a message is refused, with its number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dledger.client import Message
from dledger.formats import properties as names
from dledger.formats.checksum import crc32

DEDUP_ID = "DEDUP_ID"
"""Property with the id of the row. All copies of a row have the same id, whichever attempt sent them."""
MAX_ID_BYTES = 1024
"""Largest size of a row's id, in bytes of UTF-8."""
REMEMBERED_IDS = 100_000
"""How many ids of a task are remembered, to find two rows with the same id. The oldest are forgotten."""
_OURS = re.compile(r"[^:]+:\d+:[^:]+\.\d+:\d+")
"""The form of the column `id` of our source: topic, queue, life, offset."""
_SEPARATORS = re.compile(r"[\x01\x02]")
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
    names.RESEND,
    names.IDEMPOTENT,
)
"""Properties that describe how a copied message was first sent, and properties that the client sets
itself. They are not copied."""
_LATER = (names.DELAY, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class SinkError(ValueError):
    """A row that cannot be sent, or a batch that was not acknowledged."""


class IdColumn(NamedTuple):
    """The column with the ids of the rows. `ours`: it is the column `id` of our own source, so the ids must
    have its form. Otherwise the option `idColumn` names it."""

    name: str
    ours: bool


class Outgoing(NamedTuple):
    """A message to be sent, the number of its row in its task, the number of the queue that the row names,
    if any, and the id of the row, if it has one."""

    row: int
    message: Message
    partition: int | None
    ident: str | None = None


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a task, which Spark passes as Arrow batches."""
    for batch in batches:
        for part in _slices(batch):
            yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def outgoing(
    rows: Iterable[tuple[object, ...]], columns: Sequence[str], topic: str, ids: IdColumn | None
) -> Iterator[Outgoing]:
    """Yield the messages of a task's rows, in order. `topic` takes precedence over the column `topic`;
    `ids`: the column that names the rows, if there is one. Raises SinkError, also for two rows with the same
    topic and id."""
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for number, fields in enumerate(rows):
        row: dict[str, Any] = dict(zip(columns, fields, strict=True))
        try:
            ident = None if ids is None else _id_of(row, ids)
            message = message_of(row, topic, ident)
        except ValueError as error:
            raise SinkError(f"row {number} of the task: {error}") from error
        if ident is not None:
            _remember(seen, number, message, ident)
        yield Outgoing(number, message, row.get("partition"), ident)


def _id_of(row: Mapping[str, Any], ids: IdColumn) -> str:
    """Return the id of a row. Raises ValueError, whose text does not contain the row's number."""
    ident = row[ids.name]
    if not ident:
        raise ValueError(
            f"column {ids.name} is {'null' if ident is None else 'empty'}, and it is the id of the row: "
            "give each row an id, or set the option dedupId to false"
        )
    text = str(ident)
    if len(text) > MAX_ID_BYTES or len(text.encode()) > MAX_ID_BYTES:
        raise ValueError(
            f"column {ids.name}: the id has {len(text.encode())} bytes; the limit is {MAX_ID_BYTES} "
            "(MAX_ID_BYTES): use a hash of it"
        )
    if _SEPARATORS.search(text):
        raise ValueError(f"column {ids.name}: {text!r} contains \\x01 or \\x02, which properties cannot")
    if ids.ours and not _OURS.fullmatch(text):
        raise ValueError(
            f"column {ids.name}: {text!r} does not have the form of the ids of our source (includeId), "
            f"topic:queue:life:offset: for ids of your own set the option idColumn to {ids.name}"
        )
    return text


def _remember(
    seen: dict[tuple[str, str], tuple[int, int]], number: int, message: Message, ident: str
) -> None:
    """Remember the id of a row. Raises SinkError if an earlier row of the task has it."""
    checksum = crc32(message.body)
    earlier = seen.setdefault((message.topic, ident), (number, checksum))
    if earlier[0] != number:
        bodies = "the same body" if earlier[1] == checksum else "different bodies"
        raise SinkError(
            f"rows {earlier[0]} and {number} of the task have the same id {ident!r} and {bodies}: an id "
            "names one row, so give each row its own, or remove the copies with dropDuplicates"
        )
    if len(seen) > REMEMBERED_IDS:
        del seen[next(iter(seen))]


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
