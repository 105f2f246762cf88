"""Property texts decoded in bulk: keys, tags and the map of all properties, as
`formats.properties.decode_properties` decodes them.

Separators are found in the bytes of all texts at once; names and values are the ranges between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.audit.entries import structs
from dledger.spark.entry_ranges import Bytes, Ints
from dledger.spark.records import slices

_NAME_END = 1
_ITEM_END = 2
_LONGEST_CHARACTER = 4
"""Largest number of bytes of a character in UTF-8."""


@dataclass(frozen=True)
class Properties:
    """Names and values in all texts, in order. All positions are in `content`, the bytes of all texts.
    `offsets`: where each text begins, and the end of the last text."""

    offsets: Ints
    content: Bytes
    name_at: Ints
    name_end: Ints
    value_end: Ints

    def values(self, name: bytes) -> pa.StringArray:
        """Return the value of one property in each text; null if a text does not have it. If a name is
        repeated, its last value counts."""
        named = self._named(name)
        rows = len(self.offsets) - 1
        item = np.full(rows, -1, np.int64)
        item[self._rows(named)] = named
        has = item >= 0
        chosen = item if len(named) == rows and has.all() else item[has]
        found = slices(self.content, self.name_end[chosen] + 1, self.value_end[chosen]).cast(pa.string())
        return found if len(found) == rows else found.take(pa.array(np.cumsum(has) - 1, mask=~has))

    def maps(self) -> pa.MapArray:
        """Return a map of all properties for each text. If a name is repeated, its last value counts."""
        chosen = self._last_of_each_name()
        row = self._rows(chosen)
        names = slices(self.content, self.name_at[chosen], self.name_end[chosen]).cast(pa.string())
        values = slices(self.content, self.name_end[chosen] + 1, self.value_end[chosen]).cast(pa.string())
        offsets = np.searchsorted(row, np.arange(len(self.offsets))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _rows(self, chosen: Ints) -> Ints:
        """Return the number of the text to which each item belongs. Of several texts that begin at the
        same place, only the last can have items; the others are empty."""
        return np.asarray(np.searchsorted(self.offsets, self.name_at[chosen], side="right") - 1, np.int64)

    def _named(self, name: bytes) -> Ints:
        """Return the numbers of the items with this name, ascending."""
        named = np.flatnonzero(self.name_end - self.name_at == len(name))
        if not len(named):
            return named
        raw = np.dtype([("name", np.void, len(name))])
        equal = structs(self.content, self.name_at[named], raw)["name"] == np.void(name)
        return np.asarray(named[equal], np.int64)

    def _last_of_each_name(self) -> Ints:
        count = len(self.name_at)
        names = slices(self.content, self.name_at, self.name_end).dictionary_encode()
        number = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        identity = self._rows(np.arange(count)) * max(len(names.dictionary), 1) + number
        unique, last = np.unique(identity[::-1], return_index=True)
        if len(unique) == count:
            return np.arange(count)
        return np.sort(count - 1 - last)


def parse_properties(texts: pa.StringArray) -> Properties:
    """Find the properties in texts, none of which is null."""
    offsets, content = _content(texts)
    separators = np.flatnonzero(content <= _ITEM_END)
    kinds = content[separators]
    ends_of_texts = offsets[1:]
    regular = (
        not len(separators) % 2
        and (kinds[0::2] == _NAME_END).all()
        and (kinds[1::2] == _ITEM_END).all()
        and (content[ends_of_texts[offsets[:-1] < ends_of_texts] - 1] == _ITEM_END).all()
    )
    if regular:  # name, value, name, value: as our clients write them, and no text ends without a separator
        name_end, ends = separators[0::2], separators[1::2]
        starts = np.empty(len(ends), np.int64)
        starts[:1], starts[1:] = 0, ends[:-1] + 1
    else:
        starts, name_end, ends = _items(offsets, content, separators, kinds)
    right = (name_end < ends) & (name_end > starts)
    brief = np.flatnonzero(right & (name_end - starts <= _LONGEST_CHARACTER) & (name_end + 1 == ends))
    right[brief] = ~_one_character(content, starts[brief], name_end[brief])
    if not right.all():
        starts, name_end, ends = starts[right], name_end[right], ends[right]
    return Properties(offsets, content, starts, name_end, ends)


def _items(offsets: Ints, content: Bytes, separators: Ints, kinds: Bytes) -> tuple[Ints, Ints, Ints]:
    """Return, for each item, where it begins, where its name ends, and where it ends. If an item has no
    separator, the end of its name is given as a place behind the item."""
    filled = offsets[:-1] < offsets[1:]
    ends_of_items = separators[kinds == _ITEM_END]
    starts = np.sort(np.concatenate((offsets[:-1][filled], ends_of_items + 1)), kind="stable")
    ends = np.sort(np.concatenate((ends_of_items, offsets[1:][filled])), kind="stable")
    names_end = separators[kinds == _NAME_END]
    name_end = np.append(names_end, len(content))[np.searchsorted(names_end, starts)]
    return starts, name_end, ends


def _one_character(content: Bytes, starts: Ints, name_ends: Ints) -> npt.NDArray[np.bool_]:
    """Whether each name has only one character. An item with such a name and an empty value is shorter
    than 3 characters, and Java skips it."""
    lead = content[starts]
    character = 1 + (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)
    return np.asarray(name_ends - starts == character, np.bool_)


def _content(texts: pa.StringArray) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return the offsets (from 0) and the bytes of an array of texts."""
    _, raw_offsets, data = texts.buffers()
    count = len(texts)
    if not count:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(raw_offsets, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data else np.zeros(0, np.uint8)
    return offsets - offsets[0], content
