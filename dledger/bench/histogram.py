"""A histogram of latencies with buckets of equal width. To record a latency takes only an index and an
addition."""

from __future__ import annotations

BUCKET_S = 10e-6
"""Width of a bucket in seconds; it is the resolution of every percentile."""
BUCKETS = 200_000
"""Number of buckets. Latencies of 2 s and more share the last bucket; the largest latency is also kept
exactly."""

PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))


class Histogram:
    """Counts latencies by bucket."""

    def __init__(self) -> None:
        self.count: int = 0
        self.longest_s: float = 0.0
        self._counts = [0] * BUCKETS

    def record(self, latency_s: float) -> None:
        """Count one latency in seconds."""
        self.count += 1
        if latency_s > self.longest_s:
            self.longest_s = latency_s
        bucket = int(latency_s / BUCKET_S)
        self._counts[bucket if bucket < BUCKETS else -1] += 1

    def percentile_s(self, share: float) -> float:
        """Return the latency, in seconds, that this share (0 to 1) of all latencies does not exceed. It is
        the upper end of a bucket, but never more than the largest latency.

        Returns 0.0 if there are no latencies, and the largest latency if the last bucket is reached.
        """
        wanted = share * self.count
        seen = 0
        if self.count:
            for bucket, count in enumerate(self._counts[:-1]):
                seen += count
                if seen >= wanted and count:
                    return min((bucket + 1) * BUCKET_S, self.longest_s)
        return self.longest_s

    def summary_ms(self) -> dict[str, float]:
        """Return p50, p95, p99, p999 and max in milliseconds."""
        found = {name: round(self.percentile_s(share) * 1000, 3) for name, share in PERCENTILES}
        found["max"] = round(self.longest_s * 1000, 3)
        return found

    def clear(self) -> None:
        """Remove all latencies."""
        self.count = 0
        self.longest_s = 0.0
        self._counts = [0] * BUCKETS
