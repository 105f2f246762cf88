"""Which segments can contain messages stored in a span of time.

In our logs the store time of messages never goes back, as a leader whose clock is behind takes the store
time of the last message. So the first message of a segment is not older than any message before it, and
not newer than any message after it. This bounds the store times in each segment. A segment whose first
entry is no message, or is damaged, gives no such bound. Logs of Apache RocketMQ are not ordered by time,
so all of their segments are read.
"""

from __future__ import annotations

import numpy as np

from dledger.audit.scan import Window
from dledger.audit.store_directory import Replica, SegmentTask, segment_tasks
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, MAGIC, MAX_ENTRY_SIZE, Kind
from dledger.runtime import Files
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import checked, headers
from dledger.spark.records import records_of
from dledger.spark.selection import ANY, Bounds


def segments_within(replica: Replica, times: Bounds) -> frozenset[int] | None:
    """Return the starts of the segments that may contain messages stored in [low, high) ms; None if all
    may. Blocking."""
    if times == ANY or replica.identity is None:
        return None
    tasks = segment_tasks(replica)
    firsts = [first_store_ms(files_for(replica.directory), task) for task in tasks]
    chosen = []
    after: int | None = None
    """The earliest known store time of the messages after the segment."""
    for task, first in zip(reversed(tasks), reversed(firsts), strict=True):
        too_early = after is not None and after < times.low
        too_late = first is not None and first >= times.high
        if not (too_early or too_late):
            chosen.append(task.start)
        after = after if first is None else first
    return frozenset(chosen)


def first_store_ms(files: Files, task: SegmentTask) -> int | None:
    """Return the store time of a segment's first entry. None if this entry is no message, or is damaged."""
    try:
        file = files.open_read(task.path)
        try:
            data = file.pread(HEADER_SIZE, 0)
            if len(data) < HEADER_SIZE:
                return None
            head = headers(data, np.zeros(1, np.int64))
            size = int(head["size"][0])
            wrong = head["magic"][0] != MAGIC or head["pos"][0] != task.start or not size <= MAX_ENTRY_SIZE
            if wrong or size != head["body"][0] + HEADER_SIZE or size < HEADER_SIZE:
                return None
            data = file.pread(size, 0)
        finally:
            file.close()
    except OSError:
        return None  # whoever reads the segment says so
    if len(data) < size:
        return None
    found = checked(data, head, np.zeros(1, np.int64))
    records = records_of(Window(data, task.start, found))
    sound = records.good[0] and found.damage[0] == 0 and found.channel[0] >> 24 & KIND_MASK == Kind.MESSAGE
    return int(records.stored[0]) if sound else None
