"""Damage planted into a store that a broker of Apache's wrote, one row for each kind (`DAMAGE`).

The kinds find their place by the store's own index units, so they work on a store of any size, whose segments
may be in several directories. There must be two other replicas that are sound.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from dledger.audit.findings import Severity
from dledger.audit.report import Report
from dledger.audit.store_directory import Replica, open_store
from dledger.formats.consume_queue import UNIT_SIZE
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.index_file import HEADER_SIZE as KEY_HEADER_SIZE
from dledger.formats.index_file import UNIT_SIZE as KEY_UNIT_SIZE
from dledger.formats.record import FIXED_SIZE, decode_record
from dledger.formats.store_files import segment_name
from dledger.runtime.files import OsFiles

BODY_CRC_AT, BODY_SIZE_AT = 8, 84
"""Offsets in a record."""


class Place(NamedTuple):
    """Where an entry is: its file, its offset in it, its size, its index."""

    path: Path
    at: int
    size: int
    index: int


@dataclass
class Target:
    """The store that is damaged. `given`: the directory or broker.conf by which it is audited."""

    given: Path
    replica: Replica = field(init=False)

    def __post_init__(self) -> None:
        (self.replica,) = open_store(OsFiles(), str(self.given))
        self.node = Path(self.replica.directory)
        self.queues = Path(self.replica.queue_root)
        self.keys = Path(self.replica.key_root)
        self.index = self.node / "index" / segment_name(0)

    @property
    def last(self) -> int:
        """Index of the last committed entry."""
        return self.replica.committed

    def segment(self, number: int) -> Path:
        """The segment with this number; negative numbers count from the last one with entries."""
        filled = [one.start for one in self.replica.segments if one.first_index is not None]
        return Path(self.replica.places.path_of(filled[number]))

    def entry(self, index: int) -> Place:
        """Where an entry is."""
        with self.index.open("rb") as file:
            file.seek(index * INDEX_UNIT_SIZE)
            _, pos, size, _, _ = INDEX_UNIT.unpack(file.read(INDEX_UNIT_SIZE))
        start = pos - pos % self.replica.segment_size
        return Place(Path(self.replica.places.path_of(start)), pos - start, size, index)

    def messages(self, begin: float = 0.4) -> Iterator[Place]:
        """Messages of a topic of users, from this part of the log on."""
        for index in range(int(self.last * begin), self.last):
            place = self.entry(index)
            if place.size > HEADER_SIZE:
                record = decode_record(self.read(place)[HEADER_SIZE:])
                if not record.topic.startswith(("SCHEDULE_", "RMQ_SYS_")) and not record.sys_flag & 0xC:
                    yield place

    def message(self) -> Place:
        """The first of these messages."""
        return next(self.messages())

    def read(self, place: Place) -> bytes:
        """The bytes of an entry."""
        with place.path.open("rb") as file:
            file.seek(place.at)
            return file.read(place.size)

    def queue_unit(self, place: Place) -> tuple[Path, int]:
        """The ConsumeQueue file with the unit of a message, and the offset of the unit in it."""
        record = decode_record(self.read(place)[HEADER_SIZE:])
        directory = self.queues / record.topic / str(record.queue_id)
        size = next(directory.iterdir()).stat().st_size
        at = record.queue_offset * UNIT_SIZE
        return directory / segment_name(at - at % size), at % size


Plant = Callable[[Target], None]


@dataclass(frozen=True)
class Damage:
    """A kind of damage. At least one of the `codes` is found, and nothing else that is worse than
    information."""

    name: str
    plant: Plant
    codes: tuple[str, ...]


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write bytes into a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, bits: int = 0x10) -> None:
    """Flip bits of one byte."""
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ bits]))


def near_end(target: Target) -> Place:
    """An entry of the last segment with ten others behind it, or as many as there are."""
    first = [one.first_index for one in target.replica.segments if one.first_index is not None][-1]
    return target.entry(min(target.last, max(first + 1, target.last - 10)))


# entries


def at_entry(offset: int, target: Target) -> None:
    place = target.message()
    flip(place.path, place.at + offset)


def at_record(offset: int, target: Target) -> None:
    at_entry(HEADER_SIZE + offset, target)


def at_end(target: Target) -> None:
    """The last byte of the properties, which no CRC covers."""
    place = target.message()
    flip(place.path, place.at + place.size - 1, 1)


def other_body(target: Target) -> None:
    """A body that was replaced, with the CRC of the new one."""
    place = target.message()
    data = bytearray(target.read(place))
    (size,) = struct.unpack_from(">i", data, HEADER_SIZE + BODY_SIZE_AT)
    at = HEADER_SIZE + BODY_SIZE_AT + 4
    data[at : at + size] = b"z" * size
    struct.pack_into(">I", data, HEADER_SIZE + BODY_CRC_AT, crc32(b"z" * size) & 0x7FFFFFFF)
    overwrite(place.path, place.at, data)


def other_term(target: Target) -> None:
    """A term that is too high, in the entry and in its index unit."""
    place = target.message()
    overwrite(place.path, place.at + 16, (99).to_bytes(8, "big"))
    overwrite(target.index, place.index * INDEX_UNIT_SIZE + 24, (99).to_bytes(8, "big"))


def swapped(target: Target) -> None:
    """Two messages that follow each other changed places."""
    first = target.message()
    second = target.entry(first.index + 1)
    if second.path != first.path:
        second, first = first, target.entry(first.index - 1)
    overwrite(first.path, first.at, target.read(second) + target.read(first))


def swapped_and_renumbered(target: Target) -> None:
    """Two messages of the same size have each other's bodies of entries, each in a header that fits."""
    found: dict[int, Place] = {}
    for place in target.messages():
        other = found.setdefault(place.size, place)
        if other is not place:
            one, two = target.read(other), target.read(place)
            overwrite(other.path, other.at + HEADER_SIZE, two[HEADER_SIZE:])
            overwrite(place.path, place.at + HEADER_SIZE, one[HEADER_SIZE:])
            return


def copied(target: Target) -> None:
    """An earlier entry once more in the place of this one."""
    place = target.message()
    overwrite(place.path, place.at, target.read(target.entry(place.index - 1))[: place.size])


def zeros(size: int, target: Target) -> None:
    place = target.message()
    overwrite(place.path, place.at, bytes(size))


def zeros_at_end(target: Target) -> None:
    """The last entries of the last segment are zeros."""
    place = near_end(target)
    overwrite(place.path, place.at, bytes(place.path.stat().st_size - place.at))


def noise(target: Target) -> None:
    place = target.message()
    overwrite(place.path, place.at + 100, bytes(range(1, 256)) * 4)


# files of the log


def lost(number: int, target: Target) -> None:
    target.segment(number).unlink()


def all_lost(target: Target) -> None:
    for directory in target.replica.places.directories:
        shutil.rmtree(directory)
        Path(directory).mkdir()


def cut(number: int, target: Target) -> None:
    """The second half of a segment is gone, or its last entries if it is the last one."""
    path = target.segment(number)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 if number != -1 else near_end(target).at)


def empty(number: int, target: Target) -> None:
    target.segment(number).write_bytes(b"")


def all_zeros(number: int, target: Target) -> None:
    path = target.segment(number)
    path.write_bytes(bytes(path.stat().st_size))


def exchanged(target: Target) -> None:
    one, two = target.segment(1), target.segment(2)
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def repeated(target: Target) -> None:
    target.segment(2).write_bytes(target.segment(1).read_bytes())


# the index


def index_unit(offset: int, target: Target) -> None:
    flip(target.index, target.message().index * INDEX_UNIT_SIZE + offset)


def index_zeros(target: Target) -> None:
    overwrite(target.index, target.message().index * INDEX_UNIT_SIZE, bytes(10 * INDEX_UNIT_SIZE))


def index_cut(target: Target) -> None:
    with target.index.open("r+b") as file:
        file.truncate(target.message().index * INDEX_UNIT_SIZE)


def index_lost(target: Target) -> None:
    shutil.rmtree(target.node / "index")
    (target.node / "index").mkdir()


# ConsumeQueues


def queue_unit(offset: int, target: Target) -> None:
    path, at = target.queue_unit(target.message())
    flip(path, at + offset)


def queue_zeros(target: Target) -> None:
    path, at = target.queue_unit(target.message())
    overwrite(path, at, bytes(UNIT_SIZE))


def queue_swapped(target: Target) -> None:
    path, at = target.queue_unit(target.message())
    data = path.read_bytes()
    at -= UNIT_SIZE if at >= UNIT_SIZE else 0
    pair = data[at : at + 2 * UNIT_SIZE]
    overwrite(path, at, pair[UNIT_SIZE:] + pair[:UNIT_SIZE])


def queue_file(target: Target) -> None:
    target.queue_unit(target.message())[0].unlink()


def queue_gone(target: Target) -> None:
    shutil.rmtree(target.queue_unit(target.message())[0].parent)


def queue_unit_too_many(target: Target) -> None:
    """A unit behind the last one of a queue, which points nowhere."""
    path, _ = target.queue_unit(target.message())
    path = max(path.parent.iterdir())
    data = path.read_bytes()
    at = len(data.rstrip(b"\0")) // UNIT_SIZE * UNIT_SIZE + UNIT_SIZE
    overwrite(path, at, data[:UNIT_SIZE])


def topic_gone(target: Target) -> None:
    shutil.rmtree(target.queue_unit(target.message())[0].parent.parent)


def delayed_gone(target: Target) -> None:
    shutil.rmtree(target.queues / "SCHEDULE_TOPIC_XXXX")


# IndexFiles


def key_file(target: Target) -> Path:
    return min(target.keys.iterdir())


def slots(path: Path) -> int:
    """Bytes before the first unit: header and slots, of a file with four units to a slot."""
    return KEY_HEADER_SIZE + (path.stat().st_size - KEY_HEADER_SIZE) // (4 + 4 * KEY_UNIT_SIZE) * 4


def key_unit(offset: int, target: Target) -> None:
    path = key_file(target)
    flip(path, slots(path) + 30 * KEY_UNIT_SIZE + offset)


def key_header(offset: int, target: Target) -> None:
    flip(key_file(target), offset)


def key_slots(target: Target) -> None:
    overwrite(key_file(target), KEY_HEADER_SIZE, bytes(400))


def key_units_zero(target: Target) -> None:
    path = key_file(target)
    overwrite(path, slots(path) + 30 * KEY_UNIT_SIZE, bytes(10 * KEY_UNIT_SIZE))


def key_zero_header(target: Target) -> None:
    overwrite(key_file(target), 0, bytes(KEY_HEADER_SIZE))


def key_file_gone(target: Target) -> None:
    key_file(target).unlink()


def key_file_cut(target: Target) -> None:
    path = key_file(target)
    with path.open("r+b") as file:
        file.truncate(slots(path) // 2)


# checkpoint and term


def checkpoint(text: str, target: Target) -> None:
    (target.node / "checkpoint").write_text(text.format(beyond=target.last + 1000))


def checkpoint_gone(target: Target) -> None:
    (target.node / "checkpoint").unlink()


def term(text: str, target: Target) -> None:
    (target.node / "currterm").write_text(text)


def rolled_back(target: Target) -> None:
    """Log, index and checkpoint are those of an earlier time; ConsumeQueues and IndexFiles are not."""
    place = near_end(target)
    zeros_at_end(target)
    units = place.index * INDEX_UNIT_SIZE
    overwrite(target.index, units, bytes(target.index.stat().st_size - units))
    checkpoint(f"committedIndex={place.index - 1}\nendIndex={place.index - 1}\n", target)


ROT = ("BIT_ROT", "CHAIN_BREAK", "INDEX_FILE", "QUEUE_DANGLING", "QUEUE_MISMATCH", "KEY_DANGLING")
"""What is found of an entry that cannot be believed, with what points at it."""
DIFFERS = ("DIVERGENT_COMMITTED",)
POINTERS = (
    "QUEUE_MISMATCH",
    "QUEUE_MISSING",
    "QUEUE_DANGLING",
    "KEY_MISSING",
    "KEY_DANGLING",
    "KEY_MISMATCH",
)
GONE = ("MISSING_SEGMENT", "MISSING_ENTRIES")
EARLY = ("ENDS_EARLY", "MISSING_ENTRIES")
KEYS = ("KEY_INDEX", "KEY_MISMATCH", "KEY_MISSING", "KEY_DANGLING", "KEY_BEHIND", "ENDS_EARLY")
"""A header that names a place behind the end of the log is found as ENDS_EARLY too."""
ON_QUEUES = ("QUEUE_MISMATCH", "QUEUE_MISSING", "QUEUE_DANGLING", "QUEUE_BEHIND")

DAMAGE = [
    # entries
    *(Damage(f"header: {name}", partial(at_entry, offset), ROT) for name, offset in (
        ("magic", 3), ("size", 7), ("index", 15), ("index, high", 8), ("term", 23), ("position", 30),
        ("chain CRC", 39), ("body CRC", 43), ("body size", 47))),
    Damage("header: channel", partial(at_entry, 35), (*ROT, "BATCH_BROKEN")),
    *(Damage(f"record: {name}", partial(at_record, offset),
             (*ROT, *DIFFERS, *POINTERS, "RECORD_CORRUPT", "QUEUE_OFFSET"))
      for name, offset in (
        ("size", 3), ("magic", 7), ("CRC", 11), ("queue", 15), ("flag", 19), ("queue offset", 27),
        ("position", 35), ("system flag", 37), ("born time", 45), ("born host", 50), ("store time", 63),
        ("store host", 66), ("reconsumed", 75), ("prepared at", 83), ("body size", 87),
        ("body", FIXED_SIZE))),
    Damage("record: properties", at_end, (*DIFFERS, *KEYS, *POINTERS, "RECORD_CORRUPT")),
    Damage("body replaced with its CRC", other_body, DIFFERS),
    Damage("another term", other_term, (*ROT, *DIFFERS, "TERM_REGRESSION")),
    Damage("entries swapped", swapped, ROT),
    Damage("entries swapped below their headers", swapped_and_renumbered,
           (*ROT, *DIFFERS, *POINTERS, "RECORD_CORRUPT")),
    Damage("an entry twice", copied, ROT),
    Damage("zeros: a header", partial(zeros, HEADER_SIZE), (*ROT, *GONE)),
    Damage("zeros: 4 KiB", partial(zeros, 4096), (*ROT, *GONE)),
    Damage("zeros to the end", zeros_at_end, (*EARLY, *ROT)),
    Damage("noise", noise, (*ROT, *GONE)),
    # files of the log
    Damage("lost: first segment", partial(lost, 0), ("RETENTION",)),
    Damage("lost: a segment", partial(lost, 2), GONE),
    Damage("lost: last segment", partial(lost, -1), EARLY),
    Damage("lost: all segments", all_lost, (*EARLY, *GONE, "NO_COMMITTED_INDEX")),
    Damage("cut: a segment", partial(cut, 1), (*GONE, *ROT)),
    Damage("cut: last segment", partial(cut, -1), (*EARLY, *ROT)),
    Damage("empty: a segment", partial(empty, 1), (*GONE, *ROT)),
    Damage("empty: last segment", partial(empty, -1), EARLY),
    Damage("zeros: a segment", partial(all_zeros, 1), (*GONE, *ROT)),
    Damage("zeros: last segment", partial(all_zeros, -1), EARLY),
    Damage("segments exchanged", exchanged, (*GONE, *ROT)),
    Damage("a segment twice", repeated, (*GONE, *ROT)),
    Damage("rolled back", rolled_back, EARLY),
    # the index
    *(Damage(f"index: {name}", partial(index_unit, offset), ("INDEX_FILE",)) for name, offset in (
        ("magic", 3), ("position", 11), ("size", 15), ("index", 23), ("term", 31))),
    Damage("index: zeros", index_zeros, ("INDEX_FILE",)),
    Damage("index: cut", index_cut, ("INDEX_FILE",)),
    Damage("index: lost", index_lost, ("INDEX_FILE",)),
    # ConsumeQueues
    *(Damage(f"queue: {name}", partial(queue_unit, offset), ON_QUEUES) for name, offset in (
        ("position", 7), ("position, high", 0), ("size", 11), ("tag", 19))),
    Damage("queue: zeros", queue_zeros, ON_QUEUES),
    Damage("queue: units swapped", queue_swapped, ON_QUEUES),
    Damage("queue: a file lost", queue_file, ON_QUEUES),
    Damage("queue: lost", queue_gone, ON_QUEUES),
    Damage("queue: a unit too many", queue_unit_too_many, ON_QUEUES),
    Damage("queues of a topic lost", topic_gone, ON_QUEUES),
    Damage("queues of delayed messages lost", delayed_gone, ON_QUEUES),
    # IndexFiles
    *(Damage(f"keys: {name}", partial(key_unit, offset), KEYS) for name, offset in (
        ("hash", 2), ("position", 11), ("time", 14), ("link", 19))),
    *(Damage(f"keys: header, {name}", partial(key_header, offset), KEYS) for name, offset in (
        ("begin", 6), ("end", 14), ("begin position", 22), ("end position", 30), ("count", 39))),
    Damage("keys: slots of zeros", key_slots, KEYS),
    Damage("keys: units of zeros", key_units_zero, KEYS),
    Damage("keys: header of zeros", key_zero_header, KEYS),
    Damage("keys: a file lost", key_file_gone, KEYS),
    Damage("keys: a file cut", key_file_cut, KEYS),
    # checkpoint and term
    Damage("checkpoint: lost", checkpoint_gone, ("NO_COMMITTED_INDEX",)),
    Damage("checkpoint: empty", partial(checkpoint, ""), ("NO_COMMITTED_INDEX",)),
    Damage("checkpoint: noise", partial(checkpoint, "committedIndex=\0\0\0"), ("NO_COMMITTED_INDEX",)),
    Damage("checkpoint: of a longer log", partial(checkpoint, "committedIndex={beyond}\nendIndex={beyond}\n"),
           EARLY),
    Damage("term: too low", partial(term, "voteLeader=n0\ncurrTerm=0\n"), ("HARD_STATE",)),
    Damage("term: none", partial(term, ""), ("HARD_STATE",)),
    Damage("term: noise", partial(term, "\0" * 30), ("HARD_STATE",)),
]  # fmt: skip
"""All kinds."""


def judge(report: Report, damage: Damage, node: str, known: set[tuple[str, str]]) -> None:
    """Check that a report names the damage in the store of this node, and no other. `known`: code and replica
    of what was found before it was planted."""
    found = {
        (one.code, one.replica)
        for one in report.findings
        if one.severity > Severity.INFO or one.code in damage.codes
    } - known
    assert found, f"{damage.name}: nothing is found"
    assert found <= {(code, node) for code in damage.codes}, (damage.name, report.ordered())
