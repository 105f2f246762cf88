"""How a trial reads the log of a store: as a whole, and piece by piece while the log grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.chaos.trials.evidence import read_entries
from dledger.files.offline import StoreUnreadable
from dledger.formats.entry import BLANK, BLANK_MAGIC, MIN_BLANK_SIZE, EntryHeader, Kind, encode_entry
from dledger.formats.entry import unpack_header as header_of
from dledger.formats.store_files import DATA_DIR, segment_name
from dledger.log.base import ORIGIN, LogBase

SEGMENT = 1_000
ENTRIES = 20
"""They fill three segments: the sizes differ, so that the blank tails do, too."""


def write_store(store: Path, count: int) -> None:
    """Write a store with the first entries of a log."""
    data = store / "dledger-n0" / DATA_DIR
    data.mkdir(parents=True)
    segments = [bytearray()]
    chain = 0
    for index in range(count):
        body = b"%d" % index * (40 + 7 * index % 30)
        entry = encode(body, index, segments, chain)
        if len(segments[-1]) + len(entry) + MIN_BLANK_SIZE > SEGMENT:
            left = SEGMENT - len(segments[-1])
            segments[-1] += BLANK.pack(BLANK_MAGIC, left).ljust(left, b"\0")
            segments.append(bytearray())
            entry = encode(body, index, segments, chain)
        segments[-1] += entry
        chain = header_of(entry).chain_crc
    for number, segment in enumerate(segments):
        (data / segment_name(number * SEGMENT)).write_bytes(segment.ljust(SEGMENT, b"\0"))


def encode(body: bytes, index: int, segments: list[bytearray], chain: int) -> bytes:
    pos = SEGMENT * (len(segments) - 1) + len(segments[-1])
    return encode_entry(index, 1, pos, body, chain, Kind.RAW)


@pytest.mark.parametrize("until", range(-1, ENTRIES))
def test_a_log_that_is_read_in_two_pieces_gives_each_entry_once(tmp_path: Path, until: int) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    for store in (first, second):
        write_store(Path(store), ENTRIES)
    whole: list[tuple[EntryHeader, bytes]] = []
    end = read_entries(first, SEGMENT, None, lambda *entry: whole.append(entry))
    assert [header.index for header, _ in whole] == list(range(ENTRIES))
    assert len({header.pos // SEGMENT for header, _ in whole}) >= 3

    pieces: list[tuple[EntryHeader, bytes]] = []
    place = read_entries(first, SEGMENT, until, lambda *entry: pieces.append(entry))
    assert (place.index, len(pieces)) == (until, until + 1)
    assert read_entries(second, SEGMENT, until, lambda *entry: pieces.append(entry), place) == place
    assert len(pieces) == until + 1, "nothing is new"
    assert read_entries(second, SEGMENT, None, lambda *entry: pieces.append(entry), place) == end
    assert pieces == whole


def test_an_empty_log_has_no_entry(tmp_path: Path) -> None:
    write_store(tmp_path / "a", 0)
    assert read_entries(str(tmp_path / "a"), SEGMENT, None, lambda *entry: None) == ORIGIN


def test_a_place_whose_segment_is_gone_is_an_error(tmp_path: Path) -> None:
    write_store(tmp_path / "a", ENTRIES)
    place = read_entries(str(tmp_path / "a"), SEGMENT, ENTRIES // 2, lambda *entry: None)
    gone = place.pos // SEGMENT * SEGMENT
    (tmp_path / "a" / "dledger-n0" / DATA_DIR / segment_name(gone)).unlink()
    for number in range(gone // SEGMENT):
        (tmp_path / "a" / "dledger-n0" / DATA_DIR / segment_name(number * SEGMENT)).unlink()
    with pytest.raises(StoreUnreadable, match="is missing"):
        read_entries(str(tmp_path / "a"), SEGMENT, None, lambda *entry: None, place)


def test_an_entry_that_does_not_continue_the_place_ends_the_log(tmp_path: Path) -> None:
    write_store(tmp_path / "a", ENTRIES)
    place = read_entries(str(tmp_path / "a"), SEGMENT, 5, lambda *entry: None)
    other = LogBase(place.index, place.term, place.pos, 1 + (place.chain or 0))
    seen: list[int] = []
    read_entries(str(tmp_path / "a"), SEGMENT, None, lambda header, _: seen.append(header.index), other)
    assert not seen
