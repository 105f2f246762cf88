"""Identifiers, made from the process's only source of random numbers."""

from __future__ import annotations

import random


class Ids:
    """Makes identifiers that do not collide between processes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid(self) -> str:
        """Return a random 128-bit identifier as 32 lower-case hexadecimal digits."""
        return f"{self._rng.getrandbits(128):032x}"
