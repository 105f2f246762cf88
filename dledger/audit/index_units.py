"""Index units (32 bytes per entry) of one replica. A scan compares them with the entries that it reads, and
uses them as a hint for the positions of entries.

Units are written after the entries and may be behind them, so a missing unit after the last one written is
not a fault. Every unit before that must agree with the log. Only committed entries are compared.
"""

from __future__ import annotations

import numpy as np

from dledger.audit.entries import CHAIN_BROKEN, Array, Columns
from dledger.audit.unit_files import UnitFiles
from dledger.audit.walk import Fault
from dledger.formats.entry import APACHE_MAGICS, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC
from dledger.formats.store_files import INDEX_DIR
from dledger.runtime import Files

_UNITS = np.dtype([("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")])
_BLOCK = 32 * 1024
"""Number of index units that are read at a time (1 MiB)."""


class IndexUnits:
    """Reads the units of the index files below number `end`, in blocks. Raises OSError."""

    def __init__(self, files: Files, directory: str, end: int) -> None:
        self._files = files
        self._directory = f"{directory}/{INDEX_DIR}"
        self._opened: UnitFiles | None = None
        self._end = end
        self._first = 0
        self._block: Array = np.empty(0, _UNITS)
        self._positions: Array = np.empty(0, np.int64)
        """Positions of entries, from the units of the block that was read last."""

    def close(self) -> None:
        """Close the files."""
        if self._opened is not None:
            self._opened.close()

    def read(self, first: int, count: int) -> Array:
        """Return exactly this many units from number `first` on. Units for which no file has bytes are
        zeros."""
        if not 0 <= first - self._first <= len(self._block) - count:
            self._load(first, max(count, min(_BLOCK, self._end - first)))
        at = first - self._first
        return self._block[at : at + count]

    def _load(self, first: int, size: int) -> None:
        if self._opened is None:
            self._opened = UnitFiles(self._files, self._directory, INDEX_UNIT_SIZE)
        self._block = np.frombuffer(self._opened.read(first, size), _UNITS)
        self._positions = self._block["pos"].astype(np.int64)
        self._first = first

    def positions(self, first: int, below: int) -> Array:
        """Return the log positions of entries from index `first` on that are lower than `below`. There may be
        fewer, because only one block of units is used."""
        if first >= self._end:
            return np.empty(0, np.int64)
        behind = self._first + len(self._block)
        if not self._first <= first < behind or (
            self._first < first and self._positions[-1] < below and behind < self._end
        ):
            self._load(first, min(_BLOCK, self._end - first))  # the units of a window in one block
        told = self._positions[first - self._first :]
        return told[: int(np.searchsorted(told, below))]


class IndexCheck:
    """Checks the index units of one segment. The units of committed entries must agree with the entries that
    the scan reads."""

    def __init__(self, units: IndexUnits, committed: int, end: int) -> None:
        self._units = units
        self._committed = committed
        self._last = min(committed, end - 1)
        self.lacking: int = 0
        """Number of committed entries that have no unit yet."""
        self.faults: list[Fault] = []

    def add(self, columns: Columns) -> None:
        """Compare the units of one window of entries. The entries are ascending, mostly without gaps."""
        due = columns.index <= self._last
        self.lacking += int(((columns.index <= self._committed) & ~due).sum())
        believed = columns[due & (columns.damage & CHAIN_BROKEN == 0)]  # else its term cannot be trusted
        if not len(believed):
            return
        edges = np.flatnonzero(np.diff(believed.index) != 1) + 1
        for run in np.split(np.arange(len(believed)), edges):
            self._compare(believed[int(run[0]) : int(run[-1]) + 1])

    def _compare(self, run: Columns) -> None:
        """Compare the units of entries whose indexes have no gap."""
        first = int(run.index[0])
        units = self._units.read(first, len(run))
        foreign = (run.stored_crc == 0) & (run.chain == 0) & (units["magic"] <= APACHE_MAGICS[-1])
        same = (
            ((units["magic"] == MAGIC) | (foreign & (units["magic"] >= APACHE_MAGICS[0])))
            & (units["pos"] == run.pos)
            & (units["size"] == run.size)
            & (units["index"] == run.index)
            & (units["term"] == run.term)
        )
        for number in np.flatnonzero(~same).tolist():
            text = _says(units[number].tobytes())
            self.faults.append(Fault("INDEX_FILE", first + number, first + number, text))


def _says(unit: bytes) -> str:
    if not any(unit):
        return "the index unit is missing"
    _, pos, size, index, term = INDEX_UNIT.unpack(unit)
    return f"the index unit says index {index}, term {term}, pos {pos}, size {size}"
