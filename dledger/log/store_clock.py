"""The clock for new records (safety.md S15): the wall clock, except that a leap ahead counts only when the
clock has stayed there. Pure; all times in ms.

As store time never goes back, a clock that is years ahead for a moment would mark all later messages, under
every later leader. A leap is detected by comparing the wall clock with the monotonic clock.
"""

from __future__ import annotations

LEAP_MS = 5_000
"""A wall clock that gains more than this on the monotonic one between two readings has leapt."""
BELIEVED_AFTER_MS = 60_000
"""How long the clock must stay where it leapt to (a correction, a machine that slept) before it counts as
right."""
SAME_MS = 1_000
"""Two readings that differ by less belong to the same leap."""


class StoreClock:
    """Clock of one log. It is read at least twice a second, so that leaps are noticed when nothing is
    appended, too."""

    def __init__(self) -> None:
        self._lead: float | None = None
        """The accepted lead of the wall clock over the monotonic one."""
        self._leapt_to = 0.0
        self._leapt_at: float | None = None

    def look(self, wall_ms: int, monotonic_ms: float) -> int:
        """The time for a new record, in ms."""
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
        """How far the wall clock has leapt ahead without being accepted yet, in ms; 0 when it is right."""
        return 0 if self._leapt_at is None or self._lead is None else round(self._leapt_to - self._lead)
