"""When a leader hands over to a preferred one, and when it does not (dLegerPreferred...). Pure.

Moving leadership costs a pause. A preferred node that cannot keep leadership would make it move for ever. So:

* A leader that is itself preferred stays, even when another node is preferred more. The order only says to
  which node a leader that is not preferred hands over. So a group moves once, and not again up the list.
* It waits until it has led for a while, and moves at most once in `backoff_min_s`.
* A node that did not take over, or lost leadership within `short_lived_s` of taking it, is not tried again
  for `backoff_min_s`, and for twice as long each time it fails again, up to `backoff_max_s`. Every node
  counts failures from the changes of leader that it sees, so the count outlives the leader that tried.
* An operator's decision overrides the count. A node that loses leadership because an operator moved it has
  not failed. When an operator sets the preferred leaders, all nodes forget their counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from dledger.runtime.settings import Setting


@dataclass(frozen=True)
class PreferredSettings:
    """Decides when leadership moves to a preferred leader; times in seconds."""

    settle_s: Annotated[float, Setting("preferredLeaderSettleMs", 0, 3_600_000, "ms")] = 2.0
    """How long a leader leads before it moves leadership to a preferred one."""
    short_lived_s: Annotated[float, Setting("preferredLeaderShortLivedMs", 0, 86_400_000, "ms")] = 30.0
    """Leadership of a preferred node that ends earlier counts as a failure."""
    backoff_min_s: Annotated[float, Setting("preferredLeaderBackoffMinMs", 1, 86_400_000, "ms")] = 10.0
    """How long a node that failed is not tried again; the time doubles with each failure."""
    backoff_max_s: Annotated[float, Setting("preferredLeaderBackoffMaxMs", 1, 86_400_000, "ms")] = 600.0
    """Longest time for which a node that failed is not tried again."""

    def __post_init__(self) -> None:
        if self.backoff_max_s < self.backoff_min_s:
            raise ValueError("preferredLeaderBackoffMaxMs must not be below preferredLeaderBackoffMinMs")


class PreferredLeader:
    """Decides when to hand over. Each node has one, also while it follows."""

    def __init__(self, settings: PreferredSettings) -> None:
        self._settings = settings
        self._leader: str | None = None
        self._since = 0.0
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._next_move = 0.0

    def leader_changed(self, leader: str | None, now: float, *, commanded: bool = False) -> None:
        """Note that this node sees another leader, or none. `commanded`: an operator asked for the change."""
        if leader == self._leader:
            return
        if self._leader is not None:
            if now - self._since >= self._settings.short_lived_s:
                self._failures.pop(self._leader, None)
            elif not commanded:
                self._failed(self._leader, now)
        self._leader = leader
        self._since = now

    def tried(self, node: str, moved: bool, now: float) -> None:
        """Note that this leader handed over to `node`, or tried to and could not."""
        self._next_move = now + self._settings.backoff_min_s
        if not moved:
            self._failed(node, now)

    def forgive(self) -> None:
        """An operator set the preferred leaders: forget all failures."""
        self._failures.clear()
        self._not_before.clear()
        self._next_move = 0.0

    def choose(self, preferred: Sequence[str], self_id: str, fit: Collection[str], now: float) -> str | None:
        """The node to which this leader hands over now, or None. `fit`: nodes that are connected, caught up
        and healthy."""
        if self_id in preferred or self._leader != self_id:
            return None
        if now < self._next_move or now - self._since < self._settings.settle_s:
            return None
        for node in preferred:
            if node in fit and now >= self._not_before.get(node, 0.0):
                return node
        return None

    def _failed(self, node: str, now: float) -> None:
        count = self._failures.get(node, 0)
        self._failures[node] = count + 1
        pause = min(self._settings.backoff_min_s * (1 << min(count, 16)), self._settings.backoff_max_s)
        self._not_before[node] = now + pause
