"""The clock for new records (safety.md S15): the wall clock, except that a leap ahead is accepted only after
the clock has stayed there for a while. Pure; all times in ms.

Store time never goes back. So if the clock were believed while it is years ahead for a moment, all later
messages would have that time, under every later leader. A leap is detected by comparing the wall clock with
the monotonic clock.
"""

from __future__ import annotations

LEAP_MS = 5_000
"""Limit, in ms, for how much the wall clock may gain on the monotonic clock between two readings. If it gains
more, it has leapt."""
BELIEVED_AFTER_MS = 60_000
"""How long, in ms, the clock must stay where it leapt to before it counts as right. Such a leap can be a
correction, or a machine that slept."""
SAME_MS = 1_000
"""Two readings that differ by less than this, in ms, belong to the same leap."""


class StoreClock:
    """Clock of one log. It is read at least twice a second, so that leaps are noticed when nothing is
    appended, too."""

    def __init__(self) -> None:
        self._lead: float | None = None
        """Accepted difference, in ms, by which the wall clock is ahead of the monotonic clock."""
        self._leapt_to = 0.0
        self._leapt_at: float | None = None

    def look(self, wall_ms: int, monotonic_ms: float) -> int:
        """Return the time for a new record, in ms, given readings of both clocks."""
        lead = wall_ms - monotonic_ms
        if self._lead is None or lead - self._lead <= LEAP_MS:
            self._lead, self._leapt_at = lead, None
            return wall_ms
        if self._leapt_at is None or abs(lead - self._leapt_to) > SAME_MS:
            self._leapt_to, self._leapt_at = lead, monotonic_ms
        if monotonic_ms - self._leapt_at >= BELIEVED_AFTER_MS:
            self._lead, self._leapt_at = lead, None
            return wall_ms
        return round(monotonic_ms + self._lead)

    @property
    def ahead_ms(self) -> int:
        """How far, in ms, the wall clock has leapt ahead without being accepted yet; 0 if it is right."""
        return 0 if self._leapt_at is None or self._lead is None else round(self._leapt_to - self._lead)
