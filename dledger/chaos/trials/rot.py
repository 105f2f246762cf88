"""Rot: flips single bits in the files of a store, in each kind of file in turn.

The trial damages one node only, so an intact copy of everything exists. The file `identity` is left alone: a
node without it does not start, which only an operator can change.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dledger.formats.entry import HEADER_SIZE, MAGIC, unpack_header
from dledger.formats.store_files import MIRROR_OFFSET, SLOT_SIZE

Place = tuple[Path, int]
"""A file, and the offset of a byte in it."""
INDEX_FILE = "IndexFile"
"""Kind of the files that find messages by key."""
INDEX_FILES = "index"
"""Their directory in a store."""


class Damage(NamedTuple):
    """What was damaged: the kind of the file, and a text."""

    kind: str
    text: str


def _written(path: Path) -> int:
    """Offset behind the last byte of a file that is not zero."""
    return len(path.read_bytes().rstrip(b"\0"))


def _any_byte(paths: Iterator[Path], chance: random.Random) -> Place | None:
    found = [(path, end) for path in sorted(paths) if path.is_file() and (end := _written(path))]
    if not found:
        return None
    path, end = chance.choice(found)
    return path, chance.randrange(end)


def _entry(store: Path, chance: random.Random) -> tuple[Path, int, int] | None:
    """A segment, and where an entry of it begins and ends. Only entries of which the header is intact."""
    found = []
    for path in sorted(store.glob("dledger-*/data/*")):
        data = path.read_bytes()
        at = 0
        while at + HEADER_SIZE <= len(data):
            header = unpack_header(data, at)
            if header.magic != MAGIC or not HEADER_SIZE <= header.size <= len(data) - at:
                break
            found.append((path, at, at + header.size))
            at += header.size
    return chance.choice(found) if found else None


def _in_header(store: Path, chance: random.Random) -> Place | None:
    entry = _entry(store, chance)
    return None if entry is None else (entry[0], entry[1] + chance.randrange(HEADER_SIZE))


def _in_body(store: Path, chance: random.Random) -> Place | None:
    entry = _entry(store, chance)
    return None if entry is None else (entry[0], chance.randrange(entry[1] + HEADER_SIZE, entry[2]))


def _in_hard_state(store: Path, chance: random.Random) -> Place | None:
    paths = list(store.glob("dledger-*/hardstate"))
    offset = chance.choice((0, MIRROR_OFFSET)) + chance.randrange(2 * SLOT_SIZE)
    return (paths[0], offset) if paths else None


def _in_files(pattern: str) -> Callable[[Path, random.Random], Place | None]:
    return lambda store, chance: _any_byte(store.glob(pattern), chance)


KINDS: Mapping[str, Callable[[Path, random.Random], Place | None]] = {
    "body of an entry": _in_body,
    "header of an entry": _in_header,
    "index of entries": _in_files("dledger-*/index/*"),
    "ConsumeQueue": _in_files("consumequeue/*/*/*"),
    INDEX_FILE: _in_files(f"{INDEX_FILES}/*"),
    "snapshot": _in_files("state/snapshot*"),
    "hard state": _in_hard_state,
    "checkpoint": _in_files("dledger-*/checkpoint"),
    "members": _in_files("dledger-*/members"),
    "exported table": _in_files("config/*.json"),
}
"""Maps a kind of file to the choice of a byte in the files of this kind. The choice is None if the store has
no such file yet."""


def flip_bit(store: Path, number: int, chance: random.Random) -> Damage:
    """Flip one bit of a store. `number` chooses the kind of file: all kinds in turn. If there is no file of
    this kind, an entry is damaged. Returns what was damaged. Raises OSError if nothing is there."""
    kind = list(KINDS)[number % len(KINDS)]
    place = KINDS[kind](store, chance)
    if place is None:
        kind, place = "body of an entry", _in_body(store, chance)
    if place is None:
        raise FileNotFoundError(f"{store}: the store holds no entry yet")
    path, offset = place
    bit = chance.randrange(8)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        byte = os.pread(descriptor, 1, offset)[0]
        os.pwrite(descriptor, bytes([byte ^ 1 << bit]), offset)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return Damage(kind, f"bit {bit} of byte {offset} of {path.relative_to(store)} flipped ({kind})")
