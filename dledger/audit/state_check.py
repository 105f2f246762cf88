"""The replicated state against the log (architecture rule 1: all state is a function of the committed log).

If a segment (or the log) begins at a boundary snapshot, the segment's entries are applied to the state of the
snapshot. The result must equal the next boundary snapshot, and on the way the broker's own state file. So
topics, groups, consumer offsets and queue ends of a replica are checked against its log. Replicas are
compared by the digests of their snapshots and by their logs.

A window with an irregular record ends the check of its segment, because its effect on the state is unknown.
Damage is reported by other checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger.audit.entries import CHAIN_UNKNOWN, Array, Columns
from dledger.audit.records import QueueNames, Records
from dledger.audit.replay import Entries, Queued, StateReplay
from dledger.audit.state_sense import nonsense, overdue_timers
from dledger.audit.walk import Fault
from dledger.formats.snapshot import MANIFEST_FILE, Manifest, check_parts, decode_manifest
from dledger.formats.state import ReplicatedState, UnknownOperation, holds_state, pack_parts, unpack_parts
from dledger.formats.state_file import CorruptSnapshot, Snapshot, unpack_snapshot
from dledger.formats.store_files import SNAPSHOTS_DIR, CorruptFile, segment_name
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file


class Boundary(NamedTuple):
    """A boundary snapshot of a broker: its manifest and its parts."""

    manifest: Manifest
    parts: dict[str, bytes]


def load_boundary(files: Files, directory: str, pos: int) -> Boundary | None:
    """Read the snapshot of a log directory at `pos`; None if there is no valid one of a broker. Raises
    OSError."""
    path = f"{directory}/{SNAPSHOTS_DIR}/{segment_name(pos)}"
    try:
        data = read_file(files, f"{path}/{MANIFEST_FILE}")
        if data is None:
            return None
        manifest = decode_manifest(data)
        if manifest.pos != pos:
            return None  # the side scan tells
        parts = {name: read_file(files, f"{path}/{name}") for name in manifest.parts}
        found = {name: part for name, part in parts.items() if part is not None}
        check_parts(manifest, found)
    except (CorruptFile, ValueError):
        return None  # the side scan tells
    except FileNotFoundError:
        return None  # a live node has removed it between two looks
    return Boundary(manifest, found) if holds_state(found) else None


class StateCheck:
    """Checks the state within one segment. `state_file` is the path of the broker's state file, if the state
    file ends in this segment.

    Snapshots and state files from above `committed` are not checked, because the checkpoint of a live node is
    up to a second old, and messages above it are not counted.
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
        names: QueueNames,
        queue_root: str = "",
    ) -> None:
        self._files = files
        self._replay: StateReplay | None = None
        self._applied: int | None = None
        self._held: Snapshot | None = None
        self._state_file = state_file
        self._names = names
        self.faults: list[Fault] = []
        self._committed = committed
        self._segment_end = end
        self._queue_root = queue_root
        self._newest_ms = -1
        """Highest store time of an entry so far, in ms."""
        self._applied_ms = -1
        """Store time up to the entry after which the state file was taken, -1 if that is not known."""
        self._gaps = False
        """Whether the store time of an entry is unknown."""
        self._end = load_boundary(files, directory, end)
        if self._end is not None and self._end.manifest.index > committed:
            self._end = None
        if state_file:
            self._open_state_file()
        if self._end is None and not state_file:
            return
        if first_index == 0:
            self._replay = StateReplay(ReplicatedState(), self._key_of)
        elif (begin := load_boundary(files, directory, start)) is not None:
            self._replay = StateReplay(unpack_parts(begin.parts), self._key_of)

    def _key_of(self, number: int) -> tuple[str, int]:
        topic, queue_id = self._names.keys[number]
        return topic.decode("utf-8", "replace"), queue_id

    def _open_state_file(self) -> None:
        data = read_file(self._files, self._state_file)
        if data is None:
            return
        try:
            held = unpack_snapshot(data)
        except CorruptSnapshot:
            return  # the side scan tells
        if held.applied <= self._committed:
            self._applied, self._held = held.applied, held

    def give_up(self) -> None:
        """Stop the check, because the effect of an entry on the state is unknown."""
        self._replay = None
        self._gaps = True

    def note_times(self, records: Records) -> None:
        """Note the store times of one window."""
        applied = -1 if self._held is None else self._held.applied
        before = records.store_ms[records.index <= applied]
        if len(before):
            self._applied_ms = max(self._newest_ms, int(before.max()))
        self._newest_ms = max(self._newest_ms, int(records.store_ms.max(initial=-1)))

    def check_place(self, columns: Columns) -> None:
        """Check that the state file and the log agree about the entry after which the state file was
        taken."""
        held = self._held
        if held is None:
            return
        at = int(columns.index.searchsorted(held.applied))
        if at == len(columns) or columns.index[at] != held.applied or columns.damage[at] & ~CHAIN_UNKNOWN:
            return
        term, end_pos = int(columns.term[at]), int(columns.pos[at] + columns.size[at])
        text = ""
        if held.term is not None and held.term != term:
            text = f"is of term {held.term}, in the log it is of {term}"
        # A state that came with a boundary snapshot ends where the next segment begins.
        elif held.end_pos not in (end_pos, self._segment_end):
            text = f"ends at {held.end_pos}, in the log at {end_pos}"
        if text:
            text = f"{self._state_file} belongs to another log: it says that entry {held.applied} {text}"
            self._fault("STATE_DAMAGED", held.applied, text)
            self._applied = self._held = None

    def add(self, data: bytes, columns: Columns, records: Records, queued: Records, which: Array) -> None:
        """Apply one window. `records` are all its records, `queued` those that have a place in a queue, and
        `which` the number of the queue of each."""
        if self._replay is None:
            return
        first, last = int(columns.index[0]), int(columns.index[-1])
        marks = [self._applied] if self._applied is not None and first <= self._applied <= last else []
        entries = Entries(records.index, records.kind, records.store_ms, records.body_at, records.body_size)
        messages = Queued(queued.index, which, queued.queue_offset, queued.physical)
        try:
            for applied in self._replay.add(data, last, entries, messages, marks):
                self._compare_state_file(self._replay.state, applied)
        except UnknownOperation as error:
            self._fault("STATE_TOO_NEW", self._replay.at, f"{error}: the state is not checked from here on")
            self.give_up()

    def check_sense(self, last_index: int, *, full: bool) -> None:
        """Check that the states by themselves make sense. A state that does not follow from the log is not
        reported twice. Call it after the segment's last entry, `last_index`; `full` says whether the segment
        is full. Raises OSError."""
        if any(fault.code.startswith("STATE_") for fault in self.faults):
            return
        held, end = self._held, self._end
        if held is not None and self._applied_ms >= 0 and held.applied <= last_index:
            newest_ms = -1 if self._gaps else self._applied_ms
            text = nonsense(held.state, held.end_pos, newest_ms)
            if text:
                self._fault("STATE_IMPOSSIBLE", held.applied, f"{self._state_file}: {text}")
            elif late := overdue_timers(self._files, self._queue_root, held.state, newest_ms):
                self._fault("TIMER_OVERDUE", held.applied, late)
        if full and end is not None and end.manifest.index == last_index:
            newest_ms = -1 if self._gaps else self._newest_ms
            text = nonsense(unpack_parts(end.parts), end.manifest.pos, newest_ms)
            if text:
                text = f"the boundary snapshot at {end.manifest.pos}: {text}"
                self._fault("STATE_IMPOSSIBLE", last_index, text)

    def finish(self, last_index: int) -> None:
        """Compare the state with the snapshot that follows the segment. Call it after the segment's last
        entry."""
        if self._replay is None or self._end is None or self._end.manifest.index != last_index:
            return
        differing = differing_parts(pack_parts(self._replay.state), self._end.parts)
        if differing:
            text = f"the boundary snapshot at {self._end.manifest.pos} does not follow from the log in"
            self._fault("STATE_DIFFERS", last_index, f"{text} {', '.join(differing)}")

    def _fault(self, code: str, index: int, text: str) -> None:
        self.faults.append(Fault(code, index, index, text))

    def _compare_state_file(self, state: ReplicatedState, applied: int) -> None:
        if self._held is None:
            return
        differing = differing_parts(pack_parts(state), pack_parts(self._held.state))
        if differing:
            text = f"{self._state_file} does not follow from the log in {', '.join(differing)}"
            self._fault("STATE_DIFFERS", applied, text)


def differing_parts(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> list[str]:
    """Return the names of the parts that differ. A missing part counts as empty."""
    return [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
