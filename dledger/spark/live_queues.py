"""Live brokers as a source: queues, named by topic and number, whose messages our client pulls from the
leaders.

A leader sends only messages that it has applied, so they are committed. An offset of a queue means the
same message at every leader of a group. Reading changes nothing on the brokers. Requests carry the name of
a consumer group only because the protocol requires one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import OffsetsGone, RangeOptions
from dledger.client.consuming.subscription import ALL
from dledger.client.errors import ClientError, TopicNotFound
from dledger.client.message import MessageQueue
from dledger.formats.pop_handles import RETRY_PREFIX
from dledger.spark import columns
from dledger.spark.entry_ranges import Bools, Ints
from dledger.spark.log_lives import check_pattern, unknown_topic
from dledger.spark.messages import message_columns, message_rows
from dledger.spark.offsets import (
    DataLost,
    Lives,
    Offsets,
    QueueRange,
    There,
    batch_times,
    by_group,
    named_offsets,
    parts_of,
    ranges_between,
    time_bounds,
)
from dledger.spark.option_values import BadOption, Queue, did_you_mean
from dledger.spark.options import Options
from dledger.spark.pushdown import NOTHING, Pushed
from dledger.spark.queue_source import at_times, look
from dledger.spark.records import Records, decode
from dledger.spark.selection import (
    ANY,
    Bounds,
    Selection,
    is_system_topic,
    qualified,
    topic_and_group,
    wants_queue,
    wants_topic,
)
from dledger.spark.versions import InputPartition

_DECODED_BYTES = 4 * 1024 * 1024
"""Approximate size, in bytes, of the answers that are decoded together. Decoding each small answer as a
batch of its own would be slow."""
_SAMPLE = 32
_NAMEABLE = re.compile(r"[^\s|\x00-\x20]+")
"""Matches tags that can be written in a subscription expression. Clients and brokers strip blanks from
other tags, or split them."""
_DEFAULT_MESSAGE_BYTES = 1024


@dataclass(frozen=True)
class TopicLives:
    """The `messages.Lives` of topics of live brokers, which show only messages of topics that exist.
    `of`: maps a topic to its life; a topic whose life is not known is missing."""

    of: Mapping[str, str] = field(default_factory=dict)

    def of_deleted(self, records: Records) -> Bools | None:
        return None

    def texts(self, records: Records, chosen: Ints) -> pa.StringArray:
        texts = pa.array([self.of.get(topic) for topic in records.topics], pa.string())
        return texts.take(pa.array(records.topic[chosen]))

    def check(self, topics: Sequence[str], now: Mapping[tuple[str, str], str], group: str) -> None:
        """Raises DataLost if one of these topics is not the one that the messages were planned for."""
        for topic in topics:
            planned, found = self.of.get(topic), now.get((topic, group))
            if planned is not None and planned != found:
                what = f"there is {found}" if found else "it is gone"
                raise DataLost(
                    f"topic {topic} was deleted while it was read: its life was {planned} "
                    f"(cluster.position), and now {what}: run the query again"
                )


NO_TOPIC_LIVES = TopicLives()


@dataclass(frozen=True)
class LivePart(InputPartition):
    """The part of one task: ranges of queues of one broker group. Their topics are plain names, without
    the group."""

    group: str
    ranges: tuple[QueueRange, ...]
    lives: TopicLives = NO_TOPIC_LIVES


class LiveQueues:
    """The `streaming.Queues` of live brokers. Connections are opened at the first use, and are not
    pickled.

    `pushed`: filters of the query. Queues that they exclude are left out, and no broker is asked about
    them. `timed`: whether the times in the options choose messages, as in a batch. In a stream they only say
    where it begins.
    """

    def __init__(self, options: Options, pushed: Pushed = NOTHING, *, timed: bool = False) -> None:
        self._options = options
        self._pushed = pushed
        self._timed = timed
        self._puller: RangePuller | None = None
        self._message_bytes = 0
        self._checked = False

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LiveQueues, timed=self._timed), (self._options, self._pushed)

    def check_topics(self) -> None:
        self._queues()
        self.check_pattern("stream")

    def check_pattern(self, mode: str) -> None:
        """Check that a pattern of topics matches one; see `log_lives.check_pattern`."""
        choice = self._options.topics
        if choice.pattern is not None:
            own = [] if choice.system else self._open().system_topics()
            check_pattern(choice, [topic for topic in self._open().topics() if topic not in own], mode)

    def groups(self) -> list[str]:
        return sorted({queue.broker_name for queue in self._queues()})

    def bounds(self, *, qualify: bool) -> dict[Queue, Bounds]:
        found = self._open().bounds(self._queues())
        return {
            (qualified(queue.topic, queue.broker_name if qualify else ""), queue.queue_id): Bounds(*ends)
            for queue, ends in found.items()
        }

    def lives(self, *, qualify: bool) -> tuple[Lives, Lives]:
        found = self._open().lives(self._queues())
        return {
            qualified(topic, group if qualify else ""): life for (topic, group), life in found.items()
        }, {}

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        wanted = {}
        for queue in self._queues():
            for name in (queue.topic, qualified(queue.topic, queue.broker_name)):
                if (name, queue.queue_id) in queues:
                    wanted[queue] = (name, queue.queue_id)
        found = self._open().at_time(wanted, timestamp_ms)
        return {wanted[queue]: offset for queue, offset in found.items()}

    def within(self, times: Bounds, there: Mapping[Queue, Bounds]) -> dict[Queue, Bounds]:
        """Narrow the ranges `there` to the messages that may have been stored in [low, high) ms.

        Only groups whose store times never go back are narrowed, as the broker's search by time finds the
        exact bounds for them. Our own groups are of this kind, because a leader whose clock is behind uses
        the store time of the last message. The ranges of other groups' queues are returned unchanged.
        """
        puller, groups = self._open(), self.groups()
        ordered = [group for group in groups if puller.keeps_order(group)]
        chosen = [queue for queue in sorted(there) if (_group_in(queue) or "".join(groups)) in ordered]
        low = self.at_time(chosen, times.low) if times.low > 0 else {}
        high = self.at_time(chosen, times.high) if times.high < ANY.high else {}
        return {
            queue: bounds.meet(Bounds(low.get(queue, bounds.low), high.get(queue, bounds.high)))
            for queue, bounds in there.items()
        }

    def message_bytes(self, start: Mapping[Queue, int]) -> int:
        """Return the average size of some messages of the fullest queue. It is measured once."""
        if not self._message_bytes:
            found = self._open().bounds(self._queues())
            fullest = max(found, key=lambda queue: found[queue][1] - found[queue][0], default=None)
            if fullest is None or found[fullest][0] >= found[fullest][1]:
                return _DEFAULT_MESSAGE_BYTES
            end = found[fullest][1]
            first = max(found[fullest][0], end - _SAMPLE)
            size = sum(len(records) for _, records in self._open().pull([(fullest, first, end)]))
            self._message_bytes = max(1, size // (end - first))
        return self._message_bytes

    def plan(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        for group, mine in by_group(ranges).items():
            name = group or "".join(self.groups())
            lives = self._lives(name, mine)
            parts += [LivePart(name, tuple(part), lives) for part in parts_of(mine, self._options)]
        return parts

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, LivePart)
        try:
            yield from self._read(part)
        except OffsetsGone as error:
            raise DataLost(str(error)) from error
        finally:
            self.close()

    def close(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            puller.close()

    def _open(self) -> RangePuller:
        if self._puller is None:
            options = self._options
            ranges = RangeOptions(
                consumer_group=options.consumer_group,
                batch_size=options.pull_batch,
                timeout_s=options.pull_timeout_ms / 1000,
                skip_removed=not options.fail_on_data_loss,
                client=options.access.client(),
            )
            self._puller = RangePuller(options.servers, ranges).start()
        return self._puller

    def _lives(self, group: str, ranges: Sequence[QueueRange]) -> TopicLives:
        """Return the lives of the topics of these ranges, if the rows name them."""
        if not self._options.names_lives:
            return NO_TOPIC_LIVES
        topics = {item.topic for item in ranges}
        queues = [queue for queue in self._queues() if queue.topic in topics and queue.broker_name == group]
        return TopicLives({topic: life for (topic, _), life in self._open().lives(queues).items()})

    def _queues(self) -> list[MessageQueue]:
        """Return all queues that the options choose."""
        puller, choice, groups = self._open(), self._options.topics, self._options.groups
        self._check(puller)
        named = choice.named if choice.named is not None else choice.assign
        if named is not None:
            topics = sorted(named)
        else:
            own = [] if choice.system else puller.system_topics()
            topics = [topic for topic in puller.topics() if topic not in own and wants_topic(choice, topic)]
        return [
            queue
            for topic in topics
            if self._pushed.wants_topic(topic)
            for queue in _queues_of(puller, topic)
            if wants_queue(choice, topic, queue.queue_id)
            and self._pushed.wants_queue(topic, queue.queue_id)
            and (not groups or queue.broker_name in groups)
        ]

    def _check(self, puller: RangePuller) -> None:
        """Raises BadOption for a broker group or a queue that the options name and that does not exist. It is
        checked once, as nothing would be read of it."""
        if self._checked:
            return
        if self._options.groups:
            known = puller.broker_groups()
            for group in self._options.groups:
                if group not in known:
                    raise BadOption(
                        f"option group: there is no broker group {group!r}{did_you_mean(group, known)}"
                    )
        for topic, wanted in (self._options.topics.assign or {}).items():
            ids = sorted({queue.queue_id for queue in _queues_of(puller, topic)})
            if missing := sorted(set(wanted) - set(ids)):
                there = ", ".join(map(str, ids))
                raise BadOption(
                    f"option assign: topic {topic} has no queue {missing[0]}; its queues are {there}"
                )
        self._checked = True

    def _read(self, part: LivePart) -> Iterator[pa.RecordBatch]:
        options, pushed, puller = self._options, self._pushed, self._open()
        bounds = {(item.topic, item.queue_id): Bounds(item.low, item.high) for item in part.ranges}
        named = replace(options.topics, named=tuple(sorted({topic for topic, _ in bounds})), pattern=None)
        tags = pushed.only_tags(options.tags)
        selection = Selection(
            topics=replace(named, assign=None),
            tags=tags,
            keys=options.keys,
            offsets=bounds,
            time_ms=time_bounds(options).meet(pushed.time_ms) if self._timed else pushed.time_ms,
            times_ms=batch_times(options) if self._timed else {},
            group=part.group,
        )
        rows = message_rows(options, selection, part.group, part.lives)
        topics = sorted({item.topic for item in part.ranges})
        expression = _expression(tags, topics)
        for topic in topics:
            puller.queues(topic)  # where its brokers are
        ranges = [
            (MessageQueue(item.topic, part.group, item.queue_id), item.low, item.high) for item in part.ranges
        ]
        missing = sum(item.high - item.low for item in part.ranges)
        for data in _joined(records for _, records in puller.pull(ranges, expression)):
            starts, sizes = _records_in(data)
            records = decode(np.frombuffer(data, np.uint8), starts, sizes)
            if part.lives.of:  # asked again, as the messages may be those of a topic that was made meanwhile
                found = sorted(set(records.topics) & set(part.lives.of))
                now = puller.lives([MessageQueue(topic, part.group, 0) for topic in found])
                part.lives.check(found, now, part.group)
            missing -= int(replace(selection, tags=None, time_ms=ANY, times_ms={}).mask(records).sum())
            missing -= int((~records.good).sum())
            yield from rows.of_answer(records, starts, sizes)
        # Of a retry topic, brokers leave out messages whose first topic was deleted.
        whole = expression == ALL and not any(topic.startswith(RETRY_PREFIX) for topic in topics)
        if missing > 0 and whole and options.fail_on_data_loss:
            raise DataLost(f"{part.group}: {missing} messages of {part.ranges} were not received")


def _queues_of(puller: RangePuller, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic. Raises TopicNotFound with a text for readers."""
    try:
        return puller.queues(topic)
    except TopicNotFound as error:
        known: list[str] = []
        with suppress(ClientError):  # this account may not list them
            known = puller.topics()
        text = unknown_topic(topic, known, "no broker serves the topic")
        raise TopicNotFound(text, error.code) from error


def _group_in(queue: Queue) -> str:
    """Return the broker group in a queue's name; the empty text if only one group is read."""
    return topic_and_group(queue[0])[1]


def _expression(tags: frozenset[str] | None, topics: Sequence[str]) -> str:
    """Return a subscription expression with which the brokers send at least all messages that have one of
    these tags.

    Brokers compare only hashes of tags, so the reader must still check the tags. For tags that an
    expression cannot name, and for system topics, the brokers are asked for all messages. In a system
    topic the field of the tag in the ConsumeQueue may hold something else (times, for
    SCHEDULE_TOPIC_XXXX).
    """
    if tags is None or any(map(is_system_topic, topics)):
        return ALL
    if not all(_NAMEABLE.fullmatch(tag) and tag != ALL for tag in tags):
        return ALL
    return " || ".join(sorted(tags))


def _joined(answers: Iterator[bytes]) -> Iterator[bytes]:
    """Yield consecutive answers joined to buffers of about _DECODED_BYTES."""
    pending: list[bytes] = []
    size = 0
    for answer in answers:
        pending.append(answer)
        size += len(answer)
        if size >= _DECODED_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)


def _records_in(data: bytes) -> tuple[Ints, Ints]:
    """Return the starts and the sizes of the records in `data`, which follow each other without gaps."""
    starts = []
    at = 0
    while at + 4 <= len(data):
        starts.append(at)
        size = int.from_bytes(data[at : at + 4], "big")
        at = at + size if size > 4 else len(data)
    edges = np.array([*starts, min(at, len(data))], np.int64)
    return edges[:-1], np.diff(edges)


@dataclass(frozen=True)
class LiveMessagesView:
    """User messages of live brokers: in each queue, those that were committed when the query was planned."""

    options: Options
    pushed: Pushed = NOTHING

    @property
    def columns(self) -> columns.Columns:
        return message_columns(self.options)

    def plan(self) -> list[InputPartition]:
        options, pushed = self.options, self.pushed
        if pushed.tags is not None and not pushed.only_tags(options.tags):
            return []
        # The options may name offsets of queues that filters exclude. These offsets are checked too.
        named = (options.starting, options.ending, options.starting_times or "", options.ending_times or "")
        by_name = any(isinstance(given, Mapping) for given in named)
        queues = LiveQueues(options, NOTHING if by_name else pushed)
        try:
            queues.check_pattern("batch")
            there = queues.bounds(qualify=len(queues.groups()) > 1)
            start = {queue: bounds.low for queue, bounds in there.items()}
            end = {queue: bounds.high for queue, bounds in there.items()}
            start |= _starting(queues, there, options)
            end |= _ending(queues, there, options)
            wanted = {
                queue: bounds.meet(pushed.offset)
                for queue, bounds in there.items()
                if pushed.wants_queue(topic_and_group(queue[0])[0], queue[1])
            }
            if pushed.time_ms != ANY:
                wanted = queues.within(pushed.time_ms, wanted)
            ranges = [
                replace(item, low=max(item.low, bounds.low), high=min(item.high, bounds.high))
                for item in ranges_between(start, end)
                if (bounds := wanted.get((item.topic, item.queue_id))) is not None
            ]
            return queues.plan([item for item in ranges if item.low < item.high])
        finally:
            queues.close()

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        return LiveQueues(self.options, self.pushed, timed=True).read(part)


def _starting(queues: LiveQueues, there: Mapping[Queue, Bounds], options: Options) -> Offsets:
    """Return the offsets at which a batch starts, of those queues for which an option says it."""
    strict, fail = options.unmatched == "error", options.fail_on_data_loss
    if options.starting_ms is not None:
        times = dict.fromkeys(sorted(there), options.starting_ms)
        return at_times(queues, "startingTimestamp", times, there, strict=strict)
    if isinstance(options.starting, Mapping):
        return named_offsets(options.starting, there, "startingOffsets", fail=fail)
    return at_times(queues, "startingOffsetsByTimestamp", options.starting_times, there, strict=strict)


def _ending(queues: LiveQueues, there: Mapping[Queue, Bounds], options: Options) -> Offsets:
    """Return the offsets at which a batch ends, of those queues for which an option says it."""
    if options.ending_ms is not None:
        times = dict.fromkeys(sorted(there), options.ending_ms)
        return at_times(queues, "endingTimestamp", times, there, strict=False)
    if isinstance(options.ending, Mapping):
        return named_offsets(options.ending, there, "endingOffsets", fail=options.fail_on_data_loss)
    return at_times(queues, "endingOffsetsByTimestamp", options.ending_times, there, strict=False)


@dataclass(frozen=True)
class WholePart(InputPartition):
    """The only task of a view with few rows."""

    servers: str


@dataclass(frozen=True)
class LiveQueuesView:
    """The range of offsets of each queue of live brokers."""

    options: Options
    pushed: Pushed = NOTHING

    @property
    def columns(self) -> columns.Columns:
        return columns.queue_columns(life=self.options.include_life)

    def plan(self) -> list[InputPartition]:
        queues = LiveQueues(self.options)
        try:
            queues.check_pattern("batch")
        finally:
            queues.close()
        return [WholePart(self.options.servers)]

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        queues = LiveQueues(self.options, self.pushed)
        named = self.options.include_life
        try:
            there = look(queues, qualify=True) if named else There(queues.bounds(qualify=True))
        finally:
            queues.close()
        rows = [
            (group, None, topic, queue_id, bounds.low, bounds.high, None, None, there.life(name))
            for (name, queue_id), bounds in sorted(there.bounds.items())
            for topic, group in [topic_and_group(name)]
        ]
        return columns.batches(self.columns, (row if named else row[:-1] for row in rows))
