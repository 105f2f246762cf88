"""Compares this machine's clock with those of its peers. Pure; all times in ms.

A clock that leaps is noticed by the passing of time (`dledger.log.store_clock`). A clock that is wrong from
the start is noticed only by comparison. Peers send their time in the hello, with every heartbeat, and with
its answer. The clocks of more than half of the group must be known, and more than half of those must differ
from this one. With two clocks it cannot be decided which is right.
"""

from __future__ import annotations

from collections.abc import Collection

META_KEY = "clock_ms"
"""Key in the hello's `meta` for the sender's wall clock."""
OFF_MS = 1_000
"""Clocks that differ by no more than this count as equal: network delay and a late loop take time too."""
MAX_CLOCK_MS = 10**15
"""A larger number (after the year 33658) is not a valid time."""


class PeerClocks:
    """The clocks of the peers, as one node knows them."""

    def __init__(self) -> None:
        self._leads: dict[str, float] = {}
        """For each peer: lead of its clock over the monotonic clock of this node."""

    def hello(self, peer: str, told: str | None, monotonic_ms: float) -> None:
        """Note the hello of a peer. `told` is the clock in it, None from older programs."""
        if told is not None and told.isascii() and told.isdecimal() and len(told) < 16:
            self.heard(peer, int(told), monotonic_ms)
        else:
            self._leads.pop(peer, None)

    def heard(self, peer: str, clock_ms: int, monotonic_ms: float) -> None:
        """Note the time that a peer sent. An invalid time is ignored, as older programs send none."""
        if 0 < clock_ms < MAX_CLOCK_MS:
            self._leads[peer] = clock_ms - monotonic_ms

    def off_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """How far this clock is ahead of more than half of the known clocks, or behind (below 0). 0 when it
        agrees with enough of them, or too few clocks of the group are known. The group is this node and
        `others`."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        if not _is_majority(ahead, others):
            return 0
        needed = (len(ahead) + 1) // 2 + 1
        # Of the clocks that must differ, take the one that differs least.
        if ahead[-needed] > OFF_MS:
            return round(ahead[-needed])
        return round(ahead[needed - 1]) if ahead[needed - 1] < -OFF_MS else 0

    def undecided_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """How far this clock is ahead of at least half of the known clocks, or behind (below 0), while too
        few are known to decide which are right. 0 when that is decided, or the clocks do not differ."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        half = (len(ahead) + 2) // 2
        if not 0 < half <= len(ahead) or self.off_ms(wall_ms, monotonic_ms, others):
            return 0
        if ahead[-half] > OFF_MS:
            return round(ahead[-half])
        return round(ahead[half - 1]) if ahead[half - 1] < -OFF_MS else 0

    def _ahead(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> list[float]:
        """How far this clock is ahead of each known one, ascending."""
        mine = wall_ms - monotonic_ms
        return sorted(mine - lead for peer, lead in self._leads.items() if peer in others)


def _is_majority(known: Collection[float], others: Collection[str]) -> bool:
    """Whether these clocks and this node's are more than half of the group's, and can outvote this one."""
    return len(known) >= 2 and len(known) + 1 > (len(others) + 1) // 2
