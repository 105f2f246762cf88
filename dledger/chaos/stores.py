"""Compares the log files of replicas entry by entry, byte for byte, without code of the broker or of
`audit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dledger.formats.entry import HEADER_SIZE, MAGIC, is_blank, unpack_header
from dledger.formats.store_files import DATA_DIR, parse_segment_name


class RawEntry(NamedTuple):
    """One entry of a log, with its bytes in the file."""

    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    data: bytes


def entries(store: Path) -> Iterator[RawEntry]:
    """Yield all entries of a storePathRootDir in order. Stops at the first place that holds no valid
    entry."""
    (log,) = store.glob("dledger-*")
    names = sorted(
        name.name for name in (log / DATA_DIR).iterdir() if parse_segment_name(name.name) is not None
    )
    due = None
    for name in names:
        data = (log / DATA_DIR / name).read_bytes()
        start = int(name)
        at = 0
        while at + HEADER_SIZE <= len(data) and not is_blank(data, at):
            header = unpack_header(data, at)
            fits = header.magic == MAGIC and header.pos == start + at and at + header.size <= len(data)
            if not fits or (due is not None and header.index != due):
                return
            yield RawEntry(header.index, data[at : at + header.size])
            due = header.index + 1
            at += header.size


def first_difference(one: Path, other: Path, up_to: int) -> str | None:
    """Describe the first difference of two replicas at or below index `up_to`. None if both are equal and
    reach that index."""
    ours, theirs = entries(one), entries(other)
    reached = -1
    for mine in ours:
        if mine.index > up_to:
            break
        its = next(theirs, None)
        if its is None:
            return f"{other} ends before index {mine.index}"
        if mine != its:
            return f"index {mine.index} ({its.index} in {other}) differs"
        reached = mine.index
    return None if reached >= up_to else f"{one} ends at index {reached} of {up_to}"
