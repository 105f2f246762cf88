"""Mutants that trials with real processes must find, each named by the right checker.

`dledger chaos mutants --trials` runs them. A seed fixes the plan of a trial and not what happens at the same
moment, so several seeds are tried in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = 5
"""Largest number of trials for one mutant. One that none of them finds counts as not caught."""
LIMIT_S = 900.0
"""Longest time of one trial, in seconds."""


@dataclass(frozen=True)
class Tried:
    """A mutant that a checker must find in a scenario."""

    mutant: str
    scenario: str
    seconds: float
    checker: str
    """The checker that must name it (`dledger.chaos.trials.checkers`)."""


TRIALS: tuple[Tried, ...] = (
    Tried("transaction-ends-twice", "transactions", 20, "transactions"),
    Tried("delay-forgotten-at-a-switch", "delays", 20, "delays"),
    Tried("rolled-back-is-delivered", "transactions", 20, "transactions"),
    Tried("resend-is-stored-again", "pause-leader", 30, "sends"),
    Tried("timed-comes-early", "timers", 15, "timers"),
    Tried("acknowledges-before-fsync", "blackout", 20, "sends"),
    Tried("serves-before-term-opens", "slow-openings", 25, "openings"),
    Tried("no-body-crc", "bit-rot", 15, "replicas"),
    Tried("no-check-quorum", "majority-partition", 20, "linear"),
)
"""One row for each mutant."""
