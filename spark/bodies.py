"""Bodies as producers gave them: decompression (MessageSysFlag: zlib unless it says otherwise)."""

from __future__ import annotations

import zlib
from importlib import import_module

import lz4.frame

from dledger.formats.record import COMPRESSION_LZ4, COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD

MAX_DECOMPRESSED = 64 * 1024 * 1024
"""Bytes that one body may unfold to; more counts as damage: RocketMQ's own limit of a message is 4 MiB."""


class CorruptBody(Exception):
    """A compressed body that cannot be unfolded."""


class NotInstalled(Exception):
    """A library that this data needs is not there. Never taken for damage: nothing may be skipped for it."""


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The plain body; CorruptBody, or NotInstalled for ZSTD without its library."""
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
        raise CorruptBody(f"the compressed body is cut off, or unfolds to more than {MAX_DECOMPRESSED} bytes")
    return bytes(plain)


def _unzstd(body: bytes) -> tuple[bytes, bool]:
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise NotInstalled(
            "bodies are compressed with ZSTD: pip install zstandard (on executors, too)"
        ) from error
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain: bytes = reader.read(MAX_DECOMPRESSED + 1)
    except zstandard.ZstdError as error:
        raise CorruptBody(f"the compressed body is damaged: {error}") from error
    size = zstandard.frame_content_size(body)
    return plain, len(plain) <= MAX_DECOMPRESSED and size in (-1, len(plain))
