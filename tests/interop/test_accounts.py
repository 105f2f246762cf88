"""Unmodified clients of a group with access control: each signs with its account, before and after the leader
is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger import ClientOptions, Credentials, Producer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from tests.interop.conftest import ClientKind, Driver, java_client

pytestmark = pytest.mark.interop

READY_S = 90
BEFORE, AFTER = 20, 20
ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: application
    secretKey: application-secret
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
    topicPerms: [Closed=DENY]
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "aclFile": str(tmp_path / "accounts.yml")}
    group = LocalCluster.create(
        tmp_path / "group", ClusterSpec(base_port=find_base_port(start=23500), broker=settings)
    )
    group.start()
    yield group
    group.stop()


def of(kind: ClientKind, account: str, secret: str) -> ClientKind:
    keys = {"ROCKETMQ_ACCESS_KEY": account, "ROCKETMQ_SECRET_KEY": secret}
    return replace(kind, environment={**kind.environment, **keys})


def told(event: dict[str, Any], reason: str) -> bool:
    return event["event"] in ("failed", "error") and reason in event["text"]


def test_clients_sign_before_and_after_a_leader_kill(
    ali_ons: ClientKind, py_rocketmq: ClientKind, guarded: LocalCluster, drive: Callable[..., Driver]
) -> None:
    kinds = {
        "java4": java_client(4, 1000),
        "java5": java_client(5, 1000, binary=True),
        "ali": ali_ons,
        "cpp": py_rocketmq,
    }
    operator = ClientOptions(credentials=Credentials("operator", "operator-secret"))
    with Producer("PG", guarded.namesrv_addr, client=operator) as producer:
        for name in (*kinds, "Closed"):
            producer.create_topic(name, 2)

    def start(name: str, mode: str, topic: str = "", secret: str = "application-secret") -> Any:
        kind = of(kinds[name], "application", secret)
        return drive(kind, mode, guarded.namesrv_addr, topic or name, f"G_{name}_{mode}")

    producers = {name: start(name, "produce") for name in kinds}
    consumers = {name: start(name, "consume") for name in kinds}

    def acked(number: int) -> Callable[[Any], bool]:
        return lambda events: sum(item["event"] == "acked" for item in events) >= number

    for one in producers.values():
        one.wait(acked(BEFORE), READY_S)
    guarded.kill_leader()
    for one in producers.values():
        one.wait(acked(len(one.drained()) + AFTER), READY_S)
    for name, one in consumers.items():
        sent = {item["seq"] for item in producers[name].drained() if item["event"] == "acked"}
        one.wait(lambda events, sent=sent: sent <= {item.get("seq") for item in events}, READY_S)
    for one in (*producers.values(), *consumers.values()):
        one.close()
    closed = {name: start(name, "produce", "Closed") for name in ("java4", "java5", "ali", "cpp")}
    forged = {name: start(name, "produce", secret="wrong") for name in ("java4", "java5", "ali")}
    for group, reason in ((closed, "No permission for topic:Closed"), (forged, "Check signature failed")):
        for name, one in group.items():
            # The others do not tell why.
            said = reason if name.startswith("java") else ""
            one.wait(lambda events, said=said: any(told(item, said) for item in events), READY_S)
            assert not one.named("acked")
