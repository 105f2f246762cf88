"""How long it took until sent messages were durable on a majority, as RocketMQ shows it
(putMessageDistributeTime)."""

from __future__ import annotations

from bisect import bisect_right

_FROM_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
"""RocketMQ's names of the time ranges. Times below one millisecond count in the first range."""


class PutTimes:
    """Counts the answers to sends by the time that they waited for their commit."""

    def __init__(self) -> None:
        self._counts = [0] * len(_NAMES)
        self.longest_ms: int = 0

    def add(self, answers: int, waited_s: float) -> None:
        """Count a number of answers that were sent together. All count with `waited_s`, the time that the
        first of them waited."""
        waited_ms = int(waited_s * 1000)
        self._counts[bisect_right(_FROM_MS, waited_ms) if waited_ms > 0 else 0] += answers
        if waited_ms > self.longest_ms:
            self.longest_ms = waited_ms

    def text(self) -> str:
        """The counts as 28 GET_BROKER_RUNTIME_INFO shows them.

        >>> times = PutTimes()
        >>> times.add(3, 0.0101)
        >>> times.text()[:34]
        '[<=0ms]:0 [0~10ms]:0 [10~50ms]:3 ['
        """
        return " ".join(f"{name}:{count}" for name, count in zip(_NAMES, self._counts, strict=True))
