"""A push frame is checked before a byte of it reaches the log (safety.md S7, S11)."""

from __future__ import annotations

import pytest

from dledger.formats.entry import HEADER, CorruptEntry, Kind, encode_entry, unpack_header
from dledger.log.incoming import check_run

POS = 4096


def frame(
    bodies: list[bytes],
    terms: list[int] | None = None,
    remaining: list[int] | None = None,
    *,
    covered: bool = True,
) -> bytes:
    data = b""
    chain = 77
    for place, body in enumerate(bodies):
        entry = encode_entry(
            10 + place,
            (terms or [3] * len(bodies))[place],
            POS + len(data),
            body,
            chain,
            Kind.MESSAGE,
            (remaining or [0] * len(bodies))[place],
            covered=covered,
        )
        chain = unpack_header(entry).chain_crc
        data += entry
    return data


def check(data: bytes, last: int = 12, chain: int | None = 77) -> None:
    check_run(data, 10, last, POS, 3, 4, chain)


GOOD = frame([b"one", b"two" * 100, b""])
OLD = frame([b"one", b"two" * 100, b""], covered=False)


def test_a_good_frame_is_believed_and_split_by_term() -> None:
    run = check_run(frame([b"a", b"b", b"c"], terms=[3, 3, 4]), 10, 12, POS, 3, 4, 77)
    batches = run.batches(11)
    assert [(batch.first, batch.last, batch.term) for batch in batches] == [(11, 11, 3), (12, 12, 4)]
    assert b"".join(bytes(batch.data) for batch in batches) == run.data[run.sizes[0] :]
    assert run.body(11) == b"b"


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_goes_unnoticed(bit: int) -> None:
    for at in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[at] ^= 1 << bit
        with pytest.raises(CorruptEntry):
            check(bytes(damaged))


@pytest.mark.parametrize("bit", range(8))
def test_of_an_entry_of_an_older_program_a_wrong_kind_may_pass(bit: int) -> None:
    check(OLD)
    for at in range(len(OLD)):
        damaged = bytearray(OLD)
        damaged[at] ^= 1 << bit
        if is_channel(at) and not (at % 48 == 32 and bit == 7):
            continue  # kind and batch remainder: the only bytes of such a header that no CRC covers
        with pytest.raises(CorruptEntry):
            check(bytes(damaged))


def is_channel(at: int) -> bool:
    offset = 0
    while offset < len(GOOD):
        if offset + 32 <= at < offset + 36:
            return True
        offset += HEADER.unpack_from(GOOD, offset)[1]
    return False


@pytest.mark.parametrize("cut", [1, 10, 47, 60])
def test_a_shortened_frame_is_refused(cut: int) -> None:
    with pytest.raises(CorruptEntry):
        check(GOOD[:-cut])


def test_frames_out_of_place_are_refused() -> None:
    with pytest.raises(CorruptEntry, match="announced"):
        check(GOOD, last=13)
    with pytest.raises(CorruptEntry, match="chain"):
        check(GOOD, chain=78)
    with pytest.raises(CorruptEntry):
        check_run(GOOD, 11, 13, POS, 3, 4, None)
    with pytest.raises(CorruptEntry):
        check_run(GOOD, 10, 12, POS + 1, 3, 4, None)
    with pytest.raises(CorruptEntry):
        check_run(GOOD, 10, 12, POS, 4, 4, None)


def test_a_split_client_batch_is_refused() -> None:
    with pytest.raises(CorruptEntry, match="split"):
        check(frame([b"a", b"b", b"c"], remaining=[0, 2, 1]))
