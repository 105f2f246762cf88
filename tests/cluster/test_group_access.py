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


BY_FILE = {"aclEnable": "true"}
BY_USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "migrateAuthFromV1Enabled": "true",
    "initAuthenticationUser": '{"username":"first","password":"first-secret"}',
}
REFUSALS = {
    "unsigned": ("No accessKey is configured", "username cannot be null"),
    "forged": ("Check signature failed for accessKey=producer", "check signature failed"),
    "denied": ("No permission for topic:T", "User:consumer has no permission to access Topic:T"),
    "stranger": ("No acl config for stranger", "User:stranger is not found"),
    "group": ("No default permission for group:CG", "to access Group:CG .*the decision is deny"),
}
"""By accounts in a file, and by users and policies in the log."""


@pytest.mark.parametrize(
    ("redirect", "settings"),
    [(True, BY_FILE), (False, BY_FILE), (False, BY_USERS)],
    ids=["file-redirected", "file-forwarded", "users-forwarded"],
)
def test_who_signs_may_before_and_after_a_leader_kill(
    redirect: bool,
    settings: dict[str, str],
    new_group: Callable[..., LocalCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {what: texts[settings is BY_USERS] for what, texts in REFUSALS.items()}
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    group = new_group(broker={**settings, "aclFile": str(tmp_path / "accounts.yml")})
    with (
        Producer("PG", group.namesrv_addr) as producer,
        pytest.raises(BrokerRefused, match=said["unsigned"]),
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
        (Credentials("producer", "wrong"), said["forged"]),
        (CONSUMER, said["denied"]),
        (Credentials("stranger", "x"), said["stranger"]),
    ):
        with (
            Producer("PG", group.namesrv_addr, client=of(credentials)) as producer,
            pytest.raises(SendFailed, match=reason),
        ):
            producer.send(Message("T", b"no"))
    with (
        PullConsumer("CG", group.namesrv_addr, client=of(PRODUCER)) as reader,
        pytest.raises(BrokerRefused, match=said["group"]),
    ):
        reader.assign(reader.queues("T"), "first")
        reader.poll(10)
