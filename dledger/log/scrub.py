"""The scrub: reads the durable log from its first entry to its last, again and again, to find corruption
(L5).

A worker checks entries, the chain through them and their index units in small pieces. It reads at most
`bytes_per_s` on average and works no more than a twentieth of the time, so that an idle group stays idle.
Corrupt entries become faulty and are repaired from peers. A wrong index unit is written anew from its entry.
A damaged blank tail of a segment is written anew, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dledger.formats.entry import EntryHeader
from dledger.log.index_files import IndexFiles
from dledger.log.recovery_scan import End, Place, Roll, Rot, Walker
from dledger.log.segments import Segments
from dledger.log.store import LogStore

PIECE = 256 * 1024
"""Number of bytes that one job reads."""
OUT_OF_MEANS_REST_S = 1.0
"""Seconds until a piece of the log is read again that could not be read, for example because too many files
were open."""
SHARE = 19
"""Seconds of rest for each second of work."""
_EVERYTHING = 1 << 62


@dataclass
class Piece:
    """Result of one job of the scrub: where to continue, corrupt entries, entries with wrong index units
    (first, last), and places where the blank tail of a segment is damaged."""

    place: Place
    rotten: list[tuple[int, int]] = field(default_factory=list)
    suspects: list[tuple[int, int]] = field(default_factory=list)
    blanks: list[Place] = field(default_factory=list)


def scrub_piece(segments: Segments, index: IndexFiles, at: Place, mark: int) -> Piece:
    """Check about PIECE bytes of the log from `at` on, not beyond entry `mark`. Blocking."""
    found = Piece(at)

    def misfit(header: EntryHeader) -> None:
        found.suspects.append((header.index, header.index))

    walker = Walker(segments, index, mark, power_lost=False)
    stop_pos = at.pos + PIECE
    while at.index < mark and at.pos < stop_pos:
        at = walker.run(at, mark, stop_pos, _ignore, misfit)
        if at.index >= mark or at.pos >= stop_pos:
            break
        met = walker.obstacle(at)
        if isinstance(met, End):
            found.rotten.append((at.index + 1, mark))
            at = at._replace(index=mark)
            break
        if isinstance(met, Roll) and not met.blank_fits:
            found.blanks.append(at)
        if isinstance(met, Rot):
            found.rotten.append((at.index + 1, min(met.place.index, mark)))
        at = met.place
    found.place = at
    return found


def _ignore(header: EntryHeader) -> None:
    """Do nothing, because kinds and batches do not matter here."""


class Scrubber:
    """Runs the scrub of one node. `run` ends only when it is cancelled."""

    def __init__(self, log: LogStore, *, bytes_per_s: int, pause_s: float) -> None:
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._pause_s = pause_s
        self._retuned = asyncio.Event()
        self.passes: int = 0
        self.checked_index: int = -1
        """Last entry that the current pass has checked."""
        self.checked_bytes: int = 0
        self.found: int = 0
        """Number of suspicious ranges found since the start."""

    def retune(self, bytes_per_s: int, pause_s: float) -> None:
        """Change the rate and the pause, from now on."""
        if (bytes_per_s, pause_s) != (self._bytes_per_s, self._pause_s):
            self._bytes_per_s, self._pause_s = bytes_per_s, pause_s
            self._retuned.set()

    async def run(self) -> None:
        """Run pass after pass. With a rate of 0 it waits."""
        await self._rest(min(self._pause_s, 1.0))
        while True:
            if self._bytes_per_s > 0:
                await self._pass()
                self.passes += 1
                await self._rest(self._pause_s)
            else:
                await self._rest(None)

    async def _rest(self, seconds: float | None) -> None:
        """Wait for this many seconds. With None, wait until the settings change."""
        try:
            async with asyncio.timeout(seconds):
                await self._retuned.wait()
        except TimeoutError:
            return  # the ordinary case
        self._retuned.clear()

    async def _pass(self) -> None:
        log = self._log
        loop = asyncio.get_running_loop()
        place = log.first_place()
        mark = log.indexed_mark
        cuts = log.cuts  # of the whole pass: a cut during a rest moves entries, too

        def stale() -> bool:
            return log.cuts != cuts or place.pos < log.begin_pos

        while place.index < mark and not stale() and (rate := self._bytes_per_s) > 0:
            began = loop.time()
            try:
                piece = await log.look(scrub_piece, place, mark)
            except OSError as error:
                log.put_off(error, place.index + 1, mark)
                await asyncio.sleep(OUT_OF_MEANS_REST_S)
                continue
            took = loop.time() - began
            if stale():
                return  # what was read may be gone; the next pass begins anew
            for first, last in piece.rotten:
                log.note_damage(first, last, certain=True)
            for first, last in piece.suspects:
                log.note_damage(first, last)
            for end in piece.blanks:
                await log.mend_blank(end.index, end.pos, cuts)
            self.found += len(piece.rotten) + len(piece.suspects) + len(piece.blanks)
            size = max(piece.place.pos - place.pos, 0)
            self.checked_bytes += size
            self.checked_index = piece.place.index
            place = piece.place
            await self._rest(max(size / rate, SHARE * took))

    def status(self) -> dict[str, object]:
        """Figures for /metrics and `status`."""
        return {
            "scrub_passes": self.passes,
            "scrub_checked_index": self.checked_index,
            "scrub_checked_bytes": self.checked_bytes,
            "scrub_found": self.found,
        }
