"""Sums over all runs of a command: what was done, what was reached, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dledger.chaos.scenarios.profiles import MARKS_FROM_SEEDS, MET_IN, MET_IN_SEEDS, PROFILES
from dledger.chaos.scenarios.runner import LATENCY_BUCKETS_MS, Outcome

MIN_SECONDS, MIN_OPERATIONS, MIN_FAULTS, MIN_KINDS = 60.0, 300, 8, 3
"""The least that a seed must do: virtual seconds, operations, faults, and kinds of faults. A seed that does
less is *thin*. A thin seed does not count, and makes the command fail."""


class Totals:
    """Adds up the outcomes of runs. All figures are sums over the outcomes; times are in virtual seconds."""

    def __init__(self) -> None:
        self.seeds: int = 0
        self.resumed: int = 0
        """How many of these seeds an earlier command played."""
        self._played_s = 0.0
        self.simulated_s: float = 0.0
        self.slowest_recovery_s: float = 0.0
        self.events: int = 0
        self.entries: int = 0
        self.elections: int = 0
        self.profiles: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.history: dict[str, int] = {}
        self.latencies: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.checks: dict[str, int] = {}
        self.thin: list[int] = []
        self.violations: list[Outcome] = []

    @property
    def played(self) -> int:
        """How many seeds this command played itself."""
        return self.seeds - self.resumed

    def add(self, outcome: Outcome, *, resumed: bool = False) -> None:
        """Add the outcome of one run. `resumed` says that an earlier command played it, so it took no time of
        this command."""
        self.seeds += 1
        self.resumed += resumed
        self._played_s += 0.0 if resumed else outcome.simulated_s
        self.simulated_s += outcome.simulated_s
        self.slowest_recovery_s = max(self.slowest_recovery_s, outcome.recovery_s)
        self.events += outcome.events
        self.entries += outcome.entries
        self.elections += outcome.elections
        _count(self.profiles, {outcome.profile: 1})
        _count(self.terms, {_terms_bucket(outcome.terms): 1})
        for mine, new in (
            (self.history, outcome.history),
            (self.latencies, outcome.latencies),
            (self.faults, outcome.faults),
            (self.checks, outcome.checks),
        ):
            _count(mine, new)
        _count(self.marks, dict.fromkeys(outcome.marks, 1))
        if outcome.violation:
            self.violations.append(outcome)
        elif _is_thin(outcome):
            self.thin.append(outcome.seed)

    def missing_marks(self) -> list[str]:
        """Marks and faults of the played profiles that no seed reached although enough seeds were played.
        They make the command fail."""
        return [what for what, counts in self._unreached() if counts]

    def uncounted_marks(self) -> list[str]:
        """Marks and faults of the played profiles that no seed reached, for which too few seeds were played
        to draw a conclusion."""
        return [what for what, counts in self._unreached() if not counts]

    def _unreached(self) -> Iterator[tuple[str, bool]]:
        """Yield the marks and faults that no seed reached, each with whether enough seeds were played to draw
        a conclusion."""
        marks: dict[str, int] = {}
        kinds: dict[str, int] = {}
        for name, seeds in self.profiles.items():
            _count(marks, dict.fromkeys(PROFILES[name].marks, seeds))
            profile = PROFILES[name]
            _count(kinds, dict.fromkeys((draw.kind for draw in profile.faults + profile.also), seeds))
        many = self.seeds >= MARKS_FROM_SEEDS
        for mark, seeds in marks.items():
            if mark not in self.marks:
                yield mark, many and seeds >= MET_IN.get(mark, MET_IN_SEEDS)
        for kind, seeds in kinds.items():
            if kind not in self.faults:
                yield f"fault {kind}", many and seeds >= MET_IN_SEEDS

    @property
    def failed(self) -> bool:
        """Whether the command exits with 1."""
        return bool(self.violations or self.thin or self.missing_marks())

    def as_json(self, wall_s: float) -> dict[str, Any]:
        """The values of the last line of `--json`, without the violations. The speed counts only the seeds
        that this command itself played."""
        return {
            "seeds": self.seeds,
            "resumed": self.resumed,
            "seconds": round(wall_s, 1),
            "seeds_per_second": round(self.played / wall_s, 2) if wall_s else 0.0,
            "simulated_s": round(self.simulated_s, 1),
            "slowest_recovery_s": round(self.slowest_recovery_s, 3),
            "events": self.events,
            "entries": self.entries,
            "elections": self.elections,
            "profiles": _sorted(self.profiles),
            "terms_per_seed": _sorted(self.terms),
            "operations": _sorted(self.history),
            "latencies": {key: self.latencies[key] for key in _latency_order(self.latencies)},
            "faults": _sorted(self.faults),
            "marks": _sorted(self.marks),
            "missing_marks": self.missing_marks(),
            "uncounted_marks": self.uncounted_marks(),
            "thin_seeds": self.thin,
            "checks": _sorted(self.checks),
        }

    def lines(self, wall_s: float) -> list[str]:
        """The lines of the report for people."""
        per_second = self.played / wall_s if wall_s else 0.0
        ratio = self._played_s / wall_s if wall_s else 0.0
        before = f" and {self.resumed} of an earlier command" if self.resumed else ""
        found = [
            f"{self.played} seeds in {wall_s:.1f} s ({per_second:.2f}/s){before},"
            f" {len(self.violations)} violations",
            f"{self.simulated_s:.0f} simulated seconds ({ratio:.0f} times real time), {self.events} events,"
            f" {sum(self.checks.values())} checks",
            f"elections {self.elections}, slowest recovery after healing {self.slowest_recovery_s:.2f} s",
        ]
        for title, counts in (
            ("profiles (seeds)", _sorted(self.profiles)),
            ("terms per seed (seeds)", _sorted(self.terms)),
            ("operations", _sorted(self.history)),
            (
                "latency of acknowledged appends",
                {k: self.latencies[k] for k in _latency_order(self.latencies)},
            ),
            ("faults injected", _sorted(self.faults)),
            ("coverage marks (seeds that reached them)", _sorted(self.marks)),
            ("oracles (times checked)", _sorted(self.checks)),
        ):
            found.append(f"{title}:")
            found += _bars(counts)
        if self.seeds < MARKS_FROM_SEEDS:
            found.append(f"marks and faults that no seed reached count from {MARKS_FROM_SEEDS} seeds on")
        found += [f"not reached (too few seeds to count): {what}" for what in self.uncounted_marks()]
        found += [f"NOT REACHED: {what}" for what in self.missing_marks()]
        found += [f"THIN: seed {seed} did less than a seed must" for seed in self.thin]
        return found


def _is_thin(outcome: Outcome) -> bool:
    return (
        outcome.simulated_s < MIN_SECONDS
        or outcome.history.get("operations", 0) < MIN_OPERATIONS
        or sum(outcome.faults.values()) < MIN_FAULTS
        or len(outcome.faults) < MIN_KINDS
    )


def _terms_bucket(terms: int) -> str:
    return f"{terms // 5 * 5:02d}-{terms // 5 * 5 + 4:02d}"


def _count(into: dict[str, int], more: Mapping[str, int]) -> None:
    for key, value in more.items():
        into[key] = into.get(key, 0) + value


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts)}


def _latency_order(latencies: Mapping[str, int]) -> Iterable[str]:
    order = [f"{limit} ms" for limit in LATENCY_BUCKETS_MS] + ["more"]
    return [key for key in order if key in latencies]


def _bars(counts: Mapping[str, int]) -> list[str]:
    largest = max(counts.values(), default=1) or 1
    width = max((len(key) for key in counts), default=0)
    return [f"  {key:<{width}} {value:>9} {'#' * (value * 30 // largest)}" for key, value in counts.items()]
