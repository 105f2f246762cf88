"""Request and reply: 325 and 326, by the client's connection, at whichever broker it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.client import InvalidMessage, MessageQueue, ReceivedMessage, reply_to
from dledger.formats.properties import encode_properties
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.headers import ReplyMessageHeader, SendMessageV2Header
from dledger.runtime.env import production_env
from tests.broker.harness import World, run, send_header
from tests.broker.test_app import LIMIT_S, PatientClient, configs, running, steady_leader
from tests.client.fake_cluster import eventually

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"REPLY_TO_CLIENT": "10.0.0.9@1", "CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}


def reply_header(properties: dict[str, str]) -> SendMessageV2Header:
    return send_header(TOPIC, 0, encode_properties(properties))


def test_wrong_replies_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_message_size=1000).open()
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        nobody = await world.call(code, reply_header(PROPERTIES), b"x")
        assert nobody.code == ResponseCode.SYSTEM_ERROR
        assert nobody.remark == "push reply message fail, channel of <10.0.0.9@1> not found."
        unnamed = await world.call(code, reply_header({}), b"x")
        assert "REPLY_TO_CLIENT" in (unnamed.remark or "")
        large = await world.call(code, reply_header(PROPERTIES), b"x" * 1001)
        assert large.code == ResponseCode.MESSAGE_ILLEGAL

    run(test)


@pytest.mark.parametrize("answer", [Response(0), Response(1, remark="busy"), None])
def test_a_reply_is_pushed_by_whichever_member_knows_the_client(
    tmp_path: Path, answer: Response | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that asked is at one follower, the reply comes to the leader; the answer is the client's."""
    patience_s = 0.1 if answer is None else LIMIT_S
    monkeypatch.setattr("dledger.broker.clients.reply_processor.CALL_TIMEOUT_S", patience_s)
    pushed: list[Request] = []

    def take(address: str, request: Request) -> Response | None:
        pushed.append(request)
        return answer

    async def test() -> None:
        env = production_env("test")
        asking = PatientClient(env, handlers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take})
        async with running(*configs(tmp_path, 3)) as (nodes, client):
            tasks = asyncio.ensure_future(asking.run())
            leader = await steady_leader(nodes)
            follower = next(node for node in nodes if node is not leader)
            beat = b'{"clientID":"10.0.0.9@1","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[]}'
            (await asking.invoke(follower.config.client_addr, RequestCode.HEART_BEAT, None, beat)).checked()
            header = reply_header(PROPERTIES)
            code = RequestCode.SEND_REPLY_MESSAGE_V2
            replied = await client.invoke(leader.config.client_addr, code, header, b"yes")
            assert (replied.code == 0) == (answer is not None and answer.code == 0)
            await eventually(lambda: pushed)
            [request] = pushed
            told = request.header(ReplyMessageHeader)
            assert (request.body, told.topic, told.producerGroup) == (b"yes", TOPIC, "PG")
            assert "CORRELATION_ID\x01c-1\x02" in (told.properties or "")
            assert "PUSH_REPLY_TIME\x01" in (told.properties or "")
            assert told.bornHost.startswith("127.0.0.1:")
            await asking.close()
            tasks.cancel()

    asyncio.run(test())


def test_a_message_that_asks_for_nothing_is_not_answered() -> None:
    with pytest.raises(InvalidMessage, match="expects no reply"):
        reply_to(received({}), b"x")
    asked = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "me", "TTL": "1", "CLUSTER": "Mine"}
    reply = reply_to(received(asked), b"x", {"own": "1"})
    assert reply.topic == "Mine_REPLY_TOPIC"
    assert reply.properties == {
        "own": "1",
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c",
        "REPLY_TO_CLIENT": "me",
        "TTL": "1",
    }


def received(properties: dict[str, str]) -> ReceivedMessage:
    queue = MessageQueue("T", "broker-a", 0)
    return ReceivedMessage("T", b"x", queue, 0, "id", "id", properties, 0, 0, 0, 0, "h", "h", 0, 0)
