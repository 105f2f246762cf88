"""Records how late the event loops of a group's nodes were, and says which delays are too long.

If a leader's loop is late by as much as the shortest election time-out, the leader is voted out. The limit is
a third of that time. A delay above the limit is excused if the loop was ready to run and other programs had
the cores (`waited_for_core_ms` in the log of a node, on Linux). For that, the rest of the delay, which the
node itself caused, must be below half of the limit. A delay of a whole election time-out is never excused,
because it costs the group its leader, whichever program had the cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dledger.config import NodeConfig

LAG_LIMIT_MS = round(NodeConfig.election_timeout_min_s * 1000 / 3, 1)
_LATE = re.compile(r"the event loop was late ms=(\d+) waited_for_core_ms=(\d+)")


@dataclass(frozen=True, order=True)
class Delay:
    """One delay in milliseconds, and how much of the delay the loop waited for a core."""

    ms: float
    waited_ms: float = 0.0

    @property
    def above_limit(self) -> bool:
        """Whether the delay is a third of the shortest election time-out, or longer."""
        return self.ms >= LAG_LIMIT_MS

    @property
    def excused(self) -> bool:
        """Whether other programs on the machine caused the delay, and it is too short for the leader to be
        voted out."""
        return self.ms < 3 * LAG_LIMIT_MS and self.ms - self.waited_ms < LAG_LIMIT_MS / 2


class Lateness:
    """The delays of all nodes, from all starts of their processes. A delay may be noted more than once."""

    def __init__(self) -> None:
        self._delays: list[Delay] = []

    def note(self, delay: Delay) -> None:
        """Note one delay."""
        self._delays.append(delay)

    def look(self, state: Mapping[str, Any]) -> None:
        """Note the longest delay that a node's `/health` shows so far. An answer without the field is
        ignored."""
        if "loop_lag_ms_max" in state:
            self.note(Delay(float(state["loop_lag_ms_max"]), float(state["loop_lag_ms_max_waited"])))

    def read_log(self, text: str) -> None:
        """Note the delays above 100 ms that a node wrote to its log. Some of them were never seen at
        `/health`: delays of a node that has ended, and delays below the longest one."""
        for ms, waited_ms in _LATE.findall(text):
            self.note(Delay(float(ms), float(waited_ms)))

    @property
    def within(self) -> bool:
        """Whether every delay above the limit is excused."""
        return all(delay.excused for delay in self._delays if delay.above_limit)

    def report(self) -> dict[str, float | bool]:
        """Figures for a report. They have the longest delay and how much of it was waiting for a core, the
        limit, whether every delay above the limit is excused, and whether there was an excused delay."""
        worst = max(self._delays, default=Delay(0.0))
        return {
            "loop_lag_ms_max": worst.ms,
            "loop_lag_ms_max_waited": worst.waited_ms,
            "loop_lag_limit_ms": LAG_LIMIT_MS,
            "loop_lag_within": self.within,
            "loop_lag_excused": any(delay.above_limit and delay.excused for delay in self._delays),
        }
