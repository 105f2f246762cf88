"""CRC-32 over columns of entries: linear algebra instead of one call for each entry. Pure.

Without its two inversions a CRC is linear: that of a text is the XOR of a value for each byte and its place,
and the CRC of two texts one behind the other is that of the first, times a power of x for the length of the
second, XOR that of the second, modulo the polynomial. Two things follow. The chain values of all headers come
from table look-ups of whole columns. And one CRC over a stretch of many entries, which takes less time than
one call for each of them, must be what the headers and the *stored* body CRCs combine to. If it is, every
body fits its own: a single run of at most 32 damaged bits is always seen, other damage but for the chance of
2^-32 that a CRC has anyhow. If it is not, bodies are looked at one by one.

Values are reflected as in zlib: bit 31 is the constant term.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.checksum import crc32
from formats.entry import HEADER_SIZE

Array = npt.NDArray[Any]
Values = npt.NDArray[np.uint64]

_ALL = 0xFFFFFFFF
_ONE = 1 << 31
_X_8 = 1 << 23
"""x to the power of 8: a CRC times this is that of the text and one zero byte."""
_ORDER = (1 << 32) - 1
"""x to this power is 1."""
_POLYNOMIAL = 0x1DB710641
"""Reflected in 33 bits: bit 0 is that of x^32."""
_CHAIN_AT, _BODY_CRC_AT = 36, 40
_CHAIN_TEXT = (*range(8, 24), *range(_BODY_CRC_AT, _BODY_CRC_AT + 4))
"""Places in a header of the text of a chain value: index, term, CRC of the body."""
_BLOCK_BITS = 16
_LANES = tuple(np.uint64(0x1111111111111111 << lane) for lane in range(4))
_EVERY = np.uint64(_ALL)
_31, _32 = np.uint64(31), np.uint64(32)


class HeaderSums:
    """What headers contribute to CRCs."""

    def __init__(self, own: Values, chains: Values) -> None:
        self._own = own
        self._chains = chains

    @classmethod
    def of(cls, raw: Array) -> HeaderSums:
        """`raw`: the bytes of the headers, one row each."""
        columns = np.ascontiguousarray(raw.T)
        varying = (columns != columns[:, :1]).any(axis=1).tolist()
        tables = _header_tables()
        own, chains = np.zeros((2, len(raw)), np.uint64)
        for place in range(HEADER_SIZE):
            sums = chains if _CHAIN_AT <= place < _BODY_CRC_AT else own
            sums ^= tables[place][columns[place] if varying[place] else columns[place, 0]]
        return cls(own, chains)

    def __getitem__(self, chosen: slice) -> HeaderSums:
        """Of some headers."""
        return HeaderSums(self._own[chosen], self._chains[chosen])

    def chain_values(self, before: int) -> Array:
        """What `formats.entry.chain_crc` gives for each, if each continues the stored value of the one in
        front of it, and the first continues `before`."""
        tables = _header_tables()
        places = range(_CHAIN_AT, _BODY_CRC_AT)
        octets = zip(places, before.to_bytes(4, "big"), strict=True)
        first = [np.bitwise_xor.reduce([tables[place][octet] for place, octet in octets])]
        constant = np.bitwise_xor.reduce([tables[place][255] for place in places])
        values = (self._own ^ np.concatenate((first, self._chains[:-1])) ^ constant) >> _32
        found: Array = (values ^ _EVERY).astype(np.int64)
        return found

    def whole_crc(self, stored: Array, bounds: Array) -> int:
        """CRC of the entries, one behind the other, if each body has its `stored` CRC.

        `bounds`: where each of them begins, and the end of the last one.
        """
        values = np.zeros(len(bounds), np.uint64)
        values[:-1] = (self._own ^ self._chains) & _EVERY ^ np.uint64(_inverted_header())
        values[1:] ^= stored.astype(np.uint64) ^ _EVERY
        length = int(bounds[-1] - bounds[0])
        inversions = times(_ALL, power(length)) ^ _ALL
        return _shifted_sum(values, (bounds[-1] - bounds).astype(np.int64)) ^ inversions


def power(octets: int) -> int:
    """x to the power of 8 for each of so many bytes."""
    result, square = _ONE, _X_8
    while octets:
        if octets & 1:
            result = times(result, square)
        square = times(square, square)
        octets >>= 1
    return result


def times(a: int, b: int) -> int:
    """Product modulo the polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        b = (b ^ _POLYNOMIAL if b & 1 else b) >> 1
        a = a << 1 & _ALL
    return product


def _shifted_sum(values: Values, shifts: Array) -> int:
    """XOR of all values, each with so many zero bytes behind it; shifts descend."""
    blocks = shifts >> _BLOCK_BITS
    starts = np.concatenate(([0], np.flatnonzero(np.diff(blocks)) + 1))
    low = _reduced(_products(values, _powers(0)[shifts & (1 << _BLOCK_BITS) - 1], starts))
    high = _reduced(_products(low, _powers(_BLOCK_BITS)[blocks[starts]], np.zeros(1, np.int64)))
    return int(high[0])


def _products(a: Values, b: Values, starts: Array) -> Values:
    """Sums without carries of the products of each group, 63 bits. `starts`: where groups begin.

    Every fourth bit is multiplied by itself: ordinary carries then stay between the bits that count.
    """
    left, right = [a & lane for lane in _LANES], [b & lane for lane in _LANES]
    total = np.zeros(len(starts), np.uint64)
    for lane in range(4):
        part = left[0] * right[lane]
        for other in range(1, 4):
            part ^= left[other] * right[(lane - other) % 4]
        total |= np.bitwise_xor.reduceat(part, starts) & _LANES[lane]
    return total


def _reduced(products: Values) -> Values:
    """Modulo the polynomial."""
    result = products >> _31
    tables = _reduction_tables()
    for number in range(4):
        result ^= tables[number][products >> np.uint64(8 * number) & np.uint64(255 if number < 3 else 127)]
    return result


@cache
def _reduction_tables() -> Values:
    """[byte number, byte] -> what the low 31 bits of a product come to: bit 0 is x^62."""
    tables = np.zeros((4, 256), np.uint64)
    value = _ONE >> 31  # x^31
    for bit in range(30, -1, -1):
        value = (value ^ _POLYNOMIAL if value & 1 else value) >> 1
        tables[bit // 8] ^= np.where(np.arange(256) >> bit % 8 & 1, np.uint64(value), np.uint64(0))
    return tables


@cache
def _powers(bits: int) -> Values:
    """[n] -> x to the power of 8 * n * 2^bits, for n below 2^16."""
    found = np.array([_ONE], np.uint64)
    while len(found) < 1 << _BLOCK_BITS:
        factor = np.full(len(found), power(len(found) << bits), np.uint64)
        found = np.append(found, _reduced(_products(found, factor, np.arange(len(found)))))
    return found


@cache
def _header_tables() -> Values:
    """[place in a header, byte] -> in the low half, what it contributes to the CRC of a text that ends with
    the header, divided by the shift of the header; in the high half, what it contributes to a chain value:
    the one of its own entry, for the stored chain value that of the entry behind it."""
    single = [crc32(bytes([octet])) ^ crc32(b"\0") for octet in range(256)]
    tables = np.zeros((HEADER_SIZE, 256), np.uint64)
    shifts = {place: _ORDER - place - 1 for place in range(HEADER_SIZE)}
    for place, shift in shifts.items():
        tables[place] = _multiplied(single, power(shift))
    chain_places = [*enumerate(_CHAIN_TEXT), *((number, 39 - number) for number in range(4))]
    for number, place in chain_places:
        tables[place] |= _multiplied(single, power(len(_CHAIN_TEXT) - 1 - number)) << _32
    return tables


def _multiplied(values: list[int], factor: int) -> Values:
    factors = np.full(len(values), factor, np.uint64)
    return _reduced(_products(np.array(values, np.uint64), factors, np.arange(len(values))))


@cache
def _inverted_header() -> int:
    """The inversion in front of a header, shifted as `_header_tables` shifts it."""
    return times(_ALL, power(_ORDER - HEADER_SIZE))
