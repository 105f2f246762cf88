"""Snapshot of the derived state under `<storePathRootDir>/state/`. When a broker starts, it reads this file
instead of the whole log.

Content: msgpack of {applied, end_pos, state, term, version} behind a magic and a CRC-32. If the file is
missing, damaged, or belongs to another log, everything is replayed from the log (architecture rule 1). The
snapshot needs the ConsumeQueue files up to the queue ends that it holds. So these files are fsynced before
the snapshot is published by one rename.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgpack

from dledger.formats.checksum import crc32
from dledger.formats.state import TABLES, Malformed, ReplicatedState, Source, StateCopy

VERSION = 1
STATE_DIR = "state"
SNAPSHOT_FILE = "snapshot"
_MAGIC = b"DLSS"


@dataclass(frozen=True)
class Snapshot:
    """State after entry `applied`, which ends at log offset `end_pos`."""

    applied: int
    end_pos: int
    state: ReplicatedState
    term: int | None = None
    """Term of entry `applied`; None in files of older programs."""


class CorruptSnapshot(Exception):
    """Raised when a snapshot cannot be trusted. The log is replayed instead."""


def snapshot_pieces(applied: int, end_pos: int, copy: StateCopy, term: int | None = None) -> Iterator[bytes]:
    """Yield the body of the file (`seal_snapshot`), one piece at a time. `term` is left out if it is None."""
    yield msgpack.Packer().pack_map_header(4 if term is None else 5) + b"".join(
        map(msgpack.packb, ("applied", applied, "end_pos", end_pos, "state"))
    )
    yield from copy.own_pieces()
    if term is not None:
        yield msgpack.packb("term") + msgpack.packb(term)
    yield msgpack.packb("version") + msgpack.packb(VERSION)


def seal_snapshot(body: bytes) -> bytes:
    """Make the bytes of the file from its whole body."""
    return _MAGIC + crc32(body).to_bytes(4, "big") + body


def pack_snapshot(applied: int, end_pos: int, state: ReplicatedState, term: int | None = None) -> bytes:
    """Make the bytes of the file in one step."""
    return seal_snapshot(b"".join(snapshot_pieces(applied, end_pos, state.copy(), term)))


def unpack_snapshot(data: bytes, tables: Sequence[Source] = TABLES) -> Snapshot:
    """Inverse of `pack_snapshot`. Raises CorruptSnapshot with the reason."""
    if data[:4] != _MAGIC:
        raise CorruptSnapshot("not a snapshot")
    body = data[8:]
    if crc32(body).to_bytes(4, "big") != data[4:8]:
        raise CorruptSnapshot("CRC differs")
    try:
        content = msgpack.unpackb(body, strict_map_key=False)
        if content["version"] > VERSION:
            raise CorruptSnapshot(f"version {content['version']} is newer than this program's {VERSION}")
        term = content.get("term")
        state = ReplicatedState(tables)
        state.load_own(content["state"])
        return Snapshot(
            int(content["applied"]),
            int(content["end_pos"]),
            state,
            None if term is None else int(term),
        )
    except (Malformed, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise CorruptSnapshot(f"content: {error!r}") from error
