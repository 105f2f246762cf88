"""Checks ConsumeQueue units against the messages of one segment, in both directions.

Units are written after the log and may be behind it. Units that are not written yet are not a fault (the side
scan reports how far the files reach). Every earlier unit must agree with the log. Only committed messages are
compared.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from dledger.audit.entries import Array
from dledger.audit.findings import QueueRow
from dledger.audit.records import QueueKey, Records, differing_units
from dledger.audit.unit_files import UnitFiles
from dledger.audit.walk import Fault
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.runtime import Files

_QUEUE_FLUSH_UNITS = 64 * 1024
"""Largest number of messages that wait to be compared (about 4 MB)."""
_MAX_QUEUE_HANDLES = 128
_SHORT = 1 << 16


class QueueCheck:
    """Checks the ConsumeQueue units of one segment's messages.

    Forward, the unit at a message's queue offset must point at the message. In reverse, the units just before
    and after those of this segment's messages must not point into the segment. If `root` is empty, only queue
    offsets are checked.

    * `applied`: the units of messages up to this index must exist, because the broker recorded that durably.
    * `without_codes`: topics whose third field of a unit is not compared.
    * `deleted`: maps each deleted topic to the log offset below which its messages have no units any longer.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        replica: str,
        segment: int,
        applied: int = -1,
        deleted: Mapping[str, int] = MappingProxyType({}),
        without_codes: Container[bytes] = (),
    ) -> None:
        self._deleted = {topic.encode(): at for topic, at in deleted.items()}
        self._without_codes = without_codes
        self._files = files
        self._root = root
        self._replica = replica
        self._segment = segment
        self._applied = applied
        self._queues: dict[QueueKey, _Queue] = {}
        self._handles: dict[QueueKey, UnitFiles] = {}
        self._keys: list[QueueKey] = []
        self._waiting: list[tuple[Array, Array, Array, Array]] = []
        """Columns of messages that wait: number of the queue, queue offset, index, unit."""
        self._pending = 0
        self.opaque: int = 0
        """Number of entries that may have been messages of any queue. As many offsets of each queue may be
        missing."""
        self.lacking: int = 0
        """Number of messages that have no unit yet."""
        self.error: OSError | None = None
        """Reason why no files are read any longer."""
        self.faults: list[Fault] = []

    def topic_deleted(self, topic: str, at: int) -> None:
        """Note that the log deletes a topic at this offset. Its earlier messages have no units any longer."""
        raw = topic.encode()
        if self._deleted.get(raw, -1) >= at:
            return  # the state file knew
        self._sort_in()
        self._deleted[raw] = at
        for key in [key for key in self._queues if key[0] == raw]:
            del self._queues[key]
        self.faults[:] = [fault for fault in self.faults if not fault.detail.startswith(f"{topic}/")]

    def add_opaque(self, count: int) -> None:
        """Note that each of the next `count` entries may be a message of any queue."""
        if count:
            self._sort_in()
            self.opaque += count

    def expect(self, index: int, unit: tuple[bytes, int, int, bytes]) -> None:
        """Add a dispatched message, in order of the log. `unit` is (topic, queue id, queue offset, packed
        unit)."""
        topic, queue_id, offset, packed_unit = unit
        if topic in self._deleted and unpack_unit(packed_unit).physical_offset < self._deleted[topic]:
            return
        self._sort_in()
        self._expect_run((topic, queue_id), offset, packed_unit, np.array([index]))

    def expect_all(self, keys: list[QueueKey], which: Array, records: Records, units: Array) -> None:
        """Add the dispatched messages of one window, in order of the log. `which` has for each message the
        number of its queue in `keys`, a list that only grows."""
        self._keys = keys
        if self._deleted:
            gone_below = np.array([self._deleted.get(topic, -1) for topic, _ in keys], np.int64)
            there = records.physical >= gone_below[which]
            which, records, units = which[there], records[there], units[there]
        if not len(which):
            return
        self._waiting.append((which, records.queue_offset, records.index, units))
        self._pending += len(records)
        if self._pending >= _QUEUE_FLUSH_UNITS:
            self.flush()

    def _sort_in(self) -> None:
        """Distribute the waiting messages to their queues."""
        if not self._waiting:
            return
        which, offsets, indexes, units = map(np.concatenate, zip(*self._waiting, strict=True))
        self._waiting.clear()
        keys = self._keys
        # Numpy sorts short numbers by their digits, in a fifth of the time.
        order = np.argsort(which.astype(np.uint16) if len(keys) <= _SHORT else which, kind="stable")
        which, offsets, indexes = which[order], offsets[order], indexes[order]
        units = units.take(order, axis=0)  # rows: a quarter of the time of `units[order]`
        edges = np.flatnonzero((np.diff(which) != 0) | (np.diff(offsets) != 1)) + 1
        bounds = [0, *edges.tolist(), len(order)]
        for first, end in pairwise(bounds):
            self._expect_run(
                keys[which[first]], int(offsets[first]), units[first:end].tobytes(), indexes[first:end]
            )

    def _expect_run(self, key: QueueKey, offset: int, units: bytes, indexes: Array) -> None:
        """Add messages of one queue with consecutive offsets."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(offset)
        elif offset != queue.next:
            if not 0 < offset - queue.next <= self.opaque:
                text = f"{_name(key)}: queue offset {offset} after {queue.next - 1}"
                index = int(indexes[0])
                self.faults.append(Fault("QUEUE_OFFSET", index, index, text))
            self._compare(key, queue)
            queue.pending_first = offset
            queue.dense = False
        queue.next = offset + len(indexes)
        queue.pending.append(units)
        queue.indexes.append(indexes)

    def flush(self) -> None:
        """Compare the collected messages with the files."""
        self._sort_in()
        for key, queue in self._queues.items():
            if queue.pending:
                self._compare(key, queue)
        self._pending = 0

    def finish(self, from_pos: int, end_pos: int) -> Iterator[QueueRow]:
        """Do the reverse check for log range [from_pos, end_pos), and yield one row for each queue."""
        self.flush()
        for key in sorted(self._queues):
            queue = self._queues[key]
            if queue.dense and not self.opaque:
                self._check_beside(key, queue.first - 1, queue.indexes_first, from_pos, end_pos)
                self._check_beside(key, queue.next, queue.index_last, from_pos, end_pos)
            topic = key[0].decode("utf-8", "replace")
            offsets = (queue.first, queue.next - 1, queue.due)
            yield QueueRow(self._replica, self._segment, topic, key[1], *offsets)

    def close(self) -> None:
        """Close the files."""
        for files in self._handles.values():
            files.close()
        self._handles.clear()

    def _give_up(self, error: OSError) -> None:
        self.error = error
        self._root = ""

    def _unit_files(self, key: QueueKey) -> UnitFiles | None:
        if not self._root:
            return None
        handle = self._handles.get(key)
        if handle is None:
            if len(self._handles) >= _MAX_QUEUE_HANDLES:
                self.close()
            topic = key[0].decode("utf-8", "replace")
            handle = self._handles[key] = UnitFiles(self._files, f"{self._root}/{topic}/{key[1]}", UNIT_SIZE)
        return handle

    def _compare(self, key: QueueKey, queue: _Queue) -> None:
        if not queue.pending:
            return
        units, indexes, first = b"".join(queue.pending), np.concatenate(queue.indexes), queue.pending_first
        queue.pending, queue.indexes, queue.pending_first = [], [], first + len(indexes)
        if queue.indexes_first < 0:
            queue.indexes_first = int(indexes[0])
        queue.index_last = int(indexes[-1])
        due = int(np.searchsorted(indexes, self._applied, side="right"))
        if due:
            queue.due = first + due - 1
        try:
            files = self._unit_files(key)
            if files is None:
                return
            count = min(len(indexes), max(files.end() - first, 0))  # what lies above is lag
            stored = files.read(first, count) if count else b""
        except OSError as error:
            self._give_up(error)
            return
        self.lacking += len(indexes) - count
        expected = units[: count * UNIT_SIZE]
        if stored == expected:
            return
        for number in differing_units(stored, expected, without_code=key[0] in self._without_codes):
            index = int(indexes[number])
            where = f"{_name(key)} offset {first + number}"
            theirs, ours = (
                text[number * UNIT_SIZE : (number + 1) * UNIT_SIZE] for text in (stored, expected)
            )
            if any(theirs):
                text = f"{where}: {_says_queue(theirs)} instead of {_says_queue(ours)}"
                self.faults.append(Fault("QUEUE_MISMATCH", index, index, text))
            else:
                self.faults.append(Fault("QUEUE_MISSING", index, index, f"{where}: the unit is missing"))

    def _check_beside(self, key: QueueKey, offset: int, index: int, from_pos: int, end_pos: int) -> None:
        try:
            files = self._unit_files(key)
            if files is None or not files.first <= offset < files.end():
                return
            unit = unpack_unit(files.read(offset, 1))
        except OSError as error:
            self._give_up(error)
            return
        if unit.size > 0 and from_pos <= unit.physical_offset < end_pos:
            where = f"{_name(key)} offset {offset}"
            text = f"{where}: it points at {unit.physical_offset}, where the log has no message of this queue"
            self.faults.append(Fault("QUEUE_DANGLING", index, index, text))


class _Queue:
    """Messages of one queue so far. The units in `pending` are not compared yet."""

    __slots__ = (
        "dense",
        "due",
        "first",
        "index_last",
        "indexes",
        "indexes_first",
        "next",
        "pending",
        "pending_first",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.next = first
        self.pending: list[bytes] = []
        self.indexes: list[Array] = []
        self.pending_first = first
        self.indexes_first = -1
        self.index_last = -1
        self.dense = True
        self.due = -1


def _name(key: QueueKey) -> str:
    return f"{key[0].decode('utf-8', 'replace')}/{key[1]}"


def _says_queue(unit: bytes) -> str:
    try:
        position, size, code = unpack_unit(unit)
    except struct.error:
        return "nothing"
    return f"pos {position} size {size} tags {code}"
