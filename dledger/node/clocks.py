"""Compares this machine's clock with those of its peers. Pure; all times in ms.

A clock that leaps can be noticed by this machine alone (`dledger.log.store_clock`). A clock that is wrong
from the start is noticed only by comparison. Peers send their time in the hello, with every heartbeat, and
with the answer to it.

A difference counts only if the clocks of more than half of the group are known, and if more than half of the
known clocks differ from this one. With only two clocks nobody can decide which is right.
"""

from __future__ import annotations

from collections.abc import Collection

META_KEY = "clock_ms"
"""Key in the hello's `meta` for the sender's wall clock."""
OFF_MS = 1_000
"""Largest difference of clocks that count as equal. Network delay and a late event loop cause a difference,
too."""
MAX_CLOCK_MS = 10**15
"""Largest number that counts as a time; a larger one (after the year 33658) is ignored."""


class PeerClocks:
    """The clocks of the peers, as one node knows them."""

    def __init__(self) -> None:
        self._leads: dict[str, float] = {}
        """Maps a peer to the time, in ms, by which its clock is ahead of the monotonic clock of this node."""

    def hello(self, peer: str, told: str | None, monotonic_ms: float) -> None:
        """Note the hello of a peer. `told` is the time in it; None if the peer's program is older and sends
        none."""
        if told is not None and told.isascii() and told.isdecimal() and len(told) < 16:
            self.heard(peer, int(told), monotonic_ms)
        else:
            self._leads.pop(peer, None)

    def heard(self, peer: str, clock_ms: int, monotonic_ms: float) -> None:
        """Note the time that a peer sent. An invalid time is ignored, because older programs send none."""
        if 0 < clock_ms < MAX_CLOCK_MS:
            self._leads[peer] = clock_ms - monotonic_ms

    def off_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """Return by how much this clock is ahead of more than half of the known clocks; below 0 if it is
        behind.

        The result is 0 if this clock agrees with enough of them, or if too few clocks of the group are known.
        The group is this node and `others`."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        if not _is_majority(ahead, others):
            return 0
        needed = (len(ahead) + 1) // 2 + 1
        # Of the clocks that must differ, take the one that differs least.
        if ahead[-needed] > OFF_MS:
            return round(ahead[-needed])
        return round(ahead[needed - 1]) if ahead[needed - 1] < -OFF_MS else 0

    def undecided_ms(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> int:
        """Return by how much this clock is ahead of at least half of the known clocks (below 0 if it is
        behind), while too few clocks are known to decide which are right. 0 if that can be decided, or if the
        clocks do not differ."""
        ahead = self._ahead(wall_ms, monotonic_ms, others)
        half = (len(ahead) + 2) // 2
        if not 0 < half <= len(ahead) or self.off_ms(wall_ms, monotonic_ms, others):
            return 0
        if ahead[-half] > OFF_MS:
            return round(ahead[-half])
        return round(ahead[half - 1]) if ahead[half - 1] < -OFF_MS else 0

    def _ahead(self, wall_ms: int, monotonic_ms: float, others: Collection[str]) -> list[float]:
        """Return by how much this clock is ahead of each known clock, in ascending order."""
        mine = wall_ms - monotonic_ms
        return sorted(mine - lead for peer, lead in self._leads.items() if peer in others)


def _is_majority(known: Collection[float], others: Collection[str]) -> bool:
    """Whether enough clocks are known: at least two of other nodes, and with this node's clock more than half
    of the group's. Then the others can outvote this clock."""
    return len(known) >= 2 and len(known) + 1 > (len(others) + 1) // 2
