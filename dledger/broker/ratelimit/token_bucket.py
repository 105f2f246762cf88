"""Token buckets: so many tokens come a second, and as many as come in a second are kept."""

from __future__ import annotations

from collections.abc import Mapping

ANY = "*"
MAX_BUCKETS = 20_000
"""Buckets of one table: a further one takes the place of the one that was made first, which begins full when
it is asked for again."""


class TokenBucket:
    """Times are seconds of one clock that does not go back."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate: int = rate
        self._tokens = float(rate)
        self._at = now

    def ready(self, now: float) -> bool:
        """Whether there is a token. Who takes more than there are leaves a debt."""
        self._tokens = min(self._tokens + (now - self._at) * self.rate, float(self.rate))
        self._at = now
        return self._tokens >= 1

    def take(self, count: int) -> None:
        """After `ready`."""
        self._tokens -= count


class Buckets:
    """One bucket for each name that has a rate: its own, or that of `*`."""

    def __init__(self) -> None:
        self._rates: Mapping[str, int] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def set_rates(self, rates: Mapping[str, int]) -> None:
        """Tokens a second by name. Buckets whose rate stays keep what they have."""
        self._rates = rates
        rate = self._rate
        self._buckets = {name: one for name, one in self._buckets.items() if one.rate == rate(name)}

    @property
    def used(self) -> bool:
        """Whether any name has a rate."""
        return bool(self._rates)

    def of(self, name: str, now: float) -> TokenBucket | None:
        """The bucket of a name, None where it may have as much as it wants."""
        bucket = self._buckets.get(name)
        if bucket is None:
            rate = self._rate(name)
            if rate is None:
                return None
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[name] = TokenBucket(rate, now)
        return bucket

    def _rate(self, name: str) -> int | None:
        return self._rates.get(name, self._rates.get(ANY))
