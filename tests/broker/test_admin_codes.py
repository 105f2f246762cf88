"""What RocketMQ's tools ask brokers for: tables, replication, lists; and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.admin.refusals import REFUSED
from dledger.broker.topic.topic_processor import MAX_LIST
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import CONTROLLER_REQUESTS, NameServer
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.frames import encode_request
from dledger.remoting.headers import UpdateConsumerOffsetHeader
from dledger.remoting.operator_headers import CorrectionOffsetHeader
from tests.broker.harness import FakeConnection, World, decode, make_env, run
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading


async def asked(world: World, code: int, header: Any = None) -> dict[str, Any]:
    reply = await world.call(code, header)
    assert reply.code == 0, reply.remark
    found: dict[str, Any] = json.loads(reply.body)
    return found


def test_ha_status_and_epochs_are_those_of_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            status = await asked(world, RequestCode.GET_BROKER_HA_STATUS)
            end = world.node.log.end_pos
            assert status["master"] is True and status["masterCommitLogMaxOffset"] == end
            (row,) = status["haConnectionInfo"]
            assert row["diff"] == end - row["slaveAckOffset"] and row["inSync"] is False
            middle = world.node.log.end_pos
            world.node.follow(None)
            world.node.lead()
            await world.send()
            epochs = await asked(world, RequestCode.GET_BROKER_EPOCH_CACHE)
            first, second = epochs["epochList"]
            assert (first["startOffset"], first["endOffset"]) == (0, middle)
            assert (second["startOffset"], second["endOffset"]) == (middle, epochs["maxOffset"])
            assert second["epoch"] == world.node.term

    run(test)


def test_lists_of_topics_and_groups_are_made_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            state = world.broker.store.state
            for code, key, name, known in (
                (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", "topicName", state.topics),
                (
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                    "groupConfigList",
                    "groupName",
                    state.groups,
                ),
            ):
                lists = {
                    0: [{name: "A"}, {name: "B"}],
                    ResponseCode.INVALID_PARAMETER: [{name: "C"}, {name: "not a name"}],
                }
                for wanted, rows in lists.items():
                    reply = await world.call(code, None, json.dumps({key: rows}).encode())
                    assert reply.code == wanted
                assert {"A", "B"} <= known.keys() and "C" not in known
                many = json.dumps({key: [{name: f"N{one}"} for one in range(MAX_LIST + 1)]}).encode()
                assert (await world.call(code, None, many)).code == ResponseCode.INVALID_PARAMETER

    run(test)


def test_tables(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for _ in range(5):
                await world.send()
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
            for group, offset in (("A", 4), ("B", 2), ("C", 1)):
                await world.pull(consumerGroup=group)
                header = UpdateConsumerOffsetHeader(group, "T", 0, offset)
                await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            code = RequestCode.QUERY_CORRECTION_OFFSET
            found = await asked(world, code, CorrectionOffsetHeader("A", "T", "C"))
            assert found["correctionOffsets"]["0"] == 2
            found = await asked(world, code, CorrectionOffsetHeader("C", "T", "C"))
            assert found["correctionOffsets"]["0"] == (1 << 63) - 1
            assert world.broker.store.state.offsets["C"], "the question deletes nothing"
            assert (await asked(world, RequestCode.GET_ALL_DELAY_OFFSET))["offsetTable"] == {}
            modes = await asked(world, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            assert modes == {"messageRequestModeMap": {}}
            producers = await asked(world, RequestCode.GET_ALL_PRODUCER_INFO)
            assert all(one["clientId"] for rows in producers["data"].values() for one in rows)

    run(test)


def test_expired_segments_are_looked_for_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert not world.node.expired
        assert (await world.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        assert world.node.expired
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            assert (await world.call(code)).code == 0

    run(test)


@pytest.mark.parametrize("code", REFUSED, ids=lambda code: code.name)
def test_what_there_is_none_of_is_refused_with_the_reason(tmp_path: Path, code: RequestCode) -> None:
    async def test() -> None:
        reply = await (await World(str(tmp_path)).open(lead=False)).call(code)
        assert (reply.code, reply.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, REFUSED[code])

    run(test)


@pytest.mark.parametrize("code", CONTROLLER_REQUESTS, ids=lambda code: code.name)
def test_a_nameserver_says_that_there_is_no_controller(code: RequestCode) -> None:
    connection: Any = FakeConnection()
    [request] = decode(encode_request(code, 1, None, 0))
    NameServer(make_env(), NamesrvConfig()).server.dispatch(connection, request)
    reply = connection.replies[1]
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and "by Raft" in (reply.remark or "")
