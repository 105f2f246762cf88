"""Compressed message bodies: zlib, LZ4 or ZSTD, as the bits of sysFlag say.

ZSTD needs the package `zstandard` (extra `zstd`), which is imported only when a body needs it.
"""

from __future__ import annotations

import zlib
from enum import Enum
from importlib import import_module
from typing import Any

import lz4.frame

from dledger.formats.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

MAX_DECOMPRESSED = 64 * 1024 * 1024
"""Largest size of a decompressed body in bytes; a larger one counts as damaged. RocketMQ's own limit of a
message is 4 MiB."""
ZLIB_LEVEL = 5
ZSTD_LEVEL = 3


class CompressionType(Enum):
    """How a body is compressed. Clients older than RocketMQ 5 read ZLIB only."""

    ZLIB = COMPRESSED
    """Written without the bits of the compression type, so that all versions of RocketMQ read it."""
    LZ4 = COMPRESSED | COMPRESSION_LZ4
    ZSTD = COMPRESSED | COMPRESSION_ZSTD


class CorruptBody(Exception):
    """A compressed body that cannot be decompressed."""


class NotInstalled(Exception):
    """A library that this data needs is not installed. The data is not damaged, so the reader must not skip
    it."""


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB) -> tuple[bytes, int]:
    """Compress a body; returns it with its sysFlag. When compression does not make it smaller, returns it
    unchanged with 0."""
    smaller: bytes
    if kind is CompressionType.ZLIB:
        smaller = zlib.compress(body, ZLIB_LEVEL)
    elif kind is CompressionType.LZ4:
        smaller = lz4.frame.compress(body)
    else:
        smaller = zstd().ZstdCompressor(level=ZSTD_LEVEL).compress(body)
    return (smaller, kind.value) if len(smaller) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Decompress a body. Raises CorruptBody if it is damaged, and NotInstalled if it is a ZSTD body and the
    library for ZSTD is missing."""
    kind = sys_flag & COMPRESSION_TYPE_MASK
    try:
        if kind in (0, COMPRESSION_ZLIB):
            inflater = zlib.decompressobj()
            plain, whole = inflater.decompress(body, MAX_DECOMPRESSED), inflater.eof
        elif kind == COMPRESSION_LZ4:
            unpacker = lz4.frame.LZ4FrameDecompressor()
            plain, whole = unpacker.decompress(body, MAX_DECOMPRESSED), unpacker.eof
        elif kind == COMPRESSION_ZSTD:
            plain, whole = _unzstd(body)
        else:
            raise CorruptBody(f"compression type {kind >> 8} is not known (1 LZ4, 2 ZSTD, 3 zlib)")
    except (zlib.error, RuntimeError) as error:
        raise CorruptBody(f"the compressed body is damaged: {error}") from error
    if not whole:
        raise CorruptBody(
            f"the compressed body is cut off, or has more than {MAX_DECOMPRESSED} bytes when decompressed"
        )
    return bytes(plain)


def zstd() -> Any:
    """Return the library for ZSTD. Raises NotInstalled, whose text says how to install it."""
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise NotInstalled(
            "bodies compressed with ZSTD need the package zstandard: pip install 'dledger[zstd]' "
            "(with Spark also on the executors)"
        ) from error


def _unzstd(body: bytes) -> tuple[bytes, bool]:
    zstandard = zstd()
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain: bytes = reader.read(MAX_DECOMPRESSED + 1)
        size = zstandard.frame_content_size(body)
    except zstandard.ZstdError as error:
        raise CorruptBody(f"the compressed body is damaged: {error}") from error
    return plain, len(plain) <= MAX_DECOMPRESSED and size in (-1, len(plain))
