"""Property texts in bulk: keys, tags and the map of all, as `formats.properties.decode_properties` has them.

Separators are found in the bytes of all texts at once; names and values are ranges between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.records import slices
from spark.runs import Bytes, Ints, structs

_NAME_END = 1
_ITEM_END = 2


@dataclass(frozen=True)
class Properties:
    """Names and values of all texts in order. `row`: the text of each; positions are in `content`."""

    rows: int
    content: Bytes
    row: Ints
    name_at: Ints
    name_end: Ints
    value_end: Ints

    def values(self, name: bytes) -> pa.StringArray:
        """The value of one property for each text, null without it; the last one counts."""
        item = np.full(self.rows, -1, np.int64)
        named = self._named(name)
        item[self.row[named]] = named
        has = item >= 0
        places = np.cumsum(has) - 1
        chosen = item[has]
        found = slices(self.content, self.name_end[chosen] + 1, self.value_end[chosen])
        return found.cast(pa.string()).take(pa.array(places, mask=~has))

    def maps(self) -> pa.MapArray:
        """All properties of each text; of repeated names the last one counts."""
        chosen = self._last_of_each_name()
        row = self.row[chosen]
        names = slices(self.content, self.name_at[chosen], self.name_end[chosen]).cast(pa.string())
        values = slices(self.content, self.name_end[chosen] + 1, self.value_end[chosen]).cast(pa.string())
        offsets = np.searchsorted(row, np.arange(self.rows + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _named(self, name: bytes) -> Ints:
        """Items with this name, ascending."""
        named = np.flatnonzero(self.name_end - self.name_at == len(name))
        if not len(named):
            return named
        raw = np.dtype([("name", np.void, len(name))])
        equal = structs(self.content, self.name_at[named], raw)["name"] == np.void(name)
        return np.asarray(named[equal], np.int64)

    def _last_of_each_name(self) -> Ints:
        count = len(self.row)
        names = slices(self.content, self.name_at, self.name_end).dictionary_encode()
        number = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        identity = self.row * max(len(names.dictionary), 1) + number
        unique, last = np.unique(identity[::-1], return_index=True)
        if len(unique) == count:
            return np.arange(count)
        return np.sort(count - 1 - last)


def parse_properties(texts: pa.StringArray) -> Properties:
    """Find the properties of texts without nulls."""
    offsets, content = _content(texts)
    filled = offsets[:-1] < offsets[1:]
    begins = offsets[:-1][filled]
    ends_of_items = np.flatnonzero(content == _ITEM_END)
    starts = np.sort(np.concatenate((begins, ends_of_items + 1)), kind="stable")
    ends = np.sort(np.concatenate((ends_of_items, offsets[1:][filled])), kind="stable")
    names_end = np.flatnonzero(content == _NAME_END)
    following = np.searchsorted(names_end, starts)
    name_end = np.append(names_end, len(content))[following]
    right = (name_end < ends) & (name_end > starts)
    right[right] = ~_too_short(content, starts[right], name_end[right], ends[right])
    starts, name_end, ends = starts[right], name_end[right], ends[right]
    row = np.flatnonzero(filled)[np.searchsorted(begins, starts, side="right") - 1] if len(starts) else starts
    return Properties(len(texts), content, row, starts, name_end, ends)


def _too_short(content: Bytes, starts: Ints, name_ends: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Items of less than 3 characters, which Java skips: a name of one character and an empty value."""
    lead = content[starts]
    character = 1 + (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)
    return np.asarray((name_ends - starts == character) & (name_ends + 1 == ends), np.bool_)


def _content(texts: pa.StringArray) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Offsets (from 0) and bytes of an array of texts."""
    _, raw_offsets, data = texts.buffers()
    count = len(texts)
    if not count:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(raw_offsets, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data else np.zeros(0, np.uint8)
    return offsets - offsets[0], content
