"""Keys of messages in columns (numpy arrays). IndexFiles have one unit for each key. Pure.

`keys_of_records` takes the result of `records.read_records`. `keys_one_by_one` takes a window with an
irregular record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dledger.audit.entries import BODY_DAMAGED, Array, Columns
from dledger.audit.records import PropertyTexts, Records, has_record, java_hashes
from dledger.formats.entry import HEADER_SIZE as ENTRY_HEADER
from dledger.formats.index_file import TAG_PREFIX, is_indexed, key_hash, message_keys
from dledger.formats.message_ids import java_hash
from dledger.formats.properties import KEYS, TAGS, UNIQ_KEY, find_property
from dledger.formats.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, CorruptRecord, decode_record

_BLANK = ord(" ")
_HASH_SIGN = ord("#")


class MessageKeys(NamedTuple):
    """The keys of several messages as columns, in order of the log: each array has one element for each key.

    `position` is the physical offset of the message's record, `hashed` the hash of the key, `store_ms` the
    store time of the message, and `index` the index of its entry. `is_tag` says whether the key is a tag,
    which may have a unit in the files but need not have one.
    """

    position: Array
    hashed: Array
    store_ms: Array
    index: Array  # type: ignore[assignment]  # DLedger's name; tuple.index is not used
    is_tag: Array


def keys_of_records(data: bytes, records: Records, texts: PropertyTexts, *, tags: bool) -> MessageKeys:
    """Return the keys of well-formed records. With `tags` they include tags, which newer brokers of Apache
    RocketMQ also index."""
    indexed = records.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
    if not indexed.any():
        return _of_rows(())
    octets = np.frombuffer(data, np.uint8)
    topics = java_hashes(octets, records.topic_at, records.topic_at + records.topic_size) * 31 + _HASH_SIGN
    owners, hashes = [], []
    for name in (UNIQ_KEY, KEYS, TAGS) if tags else (UNIQ_KEY, KEYS):
        owner, begin, end = texts.find(name)
        if not indexed.all():
            owner, begin, end = (column[indexed[owner]] for column in (owner, begin, end))
        if name == KEYS:
            owner, begin, end = _split(texts.text, owner, begin, end)
        elif name == TAGS:
            filled = end > begin
            owner, begin, end = owner[filled], begin[filled], end[filled]
            topics = topics * 31 ** len(TAG_PREFIX) + java_hash(TAG_PREFIX)
        units = _utf16_lengths(texts.text, begin, end)
        powers = np.array([pow(31, int(length), 1 << 32) for length in range(int(units.max(initial=0)) + 1)])
        whole = topics[owner] * powers[units] + java_hashes(texts.text, begin, end)
        signed = whole.astype(np.uint32).view(np.int32).astype(np.int64)
        owners.append(owner)
        hashes.append(np.where(signed == -(1 << 31), 0, np.abs(signed)))
    is_tag = np.repeat([False, False, True][: len(owners)], list(map(len, owners)))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    owner, hashed = owner[order], np.concatenate(hashes)[order]
    return MessageKeys(
        records.physical[owner], hashed, records.store_ms[owner], records.index[owner], is_tag[order]
    )


def _split(text: Array, owner: Array, begin: Array, end: Array) -> tuple[Array, Array, Array]:
    """Split each range of `text` at blanks; empty parts are left out."""
    blanks = np.flatnonzero(text == _BLANK)
    first, last = np.searchsorted(blanks, begin), np.searchsorted(blanks, end)
    single = first == last
    parts = [(owner[single], begin[single], end[single])]
    for number in np.flatnonzero(~single).tolist():
        cuts = blanks[first[number] : last[number]]
        starts, ends = np.append(begin[number], cuts + 1), np.append(cuts, end[number])
        parts.append((np.full(len(starts), owner[number]), starts, ends))
    owner, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    filled = end > begin
    return owner[filled], begin[filled], end[filled]


def _utf16_lengths(text: Array, begin: Array, end: Array) -> Array:
    """Return Java's String.length for ranges of UTF-8."""
    lengths = end - begin
    if not (text >= 128).any():
        return lengths
    high = np.concatenate(([0], np.cumsum(text >= 128)))
    for number in np.flatnonzero(high[end] > high[begin]).tolist():
        value = text[begin[number] : end[number]].tobytes().decode("utf-8", "replace")
        lengths[number] = len(value.encode("utf-16-be", "surrogatepass")) // 2
    return lengths


def keys_one_by_one(data: bytes, base: int, columns: Columns, *, tags: bool) -> MessageKeys:
    """Return the keys of a window with irregular records, which are read one by one. An invalid record has no
    keys."""
    rows: list[tuple[int, int, int, int, bool]] = []
    view = memoryview(data)
    chosen = columns[has_record(columns) & (columns.damage & BODY_DAMAGED == 0)]
    for entry in chosen.entries():
        at = entry.pos - base + ENTRY_HEADER
        try:
            record = decode_record(view[at : at + entry.size - ENTRY_HEADER], with_body=False)
        except CorruptRecord:
            continue  # RecordCheck tells
        if not is_indexed(record.sys_flag):
            continue
        properties = record.properties.encode()
        keys = [(key, False) for key in message_keys(properties)]
        tag = find_property(properties, TAGS.encode()) if tags else None
        if tag:
            keys.append((TAG_PREFIX + tag.decode("utf-8", "replace"), True))
        rows += (
            (
                record.physical_offset,
                key_hash(record.topic, key),
                record.store_timestamp,
                entry.index,
                is_tag,
            )
            for key, is_tag in keys
        )
    return _of_rows(rows)


def _of_rows(rows: Sequence[tuple[int, int, int, int, bool]]) -> MessageKeys:
    position, hashed, store_ms, index, is_tag = np.array(rows, np.int64).reshape(-1, 5).T
    return MessageKeys(position, hashed, store_ms, index, is_tag.astype(bool))
