"""Whether this machine's clock is right, as far as its peers can tell. Pure; all times in ms.

A clock that leaps is told from the passing of time (`dledger.log.store_clock`); one that is wrong from the
start only by the clocks of others. Peers tell theirs in the hello. More than half of all clocks must agree
that this one is off: of two nobody knows which is right.
"""

from __future__ import annotations

META_KEY = "clock_ms"
"""In the hello's `meta`: what time it is there."""
OFF_MS = 1_000
"""Two clocks that differ by no more agree: messages on their way, and a loop that is late, take time too."""


class PeerClocks:
    """One per node."""

    def __init__(self) -> None:
        self._leads: dict[str, float] = {}
        """Of each peer's clock over the monotonic one of this node."""

    def heard(self, peer: str, told: str | None, monotonic_ms: float) -> None:
        """A peer said hello; `told` is what it wrote of its clock, None from older programs."""
        if told is not None and told.isascii() and told.isdecimal() and len(told) < 16:
            self._leads[peer] = int(told) - monotonic_ms
        else:
            self._leads.pop(peer, None)

    def off_ms(self, wall_ms: int, monotonic_ms: float) -> int:
        """How far this clock is ahead of more than half of all that are known, or behind (below 0); 0 when it
        agrees with enough of them."""
        mine = wall_ms - monotonic_ms
        ahead = sorted(mine - lead for lead in self._leads.values())
        needed = (len(ahead) + 1) // 2 + 1
        if needed > len(ahead):
            return 0
        # Of those that must differ the one that differs least.
        if ahead[-needed] > OFF_MS:
            return round(ahead[-needed])
        return round(ahead[needed - 1]) if ahead[needed - 1] < -OFF_MS else 0
