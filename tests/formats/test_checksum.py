"""One CRC-32, whoever computes it."""

from __future__ import annotations

import random
import zlib

import pytest

from dledger.formats.checksum import crc32


def test_the_check_value_of_the_standard() -> None:
    assert crc32(b"123456789") == 0xCBF43926 == zlib.crc32(b"123456789")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_it_is_zlibs_for_every_length_start_and_buffer(kind: type) -> None:
    rng = random.Random(1)
    for size in (*range(70), 255, 1024, 4097, 100_000):
        data = rng.randbytes(size)
        before = rng.randrange(1 << 32)
        assert crc32(kind(data)) == zlib.crc32(data)
        assert crc32(kind(data), before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)[1:777]) == zlib.crc32(data[1:777])
