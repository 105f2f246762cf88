"""Streams over store directories: by queue, through the ConsumeQueues, or by log index.

A stream shows only entries that the replica knows to be committed. In each group the replica with the
highest committed index is read. It is chosen again for each batch, which is possible because offsets are
the same on all replicas of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.scan import Window
from dledger.audit.segment_places import SegmentPlaces
from dledger.audit.store_directory import Replica
from dledger.formats.entry import HEADER_SIZE, MAGIC
from dledger.formats.life import Life
from dledger.formats.message_ids import tags_code
from dledger.runtime import Files
from dledger.runtime.remote_files import files_for
from dledger.spark.copies import Copy, LogCopies, OtherReplicas, Places, others_of, warn
from dledger.spark.entry_ranges import Ints, checked, headers, is_retired
from dledger.spark.expected import Expected
from dledger.spark.log_lives import NO_LIVES, KnownLives, LogLives, check_topics, log_topics
from dledger.spark.messages import CorruptMessage, MessageRows, message_rows
from dledger.spark.offsets import DataLost, Lives, Offsets, QueueRange, by_group, parts_of
from dledger.spark.option_values import Queue
from dledger.spark.options import Options
from dledger.spark.queues import QueueFiles, read_units, unit_files
from dledger.spark.selection import (
    Bounds,
    Selection,
    qualified,
    topic_and_group,
    wants_queue,
    wants_topic,
)
from dledger.spark.state import topic_lives
from dledger.spark.stores import best_of_each_group, open_replicas, packed, pieces
from dledger.spark.topic_segments import held_state
from dledger.spark.versions import InputPartition
from dledger.spark.views import PiecePack

LOG = "log"
"""Stands for the name of a topic in the offsets of a stream by log index: `{"log/0": n}`."""
_CHUNK = 8 * 1024 * 1024
_MAX_GAP = 64 * 1024
"""Largest gap, in bytes, between two messages that are read together. The bytes between them belong to
other queues and are read too."""


@dataclass(frozen=True)
class QueuePart(InputPartition):
    """The part of one task: ranges of queues of one replica. Their topics are plain names, without the
    group."""

    places: SegmentPlaces
    queue_root: str
    segment_size: int
    committed: int
    group: str
    ranges: tuple[QueueRange, ...]
    lives: LogLives = NO_LIVES
    others: Places = ()
    """The other replicas of the group, which are read where this one is damaged."""


@dataclass(frozen=True)
class _QueueCopies:
    """The `Copies` for some messages of a stream. Keys are numbers of messages in `wanted`."""

    others: OtherReplicas
    wanted: Expected

    def __len__(self) -> int:
        return len(self.others.places) and len(self.others.opened)

    def place(self, number: int) -> str:
        return self.others.opened[number].directory

    def keys(self, window: Window) -> Ints:
        return np.arange(len(window.columns))

    def read(self, number: int, first: int, last: int) -> Iterator[Copy]:
        replica = self.others.opened[number]
        files = files_for(replica.directory)
        if not replica.queue_root:
            return
        for key in range(first, last + 1):
            topic = self.wanted.topics[int(self.wanted.topic[key])]
            queue_id, offset = int(self.wanted.queue_id[key]), int(self.wanted.offset[key])
            part = QueuePart(
                replica.places, replica.queue_root, replica.segment_size, replica.committed, replica.group, ()
            )
            units = unit_files(files, replica.queue_root, topic, queue_id)
            try:
                unit = read_units(units, Bounds(offset, offset + 1))
            finally:
                units.close()
            if len(unit) and unit["size"][0] > 0 and unit["position"][0] >= HEADER_SIZE:
                position = unit["position"].astype(np.int64) - HEADER_SIZE
                size = unit["size"].astype(np.int64) + HEADER_SIZE
                with suppress(DataLost):
                    window = _read_window(files, part, position, size)
                    yield Copy(np.array([key]), window, self.wanted[key : key + 1])


@dataclass(frozen=True)
class DirectoryQueues:
    """The `streaming.Queues` of store directories, read through the ConsumeQueues."""

    options: Options
    known: KnownLives = field(default_factory=KnownLives, compare=False, repr=False)

    def check_topics(self) -> None:
        check_options(self.options, self._replicas())

    def groups(self) -> list[str]:
        return [replica.group for replica in self._replicas()]

    def bounds(self, *, qualify: bool) -> dict[Queue, Bounds]:
        found = {}
        for replica in self._replicas():
            files = QueueFiles(replica)
            group = replica.group if qualify else ""
            for topic, queue_id in files.queues():
                if wants_queue(self.options.topics, topic, queue_id):
                    found[qualified(topic, group), queue_id] = files.bounds(topic, queue_id)
        return found

    def lives(self, *, qualify: bool) -> tuple[Lives, Lives]:
        found: tuple[Lives, Lives] = {}, {}
        for replica in self._replicas():
            for into, lives in zip(found, topic_lives(replica), strict=True):
                for topic, life in lives.items():
                    if wants_topic(self.options.topics, topic):
                        into[qualified(topic, replica.group if qualify else "")] = life
        return found

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        found = {}
        for name, queue_id in queues:
            topic, group = topic_and_group(name)
            for replica in self._of(group):
                found[name, queue_id] = QueueFiles(replica).at_time(topic, queue_id, timestamp_ms)
        return found

    def message_bytes(self, start: Mapping[Queue, int]) -> int:
        return average_entry(self._replicas())

    def plan(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        given = open_replicas(self.options.paths, self.options.groups)
        for group, mine in by_group(ranges).items():
            (replica,) = self._of(group)
            named = self.options.names_lives
            lives = stream_lives(self.options, replica, self.known) if named else NO_LIVES
            lives = lives.of_topics({item.topic for item in mine})
            parts += [
                QueuePart(
                    replica.places,
                    replica.queue_root,
                    replica.segment_size,
                    replica.committed,
                    replica.group,
                    tuple(part),
                    lives,
                    others_of(replica, given),
                )
                for part in parts_of(mine, self.options)
            ]
        return parts

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, QueuePart)
        tags = frozenset(self.options.tags) or None
        named = tuple(sorted({item.topic for item in part.ranges}))
        topics = replace(self.options.topics, named=named)
        selection = Selection(topics, tags, self.options.keys, group=part.group)
        return read_queues(part, message_rows(self.options, selection, part.group, part.lives))

    def close(self) -> None:
        """Does nothing, as no file is kept open."""

    def _replicas(self) -> list[Replica]:
        return best_of_each_group(open_replicas(self.options.paths, self.options.groups))

    def _of(self, group: str) -> list[Replica]:
        return [replica for replica in self._replicas() if group in ("", replica.group)]


def check_options(options: Options, replicas: Sequence[Replica]) -> None:
    """Raises BadOption if the options name a topic that none of the logs has. Warns about a pattern that
    matches none."""
    if options.topics.names or options.topics.pattern is not None:
        known = [log_topics(replica, held_state(replica), replica.committed) for replica in replicas]
        check_topics(options, known, "stream")


def stream_lives(options: Options, replica: Replica, known: KnownLives) -> LogLives:
    """Return the lives of topics, as far as a batch of a stream needs them."""
    if options.include_deleted and not options.names_lives:
        return NO_LIVES
    held, history = held_state(replica), options.whole_history
    return log_topics(replica, held, replica.committed, history=history, known=known).lives


def average_entry(replicas: Sequence[Replica]) -> int:
    """Return the average size of an entry of these logs in bytes, from the sizes and indexes of the logs;
    1 if they are empty."""
    size = sum(segment.size for replica in replicas for segment in replica.segments)
    entries = 0
    for replica in replicas:
        firsts = [segment.first_index for segment in replica.segments if segment.first_index is not None]
        entries += replica.committed + 1 - min(firsts) if firsts else 0
    return max(1, size // max(1, entries))


def read_queues(part: QueuePart, rows: MessageRows) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges in the order of the log. Raises DataLost, CorruptMessage or
    OSError."""
    files = files_for(part.places.first)
    wanted = _places(files, part, rows.selection.tags)
    position, end = wanted.position - HEADER_SIZE, wanted.position + wanted.size
    begins = 0
    while begins < len(position):
        stop = _chunk_end(position, end, begins, part.segment_size)
        chunk = slice(begins, stop)
        yield from _rows_of(files, part, rows, wanted, chunk)
        begins = stop


def _rows_of(
    files: Files, part: QueuePart, rows: MessageRows, wanted: _Places, chunk: slice
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a chunk. What is damaged or lost is taken from other replicas."""
    position, size = wanted.position[chunk] - HEADER_SIZE, wanted.size[chunk] + HEADER_SIZE
    expected = wanted.expected(chunk)
    lost: Exception | None = None
    try:
        window = _read_window(files, part, position, size)
    except (DataLost, OSError) as error:
        if not part.others and not rows.lossy:
            raise
        lost, window = error, _window_of(b"", part, position, size)
    copies = _QueueCopies(OtherReplicas(part.others), expected)
    try:
        yield from rows.of_window(window, expected, store=part.places.first.rpartition("/")[0], copies=copies)
    except CorruptMessage as error:
        start = int(position[0]) - int(position[0]) % part.segment_size
        if rows.lossy and isinstance(lost, DataLost) and is_retired(part.places.directories, start):
            return
        raise lost or error from error


@dataclass(frozen=True)
class _Places:
    """Places in the log, ascending, and the message that must be at each place."""

    topics: list[str]
    topic: Ints
    queue_id: Ints
    offset: Ints
    position: Ints
    size: Ints

    def expected(self, chunk: slice) -> Expected:
        return Expected(self.topics, self.topic[chunk], self.queue_id[chunk], self.offset[chunk])


def _places(files: Files, part: QueuePart, tags: frozenset[str] | None) -> _Places:
    codes = None if tags is None else np.array([tags_code(tag) for tag in sorted(tags)], np.int64)
    topics = sorted({item.topic for item in part.ranges})
    columns: list[Ints] = []
    for item in part.ranges:
        found = _units_of(files, part.queue_root, item)
        for replica in () if _whole(found, item) else OtherReplicas(part.others).opened:
            other = _units_of(files_for(replica.directory), replica.queue_root, item)
            if _whole(other, item):
                warn(
                    part.queue_root, f"{item.topic}/{item.queue_id}", "units are missing", replica.queue_root
                )
                found = other
                break
        if not _whole(found, item):
            raise DataLost(
                f"{part.queue_root}/{item.topic}/{item.queue_id}: no unit for some offset from "
                f"{item.low} to {item.high - 1}: the ConsumeQueue is damaged or was cut; "
                "offsetType=log works without it"
            )
        count = len(found)
        table = np.empty((5, count), np.int64)
        table[0], table[1] = topics.index(item.topic), item.queue_id
        table[2] = np.arange(item.low, item.high)
        table[3], table[4] = found["position"], found["size"]
        columns.append(table if codes is None else table[:, np.isin(found["tags_code"], codes)])
    every = np.concatenate(columns, axis=1) if columns else np.empty((5, 0), np.int64)
    return _Places(topics, *every[:, np.argsort(every[3], kind="stable")])


def _units_of(files: Files, root: str, item: QueueRange) -> npt.NDArray[np.void]:
    units = unit_files(files, root, item.topic, item.queue_id)
    try:
        return read_units(units, Bounds(item.low, item.high))
    finally:
        units.close()


def _whole(units: npt.NDArray[np.void], item: QueueRange) -> bool:
    return len(units) == max(0, item.high - item.low) and bool((units["size"] > 0).all())


def _chunk_end(position: Ints, end: Ints, first: int, segment_size: int) -> int:
    """Return where a read that begins with message `first` ends, as the number of a message. A read is
    within one segment and has no gap above _MAX_GAP. It has at most _CHUNK bytes, unless its only message
    is larger."""
    limit = min(position[first] + _CHUNK, (position[first] // segment_size + 1) * segment_size)
    stop = max(first + 1, int(np.searchsorted(end, limit, side="right")))
    gaps = np.flatnonzero(position[first + 1 : stop] - end[first : stop - 1] > _MAX_GAP)
    return first + 1 + int(gaps[0]) if len(gaps) else stop


def _read_window(files: Files, part: QueuePart, position: Ints, size: Ints) -> Window:
    """Read the entries at these places of one segment. A place without an entry is marked as damaged."""
    base, end = int(position[0]), int((position + size).max())
    start = base - base % part.segment_size
    path = part.places.path_of(start)
    try:
        file = files.open_read(path)
    except FileNotFoundError as error:
        raise DataLost(f"{path}: the segment was deleted before it was read") from error
    try:
        data = file.pread(end - base, base - start)
    finally:
        file.close()
    return _window_of(data, part, position, size)


def _window_of(data: bytes, part: QueuePart, position: Ints, size: Ints) -> Window:
    """Return the entries at these places, if `data` begins at the first of them."""
    base, end = int(position[0]), int((position + size).max())
    data = data.ljust(end - base, b"\0")
    starts = position - base
    head = headers(data, starts)
    right = (
        (head["magic"] == MAGIC)
        & (head["pos"] == position)
        & (head["size"] == size)
        & (head["body"] == size - HEADER_SIZE)
        & (head["index"] <= part.committed)
    )
    head["size"][~right], head["pos"][~right], head["channel"][~right] = size[~right], position[~right], 0
    found = checked(data, head, starts)
    return Window(data, base, replace(found, damage=np.where(right, found.damage, BODY_DAMAGED)))


@dataclass(frozen=True)
class DirectoryLog:
    """The `streaming.Queues` of store directories by log index: the whole log is one queue and is read in
    order. It serves archives and audits."""

    options: Options
    known: KnownLives = field(default_factory=KnownLives, compare=False, repr=False)

    def check_topics(self) -> None:
        check_options(self.options, self._replicas())

    def groups(self) -> list[str]:
        return [replica.group for replica in self._replicas()]

    def bounds(self, *, qualify: bool) -> dict[Queue, Bounds]:
        return {
            (qualified(LOG, replica.group if qualify else ""), 0): Bounds(
                next((part.first_index for part in replica.segments if part.first_index is not None), 0),
                replica.committed + 1,
            )
            for replica in self._replicas()
        }

    def lives(self, *, qualify: bool) -> tuple[Lives, Lives]:
        found = {
            qualified(LOG, replica.group if qualify else ""): str(Life(replica.identity.cluster, 0))
            for replica in self._replicas()
            if replica.identity is not None and replica.identity.cluster
        }
        return found, {}

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        raise NotImplementedError("refused with the options")

    def message_bytes(self, start: Mapping[Queue, int]) -> int:
        return average_entry(self._replicas())

    def plan(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        given = open_replicas(self.options.paths, self.options.groups)
        for item in ranges:
            _, group = topic_and_group(item.topic)
            for replica in self._replicas():
                if group in ("", replica.group):
                    most = self.options.max_records
                    span = [(item.low, item.high - 1)]
                    found = pieces(replica, replica.committed, span, most=most)
                    packs = packed(found, self.options.min_partitions, most=most)
                    others = others_of(replica, given)
                    lives = stream_lives(self.options, replica, self.known)
                    named = self.options.names_lives
                    wants = partial(wants_topic, self.options.topics)
                    parts += [
                        PiecePack(pack, replica.group, lives.of_pieces(pack, wants, named=named), others)
                        for pack in packs
                    ]
        return parts

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, PiecePack)
        tags = frozenset(self.options.tags) or None
        selection = Selection(self.options.topics, tags, self.options.keys, group=part.group)
        rows = message_rows(self.options, selection, part.group, part.lives)
        copies = LogCopies(OtherReplicas(part.others))
        for piece in part.pieces:
            yield from rows.of_piece(piece, piece.task.committed, copies)

    def close(self) -> None:
        """Does nothing, as no file is kept open."""

    def _replicas(self) -> list[Replica]:
        return best_of_each_group(open_replicas(self.options.paths, self.options.groups))
