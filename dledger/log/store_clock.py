"""What time it is for new records (safety.md S15): the wall clock's, but not where it leapt to until it has
stayed there. Pure; all times in ms.

As store time never goes back, a clock that is years ahead for a moment would mark all messages that come
after it, under every later leader. A leap is told from the passing of time by the monotonic clock."""

from __future__ import annotations

LEAP_MS = 5_000
"""A wall clock that gains more than this on the monotonic one between two looks has leapt."""
BELIEVED_AFTER_MS = 60_000
"""So long it must stay where it leapt to (a correction, a machine that slept): then it is right."""
SAME_MS = 1_000
"""Two looks that differ by less show one leap."""


class StoreClock:
    """One per log; asked at least twice a second, so that leaps are seen when nothing is appended, too."""

    def __init__(self) -> None:
        self._lead: float | None = None
        """The wall clock's lead over the monotonic one, as it is believed."""
        self._leapt_to = 0.0
        self._leapt_at: float | None = None

    def look(self, wall_ms: int, monotonic_ms: float) -> int:
        """What time it is."""
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
        """How far the wall clock has leapt ahead and is not believed yet; 0 when it is right."""
        return 0 if self._leapt_at is None or self._lead is None else round(self._leapt_to - self._lead)
