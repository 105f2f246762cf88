"""docs/reference/metrics.md names every metric of a broker and of a NameServer, and no other."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from dledger.broker.broker import Broker
from dledger.broker.http.server import BrokerCollector
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.http_server import NameServerCollector
from dledger.namesrv.service import NameServer
from dledger.node.node import Node
from dledger.runtime.env import production_env
from dledger.web.program import Figures
from tests.broker.test_app import configs
from tests.docs.generated import DOCS


def page_of(directory: Path) -> str:
    """What /metrics of a broker without peers says."""

    async def text() -> str:
        (config,) = configs(directory, 1)
        config = replace(config, digest_ship_path=str(directory))
        broker = Broker(production_env("n0"), config, Node)
        running = asyncio.create_task(broker.node.run())  # type: ignore[attr-defined]
        await asyncio.wait_for(broker.opened.wait(), 60)
        page = Figures(BrokerCollector(broker)).text().decode()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return page

    return asyncio.run(text())


def page_of_a_nameserver() -> str:
    """What /metrics of a NameServer says."""
    nameserver = NameServer(production_env("test"), NamesrvConfig())
    return Figures(NameServerCollector(nameserver)).text().decode()


def test_the_page_has_every_metric_and_no_other(tmp_path: Path) -> None:
    page = (DOCS / "reference/metrics.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    explained = set(re.findall(r"`(dledger_\w+)", rows))
    lines = (page_of(tmp_path) + page_of_a_nameserver()).splitlines()
    served = {line.split()[2] for line in lines if line.startswith("# TYPE dledger_")}

    missing, gone = sorted(served - explained), sorted(explained - served)
    assert not missing, (
        f"docs/reference/metrics.md has no row for `{missing[0]}`: say what it counts, and its unit"
    )
    assert not gone, f"docs/reference/metrics.md explains `{gone[0]}`, which no program has: remove the row"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_own_check_has_nothing_to_say(tmp_path: Path) -> None:
    for page in (page_of(tmp_path), page_of_a_nameserver()):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
