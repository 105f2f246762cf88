"""Manifest of a boundary snapshot, and the byte stream that transfers a snapshot. Pure.

Layout: docs/reference/formats.md.

A snapshot holds the state exactly at `index`, the last entry before log offset `pos`, where a segment begins
(safety.md S20). All replicas of a group make equal snapshots, because everything in a manifest depends on the
log alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from dledger.formats.checksum import crc32
from dledger.formats.store_files import CorruptFile, decode_json, encode_json

MANIFEST_FILE = "manifest"
BEGINS_FILE = "begins"
"""JSON file that says where the log begins. It has `pos`, and `replace` while a snapshot replaces the log."""
VERSION = 1
MAX_PARTS = 1024
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Size and CRC-32 of one file of a snapshot."""

    size: int
    crc: int


@dataclass(frozen=True)
class Manifest:
    """Description of a boundary snapshot.

    `chain` is the chain value of entry `index`. `store_time_ms` is the store time of the record in that
    entry, -1 if the entry holds no record. `config` is the configuration in force (`ConfigLog.state_at`),
    empty before the group was formed.
    """

    index: int
    term: int
    pos: int
    chain: int
    store_time_ms: int
    config: bytes
    parts: Mapping[str, Part]
    digest: str
    """SHA-256 over all fields above and the content of the parts, in hexadecimal."""

    @property
    def total(self) -> int:
        """Size of the stream (`pack_stream`) in bytes."""
        return _SIZE_BYTES + len(encode_manifest(self)) + sum(part.size for part in self.parts.values())


def make_manifest(
    index: int,
    term: int,
    pos: int,
    chain: int,
    store_time_ms: int,
    config: bytes,
    parts: Mapping[str, bytes],
) -> Manifest:
    """Make the manifest of these parts. This is slow for large parts, so use a worker. Raises ValueError for
    an invalid name, or too many parts."""
    for name in parts:
        if not name or "/" in name or name.startswith(".") or name == MANIFEST_FILE or len(name) > 64:
            raise ValueError(f"a part of a snapshot cannot be called {name!r}")
    if len(parts) > MAX_PARTS:
        raise ValueError(f"{len(parts)} parts; the limit is {MAX_PARTS}")
    sizes = {name: Part(len(parts[name]), crc32(parts[name])) for name in sorted(parts)}
    plain = Manifest(index, term, pos, chain, store_time_ms, config, sizes, "")
    return replace(plain, digest=_digest(plain, parts))


def encode_manifest(manifest: Manifest) -> bytes:
    """Make the content of the manifest file: JSON and a line with a CRC."""
    return encode_json(_fields(manifest))


def decode_manifest(data: bytes) -> Manifest:
    """Inverse of `encode_manifest`. Raises CorruptFile if the bytes cannot be trusted."""
    value = decode_json(data)
    if value.get("version") != VERSION:
        raise CorruptFile(f"snapshot version {value.get('version')} is not {VERSION}")
    try:
        parts = value["parts"]
        numbers = [value[name] for name in ("index", "term", "pos", "chain", "store_time_ms")]
        if not isinstance(parts, dict) or not all(isinstance(number, int) for number in numbers):
            raise CorruptFile("manifest: a field has the wrong type")
        sizes = {str(name): Part(int(part["size"]), int(part["crc"])) for name, part in parts.items()}
        config = bytes.fromhex(str(value["config"]))
        index, term, pos, chain, time = (int(str(number)) for number in numbers)
        return Manifest(index, term, pos, chain, time, config, sizes, str(value["digest"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"manifest: {error!r}") from error


def check_parts(manifest: Manifest, parts: Mapping[str, bytes]) -> None:
    """Raise CorruptFile if these are not the parts that the manifest names."""
    if set(parts) != set(manifest.parts):
        raise CorruptFile("parts are missing, or more than the manifest names")
    for name, part in manifest.parts.items():
        if len(parts[name]) != part.size or crc32(parts[name]) != part.crc:
            raise CorruptFile(f"part {name}: size or CRC differs")
    if _digest(manifest, parts) != manifest.digest:
        raise CorruptFile("digest differs")


def pack_stream(manifest: Manifest, parts: Mapping[str, bytes]) -> bytes:
    """Make the stream for a transfer: size of the manifest (4 bytes, big-endian), manifest, parts in order of
    their names."""
    head = encode_manifest(manifest)
    return b"".join(
        [len(head).to_bytes(_SIZE_BYTES, "big"), head, *(parts[name] for name in sorted(manifest.parts))]
    )


def unpack_stream(data: bytes) -> tuple[Manifest, dict[str, bytes]]:
    """Inverse of `pack_stream`. Raises CorruptFile if any check fails."""
    end = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
    manifest = decode_manifest(data[_SIZE_BYTES:end])
    parts = {}
    at = end
    for name in sorted(manifest.parts):
        size = manifest.parts[name].size
        parts[name] = data[at : at + size]
        at += size
    if at != len(data):
        raise CorruptFile(f"stream of {len(data)} bytes instead of {at}")
    check_parts(manifest, parts)
    return manifest, parts


def _fields(manifest: Manifest) -> dict[str, object]:
    return {
        "chain": manifest.chain,
        "config": manifest.config.hex(),
        "digest": manifest.digest,
        "index": manifest.index,
        "parts": {name: {"crc": part.crc, "size": part.size} for name, part in manifest.parts.items()},
        "pos": manifest.pos,
        "store_time_ms": manifest.store_time_ms,
        "term": manifest.term,
        "version": VERSION,
    }


def _digest(manifest: Manifest, parts: Mapping[str, bytes]) -> str:
    fields = _fields(manifest)
    del fields["digest"]
    total = sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(parts):
        total.update(parts[name])
    return total.hexdigest()
