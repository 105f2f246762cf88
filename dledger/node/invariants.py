"""Conditions that hold on a node between any two steps.

A step is one callback of the event loop: a message, a tick, a save, an fsync, an apply. The conditions are
checked in production, too, because they only compare integers. (The simulator checks many more:
`dledger/chaos/invariants.py`.)
"""

from __future__ import annotations

from dledger.errors import InvariantBroken


def check_order(first: int, last: int, durable: int, committed: int, applied: int) -> None:
    """Check the indexes of one node: the first and the last entry of its log, and up to which entry the log
    is durable, known to be committed, and applied. Raises InvariantBroken if they contradict each other; the
    node then ends with EXIT_BUG."""
    if first <= last + 1 and durable <= last and applied <= committed <= last:
        return
    raise InvariantBroken(
        f"indexes out of order: first {first} <= next {last + 1}, durable {durable} <= last {last}, "
        f"applied {applied} <= committed {committed} <= last {last}"
    )
