"""The undo journal: what a loss of power would undo, for a real store on a real disk.

Before an operation changes a file, or a name in a directory, the journal gets a record with what was there
before. When a sync has made operations durable, it gets a record that says so. The journal is in files
outside of the store. It is not fsynced: it survives a kill of the process in the page cache, and the machine
does not really lose its power.

* A write or a change of a length is pending until a sync of the file that begins after the write has ended.
* A created, renamed or removed name is pending until its directory is synced. As in the simulator's disk,
this makes durable only the operations of that directory, and earlier operations on the same files.
* A removed file is kept in the directory `removed` of the journal until its removal is durable.

Files and directories are identified by their inode numbers. `power_loss` undoes what is pending.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from dledger.formats.checksum import crc32

JOURNAL = "journal"
REMOVED = "removed"
COMPACT_BYTES = 256 * 1024 * 1024
"""Size of the journal, in bytes, from which on records of durable operations are removed from it."""
_PREFIX = 8
"""Bytes before each record: its length and its CRC, 4 bytes each."""
_WRITE, _SYNCED, _WRITE_SYNCED, _NAMES, _NAMES_SYNCED, _NEW = range(6)

Subject = int | tuple[int, str]
"""A file or directory (its inode number), or a name in a directory."""


@dataclass
class FileOp:
    """One change of a file: `length` bytes at `offset` were `before`, and the file was `old_size` bytes long.

    A change of the length is an operation as well. If it makes the file shorter, `before` is what was cut
    off. `before` lacks the bytes that were zero at its end, or that lay beyond the end of the file.
    """

    sequence: int
    inode: int
    offset: int
    length: int
    old_size: int
    new_size: int
    before: bytes
    resizes: bool
    """Whether the operation sets the length and writes nothing."""
    durable: bool = False

    def piece_before(self, begin: int, end: int) -> bytes:
        """What was at the bytes [begin, end) of the file, which are a part of the operation's range."""
        return self.before[begin - self.offset : end - self.offset].ljust(end - begin, b"\0")


@dataclass(frozen=True)
class NameChange:
    """One name that an operation changed, in the directory with inode number `directory`. Before and after
    are inode numbers; 0 means that there was no such name."""

    directory: int
    name: str
    before: int
    after: int


@dataclass(frozen=True)
class NameOp:
    """One atomic change of names. `kept` is the name, in the directory `removed`, of what it removed."""

    sequence: int
    changes: tuple[NameChange, ...]
    kept: str = ""

    def subjects(self) -> Iterator[Subject]:
        """Everything on which later operations may depend."""
        for change in self.changes:
            yield change.directory, change.name
            yield from (number for number in (change.before, change.after) if number)


@dataclass
class Pending:
    """All operations that a loss of power may undo, in the order in which they were made."""

    files: dict[int, list[FileOp]] = field(default_factory=dict)
    names: list[NameOp] = field(default_factory=list)
    last: int = 0
    """Largest number of an operation."""

    def apply(self, record: list[Any]) -> None:
        """Take over one record of the journal."""
        kind, *values = record
        if kind == _WRITE:
            op = FileOp(*values)
            self.files.setdefault(op.inode, []).append(op)
            self.last = max(self.last, op.sequence)
        elif kind == _SYNCED:
            inode, mark, running = values
            self._durable(inode, lambda op: op.sequence <= mark and op.sequence not in running)
        elif kind == _WRITE_SYNCED:
            inode, sequence = values
            self._durable(inode, lambda op: op.sequence == sequence)
        elif kind == _NAMES:
            sequence, changes, kept = values
            self.names.append(NameOp(sequence, tuple(NameChange(*one) for one in changes), kept))
            self.last = max(self.last, sequence)
        elif kind == _NAMES_SYNCED:
            self.sync_names(*values)
        else:
            self.files.pop(values[0], None)  # the number of a file that is gone belongs to a new one

    def _durable(self, inode: int, covers: Callable[[FileOp], bool]) -> None:
        ops = self.files.get(inode, [])
        for op in ops:
            op.durable = op.durable or covers(op)
        while ops and ops[0].durable:
            del ops[0]
        if not ops:
            self.files.pop(inode, None)

    def sync_names(self, directory: int, mark: int) -> list[NameOp]:
        """Make durable all changes of names in a directory up to number `mark`, and the earlier changes on
        which those depend. Returns them.

        When the removal of a directory is durable, so are all changes in it.
        """
        wanted: dict[Subject, None] = {}
        gone: dict[int, None] = {}
        chosen: list[NameOp] = []
        rest: list[NameOp] = []
        for op in reversed(self.names):
            within = any(change.directory == directory for change in op.changes)
            depends = any(subject in wanted for subject in op.subjects())
            inside = any(change.directory in gone for change in op.changes)
            if op.sequence <= mark and (within or depends or inside):
                wanted.update(dict.fromkeys(op.subjects()))
                after = [change.after for change in op.changes]
                gone.update(dict.fromkeys(one.before for one in op.changes if one.before not in after))
                chosen.append(op)
            else:
                rest.append(op)
        self.names = rest[::-1]
        return chosen[::-1]


def read_journal(directory: Path) -> Pending:
    """What is pending by the journal in this directory. A torn record at the end is ignored: its operation
    has not begun. Raises ValueError if the journal is damaged elsewhere."""
    pending = Pending()
    for record, _ in _records(directory):
        pending.apply(record)
    return pending


def _records(directory: Path) -> Iterator[tuple[list[Any], int]]:
    """The records, each with the position behind it."""
    try:
        data = memoryview((directory / JOURNAL).read_bytes())
    except FileNotFoundError:
        return
    at = 0
    while at + _PREFIX <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = data[at + _PREFIX : at + _PREFIX + size]
        if len(body) < size:
            return
        if crc32(body) != int.from_bytes(data[at + 4 : at + 8], "big"):
            if at + _PREFIX + size == len(data):
                return
            raise ValueError(f"{directory / JOURNAL}: the record at {at} has a wrong CRC")
        at += _PREFIX + size
        yield msgpack.unpackb(body, strict_map_key=False), at


class Journal:
    """The journal as the broker writes it. A caller serialises all calls with a lock of its own."""

    def __init__(self, directory: Path) -> None:
        """Continue the journal in this directory, or begin one. Raises OSError, and ValueError for a damaged
        journal."""
        self.directory = directory
        (directory / REMOVED).mkdir(parents=True, exist_ok=True)
        self._pending_names = Pending()
        end = 0
        for record, end in _records(directory):  # noqa: B007  # the last end is used below
            if record[0] in (_NAMES, _NAMES_SYNCED):
                self._pending_names.apply(record)
            elif record[0] == _WRITE:
                self._pending_names.last = max(self._pending_names.last, record[1])
        self._sequence = self._pending_names.last
        self._running: dict[int, list[int]] = {}
        """The operations of each file that have begun and not ended."""
        self._file = self._open(end)
        self._size = end

    def _open(self, end: int) -> int:
        descriptor = os.open(
            self.directory / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        os.ftruncate(descriptor, end)  # a torn record
        return descriptor

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    # Content of files

    def begin_write(
        self, inode: int, offset: int, length: int, sizes: tuple[int, int], before: bytes, resizes: bool
    ) -> int:
        """Record an operation before it is made; `sizes` are the length of the file before and after. Returns
        the operation's number."""
        self._sequence += 1
        before = b"" if before == bytes(len(before)) else before.rstrip(b"\0")
        self._append([_WRITE, self._sequence, inode, offset, length, *sizes, before, resizes])
        self._running.setdefault(inode, []).append(self._sequence)
        return self._sequence

    def end_write(self, inode: int, sequence: int, synced: bool) -> None:
        """Note that an operation has ended. `synced` says that it is durable."""
        running = self._running[inode]
        running.remove(sequence)
        if not running:
            del self._running[inode]
        if synced:
            self._append([_WRITE_SYNCED, inode, sequence])

    def mark(self, inode: int) -> tuple[int, list[int]]:
        """What a sync that begins now does and does not cover: the last number, and the operations up to it
        that have not ended."""
        return self._sequence, list(self._running.get(inode, ()))

    def synced(self, inode: int, mark: tuple[int, list[int]]) -> None:
        """Record that a sync of a file succeeded."""
        self._append([_SYNCED, inode, *mark])

    # Names

    def new_file(self, inode: int) -> None:
        """Record that a new file or directory has this inode number."""
        self._append([_NEW, inode])

    def change_names(self, changes: Iterable[NameChange], keeps: bool = False) -> Path | None:
        """Record a change of names before it is made. With `keeps`, returns where the removed file or
        directory has to be kept."""
        self._sequence += 1
        kept = str(self._sequence) if keeps else ""
        op = NameOp(self._sequence, tuple(changes), kept)
        rows = [[one.directory, one.name, one.before, one.after] for one in op.changes]
        record = [_NAMES, op.sequence, rows, kept]
        self._append(record)
        self._pending_names.apply(record)
        return self.directory / REMOVED / kept if keeps else None

    def names_mark(self) -> int:
        """What a sync of a directory that begins now covers."""
        return self._sequence

    def names_synced(self, directory: int, mark: int) -> list[Path]:
        """Record that a sync of a directory succeeded. Returns what need not be kept any longer."""
        self._append([_NAMES_SYNCED, directory, mark])
        done = self._pending_names.sync_names(directory, mark)
        return [self.directory / REMOVED / op.kept for op in done if op.kept]

    # The file

    def _append(self, record: list[Any]) -> None:
        body = msgpack.packb(record)
        data = len(body).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body
        self._write(self._file, data)
        self._size += len(data)
        if self._size > COMPACT_BYTES:
            self._compact()

    @staticmethod
    def _write(descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def _compact(self) -> None:
        """Write the records of pending operations into a new file, which replaces the journal."""
        pending = read_journal(self.directory)
        temporary = self.directory / f"{JOURNAL}.new"
        records: list[tuple[int, list[list[Any]]]] = []
        for ops in pending.files.values():
            for op in ops:
                sizes = (op.old_size, op.new_size)
                row = [_WRITE, op.sequence, op.inode, op.offset, op.length, *sizes, op.before, op.resizes]
                more = [[_WRITE_SYNCED, op.inode, op.sequence]] if op.durable else []
                records.append((op.sequence, [row, *more]))
        for name in pending.names:
            rows = [[one.directory, one.name, one.before, one.after] for one in name.changes]
            records.append((name.sequence, [[_NAMES, name.sequence, rows, name.kept]]))
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        size = 0
        try:
            for _, group in sorted(records, key=lambda one: one[0]):
                for record in group:
                    body = msgpack.packb(record)
                    data = len(body).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body
                    self._write(descriptor, data)
                    size += len(data)
        finally:
            os.close(descriptor)
        os.close(self._file)
        os.replace(temporary, self.directory / JOURNAL)
        self._file, self._size = self._open(size), size
