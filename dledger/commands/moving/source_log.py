"""Reads the records of a log that Apache RocketMQ wrote: a CommitLog, a DLedger log, or a DLedger log
after a CommitLog. Blocking.

An upgraded broker has both: CommitLog files, and a DLedger log that begins where these end
(dividedCommitlogOffset). Physical offsets continue from the CommitLog into the DLedger log.

Every field is checked: magic, size, place, the CRC of the message, and for DLedger entries index, term and
pos. The log may end within its last file. In any other file, a record that does not pass the checks is
damage.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dledger.audit.small_files import NODE_PREFIX
from dledger.audit.store_directory import Replica, StoreError, open_store
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    APACHE_MAGICS,
    BLANK_MAGIC,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_ENTRY_SIZE,
)
from dledger.formats.record import BLANK_MAGIC as RECORD_BLANK
from dledger.formats.record import (
    BORN_HOST_V6,
    CRC_MASK,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    STORE_HOST_V6,
    CorruptRecord,
    check_body_crc,
    decode_record,
)
from dledger.formats.store_files import parse_segment_name
from dledger.runtime import Files

COMMITLOG_DIR = "commitlog"
MAX_RECORD_SIZE = MAX_ENTRY_SIZE - HEADER_SIZE
"""Limit, in bytes, of a record that is imported: a larger record does not fit into one of this project's
entries."""
_HEAD = struct.Struct(">ii")
_RECORD = struct.Struct(">iiIiiqqiq8sqq")
"""Fields of a record up to the store host, if hosts are IPv4 addresses."""
_INT = struct.Struct(">i")


class SourceUnusable(Exception):
    """Raised if a source cannot be imported as it is; the text says why and what to do."""


class Piece(NamedTuple):
    """One file of the source's log. `start` is the physical offset of its first byte; `entries` says
    whether it holds DLedger entries instead of plain records."""

    path: str
    start: int
    size: int
    entries: bool


class Message(NamedTuple):
    """A record with its bytes as they are in its file. `position` is its physical offset; `raw` holds all
    of its bytes."""

    position: int
    raw: bytes
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes


@dataclass
class SourceLog:
    """The files of the source's log, in order."""

    root: str
    pieces: tuple[Piece, ...]
    replica: Replica | None = None
    """The DLedger part of the log; None if there is only a CommitLog."""
    unwritten: int = 0
    """Number of zero bytes at the end of the last file. Files are allocated in full size before they are
    written."""

    @property
    def begin(self) -> int:
        """Physical offset of the first byte of the log."""
        return self.pieces[0].start if self.pieces else 0

    @property
    def size(self) -> int:
        """Size of all files in bytes, without the zeros at the end of the last one."""
        return sum(piece.size for piece in self.pieces) - self.unwritten

    @property
    def divided(self) -> int:
        """Physical offset at which the DLedger log begins after a CommitLog (dividedCommitlogOffset); -1
        if the source does not have both."""
        kinds = [piece.entries for piece in self.pieces]
        return self.pieces[kinds.index(True)].start if True in kinds and False in kinds else -1


def open_source(files: Files, root: str, commit_logs: Sequence[str] = ()) -> SourceLog:
    """Return the log in a `storePathRootDir` of an Apache broker. `commit_logs` are the directories of its
    CommitLog or segments, if these are elsewhere. Raises SourceUnusable."""
    root = root.rstrip("/") or "/"
    if not files.is_dir(root):
        raise SourceUnusable(f"{root}: no such directory")
    replica = None
    if any(name.startswith(NODE_PREFIX) for name in files.listdir(root)):
        try:
            found = open_store(files, root)
        except StoreError as error:
            raise SourceUnusable(str(error)) from error
        if len(found) != 1:
            names = ", ".join(one.name for one in found)
            raise SourceUnusable(
                f"{root}: the directories of several nodes ({names}): move one of them to its own root"
            )
        replica = found[0]
        if replica.identity is not None:
            raise SourceUnusable(
                f"{root} is a store of this program, not of Apache RocketMQ: `dledger backup` copies it"
            )
    segments: list[Piece] = []
    if replica is not None:
        segments = [
            Piece(replica.places.path_of(one.start), one.start, one.size, entries=True)
            for one in replica.segments
            if one.first_index is not None
        ]
    plain: list[Piece] = []
    for directory in commit_logs or (f"{root}/{COMMITLOG_DIR}",):
        if not files.is_dir(directory):
            if commit_logs:
                raise SourceUnusable(f"{directory}: no such directory")
            continue
        for name in files.listdir(directory):
            start, path = parse_segment_name(name), f"{directory}/{name}"
            if start is None or any(path == piece.path for piece in segments):
                continue
            if segments and start >= segments[0].start:
                continue  # prepared by a DLedger log that lies here, and still empty
            plain.append(Piece(path, start, files.size(path), entries=False))
    plain.sort(key=lambda piece: piece.start)
    pieces = [*plain, *segments]
    unwritten = zeros_at_end(files, pieces[-1]) if pieces else 0
    while len(pieces) > 1 and unwritten == pieces[-1].size:
        pieces.pop()  # allocated for later records: the log ends before it
        unwritten = zeros_at_end(files, pieces[-1])
    log = SourceLog(root, tuple(pieces), replica, unwritten)
    if not log.pieces:
        raise SourceUnusable(
            f"{root} holds neither CommitLog files ({COMMITLOG_DIR}/) nor the segments of a DLedger "
            "log: check that it is a storePathRootDir. If the log is elsewhere, give its path with "
            "--commitlog"
        )
    for before, after in pairwise(log.pieces):
        if before.start + before.size != after.start:
            raise SourceUnusable(
                f"{after.path}: the log continues at {before.start + before.size}, but this file "
                f"begins at {after.start}: a file is missing or truncated"
            )
    return log


def zeros_at_end(files: Files, piece: Piece) -> int:
    """Return how many bytes at the end of a file are zero. The file is read in chunks, and only chunks
    that are zero throughout are counted."""
    zeros = bytes(_CHUNK)
    end = piece.size
    file = files.open_read(piece.path)
    try:
        while end > 0:
            begin = (end - 1) // _CHUNK * _CHUNK
            if file.pread(end - begin, begin) != zeros[: end - begin]:
                break
            end = begin
    finally:
        file.close()
    return piece.size - end


class LogReader:
    """Reads the records of a source one after another, from a physical offset on.

    When the reading has ended, `ended_by` says what followed the last record; it is empty if only zeros
    followed. `entry` is (index, term) of the last DLedger entry; (-1, -1) before the first. `others` is
    the number of DLedger entries without a message.
    """

    def __init__(self, files: Files, log: SourceLog) -> None:
        self._files = files
        self._log = log
        self.ended_by: str = ""
        self.end: int = log.begin
        self.entry: tuple[int, int] = (-1, -1)
        self.others: int = 0

    def messages(self, begin: int = 0) -> Iterator[Message]:
        """Yield the records at or after the physical offset `begin`. A record must begin or end at this
        offset."""
        pieces = [piece for piece in self._log.pieces if piece.start + piece.size > begin]
        for number, piece in enumerate(pieces):
            file = self._files.open_read(piece.path)
            try:
                data = file.pread(piece.size, 0) if piece.size < _SMALL else file.view()
                walk = self._entries if piece.entries else self._records
                last = number + 1 == len(pieces)
                yield from walk(piece, data, max(begin - piece.start, 0), last)
                del data
            finally:
                file.close()

    def _records(self, piece: Piece, data: bytes | memoryview, at: int, last: bool) -> Iterator[Message]:
        size = piece.size
        while at + 8 <= size:
            length, magic = _HEAD.unpack_from(data, at)
            if magic == RECORD_BLANK and 8 <= length <= size - at:
                self.end = piece.start + size
                return
            try:
                message = _message(data, at, length, magic, piece.start + at, size)
            except CorruptRecord as error:
                self._ends(piece, data, at, last, str(error))
                return
            at += length
            self.end = piece.start + at
            yield message
        if at < size and not last:  # less than a blank needs: CommitLog always leaves 8 bytes
            raise _damaged(piece, at, "the file ends without a blank")

    def _entries(self, piece: Piece, data: bytes | memoryview, at: int, last: bool) -> Iterator[Message]:
        size = piece.size
        begin = at
        while at + 8 <= size:
            magic, length = _HEAD.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                self.end = piece.start + size
                return
            problem = ""
            if magic not in APACHE_MAGICS:
                problem = f"magic {magic} does not mark an entry"
            elif at + HEADER_SIZE > size:
                problem = "header cut off"
            else:
                _, _, index, term, pos, _, _, _, body = HEADER.unpack_from(data, at)
                known, known_term = self.entry
                if pos != piece.start + at:
                    problem = f"pos {pos} in the header"
                elif known >= 0 and index != known + 1:
                    problem = f"index {index} follows {known}"
                elif term < known_term:
                    problem = f"term {term} follows {known_term}"
                elif body < 0 or length != HEADER_SIZE + body or at + length > size:
                    problem = f"an entry of {length} bytes with a body of {body}"
            if problem:
                self._ends(piece, data, at, last, problem)
                return
            record = at + HEADER_SIZE
            if magic == MAGIC:
                try:
                    head = _HEAD.unpack_from(data, record) if body >= MIN_SIZE else (0, 0)
                    message = _message(data, record, head[0], head[1], piece.start + record, record + body)
                    if head[0] != body:
                        raise CorruptRecord(f"a record of {head[0]} bytes in an entry for {body}")
                except CorruptRecord as error:
                    self._ends(piece, data, at, last, str(error))
                    return
            self.entry = (index, term)
            at += length
            self.end = piece.start + at
            if magic == MAGIC:
                yield message
            else:
                self.others += 1
        if at < size and at > begin and not last:
            raise _damaged(piece, at, "the file ends without a blank")

    def _ends(self, piece: Piece, data: bytes | memoryview, at: int, last: bool, problem: str) -> None:
        if not last:
            raise _damaged(piece, at, problem)
        if any(data[at : at + HEADER_SIZE]):
            self.ended_by = f"{piece.path} at {at}: {problem}"


def _damaged(piece: Piece, at: int, problem: str) -> SourceUnusable:
    return SourceUnusable(
        f"{piece.path} is damaged at {at}: {problem}. Nothing was written; use the store of another "
        "replica or a backup"
    )


_CHUNK = 1 << 16
_SMALL = 1 << 22
"""A file of less than this size, in bytes, is read at once; a larger one is mapped into memory."""


def _message(data: bytes | memoryview, at: int, length: int, magic: int, position: int, end: int) -> Message:
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#x} does not mark a message record")
    if length < MIN_SIZE or at + length > end:
        raise CorruptRecord(f"a record of {length} bytes does not fit")
    raw = bytes(data[at : at + length])
    _, _, body_crc, queue_id, _, queue_offset, physical, sys_flag, _, _, store_ms, _ = _RECORD.unpack_from(
        raw
    )
    if physical != position:
        raise CorruptRecord(f"a record with physical offset {physical}")
    if magic == MAGIC_V2 or sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        record = decode_record(raw)
        if not check_body_crc(record):
            raise CorruptRecord("the CRC of the body differs")
        return Message(
            position,
            raw,
            record.topic.encode(),
            queue_id,
            queue_offset,
            sys_flag,
            record.store_timestamp,
            record.properties.encode(),
        )
    (body,) = _INT.unpack_from(raw, FIXED_SIZE - 4)
    topic_at = FIXED_SIZE + body
    if body < 0 or topic_at + 3 > length:
        raise CorruptRecord(f"a body of {body} bytes does not fit")
    properties_at = topic_at + 3 + raw[topic_at]
    properties = raw[properties_at:]
    if properties_at > length or int.from_bytes(raw[properties_at - 2 : properties_at], "big") != len(
        properties
    ):
        raise CorruptRecord("lengths of body, topic and properties do not add up to the record's size")
    if crc32(memoryview(raw)[FIXED_SIZE:topic_at]) & CRC_MASK != body_crc:
        raise CorruptRecord("the CRC of the body differs")
    return Message(
        position,
        raw,
        raw[topic_at + 1 : properties_at - 2],
        queue_id,
        queue_offset,
        sys_flag,
        store_ms,
        properties,
    )


def more_advanced(files: Files, log: SourceLog, end: tuple[int, int], others: Sequence[str]) -> None:
    """Raise SourceUnusable if the DLedger log of another replica ends with a higher (term, index) than
    this log. That replica may hold acknowledged messages that this log lacks."""
    for root in others:
        other = open_source(files, root)
        if other.replica is None:
            raise SourceUnusable(f"{root} is not a store of a DLedger broker")
        if os.path.realpath(root) == os.path.realpath(log.root):
            continue
        reader = LogReader(
            files, SourceLog(root, tuple(piece for piece in other.pieces if piece.entries)[-1:])
        )
        for _ in reader.messages():
            pass
        if (reader.entry[1], reader.entry[0]) > (end[1], end[0]):
            raise SourceUnusable(
                f"{root} ends with entry {reader.entry[0]} of term {reader.entry[1]}, {log.root} with "
                f"{end[0]} of term "
                f"{end[1]}: import from {root}, which may hold acknowledged messages that the other lacks"
            )
