"""Message records decoded in bulk: columns of numbers for the fixed fields, Arrow arrays for the texts.

One window of a log, or one answer to a pull request, is decoded at a time. Python code loops over messages
only to uncompress bodies or to compute CRCs. The layout is described in `formats.record`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.audit.record_layout import lay_out
from dledger.audit.scan import Window
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import CRC_MASK, TRANSACTION_COMMIT, TRANSACTION_MASK
from dledger.spark.entry_ranges import Bools, Bytes, Ints

_NOT_A_RECORD = "not a well-formed message record"


@dataclass(frozen=True)
class Records:
    """The records in a buffer, as columns. Positions are in the buffer; times are in ms; `topic` holds
    indexes into `topics`. `problem`: why this is no valid record, or the empty text. The other columns of
    a record with a problem mean nothing. `good`: whether `problem` is empty."""

    buffer: Bytes
    problem: npt.NDArray[np.object_]
    good: Bools
    queue_id: Ints
    queue_offset: Ints
    physical_offset: Ints
    flag: Ints
    sys_flag: Ints
    born: Ints
    stored: Ints
    body_crc: Ints
    body_at: Ints
    body_size: Ints
    topic: Ints
    topics: list[str]
    properties_at: Ints
    properties_size: Ints

    @property
    def dispatched(self) -> Bools:
        """Whether each record has a place in a queue. Half messages and rollbacks of transactions have
        none."""
        transaction = self.sys_flag & TRANSACTION_MASK
        return np.asarray((transaction == 0) | (transaction == TRANSACTION_COMMIT), np.bool_)

    def blame(self, wrong: Bools, reason: str) -> None:
        """Set the problem of the `wrong` records to `reason`, except for records that already have a
        problem."""
        wrong = wrong & self.good
        if wrong.any():
            self.problem[wrong] = reason
            self.good[wrong] = False

    def check_body_crcs(self, which: Bools) -> None:
        """Set the problem of those records whose body does not match the CRC in the record."""
        wrong = which & self.good
        if not wrong.any():
            return
        view = self.buffer.data
        for number in np.flatnonzero(wrong).tolist():
            start = int(self.body_at[number])
            body = view[start : start + int(self.body_size[number])]
            wrong[number] = crc32(body) & CRC_MASK != self.body_crc[number]
        self.blame(wrong, "the message body does not match the CRC of the record")

    def properties(self, chosen: Ints) -> pa.StringArray:
        """Return the property texts of the chosen records. A text that is not UTF-8 is replaced by the
        empty text, and the problem of its record is set."""
        starts, sizes = self.properties_at[chosen], self.properties_size[chosen]
        raw = slices(self.buffer, starts, starts + sizes)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text(item) for item in raw.to_pylist()]
            bad = np.zeros(len(self.problem), np.bool_)
            bad[chosen] = [text is None for text in texts]
            self.blame(bad, "the properties are not UTF-8")
            return pa.array([text or "" for text in texts], pa.string())


def records_of(window: Window) -> Records:
    """Decode the bodies of a window's entries as records."""
    columns = window.columns
    starts = columns.pos - window.base + HEADER_SIZE
    return decode(np.frombuffer(window.data, np.uint8), starts, columns.size - HEADER_SIZE)


def decode(buffer: Bytes, starts: Ints, sizes: Ints) -> Records:
    """Decode the records of `sizes` bytes at `starts`, which ascend. Each record is completely in the
    buffer."""
    layout = lay_out(buffer, starts, sizes)
    head, fits = layout.head, layout.fits
    problem = np.full(len(starts), "", np.object_)
    problem[~fits] = _NOT_A_RECORD
    topic, topics = _topics(buffer, layout.topic_at, layout.topic_size, problem, fits)
    return Records(
        buffer=buffer,
        problem=problem,
        good=fits,
        queue_id=head["queue_id"].astype(np.int64),
        queue_offset=head["queue_offset"].astype(np.int64),
        physical_offset=head["physical_offset"].astype(np.int64),
        flag=head["flag"].astype(np.int64),
        sys_flag=layout.sys_flag,
        born=head["born"].astype(np.int64),
        stored=layout.stored,
        body_crc=head["body_crc"].astype(np.int64),
        body_at=layout.body_at,
        body_size=layout.body_size,
        topic=topic,
        topics=topics,
        properties_at=layout.properties_at,
        properties_size=layout.properties_size,
    )


def _topics(
    buffer: Bytes, starts: Ints, sizes: Ints, problem: npt.NDArray[np.object_], good: Bools
) -> tuple[Ints, list[str]]:
    """Return the number of each record's topic, and the names of the topics. A topic that is not UTF-8
    sets the problem of its records."""
    encoded = slices(buffer, starts, starts + sizes).dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    texts = [_text(raw) for raw in encoded.dictionary.to_pylist()]
    for number, text in enumerate(texts):
        if not text:
            without = (numbers == number) & good
            problem[without] = "the topic is empty or not UTF-8"
            good[without] = False
    return numbers, [text or "" for text in texts]


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def slices(buffer: Bytes, starts: Ints, ends: Ints) -> pa.BinaryArray:
    """Return ranges of bytes (ascending, not overlapping, of at most 2 GiB in all) as an Arrow array.

    The starts and ends of all ranges, interleaved, are taken as the offsets of an array in which every
    second value is one of the ranges. `take` copies these values without a loop in Python.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    first, last = int(starts[0]), int(ends[-1])
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts - first
    offsets[1::2] = ends - first
    content = pa.py_buffer(buffer[first:last])
    every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), content])
    return every.take(pa.array(np.arange(0, 2 * count, 2)))
