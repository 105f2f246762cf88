"""The replicated state against the log (architecture rule 1: all state is a function of the committed log).

Where a segment begins at a boundary snapshot (or the log begins), the state is played forward over the
segment's entries, and must then be what the next boundary snapshot says, and on the way what the broker's own
state file says. So topics, groups, consumer offsets and queue ends of a replica are checked against its log;
replicas are compared by the digests of their snapshots and by their logs.

A window with an odd record ends the check of its segment: what it does to the state cannot be told. Damage is
reported by others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dledger.audit.entries import Array, Columns
from dledger.audit.records import QueueNames, Records
from dledger.audit.walk import Fault
from dledger.formats.entry import Kind
from dledger.formats.snapshot import MANIFEST_FILE, Manifest, check_parts, decode_manifest
from dledger.formats.state import QueueBounds, ReplicatedState
from dledger.formats.state_codec import pack_parts, unpack_parts
from dledger.formats.state_file import CorruptSnapshot, unpack_snapshot
from dledger.formats.store_files import SNAPSHOTS_DIR, CorruptFile, segment_name
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file


class Boundary(NamedTuple):
    """A boundary snapshot of a broker."""

    manifest: Manifest
    parts: dict[str, bytes]


def load_boundary(files: Files, directory: str, pos: int) -> Boundary | None:
    """The snapshot of a log directory at `pos`; None without one that is whole and a broker's. OSError."""
    path = f"{directory}/{SNAPSHOTS_DIR}/{segment_name(pos)}"
    try:
        data = read_file(files, f"{path}/{MANIFEST_FILE}")
        if data is None:
            return None
        manifest = decode_manifest(data)
        parts = {name: read_file(files, f"{path}/{name}") for name in manifest.parts}
        found = {name: part for name, part in parts.items() if part is not None}
        check_parts(manifest, found)
    except (CorruptFile, ValueError):
        return None  # the side scan tells
    except FileNotFoundError:
        return None  # a live node has removed it between two looks
    return Boundary(manifest, found) if set(found) == set(pack_parts(ReplicatedState())) else None


class StateCheck:
    """One segment's part. `state_file`: path of the broker's state file if it ends in this segment.

    What was taken above `committed` is not looked at: the checkpoint follows a live node by a second, and
    messages above it are not counted.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        start: int,
        end: int,
        first_index: int,
        state_file: str,
        committed: int,
    ) -> None:
        self._files = files
        self._state: ReplicatedState | None = None
        self._next = np.empty(0, np.int64)
        self._first_position = np.empty(0, np.int64)
        self._touched = np.empty(0, bool)
        """Mask of the queues whose numbers are newer here than in the state."""
        self._bounds: dict[int, QueueBounds] = {}
        """Those of the state, by the queue's number: the state keeps them for good."""
        self._applied: int | None = None
        self._held: ReplicatedState | None = None
        self._state_file = state_file
        self.faults: list[Fault] = []
        self._committed = committed
        self._end = load_boundary(files, directory, end)
        if self._end is not None and self._end.manifest.index > committed:
            self._end = None
        if self._end is None and not state_file:
            return
        if first_index == 0:
            self._state = ReplicatedState()
        elif (begin := load_boundary(files, directory, start)) is not None:
            self._state = unpack_parts(begin.parts)
        if self._state is not None and state_file:
            self._open_state_file()

    def _open_state_file(self) -> None:
        data = read_file(self._files, self._state_file)
        if data is None:
            return
        try:
            held = unpack_snapshot(data)
        except CorruptSnapshot:
            return  # the side scan tells
        if held.applied <= self._committed:
            self._applied, self._held = held.applied, held.state

    @property
    def active(self) -> bool:
        """Whether it needs to see entries."""
        return self._state is not None

    def give_up(self) -> None:
        """An entry came whose effect cannot be told."""
        self._state = None

    def add(
        self,
        data: bytes,
        columns: Columns,
        names: QueueNames,
        records: Records,
        queued: Records,
        which: Array,
    ) -> None:
        """One window: all its records, and those that took a place in a queue, with their queue's number."""
        if self._state is None:
            return
        last = int(columns.index[-1])
        stops = records.index[records.kind == Kind.SYSTEM].tolist()
        if self._applied is not None and int(columns.index[0]) <= self._applied <= last:
            stops.append(self._applied)
        stops.append(last)
        at = seen = 0
        for stop in sorted(dict.fromkeys(stops)):
            after = int(np.searchsorted(queued.index, stop, side="right"))
            self._messages(queued.queue_offset[at:after], queued.physical[at:after], which[at:after])
            at = after
            below = int(np.searchsorted(records.index, stop, side="right"))
            self._times(records, seen, below)
            seen = below
            if below and records.index[below - 1] == stop and records.kind[below - 1] == Kind.SYSTEM:
                self._sync(names)
                body = int(records.body_at[below - 1])
                self._state.apply(data[body : body + int(records.body_size[below - 1])])
            if self._applied is not None and stop == self._applied:
                self._sync(names)
                self._compare_state_file(self._applied)
        self._sync(names)

    def finish(self, last_index: int) -> None:
        """The segment was read to its end: compare with the snapshot that follows it."""
        if self._state is None or self._end is None or self._end.manifest.index != last_index:
            return
        parts = pack_parts(self._state)
        differing = sorted(name for name in parts if parts[name] != self._end.parts[name])
        if differing:
            text = f"the boundary snapshot at {self._end.manifest.pos} does not follow from the log in"
            self._fault(last_index, f"{text} {', '.join(differing)}")

    def _fault(self, index: int, text: str) -> None:
        self.faults.append(Fault("STATE_DIFFERS", index, index, text))

    def _messages(self, offsets: Array, positions: Array, which: Array) -> None:
        if not len(which):
            return
        missing = int(which.max()) + 1 - len(self._next)
        if missing > 0:
            self._next = np.append(self._next, np.full(missing, -1))
            self._first_position = np.append(self._first_position, np.full(missing, -1))
            self._touched = np.append(self._touched, np.zeros(missing, bool))
        self._next[which] = offsets + 1  # of several messages of a queue the last one stays
        first = np.flatnonzero(offsets == 0)
        self._first_position[which[first]] = positions[first]
        self._touched[which] = True

    def _sync(self, names: QueueNames) -> None:
        """Bring what messages did to the queues into the state."""
        if self._state is None:
            return
        touched = np.flatnonzero(self._touched)
        self._touched[:] = False
        columns = (touched, self._next[touched], self._first_position[touched])
        for number, following, first_position in zip(*(column.tolist() for column in columns), strict=True):
            bounds = self._bounds.get(number)
            if bounds is None:
                topic, queue_id = names.keys[number]
                bounds = self._bounds[number] = self._state.bounds(topic.decode("utf-8", "replace"), queue_id)
            bounds.next = following
            if first_position >= 0:
                bounds.first_position = first_position

    def _times(self, records: Records, first: int, below: int) -> None:
        messages = records.store_ms[first:below][records.kind[first:below] == Kind.MESSAGE]
        if self._state is not None and len(messages):
            newest = max(self._state.last_store_time_ms, int(messages.max()))
            self._state.last_store_time_ms = newest

    def _compare_state_file(self, applied: int) -> None:
        if self._state is None or self._held is None:
            return
        ours, theirs = pack_parts(self._state), pack_parts(self._held)
        differing = sorted(name for name in ours if ours[name] != theirs[name])
        if differing:
            text = f"{self._state_file} does not follow from the log in {', '.join(differing)}"
            self._fault(applied, text)
