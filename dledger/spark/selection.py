"""Which messages are wanted: by topic, queue, offset, time, tags and keys. Whole columns are tested at
once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.formats.record import SYSTEM_TOPIC
from dledger.spark.entry_ranges import Bools, Ints
from dledger.spark.option_values import KEY_SEPARATOR, Queue
from dledger.spark.options import ALL_TOPICS, TopicChoice
from dledger.spark.records import Records

ALL_OFFSETS = 1 << 62
_SYSTEM_TOPICS = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
_SYSTEM_PREFIX = "rmq_sys_"
TABLE_ROOTS = "dledger_table_roots"
"""The topic in which tables have their roots (`lake.roots`)."""


def is_system_topic(topic: str) -> bool:
    """Whether this is a topic of the brokers' own (RocketMQ's TopicValidator) or of our tools. Retry and dead
    letter topics are not."""
    return topic in _SYSTEM_TOPICS or topic == TABLE_ROOTS or topic.lower().startswith(_SYSTEM_PREFIX)


def qualified(topic: str, group: str) -> str:
    """Return the name of a topic when several broker groups are read. It contains the group, because
    queues with the same number in two groups are different queues."""
    return f"{topic}@{group}" if group else topic


def topic_and_group(name: str) -> tuple[str, str]:
    """Return topic and group of a name, the result of `qualified`. No topic has an @ in its name."""
    topic, _, group = name.partition("@")
    return topic, group


def wants_topic(choice: TopicChoice, topic: str) -> bool:
    """Whether a topic is chosen."""
    if choice.named is not None:
        return topic in choice.named
    if choice.assign is not None:
        return topic in choice.assign
    if is_system_topic(topic) and not choice.system:
        return False
    return choice.pattern is None or re.fullmatch(choice.pattern, topic) is not None


def wants_queue(choice: TopicChoice, topic: str, queue_id: int) -> bool:
    """Whether a queue is chosen."""
    if not wants_topic(choice, topic):
        return False
    return choice.assign is None or queue_id in choice.assign[topic]


@dataclass(frozen=True)
class Bounds:
    """A range of numbers that includes `low` and excludes `high`."""

    low: int = 0
    high: int = ALL_OFFSETS

    def meet(self, other: Bounds) -> Bounds:
        """Return the range of the numbers that are in both ranges."""
        return Bounds(max(self.low, other.low), min(self.high, other.high))


ANY = Bounds()


@dataclass(frozen=True)
class Selection:
    """Conditions on messages; a wanted message meets all of them. `group`: broker group of the replica
    that is read. The topics in `offsets` and `times_ms` may be qualified by this group."""

    topics: TopicChoice = ALL_TOPICS
    tags: frozenset[str] | None = None
    """Wanted tags. None means all messages, also those without a tag."""
    keys: frozenset[str] | None = None
    """Wanted message keys. None means all messages, also those without a key."""
    offsets: Mapping[Queue, Bounds] = field(default_factory=dict)
    """Wanted offsets of some queues. In a queue that is not named here, all offsets are wanted."""
    time_ms: Bounds = ANY
    times_ms: Mapping[Queue, Bounds] = field(default_factory=dict)
    """Wanted store times of some queues, in addition to `time_ms`."""
    only_topics: frozenset[str] | None = None
    partition: Bounds = ANY
    offset: Bounds = ANY
    """`only_topics`, `partition` and `offset` come from filters of the query."""
    group: str = ""

    @property
    def system_entries(self) -> bool:
        """Whether entries that the broker writes for itself (topics, groups, offsets) are wanted."""
        return wants_topic(self.topics, SYSTEM_TOPIC)

    @property
    def names_queues(self) -> bool:
        """Whether only some topics or queues are wanted, and no entries that the broker writes for itself."""
        choice = self.topics
        some = (choice.named, choice.pattern, choice.assign, self.only_topics) != (None,) * 4
        return (some or self.partition != ANY) and not self.system_entries

    def offsets_of(self, topic: str, queue_id: int) -> Bounds:
        """Return the wanted offsets of a queue; an empty range if none is wanted."""
        if not self.wants(topic) or not self.partition.low <= queue_id < self.partition.high:
            return Bounds(0, 0)
        return self._bounds(topic, queue_id).meet(self.offset)

    def mask(self, records: Records) -> Bools:
        """Return which records are wanted by all conditions except those on tags and keys."""
        topics = [self.wants(topic) for topic in records.topics]
        wanted = np.array(topics, np.bool_)[records.topic] if topics else np.zeros(0, np.bool_)
        wanted &= records.good
        wanted &= _within(records.stored, self.time_ms)
        wanted &= _within(records.queue_id, self.partition)
        wanted &= _within(records.queue_offset, self.offset)
        if self.offsets or self.topics.assign is not None:
            wanted &= self._by_queue(records, records.queue_offset, self._bounds)
        if self.times_ms:
            wanted &= self._by_queue(records, records.stored, self._times)
        return np.asarray(wanted, np.bool_)

    def of_tags(self, tags: pa.StringArray) -> Bools | None:
        """Return which of these tags are wanted; None if all are."""
        if self.tags is None:
            return None
        found = pc.is_in(tags, value_set=pa.array(sorted(self.tags), pa.string()))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def of_keys(self, keys: pa.StringArray) -> Bools | None:
        """Return which of these texts contain a wanted key; None if all are wanted."""
        if self.keys is None:
            return None
        several = pc.split_pattern(keys, KEY_SEPARATOR)
        found = pc.is_in(several.flatten(), value_set=pa.array(sorted(self.keys), pa.string()))
        wanted = np.zeros(len(keys), np.bool_)
        owners = pc.list_parent_indices(several).to_numpy(zero_copy_only=False)
        wanted[owners[found.to_numpy(zero_copy_only=False)]] = True
        return wanted

    def wants(self, topic: str) -> bool:
        """Whether messages of a topic are wanted."""
        if self.only_topics is not None and topic not in self.only_topics:
            return False
        return wants_topic(self.topics, topic)

    def _by_queue(self, records: Records, numbers: Ints, wanted: Callable[[str, int], Bounds]) -> Bools:
        """Return whether the number of each record is in the wanted range of its queue. Each queue is looked
        up only once."""
        codes, inverse = np.unique(records.topic << 32 | records.queue_id & 0xFFFFFFFF, return_inverse=True)
        queues = [(records.topics[code >> 32], code & 0xFFFFFFFF) for code in codes.tolist()]
        bounds = [wanted(topic, queue_id) for topic, queue_id in queues]
        low = np.array([bound.low for bound in bounds], np.int64)[inverse]
        high = np.array([bound.high for bound in bounds], np.int64)[inverse]
        return np.asarray((numbers >= low) & (numbers < high), np.bool_)

    def _bounds(self, topic: str, queue_id: int) -> Bounds:
        if not wants_queue(self.topics, topic, queue_id):
            return Bounds(0, 0)
        return self._of_queue(self.offsets, topic, queue_id)

    def _times(self, topic: str, queue_id: int) -> Bounds:
        return self._of_queue(self.times_ms, topic, queue_id)

    def _of_queue(self, named: Mapping[Queue, Bounds], topic: str, queue_id: int) -> Bounds:
        found = named.get((qualified(topic, self.group), queue_id))
        return found or named.get((topic, queue_id), ANY)


def _within(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], bounds: Bounds) -> Bools:
    if bounds == ANY:
        return np.ones(len(values), np.bool_)
    return np.asarray((values >= bounds.low) & (values < bounds.high), np.bool_)
