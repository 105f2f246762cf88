"""Reads and checks a whole source before anything is written. Blocking.

For every record it is decided whether it is kept at its queue offset, or left out; records that are left
out are counted by reason. When the log is written, the same code makes the same decisions again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dledger.broker.topic.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from dledger.commands.moving.source_config import (
    OP_HALF_TOPIC,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TRANSACTION_GROUP,
    Queue,
    SourceConfig,
    is_bookkeeping,
)
from dledger.commands.moving.source_log import (
    MAX_RECORD_SIZE,
    LogReader,
    Message,
    SourceLog,
    SourceUnusable,
)
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.properties import TAGS, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY, find_property
from dledger.formats.record import TRANSACTION_COMMIT, TRANSACTION_MASK, decode_record
from dledger.formats.timers import TIMER_TOPIC
from dledger.runtime import Files

INNER_BATCH = 0x80
"""Flag in sysFlag of a record that holds several messages (MessageSysFlag.INNER_BATCH_FLAG)."""
MAX_OPEN = 500_000
"""Limit for a source: the largest number of open transactions, and the largest number of waiting timer
messages."""
NO_PLACE = "had no offset in a queue"
BOOKKEEPING = "internal records of the broker"
DELETED = "belong to deleted topics"
REPEATED = "not reachable by queue offset"
TIMER_DONE = "timer messages that are done"
LEFT_OUT = (NO_PLACE, BOOKKEEPING, DELETED, REPEATED, TIMER_DONE)
"""Reasons why a record is left out."""
_KEPT_ALWAYS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})
_TAGS, _UNIQ, _OUT = TAGS.encode(), UNIQ_KEY.encode(), TIMER_OUT_MS.encode()
_RECALL = TIMER_DEL_UNIQKEY.encode()
_DONE, _CHECKPOINT = b"d", b"ck"


@dataclass(slots=True)
class QueueTally:
    """The records of one queue, counted. `first` is the queue's first offset in the source; `digest` is a
    CRC-32 over all its records, without their queue offsets and physical offsets."""

    topic: str
    queue_id: int
    first: int = -1
    next: int = 0
    count: int = 0
    digest: int = 0

    def add(self, raw: bytes) -> None:
        """Count a message and add it to the digest."""
        view = memoryview(raw)
        self.digest = crc32(view[36:], crc32(view[:20], self.digest))
        self.count += 1


@dataclass
class Selection:
    """Decides which records are kept, in the order of the log. `timers` holds the positions of the timer
    messages that are kept. It is empty in a survey, which keeps none."""

    known_topics: frozenset[str] | None
    timers: frozenset[int] = frozenset()
    queues: dict[tuple[bytes, int], QueueTally] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEFT_OUT, 0))
    restarted: str = ""
    """Name of a topic if the last record is the first one of a new topic of this name, after an earlier
    topic of that name was deleted; otherwise empty."""
    _unknown: set[bytes] = field(default_factory=set)

    def place(self, message: Message) -> QueueTally | None:
        """Return the queue in which a record is kept, or None if the record is left out. The record's
        offset is the queue's `next`.

        Raises SourceUnusable if the record has no valid place.
        """
        self.restarted = ""
        sys_flag = message.sys_flag
        if sys_flag & (TRANSACTION_MASK | INNER_BATCH):
            if sys_flag & INNER_BATCH:
                raise SourceUnusable(
                    f"the message at {message.position} is a batch with one place in its queue "
                    "(queue.type=BatchCQ): such topics cannot be imported; consume their messages "
                    "and delete them first"
                )
            if sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                self.left_out[NO_PLACE] += 1
                return None
        key = (message.topic, message.queue_id)
        tally = self.queues.get(key)
        if tally is None:
            made = self._begin(message)
            if isinstance(made, str):
                self.left_out[made] += 1
                return None
            tally = self.queues[key] = made
        if tally.topic == TIMER_TOPIC:
            if message.position in self.timers:
                return tally
            self.left_out[TIMER_DONE] += 1
            return None
        offset = message.queue_offset
        if tally.first < 0:
            tally.first = tally.next = offset
        if offset == tally.next:
            return tally
        if offset == 0:
            for other in self.queues.values():
                if other.topic == tally.topic:
                    other.next = 0
            self.restarted = tally.topic
            return tally
        if offset < tally.next:
            self.left_out[REPEATED] += 1  # as in Apache's ConsumeQueue
            return None
        raise SourceUnusable(
            f"queue {tally.queue_id} of {tally.topic}: the message at {message.position} has queue "
            f"offset {offset} instead of {tally.next}: messages between them are missing"
        )

    def _begin(self, message: Message) -> QueueTally | str:
        if message.topic in self._unknown:
            return DELETED
        try:
            topic = message.topic.decode()
        except UnicodeDecodeError as error:
            raise SourceUnusable(f"the topic of the message at {message.position}: {error}") from error
        if not topic or message.queue_id < 0:
            raise SourceUnusable(f"the message at {message.position} belongs to no queue")
        if is_bookkeeping(topic):
            return BOOKKEEPING
        if self.known_topics is not None and topic not in self.known_topics:
            self._unknown.add(message.topic)
            return DELETED
        return QueueTally(topic, message.queue_id, 0 if topic == TIMER_TOPIC else -1)


@dataclass
class OpenTransaction:
    """A half message that is neither committed nor rolled back. `at` is its queue offset."""

    at: int
    store_ms: int


@dataclass
class Survey:
    """What will be imported, as read from the source. `bytes` is the size of all entries, and `largest`
    that of the largest one. `end` is the physical offset after the last record. `popped` is the number of
    messages that were popped and for which no acknowledgement was found."""

    queues: list[QueueTally]
    timers: list[int]
    transactions: list[OpenTransaction]
    messages: int
    bytes: int
    largest: int
    store_ms: int
    end: int
    ended_by: str
    entry: tuple[int, int]
    left_out: dict[str, int]
    popped: int
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the survey as JSON, for a plan."""
        return {
            "bytes": self.bytes,
            "end": self.end,
            "ended_by": self.ended_by,
            "entry": list(self.entry),
            "largest": self.largest,
            "left_out": self.left_out,
            "messages": self.messages,
            "notes": self.notes,
            "popped": self.popped,
            "queues": [
                [one.topic, one.queue_id, one.first, one.next, one.count, one.digest] for one in self.queues
            ],
            "store_ms": self.store_ms,
            "timers": self.timers,
            "transactions": [[one.at, one.store_ms] for one in self.transactions],
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Survey:
        """Return the survey that `as_json` had turned into this JSON value."""
        fields = dict(value)
        fields["queues"] = [QueueTally(*row) for row in value["queues"]]
        fields["transactions"] = [OpenTransaction(*row) for row in value["transactions"]]
        fields["entry"] = tuple(value["entry"])
        return cls(**fields)


class _Unfinished:
    """Finds unfinished transactions, timers and pops in the records of the topics that Apache's brokers
    have for their own use."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._begin = config.offsets.get(TRANSACTION_GROUP, {}).get((HALF_TOPIC, 0), 0)
        self._halves: dict[int, tuple[bytes, int]] = {}
        self._done: set[int] = set()
        self._timers: dict[bytes, tuple[int, int]] = {}
        self.popped: int = 0
        self.without_clock: int = 0

    def see(self, message: Message) -> None:
        """Take account of a record of one of these topics."""
        topic = message.topic.decode(errors="replace")
        if topic == HALF_TOPIC:
            if message.queue_offset >= self._begin:
                key = find_property(message.properties, _UNIQ) or b"%d" % message.queue_offset
                self._halves[message.queue_offset] = (key, message.store_ms)
        elif topic == OP_HALF_TOPIC:
            if find_property(message.properties, _TAGS) == _DONE:
                for text in decode_record(message.raw).body.split(b","):
                    if text.strip().isdigit():
                        self._done.add(int(text))
        elif topic == TIMER_TOPIC:
            out = find_property(message.properties, _OUT)
            due = int(out) if out is not None and out.isdigit() else 0
            if self._config.timer_read_ms is None:
                self.without_clock += 1
            elif due >= self._config.timer_read_ms:
                key = find_property(message.properties, _UNIQ) or b"@%d" % message.position
                if find_property(message.properties, _RECALL) is not None:
                    key += b" recall"  # it has the key of the message that it recalls
                self._timers[key] = (
                    message.position,
                    len(message.raw),
                )  # the last one, if it was put again
        elif topic.startswith(REVIVE_PREFIX):
            known = self._config.offsets.get(REVIVE_GROUP, {}).get((topic, message.queue_id), -1)
            if message.queue_offset > known and find_property(message.properties, _TAGS) == _CHECKPOINT:
                self.popped += 1
        if len(self._halves) > 2 * MAX_OPEN or len(self._timers) > MAX_OPEN:
            raise SourceUnusable(
                f"more than {MAX_OPEN} transactions or timer messages are open, and that is the "
                "limit: let them finish before the import"
            )

    def transactions(self) -> list[OpenTransaction]:
        """Return the open transactions. If a half message was stored more than once, only the last one
        counts."""
        last = {key: (at, ms) for at, (key, ms) in sorted(self._halves.items())}
        ended = {self._halves[at][0] for at in sorted(self._done & self._halves.keys())}
        return [OpenTransaction(at, ms) for key, (at, ms) in last.items() if key not in ended]

    def timers(self) -> list[tuple[int, int]]:
        """Return position and size in bytes of each timer message that still waits, in the order of the
        log."""
        return sorted(self._timers.values())


def known_topics(config: SourceConfig) -> frozenset[str] | None:
    """Return the topics whose messages are kept; None, which means all topics, if the source has no list
    of topics."""
    if config.topics is None:
        return None
    return frozenset(config.topics) | _KEPT_ALWAYS | {topic for topic, _ in config.queue_ends}


def survey(
    files: Files, log: SourceLog, config: SourceConfig, told: Callable[[int], None], *, unclean: bool = False
) -> Survey:
    """Read the whole source. `told` is called with the number of bytes read so far. `unclean` says that
    the log may end before the ConsumeQueues do.

    Raises SourceUnusable, whose text says what is wrong with the source. In that case nothing was written.
    """
    reader = LogReader(files, log)
    selection = Selection(known_topics(config))
    unfinished = _Unfinished(config)
    messages = size = store_ms = largest = 0
    for message in reader.messages():
        if len(message.raw) > MAX_RECORD_SIZE:
            raise SourceUnusable(
                f"the message at {message.position} has {len(message.raw)} bytes; the limit is "
                f"{MAX_RECORD_SIZE}"
            )
        store_ms = max(store_ms, message.store_ms)
        largest = max(largest, HEADER_SIZE + len(message.raw))
        tally = selection.place(message)
        if tally is not None:
            tally.next += 1
            tally.add(message.raw)
            messages += 1
            size += HEADER_SIZE + len(message.raw)
        if message.topic in _WATCHED or message.topic.startswith(_REVIVE):
            unfinished.see(message)
        told(message.position)
    timers = unfinished.timers()
    selection.left_out[TIMER_DONE] -= len(timers)
    if unfinished.without_clock:
        raise SourceUnusable(
            f"{unfinished.without_clock} messages in {TIMER_TOPIC}, but config/timercheck is missing, "
            "which says which of them are delivered"
        )
    delayed = sum(one.count for one in selection.queues.values() if one.topic == SCHEDULE_TOPIC)
    if delayed and config.delays is None:
        raise SourceUnusable(
            f"{delayed} messages in {SCHEDULE_TOPIC}, but config/delayOffset.json is missing, which "
            "says which of them are delivered. To deliver all of them (again), write "
            '{"offsetTable":{}} into that file'
        )
    _check_ends(log, config, selection, reader, unclean=unclean)
    queues = [one for one in selection.queues.values() if one.topic != TIMER_TOPIC and one.first >= 0]
    return Survey(
        queues=queues,
        timers=[position for position, _ in timers],
        transactions=unfinished.transactions(),
        messages=messages + len(timers),
        bytes=size + sum(HEADER_SIZE + length for _, length in timers),
        largest=largest,
        store_ms=store_ms,
        end=reader.end,
        ended_by=reader.ended_by,
        entry=reader.entry,
        left_out=selection.left_out,
        popped=unfinished.popped,
        notes=config.notes,
    )


_WATCHED = frozenset(topic.encode() for topic in (HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC))
_REVIVE = REVIVE_PREFIX.encode()


def _check_ends(
    log: SourceLog, config: SourceConfig, selection: Selection, reader: LogReader, *, unclean: bool
) -> None:
    """Raise SourceUnusable if other files of the store show that the log must have continued after the end
    that was read."""
    checkpoint = log.replica.checkpoint if log.replica else None
    if checkpoint is not None and checkpoint.committed_index > reader.entry[0]:
        raise SourceUnusable(
            f"{log.root}: entries up to {checkpoint.committed_index} are committed, but only those up "
            f"to {reader.entry[0]}{_behind(reader)} can be read: use the store of another replica"
        )
    ends = {
        (one.topic, one.queue_id): one.next for one in selection.queues.values() if one.topic != TIMER_TOPIC
    }
    short: list[tuple[Queue, int]] = [
        (queue, end)
        for queue, (end, position) in config.queue_ends.items()
        if position >= reader.end or end > ends.get(queue, end)
    ]
    if short and not unclean:
        (topic, queue_id), end = short[0]
        raise SourceUnusable(
            f"{log.root}: {len(short)} ConsumeQueues continue after the end of the log, for example "
            f"queue {queue_id} of {topic} up to offset {end}; the log ends at "
            f"{reader.end}{_behind(reader)}. If the broker was killed, start it once and stop it "
            "cleanly; if it cannot be started, --unclean imports what the log holds"
        )


def _behind(reader: LogReader) -> str:
    return f" ({reader.ended_by})" if reader.ended_by else ""
