"""Term and vote on disk: two slots written in turn, so that a torn write leaves the other (safety.md S7)."""

from __future__ import annotations

from formats.store_files import HARD_STATE_FILE, SLOT_SIZE, HardState, decode_hard_state, encode_slot
from runtime import File, Files


class HardStateFile:
    """The file `hardstate`. All methods block: call them from a worker."""

    def __init__(self, file: File, sequence: int, state: HardState | None) -> None:
        self._file = file
        self._sequence = sequence
        self.loaded = state
        """What was on disk at open; None when neither slot could be read (a new or damaged store)."""

    @classmethod
    def open(cls, files: Files, directory: str) -> HardStateFile:
        """Open or create. The caller syncs the directory before the first save."""
        file = files.open(f"{directory}/{HARD_STATE_FILE}", create=True)
        if file.size() < 2 * SLOT_SIZE:
            file.allocate(2 * SLOT_SIZE)
            file.fdatasync()
        found = decode_hard_state(file.pread(2 * SLOT_SIZE, 0))
        return cls(file, 0, None) if found is None else cls(file, found[0], found[1])

    def settle(self) -> None:
        """Make durable what was read: the process may have died between a write and its fsync (S2).

        The same slot is written again, so that a torn write leaves the other one as it was.
        """
        if self.loaded is not None:
            self._file.pwritev([encode_slot(self._sequence, self.loaded)], self._sequence % 2 * SLOT_SIZE)
            self._file.fdatasync()

    def save(self, state: HardState) -> None:
        """Write the slot that is not the newest, fsync. After an error the node must end (S3)."""
        sequence = self._sequence + 1
        self._file.pwritev([encode_slot(sequence, state)], sequence % 2 * SLOT_SIZE)
        self._file.fdatasync()
        self._sequence = sequence

    def close(self) -> None:
        """Close the file."""
        self._file.close()
