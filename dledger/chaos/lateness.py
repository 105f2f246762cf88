"""How late the event loops of a group's nodes were, and which delays are too long.

A leader whose loop is late by as much as the shortest election time-out is voted out; a third of that is the
limit. A delay is not the program's fault when the loop was ready to run and other programs had the cores
(`waited_for_core_ms` in the log of a node, on Linux): then the rest of it, the node's own part, has half the
limit. A delay of a whole election time-out is never excused: it costs a leader, whoever had the cores.
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
    """One, in milliseconds, and how much of it the loop waited for a core."""

    ms: float
    waited_ms: float = 0.0

    @property
    def above_limit(self) -> bool:
        """A third of the shortest election time-out, or more."""
        return self.ms >= LAG_LIMIT_MS

    @property
    def excused(self) -> bool:
        """It was the machine, and nobody is voted out for it."""
        return self.ms < 3 * LAG_LIMIT_MS and self.ms - self.waited_ms < LAG_LIMIT_MS / 2


class Lateness:
    """The delays of all nodes in all their lives, some of them more than once."""

    def __init__(self) -> None:
        self._delays: list[Delay] = []

    def note(self, delay: Delay) -> None:
        """One that was seen."""
        self._delays.append(delay)

    def look(self, state: Mapping[str, Any]) -> None:
        """The longest one so far, as a node's `/health` shows it; nothing when it does not answer."""
        if "loop_lag_ms_max" in state:
            self.note(Delay(float(state["loop_lag_ms_max"]), float(state["loop_lag_ms_max_waited"])))

    def read_log(self, text: str) -> None:
        """What a node wrote of its delays above 100 ms: also when it ended before it could be asked, and
        those that a longer one hides."""
        for ms, waited_ms in _LATE.findall(text):
            self.note(Delay(float(ms), float(waited_ms)))

    @property
    def within(self) -> bool:
        """No delay above the limit that is not excused."""
        return all(delay.excused for delay in self._delays if delay.above_limit)

    def report(self) -> dict[str, float | bool]:
        """For a report: the longest, how much of it was waiting, the limit; was any above it, and excused?"""
        worst = max(self._delays, default=Delay(0.0))
        return {
            "loop_lag_ms_max": worst.ms,
            "loop_lag_ms_max_waited": worst.waited_ms,
            "loop_lag_limit_ms": LAG_LIMIT_MS,
            "loop_lag_within": self.within,
            "loop_lag_excused": any(delay.above_limit and delay.excused for delay in self._delays),
        }
