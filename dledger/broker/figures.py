"""Figures that a broker shows. Each is declared once, for /metrics and for 28 GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dledger._fast import FAST
from dledger.broker.core import Core
from dledger.broker.forwarding import Forwarder
from dledger.broker.leadership import Leadership
from dledger.remoting.server import RemotingServer
from dledger.runtime.standstill import Standstill


@dataclass(frozen=True)
class Figure:
    """A number that a broker shows. It is declared once for all outputs, and `read` is called when an output
    is made."""

    read: Callable[[], float]
    help: str = ""
    """What the figure counts, in a few words: the help text of the metric."""
    metric: str = ""
    """Name of the metric at /metrics, without `dledger_`. If empty, the figure is not shown there."""
    key: str = ""
    """Key in the answer to 28 GET_BROKER_RUNTIME_INFO. If empty, the figure is not shown there."""
    counts: bool = False
    """Whether the figure is a counter: it only grows while the process lives."""


def server_figures(server: RemotingServer, standstill: Standstill) -> Iterator[Figure]:
    """Yield the figures of connections and requests."""
    stats = server.stats
    yield Figure(lambda: stats.accepted - stats.closed, "Open client connections", "connections")
    yield Figure(lambda: server.unsent, "Bytes of responses that clients have not read yet", "unsent_bytes")
    yield Figure(
        lambda: standstill.count,
        "Times that the event loop stood still for too long",
        "standstills",
        counts=True,
    )
    yield Figure(lambda: stats.requests, "Requests received", "requests", "remotingRequests", counts=True)
    yield Figure(lambda: stats.bytes_in, "Bytes received from clients", "bytes_in", counts=True)
    yield Figure(lambda: stats.bytes_out, "Bytes sent to clients", "bytes_out", counts=True)


def leader_figures(core: Core, leadership: Leadership, forwarder: Forwarder) -> Iterator[Figure]:
    """Yield the figures of a leader, and of a follower that forwards requests."""
    gate, committed = core.gate, core.committed
    yield Figure(
        lambda: FAST is not None, "1 when the compiled versions of the hottest loops are in use", "compiled"
    )
    yield Figure(lambda: gate.writer is not None, "1 while this node leads and serves", "serving")
    yield Figure(
        lambda: len(committed),
        "Responses that wait for a commit",
        "waiting_answers",
        "sendThreadPoolQueueSize",
    )
    yield Figure(lambda: core.background.count, "Requests that wait for the disk", "cold_reads")
    yield Figure(
        lambda: gate.refused,
        "Requests refused because this node does not lead (code 14)",
        "refused_not_leader",
        counts=True,
    )
    yield Figure(
        lambda: leadership.messages,
        "Messages accepted by this node as leader",
        "messages_in",
        "msgPutTotalTodayNow",
        counts=True,
    )
    yield Figure(
        lambda: forwarder.forwarded,
        "Requests of clients that were forwarded to the leader",
        "requests_forwarded",
        "forwardedRequests",
        counts=True,
    )
