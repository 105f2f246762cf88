"""Message records decoded in bulk: columns of numbers for the fixed part, Arrow arrays for the texts.

One window of a log or of a pull answer at a time. Nothing here loops over messages in Python, but where a
body is compressed or a CRC must be computed. The layout is `formats.record`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from audit.scan import Window
from formats.entry import HEADER_SIZE
from formats.properties import MAX_PROPERTIES_SIZE
from formats.record import (
    BORN_HOST_V6,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from spark.runs import Bools, Bytes, Ints, structs

_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born", ">i8"),
        ("born_host", "V8"),
        ("stored", ">i8"),
        ("store_host", "V8"),
        ("reconsumed", ">i4"),
        ("prepared", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""The fixed part, with hosts of IPv4."""
_HOST_V6_MORE = 12
_STORE_TIME_AT = 56
_BODY_SIZE_AT = 84
_NOT_A_RECORD = "not a well-formed message record"


@dataclass(frozen=True)
class Records:
    """Records in a buffer. Positions are in the buffer; times in ms; `topic` indexes `topics`.

    `problem`: empty, or why this is no record that can be believed; its other columns mean nothing then.
    `good`: which have none.
    """

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
        """Which have a place in a queue: no half messages, no rollbacks."""
        transaction = self.sys_flag & TRANSACTION_MASK
        return np.asarray((transaction == 0) | (transaction == TRANSACTION_COMMIT), np.bool_)

    def blame(self, wrong: Bools, reason: str) -> None:
        """Note a problem of some records, unless they have one already."""
        wrong = wrong & self.good
        if wrong.any():
            self.problem[wrong] = reason
            self.good[wrong] = False

    def check_body_crcs(self, which: Bools) -> None:
        """Blame records whose body does not fit the CRC in the record."""
        wrong = which & self.good
        if not wrong.any():
            return
        view = self.buffer.data
        for number in np.flatnonzero(wrong).tolist():
            start = int(self.body_at[number])
            body = view[start : start + int(self.body_size[number])]
            wrong[number] = crc32(body) & CRC_MASK != self.body_crc[number]
        self.blame(wrong, "the message body does not fit the record's CRC")

    def properties(self, chosen: Ints) -> pa.StringArray:
        """Property texts of the chosen records; those that are not UTF-8 are blamed and read as empty."""
        starts, sizes = self.properties_at[chosen], self.properties_size[chosen]
        raw = slices(self.buffer, starts, starts + sizes)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text(item) for item in raw.to_pylist()]
            bad = np.zeros(len(self.problem), np.bool_)
            bad[chosen] = [text is None for text in texts]
            self.blame(bad, "properties that are not UTF-8")
            return pa.array([text or "" for text in texts], pa.string())


def records_of(window: Window) -> Records:
    """What the bodies of a window's entries hold."""
    columns = window.columns
    starts = columns.pos - window.base + HEADER_SIZE
    return decode(np.frombuffer(window.data, np.uint8), starts, columns.size - HEADER_SIZE)


def decode(buffer: Bytes, starts: Ints, sizes: Ints) -> Records:
    """Decode the records of `sizes` bytes at `starts` (ascending, each within the buffer)."""
    count = len(starts)
    fits = sizes >= MIN_SIZE
    if len(buffer) < MIN_SIZE:
        fits[:] = False
    head = _rows(buffer, starts if fits.all() else np.where(fits, starts, 0), _HEAD)
    sys_flag = head["sys_flag"].astype(np.int64)
    stored, body_size = head["stored"].astype(np.int64), head["body_size"].astype(np.int64)
    body_at = starts + _HEAD.itemsize
    unusual = np.flatnonzero(fits & (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) != 0))
    if len(unusual):
        born_more = np.where(sys_flag[unusual] & BORN_HOST_V6, _HOST_V6_MORE, 0)
        more = born_more + np.where(sys_flag[unusual] & STORE_HOST_V6, _HOST_V6_MORE, 0)
        fits[unusual] = sizes[unusual] >= MIN_SIZE + more
        unusual, born_more, more = (some[fits[unusual]] for some in (unusual, born_more, more))
        stored[unusual] = _number(buffer, starts[unusual] + _STORE_TIME_AT + born_more, ">i8")
        body_size[unusual] = _number(buffer, starts[unusual] + _BODY_SIZE_AT + more, ">i4")
        body_at[unusual] += more
    magic = head["magic"].astype(np.int64)
    wide = magic == MAGIC_V2
    ends = starts + sizes
    topic_at = body_at + body_size + 1 + wide
    fits &= (wide | (magic == MAGIC_V1)) & (head["size"] == sizes) & (body_size >= 0) & (topic_at + 2 <= ends)
    topic_size = _octet(buffer, topic_at - 1, fits)
    if wide.any():
        topic_size += _octet(buffer, topic_at - 2, fits & wide) << 8
    properties_at = topic_at + topic_size + 2
    fits &= properties_at <= ends
    properties_size = (_octet(buffer, properties_at - 2, fits) << 8) + _octet(buffer, properties_at - 1, fits)
    fits &= (properties_at + properties_size == ends) & (properties_size <= MAX_PROPERTIES_SIZE)
    problem = np.full(count, "", np.object_)
    if not fits.all():
        lost = ~fits
        problem[lost] = _NOT_A_RECORD
        for at, size in ((body_at, body_size), (topic_at, topic_size), (properties_at, properties_size)):
            at[lost], size[lost] = starts[lost], 0
    topic, topics = _topics(buffer, topic_at, topic_size, problem, fits)
    return Records(
        buffer=buffer,
        problem=problem,
        good=fits,
        queue_id=head["queue_id"].astype(np.int64),
        queue_offset=head["queue_offset"].astype(np.int64),
        physical_offset=head["physical_offset"].astype(np.int64),
        flag=head["flag"].astype(np.int64),
        sys_flag=sys_flag,
        born=head["born"].astype(np.int64),
        stored=stored,
        body_crc=head["body_crc"].astype(np.int64),
        body_at=body_at,
        body_size=body_size,
        topic=topic,
        topics=topics,
        properties_at=properties_at,
        properties_size=properties_size,
    )


def _topics(
    buffer: Bytes, starts: Ints, sizes: Ints, problem: npt.NDArray[np.object_], good: Bools
) -> tuple[Ints, list[str]]:
    """Number of each record's topic, and the topics. One that is no text is a problem."""
    encoded = slices(buffer, starts, starts + sizes).dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    texts = [_text(raw) for raw in encoded.dictionary.to_pylist()]
    for number, text in enumerate(texts):
        if not text:
            without = (numbers == number) & good
            problem[without] = "a topic that is empty or not UTF-8"
            good[without] = False
    return numbers, [text or "" for text in texts]


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _rows(buffer: Bytes, starts: Ints, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """A fixed-size struct at each start. A buffer shorter than one gives zeros."""
    if len(buffer) < dtype.itemsize:
        return np.zeros(len(starts), dtype)
    return structs(buffer, starts, dtype)


def _octet(buffer: Bytes, places: Ints, which: Bools) -> Ints:
    """The byte at each place, 0 where it is not one of `which`."""
    if which.all():
        return buffer[places].astype(np.int64)
    found = np.zeros(len(places), np.int64)
    found[which] = buffer[places[which]]
    return found


def _number(buffer: Bytes, starts: Ints, kind: str) -> Ints:
    """One big-endian number at each start."""
    dtype = np.dtype([("n", kind)])
    numbers: Ints = _rows(buffer, starts, dtype)["n"].astype(np.int64)
    return numbers


def slices(buffer: Bytes, starts: Ints, ends: Ints) -> pa.BinaryArray:
    """Ranges of bytes (ascending, not overlapping, of at most 2 GiB in all) as an Arrow array.

    The ends and starts of neighbours, interleaved, are the offsets of an array whose every second value is
    wanted: `take` copies those and nothing loops in Python.
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
