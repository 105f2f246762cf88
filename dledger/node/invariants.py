"""Conditions that hold on a node between any two steps. They are checked in production, too: they compare
integers and search nothing.

A step is a callback of the loop: a message, a tick, a save, an fsync, an apply. (The simulator checks many
more conditions: `dledger/chaos/invariants.py`.)
"""

from __future__ import annotations

from dledger.errors import InvariantBroken


def check_order(first: int, last: int, durable: int, committed: int, applied: int) -> None:
    """Check the indexes of one node: its log's first and last entry, and how far it is durable, known to be
    committed, and applied. InvariantBroken when they are out of order; the node then ends with EXIT_BUG."""
    if first <= last + 1 and durable <= last and applied <= committed <= last:
        return
    raise InvariantBroken(
        f"indexes out of order: first {first} <= next {last + 1}, durable {durable} <= last {last}, "
        f"applied {applied} <= committed {committed} <= last {last}"
    )
