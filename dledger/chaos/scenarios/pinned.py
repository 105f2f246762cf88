"""The seeds that are played before each merge. They are always the same.

A seed names a plan of a profile, and the plan stays the same while code changes. So a seed that once found a
fault still plays events that are close to that fault. It need not find the same fault again. If a long run
finds a fault, its seed is added to `FOUND`, and a test of the cause is added to the tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pinned:
    """A seed that once found a fault."""

    seed: int
    profile: str
    found: str


FOUND = (
    Pinned(48, "retention", "an install moved the applied index before the commit index"),
    Pinned(1011, "rot", "the judge took a first entry whose index had rotted for another entry"),
    Pinned(2628, "spread", "an fsync certified what a failed one had lost"),
    Pinned(3662, "rot-elsewhere", "a plan had fewer faults than a seed must have"),
    Pinned(
        261124187,
        "misdirected",
        "a leader with a rotten entry led for ever and committed nothing",
    ),
    Pinned(261132379, "async-flush", "the judge looked at the rest of a turn in which a process had ended"),
    Pinned(261372204, "rot-elsewhere", "damage of a member that had been removed kept other faults away"),
    Pinned(
        284003599,
        "disk-errors",
        "a machine counted as settled before it heard of the leader",
    ),
    Pinned(261127000, "brokers-orderly", "a stopped leader forwarded an old commit, which set a group back"),
    Pinned(261127002, "brokers-orderly", "a queue whose lock was lost and regained began a second call"),
    Pinned(261127049, "brokers-power", "a loss of power took the names of the two oldest IndexFiles"),
    Pinned(282502470, "bad-links", "a torn batch at a beginning left equal logs with other ends"),
)
"""Seeds that once found a fault, each with a description of the fault."""

FIRST_SEEDS = 60
"""How many further seeds are played, from seed 0 on. They take turns through all profiles."""


def pinned_seeds() -> list[tuple[int, str | None]]:
    """All pinned seeds, as (seed, profile). None stands for the profile that belongs to the seed's number."""
    return [(one.seed, one.profile) for one in FOUND] + [(seed, None) for seed in range(FIRST_SEEDS)]
