"""What tools ask consumers, through a broker that need not be the one they are connected to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dledger.formats.message_ids import decode_message_id
from dledger.formats.record import decode_record
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.fastjson import loads
from dledger.remoting.operator_headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
)
from dledger.runtime.env import production_env
from tests.broker.harness import World, run, send_header
from tests.broker.test_app import LIMIT_S, PatientClient, configs, running, steady_leader
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading

STATUS = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}'


def test_a_consumer_is_asked_wherever_it_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at one follower, the tool at the leader. What it answers is the answer, a refusal as well."""
    asked: list[Request] = []
    answers: dict[int, Response | None] = {
        RequestCode.GET_CONSUMER_RUNNING_INFO: Response(0, body=b'{"jstack":"x"}'),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: Response(1, remark="not now"),
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Response(0, body=STATUS),
    }

    def take(address: str, request: Request) -> Response | None:
        asked.append(request)
        return answers[request.code]

    monkeypatch.setattr("dledger.broker.clients.consumer_calls.CALL_TIMEOUT_S", LIMIT_S)

    async def test() -> None:
        env = production_env("test")
        consumer = PatientClient(env, handlers=dict.fromkeys(answers, take))
        async with running(*configs(tmp_path, 3)) as (nodes, client):
            tasks = asyncio.ensure_future(consumer.run())
            leader = await steady_leader(nodes)
            follower = next(node for node in nodes if node is not leader)
            beat = RequestCode.HEART_BEAT
            at = follower.config.client_addr
            (await consumer.invoke(at, beat, None, heartbeat("c@1"))).checked()

            async def ask(code: RequestCode, header: Any, address: str = "") -> Response:
                return await client.invoke(address or leader.config.client_addr, code, header)

            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            found = await ask(code, RunningInfoHeader("CG", "c@1", jstackEnable=True))
            assert (found.code, bytes(found.body)) == (0, b'{"jstack":"x"}')
            assert asked[-1].ext()["jstackEnable"] == "true"
            nobody = await ask(code, RunningInfoHeader("CG", "d@1"))
            assert nobody.remark == "The Consumer <CG> <d@1> not online"
            answers[code] = None
            with monkeypatch.context() as patched:
                patched.setattr("dledger.broker.clients.consumer_calls.CALL_TIMEOUT_S", 0.1)
                late = await ask(code, RunningInfoHeader("CG", "c@1"))
            assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT

            header = send_header("T", 0, "")
            address = leader.config.client_addr
            sent = await client.invoke(address, RequestCode.SEND_MESSAGE_V2, header, b"hello")
            position = decode_message_id(sent.checked().ext["msgId"]).physical_offset
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            given = ConsumeDirectlyHeader("CG", "c@1", sent.ext["msgId"])
            refused = await ask(code, given)
            while "can not find" in (refused.remark or ""):  # the follower has not applied it yet
                await asyncio.sleep(0.01)
                refused = await ask(code, given)
            assert (refused.code, refused.remark) == (1, "not now")
            record = decode_record(asked[-1].body)
            assert (record.physical_offset, record.body) == (position, b"hello")
            assert asked[-1].ext()["brokerName"] == "broker-a"

            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            shown = await ask(code, ConsumerStatusHeader("T", "CG"), follower.config.client_addr)
            table = loads(bytes(shown.body), large=True)["consumerTable"]
            assert list(table) == ["c@1"] and list(table["c@1"].values()) == [7]
            await consumer.close()
            tasks.cancel()

    asyncio.run(test())


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            reply = await world.call(code, ConsumeDirectlyHeader("CG", "c", "nonsense"))
            assert reply.code == ResponseCode.SYSTEM_ERROR and "is not an offset message id" in (
                reply.remark or ""
            )
            reply = await world.call(code, ConsumeDirectlyHeader("CG", "c", "0A000001000059E2" + "F" * 16))
            assert "can not find message" in (reply.remark or "")
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            reply = await world.call(code, ConsumerStatusHeader("T", "nobody"))
            assert "No Any Consumer online" in (reply.remark or "")
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
            reply = await world.call(code, ConsumerStatusHeader("T", "CG", "other"))
            assert json.loads(reply.body) == {"consumerTable": {}, "messageQueueTable": {}}

    run(test)


def test_a_broker_that_is_alone_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        reply = await world.call(code, RunningInfoHeader("CG", "c"))
        assert reply.remark == "The Consumer <CG> <c> not online"

    run(test)
