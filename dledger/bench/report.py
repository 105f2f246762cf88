"""The settings of a load, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.bench.histogram import Histogram

Clock = Callable[[], float]


@dataclass(frozen=True)
class Load:
    """The settings of a load. Sizes are in bytes, and times in seconds."""

    namesrv: str
    topic: str = "bench"
    size: int = 1024
    """Size of a message's body in bytes (only for `produce`)."""
    window: int = 256
    """Number of requests that are in flight at the same time."""
    batch: int = 1
    """Number of messages in one send request; for `consume`, the largest number of messages in one pull."""
    seconds: float | None = None
    messages: int | None = None
    """The load ends when this number of messages or the time `seconds` is reached, whichever comes first."""
    connections: int = 1
    queues: int = 8
    """Number of queues of the topic, if the topic has to be created."""
    warmup_s: float = 1.0
    """Time at the start, in seconds, that is left out of every figure (only for `produce`)."""


@dataclass
class Tally:
    """What a load has counted so far. `cpu_s` returns the CPU time that this process has used so far."""

    cpu_s: Clock
    messages: int = 0
    body_bytes: int = 0
    errors: int = 0
    last_error: str = ""
    latency: Histogram = field(default_factory=Histogram)
    started_at: float = 0.0
    cpu_at_start: float = 0.0

    def begin(self, now: float) -> None:
        """Begin the measured part: everything that was counted during the warm-up is forgotten."""
        self.messages = self.body_bytes = self.errors = 0
        self.latency.clear()
        self.started_at = now
        self.cpu_at_start = self.cpu_s()

    def result(self, load: Load, mode: str, now: float) -> dict[str, object]:
        """Return the figures of the load as one JSON object."""
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
