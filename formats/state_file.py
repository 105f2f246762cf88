"""Snapshot of the derived state under `<storePathRootDir>/state/`: a start reads it instead of the log.

Content: msgpack of {applied, end_pos, state, version} behind a magic and a CRC-32. It may be missing or
damaged: then everything is replayed from the log (architecture rule 1). It counts on the ConsumeQueue files
below its bounds, so those are fsynced before it is published by one rename.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgpack

from formats.checksum import crc32
from formats.state import Malformed, ReplicatedState
from formats.state_codec import StateCopy, copy_state, decode_state, state_pieces

VERSION = 1
SNAPSHOT_FILE = "snapshot"
_MAGIC = b"DLSS"


@dataclass(frozen=True)
class Snapshot:
    """State after entry `applied`, which ends at log offset `end_pos`."""

    applied: int
    end_pos: int
    state: ReplicatedState


class CorruptSnapshot(Exception):
    """A snapshot that cannot be believed. The cure is a replay of the log."""


def snapshot_pieces(applied: int, end_pos: int, copy: StateCopy) -> Iterator[bytes]:
    """What `seal_snapshot` makes a file of, a piece at a time."""
    yield msgpack.Packer().pack_map_header(4) + b"".join(
        map(msgpack.packb, ("applied", applied, "end_pos", end_pos, "state"))
    )
    yield from state_pieces(copy)
    yield msgpack.packb("version") + msgpack.packb(VERSION)


def seal_snapshot(body: bytes) -> bytes:
    """The bytes of the file, from all pieces."""
    return _MAGIC + crc32(body).to_bytes(4, "big") + body


def pack_snapshot(applied: int, end_pos: int, state: ReplicatedState) -> bytes:
    """The bytes of the file at once."""
    return seal_snapshot(b"".join(snapshot_pieces(applied, end_pos, copy_state(state))))


def unpack_snapshot(data: bytes) -> Snapshot:
    """Inverse of `pack_snapshot`; CorruptSnapshot with the reason."""
    if data[:4] != _MAGIC:
        raise CorruptSnapshot("not a snapshot")
    body = data[8:]
    if crc32(body).to_bytes(4, "big") != data[4:8]:
        raise CorruptSnapshot("CRC differs")
    try:
        content = msgpack.unpackb(body, strict_map_key=False)
        if content["version"] > VERSION:
            raise CorruptSnapshot(f"version {content['version']} is newer than this program's {VERSION}")
        return Snapshot(int(content["applied"]), int(content["end_pos"]), decode_state(content["state"]))
    except (Malformed, ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise CorruptSnapshot(f"content: {error!r}") from error
