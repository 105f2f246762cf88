"""CRC-32 as in zip and Ethernet (zlib's `crc32`), for message bodies, entries and chains.

Every message is summed several times on its way, so the fastest available implementation is used. zlib-ng's
takes 0.07 us for 1 KiB, the system's zlib takes 0.4. Where zlib-ng has no wheel, zlib gives the same result.
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
