"""Faults that damage durable data: entries, index units, term and vote. Another fault lets a write land at a
wrong place.

Rot is repaired while the node runs, or at its next start. The machine remembers what was damaged until its
disk has the original bytes again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dledger.chaos.scenarios.atlas import Atlas
from dledger.chaos.scenarios.disks import find_file
from dledger.chaos.scenarios.machine import CHAIN_AT, KIND_AT, Machine
from dledger.chaos.scenarios.member_faults import MemberFaults
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.stage import Stage
from dledger.formats.entry import INDEX_UNIT_SIZE
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    DATA_DIR,
    HARD_STATE_FILE,
    HARD_STATE_SIZE,
    INDEX_DIR,
    MEMBERS_FILE,
    MIRROR_OFFSET,
    SNAPSHOTS_DIR,
    parse_segment_name,
)

LOSES_VOTES = 5
"""Every LOSES_VOTES-th damage of term and vote destroys all their copies."""
SLOTS = HARD_STATE_SIZE - MIRROR_OFFSET
COPIES = ((0, SLOTS), (MIRROR_OFFSET, HARD_STATE_SIZE))
"""The two ranges of the file with term and vote that hold a complete copy: the original and its mirror. Each
range has both slots."""
PLACES = (DATA_DIR, DATA_DIR, INDEX_DIR, HARD_STATE_FILE)
"""Directories and files in which a write may land at a wrong place."""


class RotFaults(MemberFaults):
    """Injects damage to stores, as far as the atlas allows it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.atlas: Atlas = Atlas(stage)

    def rot_kinds(self) -> dict[str, Callable[[Fault], bool]]:
        """The kinds of faults in this module, with their methods."""
        return {
            "rot": self._rot,
            "rot-index": self._rot_index,
            "rot-votes": self._rot_votes,
            "lose-votes": self._rot_votes,
            "rot-checkpoint": self._rot_checkpoint,
            "misdirect": self._misdirect,
            "misdirect-votes": self._misdirect_votes,
            "lose-members": self._lose_members,
            "lose-segment": self._lose_segment,
            "eio-read": self._read_error,
            "eio-snapshot": self._read_error,
        }

    def _damages(self, fault: Fault) -> str | None:
        """The node to damage. None if the atlas allows no damage now."""
        target = self._target(fault)
        if target is None or not self.atlas.allows(target, fault.kind):
            return None
        self.atlas.damage(target, fault.kind)
        return target

    def _restarted(self, fault: Fault, target: str) -> None:
        """Kill a node now, and start it again later."""
        self._world.kill(target)
        self._later(fault.lasting_ms, partial(self._stage.start, target))

    def _rot(self, fault: Fault) -> bool:
        """Flip a bit of an entry whose index unit is durable. Most of the time the node is restarted."""
        target = self._target(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        place = machine.durable_byte(fault.amount, fault.pick)
        if place is None or not self.atlas.allows(target, fault.kind):
            return False
        self.atlas.damage(target, fault.kind)
        self._flip(machine, place, fault.pick % 8)
        if fault.pick % 3:
            self._restarted(fault, target)
        return True

    def _flip(self, machine: Machine, place: int, bit: int) -> None:
        """Flip a bit of the byte at this position of the log. If no check could notice that flip, flip a bit
        of another field of the entry."""
        if machine.fits_still(place, bit):
            place += CHAIN_AT - KIND_AT
        start = place - place % self._stage.profile.segment
        machine.rots(place, place + 1)
        self._world.nodes[machine.name].disk.flip(machine.segment_path(start), place - start, bit)

    def _rot_index(self, fault: Fault) -> bool:
        """Flip a bit of an index unit. Every second time the node is restarted."""
        target = self._target(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        index = machine.durable_entry(fault.pick)
        if index is None or not self.atlas.allows(target, fault.kind):
            return False
        self.atlas.damage(target, fault.kind)
        place = index * INDEX_UNIT_SIZE + fault.amount % INDEX_UNIT_SIZE
        machine.units_rot(place, place + 1)
        file, begin = machine.index_file(place)
        self._world.nodes[target].disk.flip(file, place - begin, fault.pick % 8)
        if fault.pick % 2:
            self._restarted(fault, target)
        return True

    def _rot_votes(self, fault: Fault) -> bool:
        """Damage the file with term and vote. The node is restarted.

        One bit, one of the two copies, or the whole file is damaged. The fault `lose-votes` always destroys
        the whole file.
        """
        target = self._damages(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        disk = self._world.nodes[target].disk
        file = f"{machine.node_dir}/{HARD_STATE_FILE}"
        if machine.disk_store.hard_state() is None:
            return False
        begin, end = COPIES[fault.pick % 2]
        self._world.kill(target)
        if fault.amount % LOSES_VOTES == 0 or fault.kind == "lose-votes":
            disk.zero(file, 0, HARD_STATE_SIZE)
            machine.forgets_votes()
            self._stage.marks.reach("term and vote lost")
        elif fault.amount % LOSES_VOTES == 1:
            disk.zero(file, begin, end - begin)
        else:
            disk.flip(file, begin + fault.amount % SLOTS, fault.pick % 8)
        self._later(fault.lasting_ms, partial(self._stage.start, target))
        return True

    def _rot_checkpoint(self, fault: Fault) -> bool:
        """Flip a bit of the file that says how far the log was committed. The node is restarted.

        No other node is needed to repair this damage. So it may hit a store that is already damaged, or be
        injected while another store is damaged.
        """
        target = self._target(fault)
        if target is None:
            return False
        file = f"{self._stage.machines[target].node_dir}/{CHECKPOINT_FILE}"
        self._restarted(fault, target)
        disk = self._world.nodes[target].disk
        size = len(find_file(disk, file))
        if size:
            disk.flip(file, fault.amount % size, fault.pick % 8)
        return bool(size)

    def _lose_members(self, fault: Fault) -> bool:
        """Remove the file that says where the configurations are in the log. Every second time an entry,
        which may be a configuration, is damaged as well. The node is restarted."""
        target = self._target(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        there = machine.disk_store.find(MEMBERS_FILE, durable=True) is not None
        if not there or not self.atlas.allows(target, fault.kind):
            return False
        self.atlas.damage(target, fault.kind)
        place = machine.durable_byte(fault.amount, fault.pick)
        self._restarted(fault, target)
        self._world.nodes[target].disk.lose(f"{machine.node_dir}/{MEMBERS_FILE}")
        if fault.pick % 2 and place is not None:
            self._flip(machine, place, fault.pick % 8)
        return True

    def _misdirect(self, fault: Fault) -> bool:
        """Let the next write to the log, its index, or term and vote land at a wrong place of the same
        file."""
        return self._misdirect_in(fault, PLACES[fault.pick % len(PLACES)])

    def _misdirect_votes(self, fault: Fault) -> bool:
        """Let the next write of a node's term and vote land at a wrong place. The leader is killed, so that
        such a write happens."""
        leader = self._stage.leader()
        if leader is None or not self._misdirect_in(fault, HARD_STATE_FILE):
            return False
        self._world.kill(leader)
        self._later(fault.lasting_ms // 2, partial(self._stage.start, leader))
        return True

    def _misdirect_in(self, fault: Fault, place: str) -> bool:
        target = self._damages(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        disk = self._world.nodes[target].disk
        machine.armed = True

        def landed(path: str, wanted: int, size: int, found: int) -> None:
            machine.armed = False
            self.atlas.damage(target, fault.kind)
            self._landed(machine, path, size, wanted, found)

        def disarm() -> None:
            machine.armed = False
            disk.mend()

        disk.on_misdirect = landed
        disk.misdirect(f"{machine.node_dir}/{place}")
        self._later(fault.lasting_ms, disarm)
        return True

    def _read_error(self, fault: Fault) -> bool:
        """Let the next reads of segments, or of snapshots, fail. Most of the time the node is restarted,
        because its recovery reads."""
        target = self._damages(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        disk = self._world.nodes[target].disk
        machine.armed = True
        place = SNAPSHOTS_DIR if fault.kind == "eio-snapshot" else DATA_DIR

        def disarm() -> None:
            machine.armed = False
            disk.mend()

        def failed(operation: str, path: str) -> None:
            if operation == "read" and place == SNAPSHOTS_DIR:
                self._stage.marks.reach("a snapshot could not be read")
            elif operation == "read":
                self._stage.marks.reach("a segment could not be read")
                if machine.probe is None or not machine.probe.opened:
                    self._stage.marks.reach("a segment could not be read at a start")

        disk.on_failure = failed
        disk.fail("read", fault.amount, f"{machine.node_dir}/{place}")
        if fault.pick % 3:
            self._world.kill(target)
            self._later(min(fault.lasting_ms // 2, 500), partial(self._stage.start, target))
        self._later(fault.lasting_ms, disarm)
        return True

    def _landed(self, machine: Machine, path: str, size: int, *places: int) -> None:
        """Note which bytes a misdirected write damaged: those at the place where it should have landed, and
        those at the place where it did land."""
        *_, folder, name = path.split("/")
        start = parse_segment_name(name)
        if start is not None:
            rots = machine.units_rot if folder == INDEX_DIR else machine.rots
            for place in places:
                rots(start + place, start + place + size)
        self._stage.marks.reach(f"misdirected write in {name if start is None else folder}")

    def _lose_segment(self, fault: Fault) -> bool:
        """Remove a segment file that is not the newest. The node is restarted."""
        target = self._target(fault)
        if target is None:
            return False
        machine = self._stage.machines[target]
        start = machine.old_segment(fault.pick)
        if start is None or not self.atlas.allows(target, fault.kind):
            return False
        self.atlas.damage(target, fault.kind)
        self._world.kill(target)
        machine.rots(start, start + self._stage.profile.segment)
        self._world.nodes[target].disk.lose(machine.segment_path(start))
        self._later(fault.lasting_ms, partial(self._stage.start, target))
        return True
