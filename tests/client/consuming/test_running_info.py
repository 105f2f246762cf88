"""What consumers answer when brokers ask about them, and how they follow a reset of their group."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    FromWhere,
    MessageQueue,
)
from dledger.client.message import ReceivedMessage
from dledger.remoting.bodies import MessageQueue as WireQueue
from dledger.remoting.bodies import decode_queue_table, queue_table
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import loads
from dledger.remoting.headers import PullMessageHeader, ResetOffsetHeader
from dledger.remoting.operator_headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusOfClientHeader,
    RunningInfoHeader,
)
from dledger.remoting.server import Connection
from tests.client.consumer_kit import committed
from tests.client.consuming.test_consumers import QUICK, produce
from tests.client.consuming.test_lite_pull import play
from tests.client.fake_cluster import GROUP, FakeBroker, FakeCluster, eventually

COUNT = 10
RESET = ResetOffsetHeader("group", "orders", -1, True)


def connection_of(fake: FakeCluster) -> tuple[str, Connection]:
    """The one consumer of the group."""
    ((client_id, connection),) = fake.brokers[fake.leader].clients["group"].items()
    return client_id, connection


async def ask(fake: FakeCluster, code: RequestCode, header: msgspec.Struct, body: bytes = b"") -> Response:
    answer: asyncio.Future[Response | RemotingError] = asyncio.get_running_loop().create_future()
    connection_of(fake)[1].ask(code, header, body, 60.0, answer.set_result)
    found = await answer
    assert isinstance(found, Response), found
    return found


class Heard(list[int]):
    """A listener that notes bodies."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(int(message.body))
        if self[-1] == 13:
            raise ValueError("unlucky")


def pusher(fake: FakeCluster, heard: Heard, **more: Any) -> AsyncPushConsumer:
    settings: dict[str, Any] = {"topic": "orders", "from_where": FromWhere.FIRST, "options": QUICK, **more}
    return AsyncPushConsumer("group", fake.namesrv, heard, **settings)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer_goes_where_its_group_is_set(orderly: bool, known: bool) -> None:
    """`known`: the broker has the new offset as well. Where a commit was under way it may not, and brokers of
    RocketMQ 4.9 leave it to the consumer."""

    async def test(fake: FakeCluster) -> None:
        await produce(fake, COUNT)
        heard = Heard()
        async with pusher(fake, heard, orderly=orderly):
            await eventually(lambda: len(heard) == COUNT)
            wanted = {WireQueue("orders", GROUP, queue): 2 for queue in (0, 1)}
            if known:
                fake.offsets.update({("group", "orders", queue): 2 for queue in (0, 1)})
            fields = {"topic": "orders", "group": "group", "timestamp": "-1", "isForce": "true"}
            body = queue_table("offsetTable", wanted)
            connection_of(fake)[1].send_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
            await eventually(lambda: len(heard) == 2 * COUNT - 4)
            assert sorted(heard[COUNT:]) == list(range(4, COUNT))

    play(test)


@pytest.mark.parametrize("kind", ["push", "pull", "lite"])
def test_a_consumer_that_a_pull_sends_elsewhere_forgets_what_it_has(kind: str) -> None:
    """Else it would commit what it still has, and undo the reset."""
    told: list[int] = []

    def reset_once(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != RequestCode.PULL_MESSAGE or told:
            return False
        header = request.header(PullMessageHeader)
        if header.topic != "orders" or header.queueOffset < COUNT:
            return False
        told.append(header.queueOffset)
        ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "10"}
        connection.respond(request, ResponseCode.PULL_OFFSET_MOVED, ext=ext, remark="OFFSET_RESET")
        return True

    async def test(fake: FakeCluster) -> None:
        await produce(fake, COUNT)
        fake.script = reset_once
        expected = [*range(COUNT), *range(3, COUNT)]
        if kind == "push":
            heard = Heard()
            async with pusher(fake, heard):
                await eventually(lambda: len(heard) >= len(expected))
                assert sorted(heard) == sorted(expected)
            return
        one: AsyncPullConsumer | AsyncLitePullConsumer
        if kind == "pull":
            one = AsyncPullConsumer("group", fake.namesrv)
        else:
            one = AsyncLitePullConsumer("group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST)
        async with one:
            if isinstance(one, AsyncPullConsumer):
                await one.assign([MessageQueue("orders", GROUP, 0)], start=FromWhere.FIRST)
            found: list[int] = []
            queue = MessageQueue("orders", GROUP, 0)
            await eventually(lambda: bool(told) and one.position(queue) == 3)  # and it has heard of it
            while not found or found[-1] != COUNT - 1:
                found += [int(message.body) for message in await one.poll(20.0)]
            assert found == list(range(3, COUNT)), "the ten that it had are forgotten"

    play(test, queues=1)


def test_a_reset_is_heard_from_a_broker_that_is_not_known_to_lead() -> None:
    """Its answer is on the way while others are asked who leads; the next one may not say it again."""
    told: list[int] = []

    async def test(fake: FakeCluster) -> None:
        await produce(fake, COUNT)
        async with AsyncPullConsumer("group", fake.namesrv) as consumer:

            def reset_once(broker: FakeBroker, connection: Connection, request: Request) -> bool:
                if request.code != RequestCode.PULL_MESSAGE or told:
                    return False
                if request.header(PullMessageHeader).queueOffset < COUNT:
                    return False
                told.append(COUNT)
                consumer._core.group(GROUP).leader = None
                ext = {
                    "suggestWhichBrokerId": "0",
                    "nextBeginOffset": "3",
                    "minOffset": "0",
                    "maxOffset": "10",
                }
                connection.respond(request, ResponseCode.PULL_OFFSET_MOVED, ext=ext, remark="OFFSET_RESET")
                return True

            fake.script = reset_once
            queue = MessageQueue("orders", GROUP, 0)
            await consumer.assign([queue], start=FromWhere.FIRST)
            await eventually(lambda: bool(told) and consumer.position(queue) == 3)

    play(test, queues=1)


def test_what_a_push_consumer_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, COUNT)
        heard = Heard()
        async with pusher(fake, heard):
            await eventually(lambda: committed(fake) == COUNT)  # each call has ended
            client_id, _ = connection_of(fake)
            header = RunningInfoHeader("group", client_id, jstackEnable=True)
            answer = await ask(fake, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            info = loads(bytes(answer.body), large=True)
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
            assert {one["topic"] for one in info["subscriptionSet"]} == {"orders", "%RETRY%group"}
            rates = info["statusTable"]
            assert set(rates) == {"orders", "%RETRY%group"}
            assert rates["orders"]["consumeOKTPS"] > 0 and rates["orders"]["pullTPS"] > 0
            assert rates["orders"]["consumeFailedMsgs"] == rates["%RETRY%group"]["consumeOKTPS"] == 0
            queues = {json.loads(key)["queueId"]: value for key, value in info["mqTable"].items()}
            assert [queues[number]["commitOffset"] for number in (0, 1)] == [5, 5]
            assert "thread MainThread" in info["jstack"] and "task heartbeats" in info["jstack"]

            question = ConsumerStatusOfClientHeader("orders", "group")
            answer = await ask(fake, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
            table = decode_queue_table(bytes(answer.body), "messageQueueTable", int)
            assert table == {WireQueue("orders", GROUP, queue): 5 for queue in (0, 1)}

            other = ConsumerStatusOfClientHeader("orders", "other")
            answer = await ask(fake, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, other)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "not exist in this consumer" in (
                answer.remark or ""
            )

    play(test)


def test_a_listener_is_called_with_one_message() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 14)
        heard = Heard()
        async with pusher(fake, heard, from_where=FromWhere.LAST):
            await eventually(lambda: bool(fake.brokers[fake.leader].clients.get("group")))
            header = ConsumeDirectlyHeader("group", connection_of(fake)[0], "id", GROUP)
            records = {int(one.body): one.record() for queue in (0, 1) for one in fake.queue("orders", queue)}
            answer = await ask(fake, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, records[7])
            assert json.loads(bytes(answer.body))["consumeResult"] == "CR_SUCCESS"
            answer = await ask(fake, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, records[13])
            told = json.loads(bytes(answer.body))
            assert told["consumeResult"] == "CR_THROW_EXCEPTION" and "unlucky" in told["remark"]
            answer = await ask(fake, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"nonsense")
            assert answer.code == ResponseCode.SYSTEM_ERROR and "not a message" in (answer.remark or "")
            assert heard == [7, 13]

    play(test)
