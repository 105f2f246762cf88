"""Token buckets, by which rates are limited. Each bucket gets `rate` tokens per second, and keeps at most the
tokens of one second."""

from __future__ import annotations

from collections.abc import Mapping

ANY = "*"
MAX_BUCKETS = 20_000
"""Largest number of buckets in one table. One more replaces the oldest bucket, whose name gets a new, full
bucket when it is used next."""


class TokenBucket:
    """A bucket of tokens. Times are in seconds of a clock that never goes back."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate: int = rate
        self._tokens = float(rate)
        self._at = now

    def ready(self, now: float) -> bool:
        """Return whether the bucket has at least one token. `take` may take more tokens than there are, so
        that the bucket has a debt."""
        self._tokens = min(self._tokens + (now - self._at) * self.rate, float(self.rate))
        self._at = now
        return self._tokens >= 1

    def take(self, count: int) -> None:
        """Take tokens after `ready` has returned True."""
        self._tokens -= count


class Buckets:
    """A table of buckets. Each name that has a rate has one bucket, either with its own rate or with the rate
    of `*`."""

    def __init__(self) -> None:
        self._rates: Mapping[str, int] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def set_rates(self, rates: Mapping[str, int]) -> None:
        """Set the rates by name, in tokens per second. A bucket whose rate stays the same keeps its
        tokens."""
        self._rates = rates
        rate = self._rate
        self._buckets = {name: one for name, one in self._buckets.items() if one.rate == rate(name)}

    @property
    def used(self) -> bool:
        """Whether any name has a rate."""
        return bool(self._rates)

    def of(self, name: str, now: float) -> TokenBucket | None:
        """Return the bucket of a name; None if the name has no limit."""
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
