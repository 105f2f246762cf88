"""What a leader offers to a peer that is behind its log: a snapshot, by its size and digest. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot true at `index`. `total` is the size of its stream in bytes.

    Equal (index, total, digest) is the same snapshot, whoever offers it: another leader goes on with it.
    """

    index: int
    term: int
    pos: int
    chain: int
    total: int
    digest: str
