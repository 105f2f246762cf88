"""Access control on a real group: our client signs, wherever its requests arrive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dledger import (
    BrokerRefused,
    ClientOptions,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendFailed,
)
from dledger.local.cluster import LocalCluster, wait_for

ACCOUNTS = """
accounts:
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: producer
    secretKey: producer-secret
    topicPerms: [T=PUB]
  - accessKey: consumer
    secretKey: consumer-secret
    topicPerms: [T=SUB]
    groupPerms: [CG=SUB]
"""
OPERATOR = Credentials("operator", "operator-secret")
PRODUCER = Credentials("producer", "producer-secret")
CONSUMER = Credentials("consumer", "consumer-secret")


@pytest.mark.parametrize("redirect", [True, False], ids=["redirected", "forwarded"])
def test_who_signs_may_before_and_after_a_leader_kill(
    redirect: bool, new_group: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    group = new_group(broker={"aclEnable": "true", "aclFile": str(tmp_path / "accounts.yml")})
    with (
        Producer("PG", group.namesrv_addr) as producer,
        pytest.raises(BrokerRefused, match="No accessKey is configured"),
    ):
        producer.create_topic("T", 1)
    with monkeypatch.context() as environment:
        environment.setenv("ROCKETMQ_ACCESS_KEY", OPERATOR.access_key)
        environment.setenv("ROCKETMQ_SECRET_KEY", OPERATOR.secret_key)
        with Producer("PG", group.namesrv_addr) as producer:
            producer.create_topic("T", 1)

    def of(credentials: Credentials) -> ClientOptions:
        return ClientOptions(credentials=credentials, redirect=redirect)

    got: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        got.append(message.body)

    consumer = PushConsumer("CG", group.namesrv_addr, listen, from_where="first", client=of(CONSUMER))
    consumer.subscribe("T")
    with consumer, Producer("PG", group.namesrv_addr, client=of(PRODUCER)) as producer:
        for number in range(20):
            if number == 10:
                group.kill_leader()
            producer.send(Message("T", b"%d" % number))
        wait_for(lambda: len(set(got)) == 20 or None, 30, lambda: f"{got}")
    for credentials, reason in (
        (Credentials("producer", "wrong"), "Check signature failed for accessKey=producer"),
        (CONSUMER, "No permission for topic:T"),
        (Credentials("stranger", "x"), "No acl config for stranger"),
    ):
        with (
            Producer("PG", group.namesrv_addr, client=of(credentials)) as producer,
            pytest.raises(SendFailed, match=reason),
        ):
            producer.send(Message("T", b"no"))
    with (
        PullConsumer("CG", group.namesrv_addr, client=of(PRODUCER)) as reader,
        pytest.raises(BrokerRefused, match="No default permission for group:CG"),
    ):
        reader.assign(reader.queues("T"), "first")
        reader.poll(10)
