"""One mutant for each judge of the simulator, and the first seed in which that judge should find it.

`dledger chaos mutants --judges` plays these before each merge. They show that every judge still works: if a
judge misses faults, or a workload no longer reaches what the judge checks, its mutant survives.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Judged:
    """A mutant that a judge must find."""

    judge: str
    """What the judge checks."""
    mutant: str
    profile: str
    seed: int
    says: str
    """Part of the text of this judge's error, which no other judge writes."""


JUDGES: tuple[Judged, ...] = (
    Judged("durability", "acknowledges-before-fsync", "disk-errors", 0, "acknowledges entry"),
    Judged("reads of the log", "lease-without-end", "leases", 4, "stale read point"),
    Judged("sends", "resend-is-stored-again", "brokers", 3, "duplicated"),
    Judged("queue offsets", "queue-offset-reused", "brokers", 0, "the next one is"),
    Judged("timers", "timed-comes-early", "brokers", 0, "came 300 ms early"),
    Judged("delays", "delayed-comes-early", "brokers", 0, "came 500 ms early"),
    Judged("transactions", "rolled-back-is-delivered", "brokers", 0, "its producer says: roll back"),
    Judged("pops", "popped-comes-early", "brokers", 0, "came again"),
    Judged("pops in order", "order-goes-on-behind-a-gap", "brokers-orderly", 0, "was passed by"),
    Judged("consumers in order", "locks-forgotten-at-a-switch", "brokers-orderly", 16, "two calls at a time"),
    Judged("resets of offsets", "reset-in-two-halves", "brokers-orderly", 0, "which no operator asked for"),
    Judged("deleted topics", "deleted-topic-keeps-its-delays", "brokers-deletes", 0, "several lives"),
    Judged("users", "new-password-is-not-taken", "brokers-deletes", 1, "acknowledged was"),
    Judged("replicated state", "deleted-topic-keeps-its-offsets", "brokers-deletes", 0, "equals a rebuild"),
    Judged("index by key", "index-forgets-what-power-took", "brokers-power", 1, "is indexed as"),
    Judged(
        "pulls of a lost leader", "lost-pulls-are-told-once", "brokers-unaware", 0, "pulls of the lost leader"
    ),
)
"""The mutants for the judges, one row for each judge."""
