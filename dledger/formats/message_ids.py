"""Identifiers of messages and the tag code (MessageDecoder.createMessageId, MessageClientIDSetter)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

_LONG = (1 << 64) - 1
_UNIQUE_TAIL = struct.Struct(">HIIH")


class OffsetMessageId(NamedTuple):
    """Content of an offset message id: where a message is stored. `host` is the raw store host (4 or 16 bytes
    of IP, 4 bytes of port)."""

    host: bytes
    physical_offset: int


def pack_host(ip: bytes, port: int) -> bytes:
    """Host field of a record: raw IP (4 or 16 bytes) and the port as 4 bytes."""
    if len(ip) not in (4, 16):
        raise ValueError(f"an IP has 4 or 16 bytes, not {len(ip)}")
    return ip + port.to_bytes(4, "big")


def pack_ipv4_host(address: str, port: int) -> bytes:
    """Host field from an IPv4 address in dotted decimal. Raises ValueError for anything else."""
    if not is_ipv4(address):
        raise ValueError(f"not an IPv4 address: {address!r}")
    return pack_host(bytes(int(part) for part in address.split(".")), port)


@lru_cache(maxsize=1024)  # readers of records decode the same few hosts many times
def host_text(host: bytes) -> str:
    """Text "ip:port" of a record's host field, with brackets around an IPv6 address."""
    ip, port = host[:-4], int.from_bytes(host[-4:], "big")
    if len(ip) == 4:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    words = ":".join(ip[at : at + 2].hex() for at in range(0, 16, 2))
    return f"[{words}]:{port}"


def is_ipv4(address: str) -> bool:
    """Whether `pack_ipv4_host` accepts the address."""
    parts = address.split(".")
    return len(parts) == 4 and all(part.isdigit() and int(part) < 256 for part in parts)


def encode_message_id(host: bytes, physical_offset: int) -> str:
    """Make an offset message id: host and physical offset (8 bytes) in upper-case hex, 32 or 56 characters.
    The offset is a Java long, so any 64 bits are valid."""
    return (host + (physical_offset & _LONG).to_bytes(8, "big")).hex().upper()


def decode_message_id(text: str) -> OffsetMessageId:
    """Inverse of `encode_message_id`. Raises ValueError if the text is not such an id."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"a message id has 32 or 56 hexadecimal digits, not {len(text)}")
    return OffsetMessageId(raw[:-8], int.from_bytes(raw[-8:], "big"))


def encode_unique_id(ip: bytes, pid: int, salt: int, millis: int, counter: int) -> str:
    """Make a unique key (UNIQ_KEY) of ip, pid (16 bits), salt, ms and counter, as 32 or 56 hex digits."""
    return (
        (ip + _UNIQUE_TAIL.pack(pid & 0xFFFF, salt & 0xFFFFFFFF, millis & 0xFFFFFFFF, counter & 0xFFFF))
        .hex()
        .upper()
    )


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Java's String.hashCode: h = 31 h + c over UTF-16 units, as a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def tags_code(tags: str | None) -> int:
    """Tag code for the ConsumeQueue: Java's hash of the tags, 0 without tags."""
    return java_hash(tags) if tags else 0
