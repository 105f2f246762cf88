"""Reads the files of a flight recorder, and says what is missing from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dledger.flight.blocks import (
    FORMAT,
    Begin,
    Block,
    Damage,
    Kind,
    decode_begin,
    decode_head,
    file_number,
    read_blocks,
)
from dledger.flight.version import core_version
from dledger.formats.store_files import FLIGHT_DIR
from dledger.runtime import Files

MAX_FILE = 1 << 31
"""Largest file, in bytes, that is read; a recorder writes far smaller ones."""


class UnusableRecording(Exception):
    """Raised when there is no recording, or when this program cannot replay it."""


@dataclass(frozen=True)
class FlightFile:
    """One file of a ring: its first state, and the blocks after it up to the first gap."""

    name: str
    number: int
    begin: Begin
    first_block: int
    """Number of the block with the state."""
    blocks: tuple[Block, ...]
    """The blocks that follow it without a gap."""
    gap: bool
    """Whether anything after these blocks is damaged or missing, so that the file cannot be replayed to its
    end."""

    @property
    def next_block(self) -> int:
        """Number of the block that would follow."""
        return self.first_block + 1 + len(self.blocks)


def read_recording(files: Files, path: str) -> tuple[list[FlightFile], list[str]]:
    """Read a file of a ring, or all files of a directory. The directory may also be that of a node's log.

    Returns the files in order, and texts that say what is missing or damaged. Raises UnusableRecording if
    there is nothing to replay, or if another version of the core made the recording. Blocking."""
    missing: list[str] = []
    found: list[FlightFile] = []
    for name in _paths(files, path):
        file = _read_file(files, name, missing)
        if file is not None:
            found.append(file)
    if not found:
        because = "".join(f"\n  {text}" for text in missing)
        raise UnusableRecording(f"{path}: no file of a flight recorder can be replayed{because}")
    nodes = sorted({file.begin.node for file in found})
    if len(nodes) > 1:
        raise UnusableRecording(f"{path}: recordings of several nodes ({', '.join(nodes)}): replay one")
    _note_gaps(found, missing)
    return found, missing


def _paths(files: Files, path: str) -> list[str]:
    path = path.rstrip("/") or "/"
    try:
        if not files.is_dir(path):
            if not files.exists(path):
                raise UnusableRecording(f"{path}: there is no such file or directory")
            return [path]
        inner = f"{path}/{FLIGHT_DIR}"
        directory = inner if files.is_dir(inner) else path
        numbers = {number: name for name in files.listdir(directory) if (number := file_number(name))}
    except OSError as error:
        raise UnusableRecording(f"{path}: {error}") from error
    if not numbers:
        raise UnusableRecording(
            f"{path}: no recording of a flight recorder; flightRecorderMb of the node switches it on"
        )
    return [f"{directory}/{numbers[number]}" for number in sorted(numbers)]


def _read_file(files: Files, path: str, missing: list[str]) -> FlightFile | None:
    name = path.rpartition("/")[2]
    try:
        file = files.open_read(path)
    except FileNotFoundError:
        missing.append(f"{name}: removed while the recording was read")
        return None
    except OSError as error:
        raise UnusableRecording(f"{path}: {error}") from error
    try:
        data = file.pread(min(file.size(), MAX_FILE), 0)
    except OSError as error:
        raise UnusableRecording(f"{path}: {error}") from error
    finally:
        file.close()
    found = read_blocks(data)
    for damage in found:
        if isinstance(damage, Damage):
            size = damage.end - damage.begin
            missing.append(f"{name}: {size} bytes from byte {damage.begin} on are no block: {damage.why}")
    if not found or not isinstance(found[0], Block) or found[0].kind is not Kind.BEGIN:
        missing.append(f"{name}: does not begin with a state, so nothing of it can be replayed")
        return None
    first = found[0]
    begin = _decode_begin(path, first)
    blocks: list[Block] = []
    gap = False
    for block in found[1:]:
        if gap or not isinstance(block, Block) or block.number != first.number + 1 + len(blocks):
            if isinstance(block, Block) and not gap:
                expected = first.number + 1 + len(blocks)
                missing.append(f"{name}: blocks {expected} to {block.number - 1} are missing")
            gap = True
        else:
            blocks.append(block)
    if gap:
        lost = sum(block.events for block in found[1 + len(blocks) :] if isinstance(block, Block))
        if lost:
            missing.append(f"{name}: {lost} steps after the gap cannot be replayed")
    return FlightFile(name, file_number(name) or 0, begin, first.number, tuple(blocks), gap)


def _decode_begin(path: str, block: Block) -> Begin:
    """Decode the state of a file. Raises UnusableRecording for one of another version."""
    try:
        format_, version = decode_head(block.content)
        own = core_version()
        if format_ != FORMAT or version != own:
            raise UnusableRecording(
                f"{path}: recorded by version {version} (format {format_}) of the core, this program has "
                f"version {own} (format {FORMAT}): replay it with the program that recorded it"
            )
        return decode_begin(block.content)
    except msgspec.MsgspecError as error:
        raise UnusableRecording(f"{path}: its state cannot be decoded: {error}") from error


def _note_gaps(found: Sequence[FlightFile], missing: list[str]) -> None:
    """Say which files are missing between others, and what a slow disk dropped."""
    lost = 0
    for before, after, following in zip((None, *found[:-1]), found, (*found[1:], None), strict=True):
        if before is not None and after.number > before.number + 1:
            missing.append(f"the files between {before.name} and {after.name} are missing")
        same_run = before is not None and before.begin.run == after.begin.run
        if same_run and before is not None and not before.gap and after.first_block > before.next_block:
            last = after.first_block - 1
            missing.append(f"{before.name}: blocks {before.next_block} to {last} are missing at its end")
        lost = lost if same_run else 0
        if after.begin.lost > lost:
            missing.append(f"before {after.name}: {after.begin.lost - lost} steps, because the disk was slow")
        lost = after.begin.lost
        ended = any(block.kind is Kind.END for block in after.blocks)
        if _ends_run(after, following) and not ended:
            missing.append(f"after {after.name}: the last calls of a process that was killed, or still runs")


def _ends_run(file: FlightFile, following: FlightFile | None) -> bool:
    """Whether a file is the last one of a run of the node. `following` is the next file."""
    return following is None or following.begin.run != file.begin.run


def follows(before: FlightFile, after: FlightFile) -> bool:
    """Whether the calls of one file end exactly where the state of the next one was taken."""
    return (
        before.begin.run == after.begin.run
        and not before.gap
        and before.next_block == after.first_block
        and before.begin.lost == after.begin.lost
    )
