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
"""Where the kind lies in the header of an entry: a byte that nothing covers where an older program wrote it,
or before a group knew that all its voters know better (docs/explanation/guarantees.md)."""
CHAIN_AT = CHANNEL_OFFSET + 4
"""What comes behind kind and batch count."""


class Replica(Protocol):
    """The state machine of one life of a node."""

    @property
    def index(self) -> int:
        """Of the last entry applied, -1 for none."""

    def content(self) -> bytes:
        """The whole state, as the judge's replay encodes it."""


class Machine:
    """One machine of the group: its store on disk and, while a process runs, its node."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.wipes: int = 0
        self.lives = 0
        self.in_use = False
        """A spare machine is not, until its node is to be added."""
        self.excused = False
        """Its disk failed: the node may end with an error, and know less afterwards."""
        self.may_end = False
        """Its disk fails beside the log: the process may end with an error, but its log knows no less."""
        self.log: dict[int, Entry] = {}
        """The log as its node last had it, in memory or not, with the entries before its beginning: those
        that were committed there."""
        self.base: LogBase = ORIGIN
        """Where it begins."""
        self.gone: dict[int, Entry] = {}
        """What it had durably before it was wiped: an acknowledgement may still be on its way."""
        self.rotten: dict[int, Entry] = {}
        """Entries that a fault damaged on this disk, until they are whole again."""
        self.rotten_units: dict[int, None] = {}
        """Entries whose index units are damaged."""
        self.touched: dict[int, None] = {}
        """Segments that were damaged, maybe in their blank tails."""
        self.armed = False
        """A fault of its disk waits for its moment."""
        self.node_dir: str = f"/store/dledger-{name}"
        self.group: tuple[str, ...] = ()
        """The members that its settings name: those that there were when its store was empty."""
        self.probe: Probe | None = None
        self.host: Replica | None = None
        self.renew_reader()

    def renew_reader(self) -> None:
        """The disk was wiped or replaced."""
        disk = self.stage.world.node(self.name).disk
        self.disk_store: StoreOnDisk = StoreOnDisk(disk, self.node_dir, self.stage.profile.segment)
        self.durable: DurableMark = DurableMark(self.disk_store, fsynced=self.stage.profile.sync_flush)
        self.base = ORIGIN

    def wipe(self) -> None:
        """Its store is gone; what comes next is another one."""
        self.stage.world.nodes[self.name].disk.wipe("/store")
        self.wipes += 1
        self.loses_what_it_said()
        self.log = {}
        self.rotten, self.rotten_units, self.touched = {}, {}, {}
        self.renew_reader()

    def loses_what_it_said(self) -> None:
        """What it acknowledged is lost here, at least in part; the answers may still be on their way."""
        self.gone |= {index: entry for index, entry in self.log.items() if index <= self.durable.index}

    def check_units(self) -> None:
        """Who has a durable index unit is durable (safety.md S4): else its loss would be taken for rot."""
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
        """Its log begins behind this, or is about to: then a snapshot that is true there is durable (S20)."""
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
        """Whether anything damaged is neither repaired nor cut, or is still to be damaged."""
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
        """Whether a segment has its blank tail, if the log goes on behind it."""
        end = start + self.stage.profile.segment
        inside = [entry for entry in self.log.values() if start <= entry.pos < end]
        if not inside or start < self.base.pos or not any(entry.pos >= end for entry in self.log.values()):
            return True
        pos = max(entry.pos + entry.size for entry in inside)
        blank = BLANK.pack(BLANK_MAGIC, end - pos)
        return all(self.disk_store.read(pos, len(blank), durable) == blank for durable in (True, False))

    def rots(self, begin: int, end: int) -> None:
        """Bytes `begin` to `end` of the log are damaged."""
        size = self.stage.profile.segment
        self.touched |= dict.fromkeys(range(begin - begin % size, end, size))
        for index, entry in self.log.items():
            if entry.pos < end and entry.pos + entry.size > begin:
                self.rotten[index] = entry

    def units_rot(self, begin: int, end: int) -> None:
        """Bytes `begin` to `end` of the index are damaged."""
        for index in range(begin // INDEX_UNIT_SIZE, -(-end // INDEX_UNIT_SIZE)):
            if index in self.log:
                self.rotten_units[index] = None

    def forgets_votes(self) -> None:
        """Nothing is left of term and vote: it comes back as somebody else, with its log."""
        self.wipes += 1

    @property
    def has_store(self) -> bool:
        """Whether anything was ever stored here."""
        return self.disk_store.find(durable=False) is not None

    def durable_entry(self, pick: int) -> int | None:
        """Index of an entry whose index unit is durable: damage to either is rot."""
        node = self.node
        if node is None or not self.log:
            return None
        last = self.disk_store.durable_mark(self.base.index + 1, max(self.log))
        known = [index for index in self.log if self.base.index < index <= last]
        return known[pick % len(known)] if known else None

    def durable_byte(self, amount: int, pick: int) -> int | None:
        """Place in the log of a byte of such an entry."""
        index = self.durable_entry(pick)
        if index is None:
            return None
        entry = self.log[index]
        offset = amount % entry.size
        return entry.pos + offset + (offset == KIND_AT and not entry.channel & COVERED)

    def fits_still(self, place: int, bit: int) -> bool:
        """Whether that bit of the log, flipped, leaves a batch count that fits the entries beside it: nothing
        covers it then (docs/explanation/guarantees.md)."""
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
        """Of the segment that starts there."""
        return f"{self.node_dir}/{DATA_DIR}/{segment_name(start)}"

    def index_file(self, place: int) -> tuple[str, int]:
        """The index file that holds a byte of the index, and where it begins."""
        size = self.stage.index_units * INDEX_UNIT_SIZE
        return f"{self.node_dir}/{INDEX_DIR}/{segment_name(place - place % size)}", place - place % size

    def old_segment(self, pick: int) -> int | None:
        """Start of a segment before the newest."""
        starts = [start for start, _ in self.disk_store.segments(durable=True)[:-1] if start >= self.base.pos]
        return starts[pick % len(starts)] if starts else None

    @property
    def store(self) -> str:
        """Name of the store: another one after a wipe."""
        return f"{self.name}.{self.wipes}" if self.wipes else self.name

    @property
    def running(self) -> bool:
        """Whether a process runs."""
        return self.stage.world.nodes[self.name].process is not None

    @property
    def node(self) -> Node | None:
        """The running node, once it was made."""
        return self.probe.node if self.probe is not None and self.running else None

    def has_durably(self, log: dict[int, Entry], index: int) -> bool:
        """Whether this machine's disk holds a log up to `index`, or did, whatever its own node says."""
        entry = log.get(index)
        if entry is None:
            return False
        return (self.log.get(index) == entry and self.holds(index)) or self.gone.get(index) == entry

    def holds(self, index: int) -> bool:
        """Whether its own log up to `index` is durable."""
        return self.durable.holds(self.log, self.base.index + 1, index, self.rotten)
