"""The HTTP server of a NameServer: /health, /livez, /readyz, /version and /metrics. `httpPort` 0 turns it
off."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dledger.namesrv.service import NameServer
from dledger.remoting.bodies import MASTER_ID
from dledger.web.port import HttpPort
from dledger.web.program import Figures, add_pages

MAX_NAMED = 100
"""Largest number of broker groups that /health names as without a master."""


class HttpServer:
    """Serves the health and the figures of one NameServer."""

    def __init__(self, nameserver: NameServer) -> None:
        self._nameserver = nameserver
        self.port: HttpPort = HttpPort()
        add_pages(self.port.application, Figures(NameServerCollector(nameserver)))
        self.port.application.router.add_get("/health", self._health)
        self.port.application.router.add_get("/readyz", self._ready)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(health(self._nameserver))

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # it listens only when its tables are loaded


def health(nameserver: NameServer) -> dict[str, object]:
    """The object that /health shows. A NameServer that answers is healthy: whether brokers are registered is
    their matter. It is degraded if a broker group has no master."""
    without = without_master(nameserver)
    return {
        "healthy": True,
        "degraded": bool(without),
        "reasons": [],
        "warnings": [f"{name} has no master: nothing can be sent to it" for name in without[:MAX_NAMED]],
        "broker_groups": nameserver.routes.group_count,
        "brokers": len(nameserver.routes.live()),
        "topics": nameserver.routes.topic_count,
        "connections": len(nameserver.server.connections),
    }


def without_master(nameserver: NameServer) -> list[str]:
    """Names of the registered broker groups that have no master, sorted."""
    table = nameserver.routes.cluster_info().brokerAddrTable
    return sorted(name for name, group in table.items() if MASTER_ID not in group.brokerAddrs)


class NameServerCollector(Collector):
    """Collects the metrics of a NameServer when they are requested."""

    def __init__(self, nameserver: NameServer) -> None:
        self._nameserver = nameserver

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        nameserver = self._nameserver
        routes, stats = nameserver.routes, nameserver.server.stats
        gauges = (
            ("up", "1 while the NameServer answers", 1),
            ("broker_groups", "Registered broker groups", routes.group_count),
            ("brokers", "Registered brokers", len(routes.live())),
            ("groups_without_master", "Broker groups without a master", len(without_master(nameserver))),
            ("topics", "Topics of all broker groups", routes.topic_count),
            ("connections", "Open connections", len(nameserver.server.connections)),
        )
        counters = (
            ("route_changes", "Changes of the route tables", routes.revision),
            ("requests", "Requests received", stats.requests),
            ("bytes_in", "Bytes received", stats.bytes_in),
            ("bytes_out", "Bytes sent", stats.bytes_out),
            ("connections_refused", "Connections refused because there were too many", stats.refused),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"dledger_namesrv_{name}", text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"dledger_namesrv_{name}", text, value=value)
        errors = CounterMetricFamily(
            "dledger_namesrv_errors", "Failed requests and connections", labels=["cause"]
        )
        for cause, count in sorted(stats.errors.items()):
            errors.add_metric([cause], count)
        yield errors
