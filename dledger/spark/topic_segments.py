"""Which segments can contain messages of the chosen queues. The broker's state file and its ConsumeQueues
show this.

The state file (with a CRC) says which offsets each queue has in the log up to an entry. A ConsumeQueue
says where a message is. A place from it counts only if the log has this message at the place.

Within a queue, messages with higher offsets are at higher places in the log. So all messages between two
messages whose places are known are between these places. A segment is left out only if the known places
show that it contains no message of any chosen queue.

* The segment with the last entry that the state file covers, and all later segments, are read. If there is
  no state file (Apache's stores), all segments are read.
* Messages of deleted topics are not looked up. If they are wanted, all segments before the deletion are read.
* If a unit of the ConsumeQueue is missing, damaged or points at another message, it bounds nothing:
  everything between the nearest confirmed messages before and after it is read.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dledger.audit.store_directory import Replica, SegmentTask, segment_tasks
from dledger.audit.unit_files import UnitFiles
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.entry import HEADER_SIZE, unpack_header
from dledger.formats.record import (
    BORN_HOST_V6,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
)
from dledger.formats.state import DELETIONS
from dledger.formats.state_file import CorruptSnapshot, Snapshot, unpack_snapshot
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file
from dledger.runtime.remote_files import files_for, is_url
from dledger.spark.selection import Bounds, Selection
from dledger.spark.stores import IndexUnits

MOST_LOOKS = 16_384
"""Largest number of messages that are looked up in one replica, at some 0.1 ms each. More look-ups would
not pay for a topic that has messages in nearly every segment. Ranges that are not looked up are read
completely."""
_LOOKS_OF_SEGMENT = 4
_REMOTE_LOOKS_OF_SEGMENT = 1
"""Largest number of look-ups per segment of the log, so that in small logs they cost little compared with
reading. `_REMOTE_LOOKS_OF_SEGMENT` is for stores at a URL, where one look-up takes several requests."""
_MOST_OPEN = 64
"""Largest number of queues that keep their files open during the search. If there are more queues, each
file is closed after use."""
_QUEUE_ID_AT = 12
_SYS_FLAG_AT = 36
_HOST_V6_MORE = 12
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


def segments_of(
    replica: Replica, selection: Selection, snapshot: Snapshot | None, deleted: bool
) -> frozenset[int] | None:
    """Return the starts of the segments that may contain wanted messages; None if all may. Blocking.

    `snapshot`: the `held_state`; `deleted`: whether messages of deleted topics are wanted, too.
    """
    if not selection.names_queues or not replica.queue_root or not replica.segments or snapshot is None:
        return None
    files = files_for(replica.directory)
    ranges = [
        (topic, queue_id, wanted)
        for topic, queues in snapshot.state.queues.items()
        for queue_id, there in queues.items()
        for wanted in [selection.offsets_of(topic, queue_id).meet(Bounds(there.min, there.next))]
        if wanted.low < wanted.high
    ]
    search = _Search(replica, snapshot.end_pos)
    for row in snapshot.state[DELETIONS].rows.values() if deleted else ():
        if selection.wants(row.name):
            search.mark_below(row.at)
    found = search.run([_Places(files, replica, *each) for each in ranges])
    return frozenset(found) if found is not None else None


def held_state(replica: Replica) -> Snapshot | None:
    """Return the content of the state file. None if there is none, or if it is damaged or belongs to
    another log. Blocking."""
    files = files_for(replica.directory)
    try:
        data = read_file(files, replica.state_file) if replica.state_file else None
        snapshot = None if data is None else unpack_snapshot(data)
        return snapshot if snapshot is not None and _is_of_log(files, replica, snapshot) else None
    except (OSError, struct.error, CorruptSnapshot):
        return None  # the audit says so


def _is_of_log(files: Files, replica: Replica, snapshot: Snapshot) -> bool:
    """Whether the log has the snapshot's last entry at the place and with the term that the snapshot
    names. A broker makes the same check when it starts."""
    with closing(IndexUnits(files, replica)) as units:
        position = units.position(snapshot.applied)
        end = units.end_position(snapshot.applied)
    if position is None or end != snapshot.end_pos:
        return False
    start = max((one.start for one in replica.segments if one.start <= position), default=-1)
    if start < 0:
        return False
    with closing(files.open_read(replica.places.path_of(start))) as file:
        header = unpack_header(file.pread(HEADER_SIZE, position - start))
    return (header.index, header.pos) == (snapshot.applied, position) and snapshot.term in (None, header.term)


class _Places:
    """Looks up the places of messages [low, high) of one queue."""

    def __init__(self, files: Files, replica: Replica, topic: str, queue_id: int, wanted: Bounds) -> None:
        self.low, self.high = wanted.low, wanted.high
        self._files = files
        self._directory = f"{replica.queue_root}/{topic}/{queue_id}"
        self._topic = topic.encode()
        self._queue_id = queue_id
        self._units: UnitFiles | None = None

    def look(self, offset: int, tasks: Sequence[SegmentTask], starts: Sequence[int]) -> int | None:
        """Return the number of the segment that contains a message; None if the log does not confirm the
        place in the ConsumeQueue."""
        try:
            if self._units is None:
                self._units = UnitFiles(self._files, self._directory, UNIT_SIZE)
            unit = unpack_unit(self._units.read(offset, 1))
            number = bisect_right(starts, unit.physical_offset) - 1
            if number < 0 or unit.size <= 0:
                return None
            task = tasks[number]
            with closing(self._files.open_read(task.path)) as file:
                at = unit.physical_offset - task.start
                head = file.pread(FIXED_SIZE + 2 * _HOST_V6_MORE, at)
                topic_at = self._topic_place(head, offset, unit.physical_offset)
                if topic_at is None:
                    return None
                told = file.pread(len(self._topic) + 2, at + topic_at)
        except (OSError, struct.error):
            return None  # whoever reads the segment says so
        wide = _INT.unpack_from(head, 4)[0] == MAGIC_V2
        expected = len(self._topic).to_bytes(2 if wide else 1, "big") + self._topic
        return number if told.startswith(expected) else None

    def close(self) -> None:
        """Close the ConsumeQueue file that is open."""
        if self._units is not None:
            self._units.close()

    def _topic_place(self, head: bytes, offset: int, position: int) -> int | None:
        """Return where the topic begins in the record. None if this is not the record of that queue
        offset."""
        (magic,) = _INT.unpack_from(head, 4)
        (queue_id,) = _INT.unpack_from(head, _QUEUE_ID_AT)
        (queue_offset,) = _LONG.unpack_from(head, QUEUE_OFFSET_AT)
        (physical,) = _LONG.unpack_from(head, PHYSICAL_OFFSET_AT)
        if magic not in (MAGIC_V1, MAGIC_V2) or (queue_id, queue_offset, physical) != (
            self._queue_id,
            offset,
            position,
        ):
            return None
        (flags,) = _INT.unpack_from(head, _SYS_FLAG_AT)
        more = _HOST_V6_MORE * (bool(flags & BORN_HOST_V6) + bool(flags & STORE_HOST_V6))
        (body_size,) = _INT.unpack_from(head, FIXED_SIZE - 4 + more)
        return FIXED_SIZE + more + body_size if body_size >= 0 else None


@dataclass(order=True, slots=True)
class _Gap:
    """Messages of which only a range of segments is known: those of the queue with number `queue` and
    offsets above `low` and below `high`. They are in segments `first` to `last`. The gap with most
    segments sorts first."""

    order: int
    queue: int
    low: int
    high: int
    first: int
    last: int


class _Search:
    """Finds the segments that must be read, and marks them."""

    def __init__(self, replica: Replica, end_pos: int) -> None:
        self._tasks = segment_tasks(replica)
        self._starts = [task.start for task in self._tasks]
        each = _REMOTE_LOOKS_OF_SEGMENT if is_url(replica.directory) else _LOOKS_OF_SEGMENT
        self._looks = min(MOST_LOOKS, each * len(self._tasks))
        self._known = max(bisect_right(self._starts, end_pos - 1) - 1, 0)
        """Number of segments that the state file covers completely: those before the segment with the last
        entry that it covers."""
        self._marked = np.arange(len(self._tasks)) >= self._known  # what to read
        self._few = True

    def mark_below(self, position: int) -> None:
        """Mark all segments that begin before a log offset."""
        self._marked[: bisect_right(self._starts, position - 1)] = True

    def run(self, queues: Sequence[_Places]) -> list[int] | None:
        """Return the starts of the segments to read; None if all must be read."""
        if not self._known or 2 * len(queues) > self._looks:
            return None
        self._few = len(queues) <= _MOST_OPEN
        try:
            if not self._find(queues):
                return None
        finally:
            for queue in queues:
                queue.close()
        return [self._starts[number] for number in np.flatnonzero(self._marked).tolist()]

    def _find(self, queues: Sequence[_Places]) -> bool:
        """Mark the segments that must be read. Returns False if the places of messages do not show which
        segments these are."""
        gaps: list[_Gap] = []
        for number, queue in enumerate(queues):
            first = self._look(queue, queue.low)
            last = self._look(queue, queue.high - 1) if queue.high - 1 > queue.low else first
            low = queue.low - 1 if first is None else queue.low
            high = queue.high if last is None else queue.high - 1
            begin = 0 if first is None else first
            end = max(begin, self._known - 1) if last is None else last
            if begin > end:
                return False
            self._add(gaps, number, low, high, begin, end)
        while gaps:
            gap = heapq.heappop(gaps)
            middle = (gap.low + gap.high) // 2
            if self._marked[gap.first : gap.last + 1].all():
                continue
            found = self._look(queues[gap.queue], middle)
            if found is None:
                self._marked[gap.first : gap.last + 1] = True
            elif gap.first <= found <= gap.last:
                self._add(gaps, gap.queue, gap.low, middle, gap.first, found)
                self._add(gaps, gap.queue, middle, gap.high, found, gap.last)
            else:
                return False  # offsets do not rise with places: nothing follows from them
        return True

    def _look(self, queue: _Places, offset: int) -> int | None:
        if not self._looks:
            return None
        self._looks -= 1
        found = queue.look(offset, self._tasks, self._starts)
        if not self._few:
            queue.close()
        if found is not None:
            self._marked[found] = True
        return found

    def _add(self, gaps: list[_Gap], queue: int, low: int, high: int, first: int, last: int) -> None:
        """Add the messages between two places as a gap, unless there are no such messages or all segments
        of the gap are marked."""
        if high - low > 1 and not self._marked[first : last + 1].all():
            heapq.heappush(gaps, _Gap(first - last, queue, low, high, first, last))
