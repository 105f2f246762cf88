"""The clocks of one machine."""

from __future__ import annotations

PPB = 1_000_000_000  # Clock rates are in parts per billion of world time, so that all computation is exact.
NEVER = 1 << 62  # ns; the world time that stands for "never" if a clock stands still


class Clock:
    """The monotonic clock and the wall clock of one machine.

    The monotonic clock showed `_shown` at world time `_base`, and has run at its rate since. The wall clock
    is kept right by NTP: it shows world time plus an offset (skew), which only a jump changes.
    """

    __slots__ = ("_base", "_rate_ppb", "_shown", "ahead", "steady", "wall_skew_ms")

    def __init__(self, shown_ns: int, wall_skew_ms: int) -> None:
        self._rate_ppb = PPB
        self.wall_skew_ms: int = wall_skew_ms
        self.set(0, shown_ns)

    @property
    def rate(self) -> float:
        """Seconds of this clock per second of world time."""
        return self._rate_ppb / PPB

    def set(self, world_ns: int, shown_ns: int) -> None:
        """Let the monotonic clock show `shown_ns` at world time `world_ns`, and keep its rate. A boot sets
        the clock to a random time."""
        self._base, self._shown = world_ns, shown_ns
        self.steady: bool = self._rate_ppb == PPB
        self.ahead: int = shown_ns - world_ns  # difference to world time, as long as the clock is steady

    def drift(self, world_ns: int, rate: float) -> None:
        """Let the monotonic clock run at another rate from `world_ns` on, without a jump. At rate 0 it stands
        still."""
        shown = self.local_ns(world_ns)
        self._rate_ppb = round(rate * PPB)
        self.set(world_ns, shown)

    def local_ns(self, world_ns: int) -> int:
        """The time that the monotonic clock shows at a world time."""
        if self.steady:
            return world_ns + self.ahead
        return self._shown + (world_ns - self._base) * self._rate_ppb // PPB

    def world_ns(self, local_ns: int) -> int:
        """The first world time at which the monotonic clock shows at least `local_ns`."""
        if self.steady:
            return local_ns - self.ahead
        missing = local_ns - self._shown
        if missing <= 0:
            return self._base + missing  # a time that has passed is due now, whatever the rate was then
        if self._rate_ppb == 0:
            return NEVER
        return self._base - (-missing * PPB // self._rate_ppb)
