"""The snapshot that a leader offers to a peer which is behind its log. Size and digest identify it. The
module is pure (no I/O)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot of the state exactly after entry `index`. `total` is the size of its stream in bytes.

    Two offers with the same index, total and digest are the same snapshot, whichever nodes offer it. So
    another leader can continue a transfer.
    """

    index: int
    term: int
    pos: int
    chain: int
    total: int
    digest: str
