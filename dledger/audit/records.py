"""Message records of a window as columns: their fields, their ConsumeQueue units, which queue they belong to.
Pure.

`read_records` gives a result only if every record of the window is well-formed and of the common kind.
`record_check` reads other windows record by record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

try:
    import pyarrow as pa
except ImportError:  # it comes with the extras; a broker needs none of them to answer auditors
    pa = None

from dledger.audit.entries import (
    BODY_DAMAGED,
    CHAIN_UNKNOWN,
    Array,
    Bytes,
    Columns,
    slice_crcs,
    structs,
    to_pick,
)
from dledger.audit.record_layout import lay_out
from dledger.formats.consume_queue import UNIT_SIZE
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.message_ids import java_hash
from dledger.formats.properties import TAGS
from dledger.formats.record import (
    BORN_HOST_V6,
    CRC_MASK,
    MIN_SIZE,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)

TIMED_TOPICS = (b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer")
"""Topics whose tag codes are delivery times in RocketMQ's stores. These times are not in the log."""

_UNITS = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
_BEHIND_NAME, _SEPARATOR = 1, 2
"""The byte after the name of a property, and the byte after its value."""
_WORD = np.dtype("<u8")
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD.itemsize + 1)], np.uint64)
"""Masks for the first bytes of a word. The index is the number of bytes."""
_NOT_ASCII = np.uint64(0x8080808080808080)
"""Mask for a word of eight characters: the bits that only characters above 127 set."""
_ONES = np.uint64(0x0101010101010101)
_SEPARATORS = _ONES * np.uint64(_SEPARATOR)
_EXPONENT_BIAS = 1023
"""Bias of the exponent of a 64-bit floating-point number. The exponent begins at bit 52."""
_WEIGHTS = np.cumprod(np.full(1 << 13, 0x9E3779B97F4A7C15, np.uint64))
"""Weights of the words of a topic: powers of an odd number, modulo 2^64."""
_MAX_SPARSE = 2
"""Limit for the size of the padded properties of a window, as a multiple of their own size. With it, one long
text does not enlarge all others."""
_MAX_HASHED = 256
"""Limit, in bytes, of a text whose hash is computed in columns."""
_POWERS_BELOW = np.cumprod(np.array([1, *[pow(31, -1, 1 << 32)] * _MAX_HASHED], np.uint32), dtype=np.uint32)
"""Powers of the inverse of 31, modulo 2^32."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one window, one array per field, in order of the log.

    Fields whose names end in `_at` are offsets in the window's data. `number` is the number of the entry in
    the window, `index` its index, `store_ms` the store time.
    """

    number: Array
    index: Array
    kind: Array
    physical: Array
    size: Array
    queue_id: Array
    queue_offset: Array
    sys_flag: Array
    store_ms: Array
    body_at: Array
    body_size: Array
    topic_at: Array
    topic_size: Array
    properties_at: Array
    properties_size: Array

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, chosen: Array) -> Records:
        """Select some of the records, by a mask or numbers."""
        picked = to_pick(chosen)
        return Records(*(getattr(self, field.name)[picked] for field in fields(self)))

    @property
    def dispatched(self) -> Array:
        """Mask of the records that have a place in a queue. Half messages and rollbacks have none."""
        transaction = self.sys_flag & TRANSACTION_MASK
        found: Array = (transaction == 0) | (transaction == TRANSACTION_COMMIT)
        return found


def has_record(columns: Columns) -> Array:
    """Mask of the entries whose body is a record. Entries of kind RAW and Apache's empty ones have none."""
    empty = (columns.size == HEADER_SIZE) & (columns.stored_crc == 0) & (columns.chain == 0)
    found: Array = (columns.channel >> 24 & KIND_MASK != Kind.RAW) & ~empty
    return found


def read_records(data: bytes, base: int, columns: Columns, *, deep: bool = True) -> Records | None:
    """Read and check all records of a window. `base` is the log offset of `data[0]`.

    None if one of them must be examined by itself, because it is rotten, malformed, of a newer kind, or has
    IPv6 hosts. Without `deep`, the CRC inside a record is not checked if that of its entry fits.
    """
    recorded = has_record(columns)
    number, chosen = np.flatnonzero(recorded), columns[recorded]
    kind = chosen.channel >> 24 & KIND_MASK
    size = chosen.size - HEADER_SIZE
    if (kind > Kind.RAW).any() or (chosen.damage & BODY_DAMAGED).any() or (size < MIN_SIZE).any():
        return None
    if not len(number):
        return _no_records()
    octets = np.frombuffer(data, np.uint8)
    at = chosen.pos - base + HEADER_SIZE
    layout = lay_out(octets, at, size)
    head, sys_flag = layout.head, layout.sys_flag
    fits = layout.fits & (head["physical_offset"] == chosen.pos + HEADER_SIZE)
    if not (fits & (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) == 0)).all():
        return None
    doubted = slice(None) if deep else np.flatnonzero(chosen.damage & CHAIN_UNKNOWN)
    starts = layout.body_at[doubted]
    ends = starts + layout.body_size[doubted]
    if (slice_crcs(data, starts, ends) & CRC_MASK != head["body_crc"][doubted]).any():
        return None
    records = Records(
        number,
        chosen.index,
        kind,
        chosen.pos + HEADER_SIZE,
        size,
        head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        sys_flag,
        layout.stored,
        layout.body_at,
        layout.body_size,
        layout.topic_at,
        layout.topic_size,
        layout.properties_at,
        layout.properties_size,
    )
    if (records.dispatched & (kind != Kind.MESSAGE)).any():
        return None
    return records


def _no_records() -> Records:
    return Records(*(np.empty(0, np.int64) for _ in fields(Records)))


QueueKey = tuple[bytes, int]
"""A queue: topic and queue id."""


class QueueNames:
    """Gives each queue a number, in order of the first record of each queue."""

    def __init__(self) -> None:
        self.keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}
        self._hashes = np.empty(0, np.uint64)
        """Hash values of queues, ascending. Values that two queues share are left out."""
        self._of_hash = np.empty(0, np.int64)
        self._names = _Names.of([])

    def number(self, key: QueueKey) -> int:
        """Return the number of one queue."""
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return known

    def numbers(self, data: bytes, records: Records) -> Array:
        """Return the number of the queue of each record."""
        if not len(records):
            return np.empty(0, np.int64)
        words = padded_words(np.frombuffer(data, np.uint8), records.topic_at, records.topic_size)
        hashed = _hashes(words, records.queue_id, records.topic_size)
        at = np.minimum(np.searchsorted(self._hashes, hashed), max(len(self._hashes) - 1, 0))
        if not len(self._hashes) or not (self._hashes[at] == hashed).all():
            return self._learn(data, records, hashed, words)
        found = self._of_hash[at]
        return found if self._are(found, words, records) else self._singly(data, records)

    def _are(self, found: Array, words: list[Array], records: Records) -> bool:
        """Whether each record belongs to the queue in `found`, compared by the whole name."""
        names = self._names
        if len(names.queue_id) < len(self.keys):
            names = self._names = _Names.of(self.keys)
        return bool(
            (names.size[found] == records.topic_size).all()
            and (names.queue_id[found] == records.queue_id).all()
            and all((known[found] == word).all() for known, word in zip(names.words, words, strict=False))
        )

    def _learn(self, data: bytes, records: Records, hashed: Array, words: list[Array]) -> Array:
        distinct, first, which = np.unique(hashed, return_index=True, return_inverse=True)
        order = np.argsort(first)
        numbers = np.empty(len(distinct), np.int64)
        numbers[order] = self._singly(data, records[first[order]])
        found: Array = numbers[which]
        if not self._are(found, words, records):  # two queues with one hash
            return self._singly(data, records)
        pairs = dict(zip(self._hashes.tolist(), self._of_hash.tolist(), strict=True))
        pairs.update(zip(distinct.tolist(), found[first].tolist(), strict=True))
        self._hashes = np.array(sorted(pairs), np.uint64)
        self._of_hash = np.array([pairs[value] for value in sorted(pairs)])
        return found

    def _singly(self, data: bytes, records: Records) -> Array:
        starts, sizes = records.topic_at.tolist(), records.topic_size.tolist()
        topics = (data[start : start + size] for start, size in zip(starts, sizes, strict=True))
        return np.array([self.number(key) for key in zip(topics, records.queue_id.tolist(), strict=True)])


class _Names(NamedTuple):
    """Queues in columns: their topics in the form of `padded_words`, with the sizes of the topics, and queue
    ids."""

    words: list[Array]
    size: Array
    queue_id: Array

    @classmethod
    def of(cls, keys: list[QueueKey]) -> _Names:
        """The columns of these queues."""
        size = np.array([len(topic) for topic, _ in keys], np.int64)
        text = np.frombuffer(b"".join(topic for topic, _ in keys), np.uint8)
        words = padded_words(text, np.cumsum(size) - size, size)
        return cls(words, size, np.array([queue_id for _, queue_id in keys], np.int64))


def _hashes(words: list[Array], queue_ids: Array, sizes: Array) -> Array:
    """Hash each queue to 64 bits, which two queues hardly ever share. Zeros after a name do not count."""
    state = (queue_ids.astype(np.uint64) << np.uint64(32)) + sizes.astype(np.uint64)
    for word, weight in zip(words, _WEIGHTS, strict=False):
        state += (word ^ word >> np.uint64(31)) * weight  # so that the last letters change all bits
    state ^= state >> np.uint64(29)
    mixed: Array = state * _WEIGHTS[0]
    return mixed


def queue_units(records: Records, codes: Array) -> Array:
    """Make the ConsumeQueue unit of each record, given its tag code, as a row of 20 bytes."""
    units = np.empty(len(records), _UNITS)
    units["physical"], units["size"], units["code"] = records.physical, records.size, codes
    return units.view(np.uint8).reshape(-1, UNIT_SIZE)


def differing_units(stored: bytes, expected: bytes, *, without_code: bool) -> list[int]:
    """Return the numbers of the units that differ. With `without_code` only position and size are
    compared."""
    rows = (np.frombuffer(text, np.uint8).reshape(-1, UNIT_SIZE) for text in (stored, expected))
    ours, theirs = (row[:, :12] if without_code else row for row in rows)
    return np.flatnonzero((ours != theirs).any(axis=1)).tolist()


def tag_codes(texts: PropertyTexts) -> Array:
    """Tag code of each record: Java's hash of its TAGS property, 0 if it has none."""
    return texts.hashes(TAGS)


class PropertyTexts:
    """The properties of some records. `text` holds those of record n from `starts[n]` on, `sizes[n]` bytes.
    The starts ascend; between the texts are only zeros."""

    def __init__(self, text: Bytes, starts: Array, sizes: Array) -> None:
        self.text = text
        self._starts = starts
        self._ends = starts + sizes
        self._separators: Array | None = None

    def find(self, name: str) -> tuple[Array, Array, Array]:
        """Find the records that have this property. Also return the places in `text` where its values begin
        and end.

        `name` has two letters or more. If a record has the property twice, the first one counts, as in
        `formats.properties.find_property`.
        """
        text, raw = self.text, name.encode()
        size = len(raw)
        # Two bytes in whole columns leave few candidates; picking by numbers takes a quarter of masks' time.
        ends = text[size:] == _BEHIND_NAME
        ends &= text[size - 2 : -2] == raw[-2]
        at = np.flatnonzero(ends) + size
        for back, octet in enumerate(reversed(raw), 1):
            at = at[np.flatnonzero(text[at - back] == octet)]
        begin = at + 1
        at = at - size
        owner = np.searchsorted(self._starts, begin - 1, side="right") - 1
        starts = self._starts[owner]
        whole = (at == starts) | ((at > starts) & (text[at - 1] == _SEPARATOR))
        if not whole.all():
            owner, begin = owner[whole], begin[whole]
        if not (np.diff(owner) > 0).all():
            owner, first = np.unique(owner, return_index=True)
            begin = begin[first]
        return owner, begin, np.minimum(self._next_separator(begin), self._ends[owner])

    def _next_separator(self, begin: Array) -> Array:
        """Return the place of the first separator at or behind each place, or behind the text.

        Most separators are near. So the next eight bytes are searched at once, by one subtraction whose
        borrows show a separator.
        """
        if len(self.text) < _WORD.itemsize:
            return self._next_of_all(begin)
        start = np.minimum(begin, len(self.text) - _WORD.itemsize)
        before = (8 * np.minimum(begin - start, _WORD.itemsize - 1)).astype(np.uint64)
        word = structs(self.text, start, _WORD) >> before ^ _SEPARATORS
        marks = (word - _ONES) & ~word & _NOT_ASCII
        lowest = marks & (~marks + np.uint64(1))
        power = (lowest.astype(np.float64).view(np.int64) >> 52) - _EXPONENT_BIAS
        end: Array = begin + (power >> 3)
        far = np.flatnonzero(marks == 0)
        end[far] = self._next_of_all(begin[far])
        return end

    def _next_of_all(self, begin: Array) -> Array:
        if not len(begin):
            return begin
        if self._separators is None:
            self._separators = np.append(np.flatnonzero(self.text == _SEPARATOR), len(self.text))
        found: Array = self._separators[np.searchsorted(self._separators, begin)]
        return found

    def hashes(self, name: str) -> Array:
        """Return Java's hash of this property for each record, 0 if it has none."""
        hashed = np.zeros(len(self._starts), np.int64)
        owner, begin, end = self.find(name)
        hashed[owner] = java_hashes(self.text, begin, end)
        return hashed


def property_texts(data: bytes, records: Records) -> PropertyTexts:
    """Return the properties of these records. If pyarrow is installed it is used, which takes half the
    time."""
    return padded_texts(data, records) if pa is None else taken_texts(data, records)


def taken_texts(data: bytes, records: Records) -> PropertyTexts:
    """Do the work of `property_texts` with pyarrow."""
    begin, sizes = records.properties_at, records.properties_size
    edges = np.empty(2 * len(records), np.int32)
    edges[0::2], edges[1::2] = begin, begin + sizes
    # Every second value of this array is a text. The others are what lies between the texts.
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), max(len(edges) - 1, 0), buffers)
    every_second = np.arange(0, len(edges), 2)  # not pa.array(...), which imports pandas
    texts = pieces.take(
        pa.Array.from_buffers(pa.int64(), len(every_second), [None, pa.py_buffer(every_second)])
    )
    text = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[: int(sizes.sum())]
    return PropertyTexts(text, np.cumsum(sizes) - sizes, sizes)


def padded_texts(data: bytes, records: Records) -> PropertyTexts:
    """Do the work of `property_texts` without pyarrow."""
    begin, sizes = records.properties_at, records.properties_size
    width = -(-int(sizes.max(initial=0)) // _WORD.itemsize) * _WORD.itemsize
    if not width or width > len(data) or len(sizes) * width > _MAX_SPARSE * int(sizes.sum()):
        ends = (begin + sizes).tolist()
        pieces = [data[at:end] for at, end in zip(begin.tolist(), ends, strict=True)]
        return PropertyTexts(np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(sizes) - sizes, sizes)
    # Takes equally many bytes for each record, and then zeroes those that belong to the next entry.
    at = np.minimum(begin, len(data) - width)
    before = begin - at  # at the end of the window: these bytes belong to the record itself
    rows = structs(np.frombuffer(data, np.uint8), at, np.dtype((np.void, width)))
    text = rows.view(np.uint8).reshape(-1, width)
    text *= np.arange(width, dtype=np.uint16) < (before + sizes).astype(np.uint16)[:, np.newaxis]
    for number in np.flatnonzero(before).tolist():
        text[number, : before[number]] = 0
    return PropertyTexts(text.reshape(-1), np.arange(0, text.size, width) + before, sizes)


def java_hashes(text: Bytes, begin: Array, end: Array) -> Array:
    """Return Java's String.hashCode for UTF-8 ranges of `text`, as signed 32-bit numbers."""
    length = end - begin
    if not 0 < int(length.max(initial=0)) <= _MAX_HASHED:
        odd = np.flatnonzero(length)
        hashed = np.zeros(len(begin), np.int64)
    else:
        words = padded_words(text, begin, length)
        state = np.zeros(len(begin), np.uint32)
        for word in words:
            for column in np.ascontiguousarray(word.view(np.uint8).reshape(-1, _WORD.itemsize).T):
                state *= np.uint32(31)
                state += column
        # So far each text counts as one that fills its words: divided by a power of 31 again.
        state *= _POWERS_BELOW[_WORD.itemsize * len(words) - length]
        hashed = state.view(np.int32).astype(np.int64)
        odd = np.flatnonzero(np.bitwise_or.reduce(words) & _NOT_ASCII)
    for number in odd.tolist():
        value = text[begin[number] : end[number]].tobytes().decode("utf-8", "replace")
        hashed[number] = java_hash(value)
    return hashed


def padded_words(text: Bytes, begin: Array, length: Array) -> list[Array]:
    """Return ranges of `text` in columns of eight bytes, padded with zeros to the length of the longest
    range."""
    if len(text) < _WORD.itemsize:
        text = np.append(text, np.zeros(_WORD.itemsize - len(text), np.uint8))
    words = []
    for at in range(0, int(length.max(initial=0)), _WORD.itemsize):
        start = np.minimum(begin + at, len(text) - _WORD.itemsize)
        word = structs(text, start, _WORD)
        before = begin + at - start
        if before.any():  # at the end of the text: these bytes belong to what lies before
            word = word >> (8 * np.minimum(before, _WORD.itemsize - 1)).astype(np.uint64)
        words.append(word & _FIRST_BYTES.take(length - at, mode="clip"))
    return words
