"""Undoes what a loss of power may undo in the store of a broker that does not run.

Whatever was synced stays. Of the rest, all is lost, or a part that a seed chooses: each sector of 512 bytes
of a file holds one of the states that it had since the last sync. So a write may be torn. A change of a name
is lost together with all later changes that depend on it.
"""

from __future__ import annotations

import enum
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dledger.chaos.trials.undo_journal import JOURNAL, REMOVED, FileOp, NameOp, Subject, read_journal

SECTOR = 512
"""Unit, in bytes, that a device writes as a whole or not at all."""


class Loss(enum.Enum):
    """How much of what is not synced is lost."""

    ALL = "all"
    TORN = "torn"
    """Any sectors of any writes, and any names."""
    NAMES = "names"
    """All changes of names; the content of files stays."""
    CONTENT = "content"
    """The content of files as in TORN; the names stay."""


@dataclass(frozen=True)
class Lost:
    """How much a loss of power has undone."""

    writes: int
    """Operations on the content or the length of files of which something was undone."""
    names: int


def lose_power(journal: Path, store: Path, loss: Loss, chance: random.Random) -> Lost:
    """Undo what is not synced in a store, and empty its journal: what is left counts as durable. The broker
    must not run. Raises OSError, and ValueError for a damaged journal."""
    pending = read_journal(journal)
    names = _lost_names(pending.names, loss, chance)
    tree = _Tree(store, journal / REMOVED)
    writes = 0
    for inode, ops in sorted(pending.files.items()):
        path = tree.path(inode)
        if path is not None and loss is not Loss.NAMES:
            writes += _lose_content(path, ops, loss is Loss.ALL, chance)
    for op in reversed(names):
        tree.undo(op)
    forget(journal)
    return Lost(writes, len(names))


def forget(journal: Path) -> None:
    """Empty the journal, so that everything that the store holds counts as durable."""
    (journal / JOURNAL).unlink(missing_ok=True)
    for directory in sorted(path for path in journal.glob("*") if path.is_dir()):
        shutil.rmtree(directory)


def _lost_names(ops: Sequence[NameOp], loss: Loss, chance: random.Random) -> list[NameOp]:
    if loss is Loss.CONTENT:
        return []
    if loss is not Loss.TORN:
        return list(ops)
    missing: dict[Subject, None] = {}
    lost = []
    for op in ops:
        if chance.random() < 0.5 or any(subject in missing for subject in op.subjects()):
            missing.update(dict.fromkeys(op.subjects()))
            lost.append(op)
    return lost


# Content


def _lose_content(path: Path, ops: Sequence[FileOp], everything: bool, chance: random.Random) -> int:
    """Undo operations of one file. Returns of how many something was undone."""
    kept_sizes = _kept_sizes(ops, everything, chance)
    states = _kept_states(ops, everything, kept_sizes, chance)
    undone = 0
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for place in reversed(range(len(ops))):
            op = ops[place]
            ranges = []
            if op.resizes:
                if place >= kept_sizes:
                    ranges = [(op.offset, op.offset + op.length)]
            else:
                for sector in _sectors(op):
                    if states.get(sector, 0) <= place:
                        low = max(op.offset, sector * SECTOR)
                        ranges.append((low, min(op.offset + op.length, (sector + 1) * SECTOR)))
            undone += bool(ranges)
            for begin, end in _joined(ranges):
                _write_all(descriptor, op.piece_before(begin, end), begin)
        os.ftruncate(descriptor, ops[kept_sizes].old_size if kept_sizes < len(ops) else ops[-1].new_size)
    finally:
        os.close(descriptor)
    return undone


def _sectors(op: FileOp) -> range:
    return range(op.offset // SECTOR, (op.offset + op.length - 1) // SECTOR + 1)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, neighbours as one."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count


def _kept_sizes(ops: Sequence[FileOp], everything: bool, chance: random.Random) -> int:
    """How many operations, from the first on, have changed the length on the device."""
    least = max(
        (place + 1 for place, op in enumerate(ops) if op.durable and op.new_size != op.old_size), default=0
    )
    return least if everything else chance.randint(least, len(ops))


def _kept_states(
    ops: Sequence[FileOp], everything: bool, kept_sizes: int, chance: random.Random
) -> dict[int, int]:
    """Maps each sector to a number: operations from this one on are undone in it."""
    least: dict[int, int] = {}
    touching: dict[int, list[int]] = {}
    for place, op in enumerate(ops):
        if op.resizes:
            if place < kept_sizes and op.new_size < op.old_size:
                for sector in touching:
                    if (sector + 1) * SECTOR > op.new_size:  # what was there before is cut off
                        least[sector] = place + 1
            continue
        for sector in _sectors(op):
            touching.setdefault(sector, []).append(place)
            if op.durable:
                least[sector] = place + 1
    whole = not everything and chance.random() < 0.5
    there = [whole and chance.random() < 0.5 for _ in ops]
    states = {}
    for sector, places in touching.items():
        low = least.get(sector, 0)
        rest = [place for place in places if place >= low]
        if everything or not rest:
            states[sector] = low
        elif whole:  # each write is there as a whole or not at all, as far as the order in a sector allows
            states[sector] = next((place for place in rest if not there[place]), len(ops))
        else:
            states[sector] = chance.choice((low, len(ops), chance.choice(rest)))
    return states


# Names


class _Tree:
    """The files and directories of a store and of what was removed from it, by their inode numbers."""

    def __init__(self, store: Path, removed: Path) -> None:
        self._roots = (store, removed)
        self._removed = removed
        self._paths: dict[int, Path] = {}
        self._look()

    def _look(self) -> None:
        self._paths = {}
        for root in self._roots:
            if root.exists():
                self._paths[root.stat().st_ino] = root
                for directory, directories, files in os.walk(root):
                    for name in (*directories, *files):
                        path = Path(directory, name)
                        self._paths.setdefault(path.lstat().st_ino, path)
        for parent in self._roots[0].parents:  # a node that is new makes the store itself
            self._paths.setdefault(parent.stat().st_ino, parent)
            if parent.parent.stat().st_dev != parent.stat().st_dev:
                break

    def path(self, inode: int) -> Path | None:
        """Where a file or directory is now; None if it is gone for good."""
        return self._paths.get(inode)

    def undo(self, op: NameOp) -> None:
        """Undo one change of names. Does nothing if it was not made: the process was killed before."""
        kept = self._removed / op.kept if op.kept else None
        for change in reversed(op.changes):
            directory = self.path(change.directory)
            if directory is None:
                continue
            path = directory / change.name
            there = path.lstat().st_ino if os.path.lexists(path) else 0
            if change.before and change.after == 0:  # removed, or renamed away
                self._put_back(path, there, change.before, kept if len(op.changes) == 1 else None)
            elif there == change.after:  # made, or renamed to here
                self._take_away(path, change.before, change.after, kept, moves=len(op.changes) == 2)
            elif kept is not None and there == 0 and os.path.lexists(kept):
                os.rename(kept, path)  # killed between the two steps of a replacement
                self._paths[change.before] = path
        # Only a directory that moved gives other files other paths.
        if any(path.is_dir() for path in map(self.path, _things(op)) if path is not None):
            self._look()

    def _put_back(self, path: Path, there: int, before: int, kept: Path | None) -> None:
        if there:
            return
        source = kept if kept is not None and os.path.lexists(kept) else self._moved
        if source is not None and source.lstat().st_ino == before:
            os.rename(source, path)
            self._paths[before] = path
        self._moved = None

    _moved: Path | None = None
    """The file whose renaming is being undone, in the directory of removed files."""

    def _take_away(self, path: Path, before: int, after: int, kept: Path | None, moves: bool) -> None:
        aside = self._removed / f"undone-{after}"
        os.rename(path, aside)
        self._paths[after] = aside
        if moves:
            self._moved = aside
        elif aside.is_dir():
            shutil.rmtree(aside)
            self._look()
        else:
            aside.unlink()
        if before and kept is not None and os.path.lexists(kept):
            os.rename(kept, path)
            self._paths[before] = path


def _things(op: NameOp) -> list[int]:
    """The files and directories whose names an operation changed."""
    return [number for change in op.changes for number in (change.before, change.after) if number]
