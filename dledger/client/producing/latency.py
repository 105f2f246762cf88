"""Finds out which broker groups answer slowly, so that messages avoid them for a while (MQFaultStrategy).
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ISOLATION_S = 10.0
"""The latency that a failed attempt counts as, in seconds."""


@dataclass
class FaultItem:
    """What is known of one broker group. Times are in seconds of the table's clock."""

    latency_s: float
    available_at: float


class LatencyFaultTolerance:
    """The last latency of each broker group, and until when the group is avoided.

    `steps` are pairs (latency, pause) in seconds, ascending. If the latency of a group reaches the first
    number, then for the second number of seconds the group gets no message that can also go to another group.
    The table has at most one row per broker group in the routes of our topics.
    """

    def __init__(self, steps: Sequence[tuple[float, float]], now: Callable[[], float]) -> None:
        self._steps = tuple(reversed(steps))
        self._now = now
        self._items: dict[str, FaultItem] = {}
        self._turn = -1

    def update(self, name: str, latency_s: float, isolation: bool = False) -> None:
        """Record the latency of an attempt that ended. `isolation`: whether it ended without an
        acknowledgement."""
        counted = max(latency_s, ISOLATION_S) if isolation else latency_s
        pause_s = next((pause for least, pause in self._steps if counted >= least), 0.0)
        self._items[name] = FaultItem(latency_s, self._now() + pause_s)

    def available(self, name: str) -> bool:
        """Whether messages may go to this group now."""
        item = self._items.get(name)
        return item is None or self._now() >= item.available_at

    def pick_one_at_least(self) -> str | None:
        """Choose a group when no group is fast enough.

        The groups are sorted: available groups first, then by latency. Successive calls return the groups of
        the better half in turn. Returns None if no latency is known.
        """
        now = self._now()

        def badness(name: str) -> tuple[bool, float, float]:
            item = self._items[name]
            return (now < item.available_at, item.latency_s, item.available_at)

        best = sorted(self._items, key=badness)
        if not best:
            return None
        self._turn += 1
        return best[self._turn % max(1, len(best) // 2)]
