"""The snapshot that a leader offers to a peer which is behind its log, named by size and digest. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot of the state exactly at `index`. `total` is the size of its stream in bytes.

    Equal (index, total, digest) means the same snapshot, whichever node offers it: another leader can
    continue it.
    """

    index: int
    term: int
    pos: int
    chain: int
    total: int
    digest: str
