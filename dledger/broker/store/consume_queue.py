"""ConsumeQueue: the log position of each message of a queue (store/ConsumeQueue; formats.consume_queue).

A unit of a ConsumeQueue describes one message in 20 bytes. The newest units are in memory (`tail`); a worker
writes all units to files of 300,000 units. The files contain nothing that is not in the log. After a crash
the files are cut to the bounds in the snapshot and filled again by replay. So they are fsynced only before a
snapshot that relies on them. A file is opened for each use, so that ten thousand queues need no open files.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.formats.consume_queue import FILE_SIZE, UNIT, UNIT_SIZE
from dledger.formats.state import QueueBounds, ReplicatedState
from dledger.formats.store_files import parse_segment_name, segment_name
from dledger.runtime.files import Files


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """Units [first, last) of a ConsumeQueue, which are to be written to its files."""

    queue: ConsumeQueue
    directory: str
    first: int
    last: int
    data: bytes


class ConsumeQueue:
    """One ConsumeQueue in memory. Only the event loop uses it; workers get copies of its bytes
    (`PendingWrite`).

    The hot path of `store.dispatch` appends to `tail` and moves `bounds.next` itself.
    """

    __slots__ = (
        "bounds",
        "directory_made",
        "flushed",
        "names_synced",
        "queue_id",
        "synced",
        "tail",
        "tail_start",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, bounds: QueueBounds) -> None:
        self.topic: str = topic
        self.queue_id: int = queue_id
        self.bounds: QueueBounds = bounds
        self.tail: bytearray = bytearray()
        self.tail_start: int = bounds.next
        """Queue offset of the first unit in `tail`. The units of older messages are only in files."""
        self.flushed: int = bounds.next
        """Queue offset below which the units of all messages are in files, at least in the page cache."""
        self.synced: int = bounds.next
        """Queue offset below which the units of all messages are in files and fsynced."""
        self.directory_made: bool = False
        """Whether the directory of the queue is known to exist."""
        self.names_synced: bool = False
        """Whether the names of all files that the queue has had so far are known to be durable."""

    def append(self, position: int, size: int, tags_code: int) -> None:
        """Add the unit of the message at offset `bounds.next`."""
        if self.bounds.next == 0:
            self.bounds.first_position = position
        self.tail += UNIT.pack(position, size, tags_code)
        self.bounds.next += 1

    def read_hot(self, offset: int, count: int) -> bytes | None:
        """Return the units of up to `count` messages from `offset` on, or None if the unit at `offset` is no
        longer in memory."""
        start = (offset - self.tail_start) * UNIT_SIZE
        if start < 0:
            return None
        return bytes(self.tail[start : start + count * UNIT_SIZE])

    def pending_write(self, root: str) -> PendingWrite | None:
        """Return the units of this ConsumeQueue that are not in files yet, or None if all of them are."""
        last = self.bounds.next
        if self.flushed == last:
            return None
        data = bytes(self.tail[(self.flushed - self.tail_start) * UNIT_SIZE :])
        return PendingWrite(self, queue_dir(root, self.topic, self.queue_id), self.flushed, last, data)

    def trim(self, keep_units: int) -> None:
        """Drop from memory the units that are in files, except those of the newest `keep_units` messages."""
        start = min(self.flushed, self.bounds.next - keep_units)
        if start > self.tail_start:
            del self.tail[: (start - self.tail_start) * UNIT_SIZE]
            self.tail_start = start


class QueueTable:
    """All queues of a store, found by the raw topic of a record or by the name of the topic."""

    def __init__(self, state: ReplicatedState) -> None:
        self._state = state
        self.by_raw_topic: dict[bytes, dict[int, ConsumeQueue]] = {}
        self.count: int = 0
        for topic, queues in state.queues.items():
            for queue_id in queues:
                self.create(topic.encode(), queue_id)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if no message of it was ever applied."""
        queues = self.by_raw_topic.get(topic.encode())
        return None if queues is None else queues.get(queue_id)

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offset of a queue's first message, and the offset that its next message will have. Both
        are 0 if there is no such queue."""
        queue = self.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.bounds.min, queue.bounds.next)

    def create(self, raw_topic: bytes, queue_id: int) -> ConsumeQueue:
        """Return a queue, which is created if it does not exist. Raises UnicodeDecodeError if the topic is
        not UTF-8."""
        queues = self.by_raw_topic.get(raw_topic)
        if queues is None:
            raw_topic.decode()  # before the table changes
            queues = self.by_raw_topic[raw_topic] = {}
        queue = queues.get(queue_id)
        if queue is None:
            topic = raw_topic.decode()
            queue = queues[queue_id] = ConsumeQueue(topic, queue_id, self._state.bounds(topic, queue_id))
            self.count += 1
        return queue

    def drop(self, topic: str) -> None:
        """Remove the queues of a topic, which was deleted. A reader that still uses one of these objects can
        notice this, because `get` no longer returns that object."""
        self.count -= len(self.by_raw_topic.pop(topic.encode(), ()))

    def all(self) -> list[ConsumeQueue]:
        """Return all queues, topic by topic."""
        return [queue for queues in self.by_raw_topic.values() for queue in queues.values()]


# The functions below block; they are for worker jobs.


def queue_dir(root: str, topic: str, queue_id: int) -> str:
    """Return the directory of one queue; `root` is `<storePathRootDir>/consumequeue`."""
    return f"{root}/{topic}/{queue_id}"


def make_directories(files: Files, paths: list[str]) -> None:
    """Make directories of queues and of their topics. The call can be repeated after a failure. It does not
    sync the names of the directories, which would take 40 s for ten thousand queues. The names are made
    durable later, before a snapshot relies on them."""
    for path in paths:
        files.mkdir(path, sync=False)


def write_units(files: Files, writes: list[PendingWrite]) -> None:
    """Write units of ConsumeQueues to the page cache. The queue offset of a unit determines its file and its
    place in the file. The directories must exist."""
    for write in writes:
        for path, at, data in _pieces(write):
            file = files.open(path, create=True)
            try:
                file.pwritev([data], at)
            finally:
                file.close()


def start_writeback(files: Files, ranges: list[tuple[str, int, int]]) -> None:
    """Make the system begin to write these ranges of files (path, length, offset) to the device, without
    waiting."""
    for path, length, offset in ranges:
        file = files.open(path)
        try:
            file.start_writeback(length, offset)
        finally:
            file.close()


def sync_file(files: Files, path: str) -> None:
    """Make the content of one ConsumeQueue file durable."""
    file = files.open(path)
    try:
        file.fdatasync()
    finally:
        file.close()


def read_units(files: Files, directory: str, offset: int, count: int) -> bytes:
    """Read the units of up to `count` messages of a ConsumeQueue from `offset` on, all from one file. Returns
    no bytes if there are no such units."""
    at = offset * UNIT_SIZE
    start = at - at % FILE_SIZE
    path = f"{directory}/{segment_name(start)}"
    try:
        if not files.exists(path):
            return b""
        file = files.open(path)
    except FileNotFoundError:
        return b""  # the topic was deleted since the check
    try:
        data = file.pread(min(count * UNIT_SIZE, start + FILE_SIZE - at), at - start)
    finally:
        file.close()
    return data[: len(data) - len(data) % UNIT_SIZE]


def free_units(files: Files, queues: list[tuple[str, int]]) -> None:
    """Remove the files of ConsumeQueues that are no longer needed. `queues` has pairs of the directory of a
    queue and an offset. A file is removed if it holds only units of messages below the offset."""
    for directory, offset in queues:
        for name in files.listdir(directory):
            start = parse_segment_name(name)
            if start is not None and start + FILE_SIZE <= offset * UNIT_SIZE:
                files.unlink(f"{directory}/{name}")


def cut_queue(files: Files, directory: str, bounds: QueueBounds) -> bool:
    """Remove the units of messages at and above `bounds.next` from the files of a ConsumeQueue. Returns False
    if the files hold fewer units than the bounds say."""
    end = bounds.next * UNIT_SIZE
    covered = 0
    for name in files.listdir(directory):
        start = parse_segment_name(name)
        if start is None:
            continue
        path = f"{directory}/{name}"
        if start >= end:
            files.unlink(path)
            continue
        size = files.size(path)
        covered = max(covered, start + size)
        if start + size > end:
            file = files.open(path)
            try:
                file.truncate(end - start)
            finally:
                file.close()
    return covered >= end or bounds.next == bounds.min


def _pieces(write: PendingWrite) -> list[tuple[str, int, bytes]]:
    pieces = []
    done = 0
    for path, length, offset in file_ranges(write.directory, write.first, write.last):
        pieces.append((path, offset, write.data[done : done + length]))
        done += length
    return pieces


def file_ranges(directory: str, first: int, last: int) -> list[tuple[str, int, int]]:
    """Return where the units of the messages [first, last) are in the files of a ConsumeQueue: for each file
    the path, the length and the offset in bytes."""
    ranges = []
    for start in _file_starts(first, last):
        low = max(first * UNIT_SIZE, start)
        high = min(last * UNIT_SIZE, start + FILE_SIZE)
        ranges.append((f"{directory}/{segment_name(start)}", high - low, low - start))
    return ranges


def _file_starts(first: int, last: int) -> range:
    low = first * UNIT_SIZE
    return range(low - low % FILE_SIZE, last * UNIT_SIZE, FILE_SIZE)
