"""One direction of the network between two machines, and its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dledger.chaos.machine.settings import SECOND, Settings

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Node
    from dledger.chaos.machine.tcp import Endpoint, Flow

_MAX_BACKOFF = 5  # doublings of the retransmission time; more data makes TCP notice a loss sooner
_SMALL_PACKET = 64  # bytes of a packet that carries no data


class Link:
    """Latency, loss and bandwidth of one direction, and whether packets pass."""

    __slots__ = (
        "_busy_until",
        "_loss",
        "_narrowed",
        "_ns_per_byte",
        "_retransmit_ns",
        "blocked",
        "credits",
        "flows",
        "impaired",
        "latency_ns",
        "silent",
        "source",
        "target",
        "usual_latency_ns",
    )

    def __init__(self, settings: Settings, source: Node, target: Node) -> None:
        self.source: Node = source
        self.target: Node = target
        self.usual_latency_ns: tuple[int, int] = (
            settings.loopback_ns if source is target else settings.latency_ns
        )
        self.latency_ns: tuple[int, int] = self.usual_latency_ns
        self._retransmit_ns = settings.retransmit_ns
        self.blocked: bool = False
        self.silent: bool = False  # whether only handshakes pass
        self.impaired: bool = False  # whether there is a loss or a limit of the bandwidth
        self._loss = 0.0
        self._ns_per_byte = 0.0
        self._busy_until = 0
        self._narrowed: dict[Flow, None] = {}  # flows that sent something while the bandwidth was limited
        self.flows: list[Flow] = []  # flows that wait until packets pass again
        self.credits: list[tuple[Endpoint, int]] = []

    def set_loss(self, share: float) -> None:
        """Lose this share of the packets (0 to below 1). A lost packet arrives later, because it is sent
        again."""
        self._loss = share
        self.impaired = bool(self._loss or self._ns_per_byte)

    def set_bandwidth(self, bytes_per_s: float | None) -> None:
        """Limit the bandwidth, in bytes a second, for all connections of this link together. None removes the
        limit."""
        self._ns_per_byte = 0.0 if bytes_per_s is None else SECOND / bytes_per_s
        self.impaired = bool(self._loss or self._ns_per_byte)
        if bytes_per_s is None:
            self._busy_until = 0
            flows, self._narrowed = self._narrowed, {}
            for flow in flows:  # packets that waited for the limited bandwidth are no longer delayed by it
                flow.hurry()

    def extra_ns(self, flow: Flow, now: int, payload: object, random: Callable[[], float]) -> int:
        """How much longer than the latency a packet takes that is sent now, in ns."""
        extra = 0
        if self._ns_per_byte:
            self._narrowed[flow] = None
            size = len(payload) if isinstance(payload, bytes) else _SMALL_PACKET
            self._busy_until = max(self._busy_until, now) + int(size * self._ns_per_byte)
            extra = self._busy_until - now
        tries = 0
        while self._loss and random() < self._loss:
            low, high = self._retransmit_ns
            extra += low + int(random() * (high - low)) << min(tries, _MAX_BACKOFF)
            tries += 1
        return extra
