"""The HTTP server of a broker: /health, /livez, /readyz, /version and /metrics. `httpPort` 0 turns it off."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from aiohttp import web
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dledger.broker.broker import Broker
from dledger.broker.http.consumer_metrics import consumer_metrics
from dledger.broker.registration.registrar import Registrar
from dledger.web.port import HttpPort
from dledger.web.program import Figures, add_pages

Number = int | float
_RENAMED = MappingProxyType({"snapshot_index": "boundary_snapshot_index", "gc_ms_total": "gc_ms"})
"""Maps names of numbers in the node's status to other names for the metrics, because other metrics already
have the original names."""
_COUNTED = frozenset(
    [
        "flushes",
        "flushed_entries",
        "flushed_bytes",
        "gc_pauses",
        "gc_pauses_full",
        "gc_ms_total",
        "repaired_entries",
        "repair_unfitting",
        "scrub_passes",
        "scrub_checked_bytes",
        "scrub_found",
        "snapshots_skipped",
        "installs_sent",
        "installs_done",
        "read_rounds",
        "reads_by_lease",
        "segments_warm",
        "segments_cold",
        "messages_too_new",
    ]
)
"""Numbers in the node's status that never decrease while the process lives. They are shown as counters."""


class HttpServer:
    """Serves the health and the figures of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.port: HttpPort = HttpPort()
        add_pages(self.port.application, Figures(BrokerCollector(broker)))
        self.port.application.router.add_get("/health", self._health)
        self.port.application.router.add_get("/readyz", self._ready)

    async def _health(self, request: web.Request) -> web.Response:
        body = self._broker.health.report()
        return web.json_response(body, status=200 if body["healthy"] else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        reason = self._broker.health.why_not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)


class BrokerCollector(Collector):
    """Collects the metrics when they are requested. So nothing is counted a second time for the metrics, and
    the hot path does no extra work."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        broker = self._broker
        for figure in broker.figures():
            if figure.metric:
                make = _counter if figure.counts else _gauge
                yield make(figure.metric, figure.help, float(figure.read()))
        yield from consumer_metrics(broker)
        yield from _registrations(broker.features.registration.registrar)
        errors = CounterMetricFamily("dledger_errors", "Failed requests and connections", labels=["cause"])
        for cause, count in sorted(broker.server.stats.errors.items()):
            errors.add_metric([cause], count)
        yield errors
        if broker.opened.is_set():
            yield from _node_metrics(broker.node.status())


def _registrations(registrar: Registrar) -> Iterable[Metric]:
    taken = GaugeMetricFamily(
        "dledger_namesrv_registered", "1 if the NameServer accepted the last registration", labels=["namesrv"]
    )
    for addr, ok in registrar.registered.items():
        taken.add_metric([addr], int(ok))
    yield taken
    failed = CounterMetricFamily(
        "dledger_registrations_failed", "Registrations that failed", labels=["namesrv", "cause"]
    )
    for (addr, cause), count in sorted(registrar.failed.items()):
        failed.add_metric([addr, cause], count)
    yield failed


def _node_metrics(status: dict[str, object]) -> Iterable[Metric]:
    """Yield all numbers in the node's status, the role as a label, and the lag of each peer."""
    role = GaugeMetricFamily("dledger_role", "1 for the node's Raft role", labels=["role"])
    role.add_metric([str(status.get("role"))], 1)
    yield role
    for name, value in sorted(status.items()):
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "applied_index":
            yield _of_status(name, value)
    refused = CounterMetricFamily("dledger_refused", "Refused peer connections and frames", labels=["cause"])
    causes = status.get("refused")
    for cause, count in sorted(causes.items()) if isinstance(causes, dict) else ():
        refused.add_metric([cause], count)
    yield refused
    peers = status.get("peers")
    if not isinstance(peers, dict):
        return
    lag = GaugeMetricFamily("dledger_peer_lag_entries", "Entries that a peer lacks", labels=["peer"])
    up = GaugeMetricFamily("dledger_peer_connected", "1 while a peer is connected", labels=["peer"])
    for peer, progress in sorted(peers.items()):
        if isinstance(progress, dict):
            up.add_metric([peer], int(bool(progress.get("connected"))))
            if isinstance(progress.get("lag_entries"), int):
                lag.add_metric([peer], progress["lag_entries"])
    yield lag
    yield up


def _of_status(name: str, value: Number) -> Metric:
    """Return a number of the status as a metric that follows Prometheus' conventions: in base units, and as a
    counter if it never decreases."""
    told = _RENAMED.get(name, name)
    if "_ms" in told:
        told, value = f"{told.replace('_ms', '', 1)}_seconds", value / 1000
    text = f"{told.replace('_', ' ')} of the replicated log"
    return _counter(told, text, value) if name in _COUNTED else _gauge(told, text, value)


def _gauge(name: str, text: str, value: Number) -> Metric:
    return GaugeMetricFamily(f"dledger_{name}", text, value=value)


def _counter(name: str, text: str, value: Number) -> Metric:
    return CounterMetricFamily(f"dledger_{name}", text, value=value)
