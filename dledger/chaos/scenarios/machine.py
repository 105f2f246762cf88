"""One machine of a group, as the judge sees it: its store on disk and, while a process runs, its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dledger.chaos.invariants import Entry, InvariantViolated
from dledger.chaos.scenarios.disks import DurableMark, StoreOnDisk
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    CHANNEL_OFFSET,
    COVERED,
    INDEX_UNIT_SIZE,
    MAGIC,
    MAX_BATCH_REMAINING,
    IndexUnit,
)
from dledger.formats.store_files import DATA_DIR, INDEX_DIR, segment_name
from dledger.log.base import ORIGIN, LogBase

if TYPE_CHECKING:
    from dledger.chaos.scenarios.probe import Probe
    from dledger.chaos.scenarios.stage import Stage
    from dledger.node.node import Node

KIND_AT = CHANNEL_OFFSET
"""Offset of the entry's kind in its header.

In some entries no checksum covers this byte (docs/explanation/guarantees.md). An older program wrote them, or
the group did not know yet that all its voters understand a checksum over the kind.
"""
CHAIN_AT = CHANNEL_OFFSET + 4
"""Offset of the header field after kind and batch count (the chain checksum)."""


class Replica(Protocol):
    """The state machine of a node, from one start of the node to its end."""

    @property
    def index(self) -> int:
        """Index of the last entry applied, -1 for none."""

    def content(self) -> bytes:
        """The whole state, encoded in the same way as the judge's replay."""


class Machine:
    """One machine of the group, with its store on disk and, while a process runs, its node."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.wipes: int = 0
        self.lives = 0
        self.in_use = False
        """Whether the machine takes part in the run. A spare machine does not, until its node is to be added
        to the group."""
        self.excused = False
        """Whether the machine's disk has failed. Then its node may end with an error, and may know less
        afterwards."""
        self.may_end = False
        """Whether the machine's disk fails outside of the log. Then the process may end with an error, but
        the log must not lose anything."""
        self.log: dict[int, Entry] = {}
        """The last known log of the node, in memory or on disk. For indexes before the beginning of the log
        it has the entries that the group committed."""
        self.base: LogBase = ORIGIN
        """Where the log begins."""
        self.gone: dict[int, Entry] = {}
        """Entries that were durable on this machine before its disk was wiped. An acknowledgement of them may
        still be in flight."""
        self.rotten: dict[int, Entry] = {}
        """Entries that a fault damaged on this machine's disk and that are not repaired yet."""
        self.rotten_units: dict[int, None] = {}
        """Indexes of entries whose index units are damaged."""
        self.touched: dict[int, None] = {}
        """Start positions of segments that were damaged, perhaps in the blank rest after their last entry."""
        self.armed = False
        """Whether a fault of the machine's disk waits for its operation."""
        self.node_dir: str = f"/store/dledger-{name}"
        self.group: tuple[str, ...] = ()
        """The members in the node's settings: those that the group had when the node's store was empty."""
        self.probe: Probe | None = None
        self.host: Replica | None = None
        self.renew_reader()

    def renew_reader(self) -> None:
        """Begin to read the present disk, after a wipe or a replacement."""
        disk = self.stage.world.node(self.name).disk
        self.disk_store: StoreOnDisk = StoreOnDisk(disk, self.node_dir, self.stage.profile.segment)
        self.durable: DurableMark = DurableMark(self.disk_store, fsynced=self.stage.profile.sync_flush)
        self.base = ORIGIN

    def wipe(self) -> None:
        """Remove the store. The next store on this machine counts as another store."""
        self.stage.world.nodes[self.name].disk.wipe("/store")
        self.wipes += 1
        self.loses_what_it_said()
        self.log = {}
        self.rotten, self.rotten_units, self.touched = {}, {}, {}
        self.renew_reader()

    def loses_what_it_said(self) -> None:
        """Note that this machine has lost acknowledged entries, at least in part. Their acknowledgements may
        still be in flight."""
        self.gone |= {index: entry for index, entry in self.log.items() if index <= self.durable.index}

    def check_units(self) -> None:
        """Check that no index unit is durable before its entry is durable (safety.md S4). Without this check
        a lost entry could be taken for a damaged one."""
        if not self.log or self.still_rotten():
            return
        self.stage.cluster.count("an index unit follows its entry to the disk")
        there = DurableMark(self.disk_store)
        for unit in self.disk_store.durable_units(self.base.index + 1, max(self.log)):
            entry = self.log.get(unit.index)
            if entry is None or (entry.term, entry.pos, entry.size) != (unit.term, unit.pos, unit.size):
                continue  # of an entry that was cut
            if not there.is_there(unit.index, entry):
                raise InvariantViolated(f"{self.name}: {unit} is durable, entry {unit.index} is not")

    def begins(self, base: LogBase) -> None:
        """Note that the log begins after `base`, or is about to. Check that the snapshot at that point is
        durable and right (S20)."""
        committed = self.stage.cluster.committed
        entry = committed.get(base.index)
        if base.index >= 0:
            self.stage.cluster.count("a log begins at a durable snapshot")
            found = self.disk_store.snapshot(base.pos, durable=True)
            told = None if found is None else found[0]
            at = None if told is None else (told.index, told.term, told.pos, told.chain)
            if at != (base.index, base.term, base.pos, base.chain):
                raise InvariantViolated(
                    f"{self.name}: the log begins behind {base}, its disk has {told} there"
                )
            if entry is None or (entry.term, entry.chain) != (base.term, base.chain):
                raise InvariantViolated(f"{self.name}: the log begins behind {base}, committed is {entry}")
        before = {index: committed[index] for index in range(base.index + 1)}
        self.log = before | {index: entry for index, entry in self.log.items() if index > base.index}
        self.base = base
        self.durable.cut(0)

    def still_rotten(self) -> bool:
        """Whether there is damage that is neither repaired nor cut, or a disk fault that still waits for its
        operation."""
        for index, entry in list(self.rotten.items()):
            if self.log.get(index) != entry or self.durable.is_whole(index, entry):
                del self.rotten[index]
        for start in list(self.touched):
            if self._is_closed(start):
                del self.touched[start]
        for index in list(self.rotten_units):
            told = self.log.get(index)
            if (
                told is None
                or index <= self.base.index
                or self.disk_store.has_unit(IndexUnit(MAGIC, told.pos, told.size, index, told.term))
            ):
                del self.rotten_units[index]
        return bool(self.rotten or self.touched or self.rotten_units or self.armed)

    def _is_closed(self, start: int) -> bool:
        """Whether a segment is closed with a blank record after its last entry. A segment counts as closed if
        the log does not continue in a later segment."""
        end = start + self.stage.profile.segment
        inside = [entry for entry in self.log.values() if start <= entry.pos < end]
        if not inside or start < self.base.pos or not any(entry.pos >= end for entry in self.log.values()):
            return True
        pos = max(entry.pos + entry.size for entry in inside)
        blank = BLANK.pack(BLANK_MAGIC, end - pos)
        return all(self.disk_store.read(pos, len(blank), durable) == blank for durable in (True, False))

    def rots(self, begin: int, end: int) -> None:
        """Note that bytes `begin` to `end` of the log are damaged."""
        size = self.stage.profile.segment
        self.touched |= dict.fromkeys(range(begin - begin % size, end, size))
        for index, entry in self.log.items():
            if entry.pos < end and entry.pos + entry.size > begin:
                self.rotten[index] = entry

    def units_rot(self, begin: int, end: int) -> None:
        """Note that bytes `begin` to `end` of the index are damaged."""
        for index in range(begin // INDEX_UNIT_SIZE, -(-end // INDEX_UNIT_SIZE)):
            if index in self.log:
                self.rotten_units[index] = None

    def forgets_votes(self) -> None:
        """Note that term and vote are lost. The node starts again with its log, but counts as another
        store."""
        self.wipes += 1

    @property
    def has_store(self) -> bool:
        """Whether there is a store on this machine."""
        return self.disk_store.find(durable=False) is not None

    def durable_entry(self, pick: int) -> int | None:
        """Index of an entry whose index unit is durable, so that damage to either of them counts as rot. None
        if there is no such entry."""
        node = self.node
        if node is None or not self.log:
            return None
        last = self.disk_store.durable_mark(self.base.index + 1, max(self.log))
        known = [index for index in self.log if self.base.index < index <= last]
        return known[pick % len(known)] if known else None

    def durable_byte(self, amount: int, pick: int) -> int | None:
        """Log position of a byte within an entry whose index unit is durable. None if there is no such
        entry."""
        index = self.durable_entry(pick)
        if index is None:
            return None
        entry = self.log[index]
        offset = amount % entry.size
        return entry.pos + offset + (offset == KIND_AT and not entry.channel & COVERED)

    def fits_still(self, place: int, bit: int) -> bool:
        """Whether flipping this bit of the log changes a batch count to one that still fits the neighbouring
        entries. Then no check can notice the flip (docs/explanation/guarantees.md)."""
        index, entry = next(item for item in self.log.items() if 0 <= place - item[1].pos < item[1].size)
        at = place - entry.pos
        if entry.channel & COVERED or not KIND_AT < at < CHAIN_AT:
            return False
        count = (entry.channel ^ 1 << 8 * (CHAIN_AT - 1 - at) + bit) & MAX_BATCH_REMAINING
        before, after = (
            self.log[near].channel & MAX_BATCH_REMAINING if near in self.log else 0
            for near in (index - 1, index + 1)
        )
        return (before == 0 or before == count + 1) and (count == 0 or after == count - 1)

    def segment_path(self, start: int) -> str:
        """Path of the segment that starts at this position."""
        return f"{self.node_dir}/{DATA_DIR}/{segment_name(start)}"

    def index_file(self, place: int) -> tuple[str, int]:
        """The index file with this byte of the index: its path, and the position at which it begins."""
        size = self.stage.index_units * INDEX_UNIT_SIZE
        return f"{self.node_dir}/{INDEX_DIR}/{segment_name(place - place % size)}", place - place % size

    def old_segment(self, pick: int) -> int | None:
        """Start of a segment that is not the newest. None if there is no such segment."""
        starts = [start for start, _ in self.disk_store.segments(durable=True)[:-1] if start >= self.base.pos]
        return starts[pick % len(starts)] if starts else None

    @property
    def store(self) -> str:
        """Name of the store. It changes with each wipe."""
        return f"{self.name}.{self.wipes}" if self.wipes else self.name

    @property
    def running(self) -> bool:
        """Whether a process runs on the machine."""
        return self.stage.world.nodes[self.name].process is not None

    @property
    def node(self) -> Node | None:
        """The running node. None while no process runs, or before the process has made its node."""
        return self.probe.node if self.probe is not None and self.running else None

    def has_durably(self, log: dict[int, Entry], index: int) -> bool:
        """Whether this machine's disk durably holds a log up to `index`, or held it before it was wiped. This
        does not rely on what the node says."""
        entry = log.get(index)
        if entry is None:
            return False
        return (self.log.get(index) == entry and self.holds(index)) or self.gone.get(index) == entry

    def holds(self, index: int) -> bool:
        """Whether the machine's own log is durable up to `index`."""
        return self.durable.holds(self.log, self.base.index + 1, index, self.rotten)
