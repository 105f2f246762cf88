"""Rules for addresses of clients, in the form of `plain_acl.yml` (RemoteAddressStrategyFactory).

* `*` and `*.*.*.*`: every address
* `192.168.0.10`: one address
* `192.168.0.10,192.168.0.11` and `192.168.0.{10,11}`: several addresses
* `192.168.*.*` and `192.168.*`: a range; segments that are left out at its end match any number
* `192.168.100-110.10-20`: a range in each segment (RocketMQ checks only the first of these ranges)

Rules for IPv6 have the same forms, with groups of hexadecimal digits. An IPv6 range must name all eight
groups.
"""

from __future__ import annotations

import ipaddress

Segments = tuple[int, ...]
_Ranges = tuple[tuple[int, int], ...]

_ANY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
MAX_ADDRESSES = 1000
"""Largest number of addresses in one rule; more are an error."""


def segments_of(host: str) -> Segments:
    """Return the numbers of an IP address (4 bytes, or 8 groups for IPv6). They are empty if the text is not
    an address. An IPv4 address in IPv6 form counts as IPv4."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            packed = address.packed
            return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))
        address = address.ipv4_mapped
    return tuple(address.packed)


class AddressRule:
    """One rule for addresses. Raises ValueError if the text is not a rule."""

    def __init__(self, text: str) -> None:
        self.text: str = text.strip()
        text = self.text
        self._any = text in _ANY
        self._ranges: list[_Ranges] = []
        if not text or self._any:
            return  # an empty rule matches nothing
        texts = _several(text)
        if len(texts) > MAX_ADDRESSES:
            raise ValueError(f"the rule has {len(texts)} addresses; the limit is {MAX_ADDRESSES}")
        self._ranges = [_ranges(one.strip()) for one in texts]

    def matches(self, address: Segments) -> bool:
        """Return whether this address of a client satisfies the rule."""
        return self._any or any(
            len(ranges) == len(address)
            and all(low <= number <= high for number, (low, high) in zip(address, ranges, strict=True))
            for ranges in self._ranges
        )


def _several(text: str) -> list[str]:
    before, brace, rest = text.partition("{")
    if not brace:
        return text.split(",")
    if not rest.endswith("}") or not before.endswith((".", ":")):
        raise ValueError(f"{text!r}: braces hold what the last segment may be, as in 192.168.0.{{10,11}}")
    return [before + last.strip() for last in rest[:-1].split(",")]


def _ranges(text: str) -> _Ranges:
    if "*" not in text and "-" not in text:
        exact = segments_of(text)
        if not exact:
            raise ValueError(f"{text!r} is not an IP address")
        return tuple((number, number) for number in exact)
    base, top, count, mark = (16, 0xFFFF, 8, ":") if ":" in text else (10, 255, 4, ".")
    parts = text.removesuffix(mark).split(mark)
    if len(parts) < count and mark == ".":
        parts += ["*"] * (count - len(parts))
    if len(parts) != count:
        raise ValueError(f"{text!r}: {len(parts)} segments, expected {count}")
    return tuple(_range(part, base, top, text) for part in parts)


def _range(part: str, base: int, top: int, text: str) -> tuple[int, int]:
    if part == "*":
        return 0, top
    first, dash, last = part.partition("-")
    try:
        low = int(first, base)
        high = int(last, base) if dash else low
    except ValueError:
        raise ValueError(f"{text!r}: {part!r} is neither a number, nor a range, nor *") from None
    if not 0 <= low <= high <= top:
        raise ValueError(f"{text!r}: {part!r} is not within 0 to {top:{'x' if base == 16 else 'd'}}")
    return low, high
