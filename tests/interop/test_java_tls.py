"""Java clients over TLS, of a group that takes nothing else, before and after the leader is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger import ClientOptions, Producer, TlsOptions
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from tests.dledger.certificates import Authority
from tests.interop.conftest import Driver, java_client

pytestmark = pytest.mark.interop

READY_S = 60
NUMBER = 20


def test_java_over_tls(tmp_path: Path, drive: Callable[..., Driver], request: pytest.FixtureRequest) -> None:
    authority = Authority(tmp_path)
    issued, ca = authority.issue("broker", "broker"), str(authority.certificate)
    tls = {"tls.server.certPath": issued.certificate, "tls.server.keyPath": issued.key}
    own = {"tls.server.mode": "enforcing", "tls.enable": "true", "tls.client.trustCertPath": ca}
    spec = ClusterSpec(base_port=find_base_port(start=23600), broker={**tls, **own})
    group = LocalCluster.create(tmp_path / "group", spec)
    with (tmp_path / "group" / "conf" / "namesrv.conf").open("a") as file:
        file.writelines(f"{key}={value}\n" for key, value in tls.items())
    properties = tmp_path / "tls.properties"
    properties.write_text(
        f"tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath={ca}\n"
    )
    request.addfinalizer(group.stop)
    group.start()
    with Producer("PG", group.namesrv_addr, client=ClientOptions(tls=TlsOptions(ca=ca))) as producer:
        for major in (4, 5):
            producer.create_topic(f"T{major}", 2)
    secure = {"JAVA_TOOL_OPTIONS": f"-Dtls.enable=true -Dtls.config.file={properties}"}
    runs: list[tuple[Driver, Driver]] = []
    for major in (4, 5):
        kind = java_client(major, 1000)
        kind = replace(kind, environment={**kind.environment, **secure})
        started = [
            drive(kind, mode, group.namesrv_addr, f"T{major}", f"G{major}{mode}")
            for mode in ("produce", "consume")
        ]
        runs.append((started[0], started[1]))
    for producing, _ in runs:
        producing.wait(lambda events: acked(events) >= NUMBER, READY_S)
    group.kill_leader()
    for producing, consuming in runs:
        total = acked(producing.drained()) + NUMBER
        producing.wait(lambda events, total=total: acked(events) >= total, READY_S)
        wanted = set(range(total))
        consuming.wait(lambda events, wanted=wanted: wanted <= {item.get("seq") for item in events}, READY_S)


def acked(events: list[dict[str, Any]]) -> int:
    return sum(item["event"] == "acked" for item in events)
