"""The settings of a run, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.bench.histogram import Histogram

Clock = Callable[[], float]


@dataclass(frozen=True)
class Load:
    """The settings of a run. Sizes in bytes, times in seconds."""

    namesrv: str
    topic: str = "bench"
    size: int = 1024
    """Bytes of a message's body (produce)."""
    window: int = 256
    """Requests in flight at the same time."""
    batch: int = 1
    """Messages in one send request; the most in one pull."""
    seconds: float | None = None
    messages: int | None = None
    """The run ends when this number of messages or the time `seconds` is reached, whichever comes first."""
    connections: int = 1
    queues: int = 8
    """How many queues the topic gets if it has to be created."""
    warmup_s: float = 1.0
    """Time at the start that is left out of every figure (produce)."""


@dataclass
class Tally:
    """Counts of a run so far. `cpu_s` returns the CPU time of this process so far."""

    cpu_s: Clock
    messages: int = 0
    body_bytes: int = 0
    errors: int = 0
    last_error: str = ""
    latency: Histogram = field(default_factory=Histogram)
    started_at: float = 0.0
    cpu_at_start: float = 0.0

    def begin(self, now: float) -> None:
        """Begin the measured part: forget the warm-up."""
        self.messages = self.body_bytes = self.errors = 0
        self.latency.clear()
        self.started_at = now
        self.cpu_at_start = self.cpu_s()

    def result(self, load: Load, mode: str, now: float) -> dict[str, object]:
        """Return the figures as one JSON object."""
        seconds = max(now - self.started_at, 1e-9)
        cpu = self.cpu_s() - self.cpu_at_start
        found: dict[str, object] = {
            "mode": mode,
            "topic": load.topic,
            "messages": self.messages,
            "seconds": round(seconds, 3),
            "rate": round(self.messages / seconds, 1),
            "mb_per_s": round(self.body_bytes / seconds / 1e6, 2),
            "latency_ms": self.latency.summary_ms(),
            "latency_of": "one request (batch)" if load.batch > 1 else "one request",
            "generator_cpu_s": round(cpu, 3),
            "generator_cpu_share": round(cpu / seconds, 3),
            "generator_us_per_message": round(cpu / self.messages * 1e6, 2) if self.messages else None,
            "errors": self.errors,
            "window": load.window,
            "batch": load.batch,
            "connections": load.connections,
        }
        if self.last_error:
            found["last_error"] = self.last_error
        return found
