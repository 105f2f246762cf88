"""Whether this machine's clock is right, as far as its peers can tell. Pure; all times in ms.

A clock that leaps is noticed by the passing of time (`dledger.log.store_clock`). One that is wrong from the
start is noticed only by the clocks of others. Peers tell theirs in the hello, with every heartbeat, and with
its answer. The clocks of more than half of the group must be known, and more than half of those must differ
from this one: of two clocks nobody knows which is right.
"""

from __future__ import annotations

from collections.abc import Collection

META_KEY = "clock_ms"
"""In the hello's `meta`: what time it is there."""
OFF_MS = 1_000
"""Two clocks that differ by no more agree: messages on their way, and a loop that is late, take time too."""
MAX_CLOCK_MS = 10**15
"""A time beyond it (the year 33658) is not a time."""


class PeerClocks:
    """One per node."""

    def __init__(self) -> None:
        self._leads: dict[str, float] = {}
        """Of each peer's clock over the monotonic one of this node."""

    def hello(self, peer: str, told: str | None, monotonic_ms: float) -> None:
        """A peer said hello; `told` is what it wrote of its clock, None from older programs."""
        if told is not None and told.isascii() and told.isdecimal() and len(told) < 16:
            self.heard(peer, int(told), monotonic_ms)
        else:
            self._leads.pop(peer, None)

    def heard(self, peer: str, clock_ms: int, monotonic_ms: float) -> None:
        """A peer told its time; what is no time is ignored, as older programs send none."""
        if 0 < clock_ms < MAX_CLOCK_MS:
            self._leads[peer] = clock_ms - monotonic_ms

    def off_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """How far this clock is ahead of more than half of the clocks known, or behind (below 0). 0 when it
        agrees with enough of them, or too few are known of the group, which is this node and `others`."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        if not _is_majority(ahead, others):
            return 0
        needed = (len(ahead) + 1) // 2 + 1
        # Of those that must differ the one that differs least.
        if ahead[-needed] > OFF_MS:
            return round(ahead[-needed])
        return round(ahead[needed - 1]) if ahead[needed - 1] < -OFF_MS else 0

    def undecided_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """How far this clock is ahead of at least half of the clocks known, or behind (below 0), while they
        are too few to tell which are right; 0 when they can, or do not differ."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        half = (len(ahead) + 2) // 2
        if not 0 < half <= len(ahead) or self.off_ms(wall_ms, monotonic_ms, others):
            return 0
        if ahead[-half] > OFF_MS:
            return round(ahead[-half])
        return round(ahead[half - 1]) if ahead[half - 1] < -OFF_MS else 0

    def _ahead(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> list[float]:
        """How far this clock is ahead of each that is known, ascending."""
        mine = wall_ms - monotonic_ms
        return sorted(mine - lead for peer, lead in self._leads.items() if peer in others)


def _is_majority(known: Collection[float], others: Collection[str]) -> bool:
    """Whether these clocks and this node's are more than half of the group's, and can outvote this one."""
    return len(known) >= 2 and len(known) + 1 > (len(others) + 1) // 2
