"""Term and vote on disk (safety.md S7).

Two slots are written in turn, so that a torn write leaves the other slot intact. Both slots are mirrored in
another block, so that damage in one place does not lose a vote.
"""

from __future__ import annotations

from dledger.formats.store_files import (
    HARD_STATE_FILE,
    HARD_STATE_SIZE,
    MIRROR_OFFSET,
    SLOT_OFFSETS,
    HardState,
    decode_hard_state,
    encode_slot,
)
from dledger.log.reading import read_around_errors
from dledger.runtime import File, Files


class HardStateFile:
    """The file `hardstate`. All methods block: call them from a worker."""

    def __init__(self, file: File, sequence: int, state: HardState | None) -> None:
        self._file = file
        self._sequence = sequence
        self.loaded = state
        """Content of the file when it was opened. None if no slot could be read, because the store is new or
        damaged; then `begin` is called."""

    @classmethod
    def open(cls, files: Files, directory: str) -> HardStateFile:
        """Open the file, or create it. The caller syncs the directory before the first save."""
        file = files.open(f"{directory}/{HARD_STATE_FILE}", create=True)
        if file.size() < HARD_STATE_SIZE:
            file.allocate(HARD_STATE_SIZE)
            file.fdatasync()
        found = decode_hard_state(read_around_errors(file, HARD_STATE_SIZE, 0))
        return cls(file, 0, None) if found is None else cls(file, found[0], found[1])

    def settle(self) -> None:
        """Make durable what was read, because the process may have died between a write and its fsync (S2).

        The same slot is written again, so that a torn write leaves the other slot intact. A lost copy of a
        slot is restored.
        """
        if self.loaded is not None:
            self._write(self._sequence, self.loaded)

    def begin(self, state: HardState) -> None:
        """Save the first state of a new or damaged store."""
        self.save(state)
        self.loaded = state

    def save(self, state: HardState) -> None:
        """Write the older slot and fsync. After an error the node must end (S3)."""
        self._write(self._sequence + 1, state)
        self._sequence += 1

    def _write(self, sequence: int, state: HardState) -> None:
        slot = encode_slot(sequence, state)
        offset = SLOT_OFFSETS[sequence % 2]
        self._file.pwritev([slot], offset)
        self._file.pwritev([slot], MIRROR_OFFSET + offset)
        self._file.fdatasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
