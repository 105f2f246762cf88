"""What each program says of itself over HTTP: its version, and figures of its process."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `/metrics`: the text format of Prometheus."""


def version() -> dict[str, str]:
    """The versions of this project and of Python."""
    try:
        ours = importlib.metadata.version("dledger")
    except importlib.metadata.PackageNotFoundError:
        ours = "unknown"
    return {"version": ours, "python": platform.python_version()}


class _Build(Collector):
    def collect(self) -> Iterable[Metric]:
        """Yield one metric whose labels are the versions."""
        yield InfoMetricFamily("dledger_build", "Versions of this program", value=version())


class Figures:
    """The metrics of one program: those of a collector, its versions, and its process (`process_*`)."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        for one in (collector, _Build()):
            self._registry.register(one)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


def add_pages(application: web.Application, figures: Figures) -> None:
    """Add the paths `/livez`, `/version` and `/metrics`. All are short and need nothing from a disk."""

    async def live(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def show_version(request: web.Request) -> web.Response:
        return web.json_response(version())

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=figures.text(), headers={"Content-Type": TEXT_FORMAT})

    application.router.add_get("/livez", live)
    application.router.add_get("/version", show_version)
    application.router.add_get("/metrics", metrics)
