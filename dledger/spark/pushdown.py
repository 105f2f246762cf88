"""Filters of a query that the reader can apply itself (Spark's `pushFilters`).

Comparisons of a column with constants are handled. The columns are topic, partition, offset, logIndex,
tags and storeTimestamp of `messages`, index of `entries`, and topic and partition of `queues`.

If the reader applies a filter exactly, Spark does not apply it again. Filters on times are applied by
both, as times in the log are in milliseconds and times in columns in microseconds. For live brokers,
filters on the columns that are null there are applied only by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dledger.spark.selection import ANY, Bounds
from dledger.spark.versions import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_NEVER_NULL = {
    "messages": frozenset(("topic", "partition", "offset", "logIndex", "storeTimestamp")),
    "entries": frozenset(("index",)),
    "queues": frozenset(("topic", "partition")),
}
_NULL_IF_LIVE = frozenset(("logIndex",))
_TEXTS = {"messages": ("topic", "tags"), "queues": ("topic",)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Pushed:
    """What the filters allow. None as `topics` or `tags` means all. Bounds include `low` and exclude
    `high`."""

    topics: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    partition: Bounds = ANY
    offset: Bounds = ANY
    index: Bounds = ANY
    time_ms: Bounds = ANY

    def ranges(self, asked: tuple[tuple[int, int], ...] | None) -> tuple[tuple[int, int], ...] | None:
        """Inclusive index ranges that both the filters and the option `indexRanges` allow."""
        if self.index == ANY:
            return asked
        low, last = self.index.low, self.index.high - 1
        met = [(max(first, low), min(end, last)) for first, end in asked or ((0, last),)]
        return tuple((first, end) for first, end in met if first <= end)

    def wants_topic(self, topic: str) -> bool:
        """Whether rows of a topic may pass the filters."""
        return self.topics is None or topic in self.topics

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Whether rows of a queue may pass the filters."""
        return self.wants_topic(topic) and self.partition.low <= queue_id < self.partition.high

    def only_tags(self, asked: tuple[str, ...]) -> frozenset[str] | None:
        """Return the tags that both the filters and the option `tags` allow. None means all messages, also
        those without a tag."""
        if self.tags is None:
            return frozenset(asked) or None
        return self.tags & frozenset(asked) if asked else self.tags


NOTHING = Pushed()


def push(
    view: str, filters: Iterable[Filter], *, all_rows: bool, live: bool = False
) -> tuple[Pushed, list[Filter]]:
    """Return the filters that the reader can apply, and the filters that Spark must still apply.

    `all_rows`: there may be rows without a topic (corruptRecords=include), so Spark must apply all
    filters. `live`: the rows come from brokers.
    """
    pushed = NOTHING
    rest = []
    known = _NEVER_NULL[view] - _NULL_IF_LIVE if live else _NEVER_NULL[view]
    for item in filters:
        narrowed = None if all_rows else _narrowed(view, known, pushed, item)
        if narrowed is None:
            rest.append(item)
        else:
            pushed, whole = narrowed
            if not whole:
                rest.append(item)
    return pushed, rest


def _narrowed(
    view: str, never_null: frozenset[str], pushed: Pushed, item: Filter
) -> tuple[Pushed, bool] | None:
    """Add one filter to `pushed`. Returns the result, and whether Spark need not apply the filter any
    longer; None if the reader cannot apply it."""
    name = ".".join(getattr(item, "attribute", ()))
    if isinstance(item, IsNotNull):
        return (pushed, True) if name in never_null else None
    if name in _TEXTS.get(view, ()):
        wanted = _texts(item)
        if wanted is None:
            return None
        if name == "topic":
            return replace(pushed, topics=_both(pushed.topics, wanted)), True
        return replace(pushed, tags=_both(pushed.tags, wanted)), True
    if name not in never_null:
        return None
    if name == "storeTimestamp":
        times = _time_bounds(item)
        return None if times is None else (replace(pushed, time_ms=pushed.time_ms.meet(times)), False)
    numbers = _number_bounds(item)
    if numbers is None:
        return None
    match name:
        case "partition":
            return replace(pushed, partition=pushed.partition.meet(numbers)), True
        case "offset":
            return replace(pushed, offset=pushed.offset.meet(numbers)), True
        case _:
            return replace(pushed, index=pushed.index.meet(numbers)), True


def _texts(item: Filter) -> frozenset[str] | None:
    if isinstance(item, EqualTo):
        values: tuple[object, ...] = (item.value,)
    elif isinstance(item, In):
        values = tuple(item.value)
    else:
        return None
    texts = frozenset(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(frozenset(values)) else None


def _both(old: frozenset[str] | None, new: frozenset[str]) -> frozenset[str]:
    return new if old is None else old & new


def _number_bounds(item: Filter) -> Bounds | None:
    value = getattr(item, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return _compared(item, value, value)


def _time_bounds(item: Filter) -> Bounds | None:
    """Return the bounds of a filter on times in whole milliseconds. They are slightly wider than the
    filter; None if there are none."""
    value = getattr(item, "value", None)
    if not isinstance(value, datetime):
        return None
    utc = value if value.tzinfo else value.replace(tzinfo=UTC)
    millisecond = int((utc - _EPOCH) / timedelta(milliseconds=1))
    return _compared(item, millisecond - 1, millisecond + 1)


def _compared(item: Filter, low: int, high: int) -> Bounds | None:
    """Return the values that can pass a comparison with a constant, which is only known to lie between
    `low` and `high`. None for other filters."""
    match item:
        case EqualTo():
            return Bounds(low, high + 1)
        case GreaterThan():
            return Bounds(low + 1, ANY.high)
        case GreaterThanOrEqual():
            return Bounds(low, ANY.high)
        case LessThan():
            return Bounds(ANY.low, high)
        case LessThanOrEqual():
            return Bounds(ANY.low, high + 1)
    return None
