"""Decides when a leader hands over to a preferred leader, and when it does not (dLegerPreferred...). Pure.

Moving leadership causes a pause. If a preferred node could not keep leadership, it would move again and
again. So:

* A leader that is itself preferred stays, even if another node is earlier in the list. The order only says to
  which node a leader that is not preferred hands over. So a group moves once, and not again to an earlier
  node.
* A leader waits until it has led for a while, and moves leadership at most once in `backoff_min_s`.
* A node that did not take leadership over, or lost it within `short_lived_s`, is not tried again for
  `backoff_min_s`. This time doubles with each further failure, up to `backoff_max_s`. Every node counts the
  failures from the changes of leader that it sees, so the count remains when the leader changes.
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
    """How long a leader leads before it moves leadership to a preferred leader."""
    short_lived_s: Annotated[float, Setting("preferredLeaderShortLivedMs", 0, 86_400_000, "ms")] = 30.0
    """If leadership of a preferred node ends earlier than this, it counts as a failure."""
    backoff_min_s: Annotated[float, Setting("preferredLeaderBackoffMinMs", 1, 86_400_000, "ms")] = 10.0
    """How long a preferred node that failed is not tried again. The time doubles with each further
    failure."""
    backoff_max_s: Annotated[float, Setting("preferredLeaderBackoffMaxMs", 1, 86_400_000, "ms")] = 600.0
    """Longest time for which a preferred node that failed is not tried again."""

    def __post_init__(self) -> None:
        if self.backoff_max_s < self.backoff_min_s:
            raise ValueError("preferredLeaderBackoffMaxMs must not be below preferredLeaderBackoffMinMs")


class PreferredLeader:
    """Decides when to hand over to a preferred leader. Each node has one object, also while it follows."""

    def __init__(self, settings: PreferredSettings) -> None:
        self._settings = settings
        self._leader: str | None = None
        self._since = 0.0
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._next_move = 0.0

    def leader_changed(self, leader: str | None, now: float, *, commanded: bool = False) -> None:
        """Note that this node sees another leader, or none. `commanded` says that an operator asked for the
        change."""
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
        """Forget all failures, because an operator has set the preferred leaders."""
        self._failures.clear()
        self._not_before.clear()
        self._next_move = 0.0

    def choose(self, preferred: Sequence[str], self_id: str, fit: Collection[str], now: float) -> str | None:
        """Return the node to which this leader hands over now, or None. `fit` holds the nodes that are
        connected, caught up and healthy."""
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
