"""Who may ask for what: decisions of RocketMQ's ACL 1.0, on a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from dledger.broker.auth.access_control import Access, AccessControl
from dledger.broker.forwarding import FORWARDED_FOR
from dledger.broker.member_requests import MEMBER_PROOF
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import FLAG_FORWARDED
from dledger.remoting.frames import encode_request, fields_of
from dledger.remoting.server import Connection
from dledger.remoting.signing import SIGNATURE, Credentials
from dledger.runtime.settings import ConfigError
from tests.broker.harness import FakeConnection, Member, World, decode, pull_header, run, send_header
from tests.broker.test_clients import heartbeat

FILE = """
globalWhiteRemoteAddresses:
  - 10.7.*.*
accounts:
  - accessKey: producer
    secretKey: producer-secret
    topicPerms: [orders=PUB, both=PUB|SUB, denied=DENY]
  - accessKey: consumer
    secretKey: consumer-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB, both=PUB|SUB]
    groupPerms: [readers=SUB]
  - accessKey: defaults
    secretKey: defaults-secret
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
    topicPerms: [denied=DENY]
    groupPerms: [closed=DENY]
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: narrowed
    secretKey: narrowed-secret
    admin: true
    topicPerms: [orders=SUB]
  - accessKey: nearest
    secretKey: nearest-secret
    whiteRemoteAddress: 10.0.0.{8,9}
    topicPerms: [orders=PUB]
"""
ANOTHER = "accounts: [{accessKey: another, secretKey: another-secret, admin: true}]"
SEND, PULL, ACK = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.ACK_MESSAGE

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    world = World(str(tmp_path / "store"), acl_enable=True, acl_file=str(tmp_path / "plain_acl.yml"))
    assert world.features.auth.access is not None
    return world.features.auth.access


def decide(
    access: Access,
    who: str | Credentials | None,
    code: int,
    header: Any,
    body: bytes = b"",
    *,
    prefix: str = "AclException: ",
    connection: FakeConnection | None = None,
    flag: int = 0,
    added: Mapping[str, str] | None = None,
) -> str:
    """The text of the refusal; empty where there is none."""
    fields = fields_of(header)
    if isinstance(who, str):
        who = Credentials(who, f"{who}-secret")
    if who is not None:
        fields = who.sign(fields, body)
    frame = encode_request(code, 1, fields | dict(added or {}), len(body), flag) + body
    [request] = decode(frame)
    try:
        access.check(cast(Connection, connection or FakeConnection()), request)
    except Exception as error:
        remark = getattr(error, "remark", "")
        assert getattr(error, "code", None) == 16 and remark.startswith(prefix), error
        return remark.removeprefix(prefix)
    return ""


def send_to(topic: str) -> Any:
    return send_header(topic, 0, "")


def pull_from(topic: str, group: str) -> Any:
    return pull_header(topic, 0, 0, consumerGroup=group)


def no_default(what: str) -> str:
    return f"No default permission for {what}"


DECISIONS: list[tuple[str | None, int, Any, bytes, str]] = [
    (None, SEND, send_to("orders"), b"x", "No accessKey is configured"),
    ("stranger", SEND, send_to("orders"), b"x", "No acl config for stranger"),
    ("producer", SEND, send_to("orders"), b"x", ""),
    ("producer", SEND, send_to("both"), b"x", ""),
    ("producer", SEND, send_to("denied"), b"x", "No permission for topic:denied"),
    ("producer", SEND, send_to("other"), b"x", no_default("topic:other")),
    ("producer", PULL, pull_from("both", "readers"), b"", no_default("group:readers")),
    ("producer", RequestCode.SEND_BATCH_MESSAGE, send_to("orders"), b"x", ""),
    ("producer", RequestCode.SEND_BATCH_MESSAGE, send_to("other"), b"x", no_default("topic:other")),
    ("producer", RequestCode.SEND_MESSAGE, {"topic": "orders"}, b"x", ""),
    ("producer", RequestCode.SEND_MESSAGE, {"topic": "other"}, b"x", no_default("topic:other")),
    ("consumer", SEND, send_to("orders"), b"x", "No permission for topic:orders"),
    ("consumer", SEND, send_to("both"), b"x", ""),
    ("consumer", PULL, pull_from("orders", "readers"), b"", ""),
    ("consumer", PULL, pull_from("orders", "others"), b"", no_default("group:others")),
    ("consumer", PULL, pull_from("other", "readers"), b"", no_default("topic:other")),
    ("consumer", PULL, pull_from("%RETRY%readers", "readers"), b"", ""),
    ("consumer", PULL, pull_from("%RETRY%others", "readers"), b"", no_default("group:others")),
    ("consumer", SEND, send_to("%RETRY%readers"), b"x", ""),  # gives back as an ordinary message
    ("consumer", SEND, send_to("%RETRY%others"), b"x", no_default("group:others")),
    ("consumer", RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "readers"}, b"", ""),
    ("consumer", RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "x"}, b"", no_default("group:x")),
    ("consumer", RequestCode.POP_MESSAGE, {"topic": "orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", ACK, {"topic": "%RETRY%readers_orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", ACK, {"topic": "%RETRY%others_orders", "consumerGroup": "readers"}, b"",
     no_default("group:others_orders")),
    ("consumer", COMMIT, {"topic": "orders", "consumerGroup": "readers"}, b"", ""),
    ("consumer", COMMIT, {"topic": "orders", "consumerGroup": "x"}, b"", no_default("group:x")),
    ("consumer", RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "x"}, b"",
     no_default("group:x")),
    ("consumer", RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": ""}, b"", ""),
    ("consumer", RequestCode.LOCK_BATCH_MQ, None, b'{"consumerGroup":"x","clientId":"c","mqSet":[]}',
     no_default("group:x")),
    ("consumer", RequestCode.HEART_BEAT, None, heartbeat("c@1", "x"), no_default("group:x")),
    ("consumer", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "orders", "group": "x"}, b"",
     no_default("group:x")),
    ("consumer", RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "k"}, b"", ""),
    ("consumer", RequestCode.QUERY_MESSAGE, {"topic": "other", "key": "k"}, b"", no_default("topic:other")),
    ("consumer", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0", "topic": "orders"}, b"",
     no_default(
         "topics in general (the topic of the message is known only after it is read)")),
    ("defaults", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, b"", ""),
    ("defaults", SEND, send_to("anything"), b"x", ""),
    ("defaults", SEND, send_to("denied"), b"x", "No permission for topic:denied"),
    ("defaults", PULL, pull_from("anything", "anyone"), b"", ""),
    ("defaults", PULL, pull_from("anything", "closed"), b"", "No permission for group:closed"),
    ("defaults", RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, b"",
     "Need admin permission for request code=17, but accessKey=defaults is not"),
    ("defaults", RequestCode.UPDATE_BROKER_CONFIG, None, b"a=b",
     "Need admin permission for request code=25, but accessKey=defaults is not"),
    ("defaults", RequestCode.AUDIT_ENTRIES, None, b"",
     "Need admin permission for request code=28007, but accessKey=defaults is not"),
    ("defaults", RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", ""),
    ("operator", RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, b"", ""),
    ("operator", RequestCode.AUDIT_ENTRIES, None, b"", ""),
    ("operator", SEND, send_to("anything"), b"x", ""),
    ("narrowed", RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, b"", ""),
    ("narrowed", SEND, send_to("orders"), b"x", "No permission for topic:orders"),
]  # fmt: skip


@pytest.mark.sample(12)
@pytest.mark.parametrize(("who", "code", "header", "body", "expected"), DECISIONS)
def test_decisions(
    access: AccessControl, who: str | None, code: int, header: Any, body: bytes, expected: str
) -> None:
    assert decide(access, who, code, header, body) == expected
    assert access.denied == (expected != "")


def test_a_signature_covers_fields_and_body(access: AccessControl) -> None:
    wrong = "Check signature failed for accessKey=producer"
    header = send_to("orders")
    assert decide(access, Credentials("producer", "wrong-secret"), SEND, header, b"x") == wrong
    assert decide(access, "producer", SEND, header, b"x", added={"b": "both"}) == wrong
    assert decide(access, "producer", SEND, header, b"x", added={"more": "x"}) == wrong
    assert decide(access, "producer", SEND, header, b"x", added={SIGNATURE: "\u00e9"}) == wrong
    signed = Credentials("producer", "producer-secret").sign(fields_of(header), b"x")
    assert decide(access, None, SEND, signed, b"y") == wrong
    assert decide(access, None, SEND, signed, b"x") == ""


def test_white_lists_come_first(access: AccessControl) -> None:
    """The global one lets everything in, that of an account its requests without a signature."""
    everywhere = FakeConnection(peer="10.7.1.1:4000")
    assert decide(access, None, RequestCode.AUDIT_ENTRIES, None, connection=everywhere) == ""
    unsigned = {"AccessKey": "nearest", "b": "orders"}
    assert decide(access, None, SEND, unsigned) == ""  # from 10.0.0.9
    assert decide(access, None, SEND, {**unsigned, "b": "x"}) == "No default permission for topic:x"
    far = FakeConnection(peer="10.0.0.10:4000")
    assert (
        decide(access, None, SEND, unsigned, connection=far) == "Check signature failed for accessKey=nearest"
    )


def test_a_forwarded_request_has_its_clients_signature_and_address(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    world = World(str(tmp_path / "store"), acl_enable=True, acl_file=str(tmp_path / "plain_acl.yml"))
    access, member = world.features.auth.access, Member(world)
    assert access is not None
    signed = Credentials("producer", "producer-secret").sign(fields_of(send_to("orders")), b"x")

    def forwarded(fields: dict[str, str], client: str, *, proof: bool = True) -> str:
        added = {**fields, FORWARDED_FOR: client}
        if proof:
            added = member.proven(SEND, added, b"x", FLAG_FORWARDED)
        return decide(access, None, SEND, added, b"x", flag=FLAG_FORWARDED, connection=member.connection)

    far, white, unsigned = "10.8.1.1:4000", "10.7.1.1:4000", fields_of(send_to("orders"))
    assert forwarded(signed, far) == forwarded(signed, far, proof=False) == ""
    assert forwarded(unsigned, white) == ""
    assert forwarded(unsigned, white, proof=False) == "No accessKey is configured", "not from a member"
    assert forwarded({**unsigned, MEMBER_PROOF: "1.1.0.n1"}, white, proof=False) != ""
    assert forwarded(unsigned, far) == "No accessKey is configured"


def test_files_are_read_again_and_broken_ones_are_left_alone(
    access: AccessControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dledger.broker.auth.access_control.WATCH_INTERVAL_S", 0.01)
    file, more = tmp_path / "plain_acl.yml", tmp_path / "acl"

    async def until(expected: str, who: str) -> None:
        async with asyncio.timeout(20):
            while decide(access, who, SEND, send_to("orders"), b"x") != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def test() -> None:
        task = asyncio.create_task(access.run())
        await until("", "producer")
        file.write_text(FILE.replace("orders=PUB", "orders=DENY"))
        await until("No permission for topic:orders", "producer")
        file.write_text("accounts: [")
        async with asyncio.timeout(20):
            while "cannot be used" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await until("No permission for topic:orders", "producer")
        file.write_text(FILE)
        await until("", "producer")
        more.mkdir()
        (more / "one.yml").write_text(
            "accounts: [{accessKey: another, secretKey: another-secret, admin: true}]"
        )
        await until("", "another")
        file.unlink()
        (more / "one.yml").unlink()
        await asyncio.sleep(0.05)
        await until("", "another")
        task.cancel()

    run(test)
    assert "the file is gone" in caplog.text


def test_a_start_needs_a_file_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    with pytest.raises(ConfigError, match="there is no such file"):
        World(str(tmp_path / "store"), acl_enable=True, acl_file=str(path))
    path.write_text("accounts: [{accessKey: short, secretKey: 12345678}]")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml: account short: accessKey must be longer"):
        World(str(tmp_path / "store"), acl_enable=True, acl_file=str(path))


def test_a_heartbeat_that_was_allowed_is_not_read_again(
    access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, beat = FakeConnection(), heartbeat("c@1", "readers")
    assert decide(access, "consumer", RequestCode.HEART_BEAT, None, beat, connection=connection) in (
        "",
        "No default permission for topic:T",
    )
    assert decide(access, "defaults", RequestCode.HEART_BEAT, None, beat, connection=connection) == ""
    monkeypatch.setattr(
        "dledger.broker.auth.required.decode_heartbeat", lambda body: pytest.fail("read again")
    )
    assert decide(access, "defaults", RequestCode.HEART_BEAT, None, beat, connection=connection) == ""
