"""Paths and metrics that all programs have: their version, and what their process uses."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from functools import cache

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dledger.runtime.program import open_files, process_figures

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `/metrics`: the text format of Prometheus."""


@cache
def version() -> dict[str, str]:
    """The versions of this project and of Python."""
    try:
        ours = importlib.metadata.version("dledger")
    except importlib.metadata.PackageNotFoundError:
        ours = "unknown"
    return {"version": ours, "python": platform.python_version()}


class _Program(Collector):
    def collect(self) -> Iterable[Metric]:
        """Yield the versions as labels, and what the process uses. The names are those of Prometheus' own
        library, whose collector would list all open files: 10 ms with ten thousand of them."""
        yield InfoMetricFamily("dledger_build", "Versions of this program", value=version())
        if (found := process_figures()) is not None:
            yield CounterMetricFamily(
                "process_cpu_seconds", "Processor time of the process in seconds", value=found.cpu_s
            )
            for name, text, value in (
                ("process_resident_memory_bytes", "Resident memory size in bytes", found.resident),
                ("process_virtual_memory_bytes", "Virtual memory size in bytes", found.virtual),
                ("process_start_time_seconds", "Start time since 1970 in seconds", found.started_s),
            ):
                yield GaugeMetricFamily(name, text, value=value)
        if (files := open_files()) is not None:
            yield GaugeMetricFamily("process_open_fds", "Open file descriptors", value=files[0])
            yield GaugeMetricFamily("process_max_fds", "Largest number of them", value=files[1])


class Figures:
    """The metrics of one program: those of a collector, its versions, and its process (`process_*`)."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        for one in (collector, _Program()):
            self._registry.register(one)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


def add_pages(application: web.Application, figures: Figures) -> None:
    """Add the paths `/livez`, `/version` and `/metrics`."""

    async def live(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def show_version(request: web.Request) -> web.Response:
        return web.json_response(version())

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=figures.text(), headers={"Content-Type": TEXT_FORMAT})

    application.router.add_get("/livez", live)
    application.router.add_get("/version", show_version)
    application.router.add_get("/metrics", metrics)
