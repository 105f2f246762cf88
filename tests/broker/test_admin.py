"""Topics and groups by request; what the broker shows of itself; NameServers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dledger.broker.http import consumer_metrics
from dledger.broker.http.server import BrokerCollector
from dledger.broker.stats.runtime_info import runtime_info
from dledger.formats.state import DELAYS, DelayProgress
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import ConnectFailed
from dledger.remoting.headers import (
    CreateTopicHeader,
    NoHeader,
    RegisterBrokerHeader,
    UpdateConsumerOffsetHeader,
)
from dledger.remoting.registration import decode_registration
from tests.broker.harness import World, run
from tests.client.fake_cluster import eventually


def create(world: World, topic: str = "T", queues: int = 4, perm: int = 6, **more: Any) -> Any:
    header = CreateTopicHeader(topic, "TBW102", queues, queues, perm, **more)
    return world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def test_a_topic_is_created_and_changed_after_commit(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        asked = create(world, attributes="+message.type=NORMAL")
        assert not asked.done
        sent = world.send(queue=3)
        world.node.commit()
        assert asked.reply.code == sent.reply.code == ResponseCode.SUCCESS
        again = create(world, queues=2, perm=4, attributes="-message.type")
        assert world.send().reply.code == ResponseCode.NO_PERMISSION
        world.node.commit()
        assert again.reply.code == ResponseCode.SUCCESS
        topic = world.broker.store.state.topics["T"]
        # What is sent to queue 3 has readers.
        assert (topic.read_queues, topic.write_queues, topic.perm, topic.attributes) == (4, 2, 4, ())
        entries = len(world.node.log.entries)
        assert create(world, queues=2, perm=4).reply.code == ResponseCode.SUCCESS
        assert len(world.node.log.entries) == entries

    run(test)


def test_offsets_survive_fewer_and_more_queues(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await create(world, queues=4)
        await world.send(queue=3)
        await create(world, queues=1)
        assert (await world.send(queue=3)).ext["queueOffset"] == "1", (
            "who has the old route still sends there"
        )
        await create(world, queues=8)
        assert (await world.send(queue=3)).ext["queueOffset"] == "2"
        assert (await world.send(queue=7)).ext["queueOffset"] == "0"

    run(test)


def test_wrong_topics_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_topics=1).open()
        for pending in [
            create(world, "bad topic!"),
            create(world, "TBW102"),
            create(world, queues=0),
            create(world, queues=1025),
            create(world, perm=8),
            create(world, attributes="x"),
        ]:
            assert pending.reply.code == ResponseCode.INVALID_PARAMETER
        assert (await create(world, "A")).code == 0
        assert (await create(world, "B")).code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_a_group_is_created_and_counts(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await create(world)
        body = json.dumps({"groupName": "CG", "consumeEnable": False}).encode()
        reply = await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert reply.code == 0
        assert (await world.pull()).code == ResponseCode.NO_PERMISSION
        shown = await world.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert json.loads(shown.body)["subscriptionGroupTable"]["CG"]["consumeEnable"] is False

    run(test)


def test_what_of_a_group_has_no_effect_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for more, lost in (
            ({}, ""),
            ({"retryMaxTimes": 3, "consumeFromMinEnable": True}, ""),
            ({"brokerId": 1, "attributes": {"+a": "b"}}, "brokerId, attributes"),
            ({"consumeTimeoutMinute": 1}, "consumeTimeoutMinute"),
        ):
            group = {"groupName": "CG", **more}
            for code, asked in (
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
                (
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                    {"groupConfigList": [{"groupName": "A"}, group]},
                ),
            ):
                reply = await world.call(code, None, json.dumps(asked).encode())
                assert (reply.code, reply.remark) == (
                    0,
                    f"these settings have no effect here: {lost}" if lost else None,
                )

    run(test)


@pytest.mark.parametrize("flags", [-1, 1 << 31, 1 << 62])
def test_a_group_that_could_not_be_logged_is_refused(tmp_path: Path, flags: int) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        body = json.dumps({"groupName": "CG", "groupSysFlag": flags}).encode()
        reply = await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "CG" not in world.broker.store.state.groups

    run(test)


def test_what_the_broker_shows(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await create(world)
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        topics = await world.call(RequestCode.GET_ALL_TOPIC_CONFIG, NoHeader())
        table = json.loads(topics.body)["topicConfigTable"]
        assert {"T", "TBW102", "SELF_TEST_TOPIC", "DefaultCluster", "broker-a"} <= set(table)
        assert table["TBW102"]["perm"] == 7 and topics.ext["totalTopicNum"] == str(len(table))
        config = await world.call(RequestCode.GET_BROKER_CONFIG)
        assert b"brokerName=broker-a\n" in config.body
        runtime = await world.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        task.cancel()
        figures = json.loads(runtime.body)["table"]
        assert figures["brokerRole"] == "SYNC_MASTER"
        assert 0 <= float(figures["commitLogDiskRatio"]) <= 1
        for rates in ("putTps", "getTransferredTps", "getTransferedTps"):
            assert len(list(map(float, figures[rates].split(" ")))) == 3

    run(test)


EXPORTER_NUMBERS = """
    msgPutTotalTodayNow sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
    msgGetTotalTodayNow queryThreadPoolQueueSize bootTimestamp msgPutTotalYesterdayMorning
    msgGetTotalYesterdayMorning pullThreadPoolQueueSize commitLogMinOffset
    pullThreadPoolQueueHeadWaitTimeMills dispatchMaxBuffer brokerVersion pageCacheLockTimeMills
    commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning putMessageTimesTotal
    msgGetTotalTodayMorning sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
    putMessageEntireTimeMax earliestMessageTimeStamp remainTransientStoreBufferNumbs
    queryThreadPoolQueueCapacity dispatchBehindBytes putMessageSizeTotal sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity
"""
"""What rocketmq-exporter (0.0.3) reads as whole numbers; where one is missing it reads nothing at all."""


def test_the_exporter_finds_all_that_it_reads(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await create(world)
        for body in (b"one", b"two", b"three"):
            assert (await world.send(body=body)).code == ResponseCode.SUCCESS
        assert (await world.send(properties="DELAY\x013\x02")).code == ResponseCode.SUCCESS
        world.broker.store.state[DELAYS].put(DelayProgress(3, 0))
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        runtime = await world.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        task.cancel()
        figures = json.loads(runtime.body)["table"]
        numbers = {key: int(figures[key]) for key in EXPORTER_NUMBERS.split()}
        assert numbers["putMessageTimesTotal"] == 4
        assert numbers["putMessageSizeTotal"] / 4 == float(figures["putMessageAverageSize"]) > 91
        assert numbers["bootTimestamp"] == world.broker.boot_ms
        parts = dict(part.split(":") for part in figures["putMessageDistributeTime"].split(" "))
        assert len(parts) == 13 and sum(map(int, parts.values())) == 4
        words = figures["commitLogDirCapacity"].split(" ")
        assert words[:2] == ["Total", ":"] and words[3].endswith("iB,") and words[7].endswith("iB.")
        assert float(words[2]) >= float(words[6]) > 0
        assert figures["remainHowManyDataToFlush"] == "0 B"
        assert figures["scheduleMessageOffset_3"] == "0,1"
        assert figures["runtime"].startswith("[ 0 days, 0 hours, ")

    run(test)


class Servers:
    """Stands in for the client: what the NameServers were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, Any, Any]] = []
        self.down: list[str] = []
        self.slow: list[str] = []
        self.refusing: list[str] = []

    async def invoke(
        self, addr: str, code: int, header: Any, body: bytes = b"", timeout_s: float = 3.0
    ) -> Response:
        if addr in self.down:
            raise ConnectFailed("refused", refused=True)
        if addr in self.refusing:
            return Response(ResponseCode.SYSTEM_ERROR, remark="an older term")
        if addr in self.slow:
            await asyncio.sleep(10)
        content = decode_registration(body, crc=header.bodyCrc32) if code == 103 else None
        self.told.append((addr, code, header, content))
        return Response(0)


async def registered_world(root: Path, *addrs: str) -> tuple[World, Servers, Any]:
    world = World(str(root), namesrv_addr=addrs)
    servers = Servers()
    world.features.registration.registrar._client = servers  # type: ignore[assignment]
    await world.open(lead=False)
    return world, servers, asyncio.ensure_future(world.features.registration.registrar.keep_informed())


def test_roles_and_topics_are_told_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        world, servers, task = await registered_world(tmp_path, "a:1", "b:1")
        await eventually(lambda: len(servers.told) == 2)
        world.node.lead()
        await eventually(lambda: len(servers.told) == 4)
        created = create(world)
        assert (await created).code == 0
        await eventually(lambda: len(servers.told) == 6)
        world.node.follow("n1")
        await eventually(lambda: len(servers.told) == 8)
        for addr in ("a:1", "b:1"):
            told = [(header, content) for at, _, header, content in servers.told if at == addr]
            assert [header.brokerId for header, _ in told] == [1, 0, 0, 1]
            header: RegisterBrokerHeader = told[1][0]
            assert (header.brokerName, header.brokerAddr) == ("broker-a", "10.0.0.1:10911")
            assert told[1][1].data_version.stateVersion == 1
            assert "T" not in told[1][1].topics and told[2][1].topics["T"].readQueueNums == 4
            assert told[2][1].data_version.counter == 1
            assert told[3][1].data_version.stateVersion == 2
        await world.features.registration.registrar.unregister()
        assert [code for _, code, _, _ in servers.told[-2:]] == [104, 104]
        task.cancel()

    run(test)


def test_a_lagging_name_server_delays_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        world, servers, task = await registered_world(tmp_path, "down:1", "slow:1", "ok:1")
        servers.down.append("down:1")
        servers.slow.append("slow:1")
        await eventually(lambda: len(servers.told) == 1)
        world.node.lead()
        await eventually(lambda: len(servers.told) == 2)
        assert [header.brokerId for addr, _, header, _ in servers.told] == [1, 0]
        await eventually(lambda: world.features.registration.registrar.registered["ok:1"])
        assert world.features.registration.registrar.registered == {
            "down:1": False,
            "slow:1": False,
            "ok:1": True,
        }
        assert (await create(world)).code == 0  # after a second, not ten
        task.cancel()

    run(test)


def test_health_and_metrics_say_which_name_server_did_not_take_a_registration(tmp_path: Path) -> None:
    async def test() -> None:
        world, servers, task = await registered_world(tmp_path, "down:1", "ok:1", "refuses:1")
        servers.down.append("down:1")
        servers.refusing.append("refuses:1")
        world.node.lead()
        failures = world.features.registration.registrar.failures
        await eventually(
            lambda: len(failures) == 2 and world.features.registration.registrar.registered["ok:1"]
        )
        body = world.broker.health.report()
        assert body["namesrv"] == {"down:1": False, "ok:1": True, "refuses:1": False}
        assert body["namesrv_failures"] == {"down:1": "refused", "refuses:1": "an older term"}
        assert body["healthy"] is True, "or all would be unhealthy while one NameServer is exchanged"
        text = metrics(world)
        for line in (
            'dledger_namesrv_registered{namesrv="down:1"} 0.0',
            'dledger_namesrv_registered{namesrv="ok:1"} 1.0',
            'dledger_registrations_failed_total{cause="RemotingError",namesrv="refuses:1"} ',
            'dledger_registrations_failed_total{cause="ConnectFailed",namesrv="down:1"} ',
            f"dledger_topic_table_bytes {world.features.topic.table.size}.0",
        ):
            assert line in text, line
        assert 'dledger_registrations_failed_total{cause="ConnectFailed",namesrv="ok:1"}' not in text
        servers.down.clear()
        servers.refusing.clear()
        world.features.registration.registrar.changed()
        await eventually(lambda: world.broker.health.report()["namesrv_failures"] == {})
        assert 'dledger_namesrv_registered{namesrv="down:1"} 1.0' in metrics(world)
        task.cancel()

    run(test)


def metrics(world: World) -> str:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(world.broker))
    return generate_latest(registry).decode()


def test_what_the_log_warns_of_degrades_a_node_and_leaves_it_healthy(tmp_path: Path) -> None:
    """Store time that is ahead is so on all members at once: none of them is to be taken away."""

    async def test() -> None:
        world = World(str(tmp_path))
        await world.open()
        status = world.node.status
        ahead = {
            "store_time_ahead_ms": 315_360_000_500,
            "warnings": ["the store time of the newest message is"],
        }
        world.node.status = lambda: status() | ahead  # type: ignore[method-assign]
        body = world.broker.health.report()
        assert body["warnings"] == ["the store time of the newest message is"]
        assert body["healthy"] is True and body["degraded"] is True and body["reasons"] == []
        assert "dledger_store_time_ahead_seconds 3.153600005e+08" in metrics(world)

    run(test)


def test_health_and_metrics(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(str(tmp_path))
        assert world.broker.health.report()["healthy"] is False
        await world.open()
        await world.send()
        body = world.broker.health.report()
        assert body["healthy"] is True and body["role"] == "LEADER" and body["apply_lag"] == 0
        world.node.follow(None)
        assert world.broker.health.report()["reasons"] == ["no leader is known"]
        text = metrics(world)
        for line in (
            "dledger_messages_in_total 1.0",
            'dledger_role{role="FOLLOWER"} 1.0',
            'dledger_peer_lag_entries{peer="n1"} 3.0',
            "dledger_serving 0.0",
        ):
            assert line in text
        assert "dledger_committed_index" in text and "dledger_applied_index" in text

    run(test)


def test_a_topic_with_fewer_queues_strands_no_message(tmp_path: Path) -> None:
    """Two programs create it with different numbers: three quarters of the messages had no reader."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await create(world, "shrunk", queues=8)
        for queue in range(6):
            await world.send("shrunk", b"in %d" % queue, queue)
        pending = world.send("shrunk", b"in 6", 6)
        reply = await create(world, "shrunk", queues=2)
        await pending
        assert reply.code == ResponseCode.SUCCESS
        assert "readQueueNums stays 7 instead of 2, as the queues up to 6 hold messages" in (
            reply.remark or ""
        )
        config = world.broker.store.state.topics["shrunk"]
        assert (config.read_queues, config.write_queues) == (7, 2)
        for queue in range(7):
            [record] = (await world.pull("shrunk", queue)).records
            assert record.body == b"in %d" % queue
        grown = await create(world, "shrunk", queues=8)
        assert (grown.code, grown.remark) == (ResponseCode.SUCCESS, None)
        assert [(await world.pull("shrunk", queue, 1)).code for queue in range(7)] == [19] * 7, (
            "nothing twice"
        )
        # Without messages it shrinks.
        await create(world, "empty", queues=8)
        assert (await create(world, "empty", queues=3)).remark is None
        assert world.broker.store.state.topics["empty"].read_queues == 3

    run(test)


def test_the_backlog_of_a_consumer_group_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for queue in (0, 0, 0, 1, 1):
            await world.send("T", queue=queue)
        for group, queue, offset in (("CG", 0, 1), ("CG", 1, 2), ("late", 0, 0)):
            header = UpdateConsumerOffsetHeader(group, "T", queue, offset)
            world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header, flag=2)
        assert len((await world.pull("T", offset=1)).records) == 2
        world.features.offset.offsets.flush()
        await asyncio.sleep(0.01)
        registry = CollectorRegistry()
        registry.register(BrokerCollector(world.broker))
        page = generate_latest(registry).decode()
        assert 'dledger_consumer_lag_messages{group="CG",topic="T"} 2.0' in page
        assert 'dledger_consumer_lag_messages{group="late",topic="T"} 3.0' in page
        assert 'dledger_consumer_inflight_messages{group="CG",topic="T"} 2.0' in page
        assert 'dledger_consumer_inflight_messages{group="late",topic="T"} 0.0' in page
        assert "dledger_consumer_groups_without_lag 0.0" in page
        monkeypatch.setattr(consumer_metrics, "MAX_LAG_QUEUES", 2)
        page = generate_latest(registry).decode()
        assert page.count("dledger_consumer_lag_messages{") == 1
        assert "dledger_consumer_groups_without_lag 1.0" in page

    run(test)


def test_each_figure_is_shown_under_a_name_of_its_own(tmp_path: Path) -> None:
    """A second one with the same key would hide the first."""

    async def test() -> None:
        broker = World(str(tmp_path)).broker
        figures = list(broker.figures())
        keys = [*runtime_info(broker.core, broker.boot_ms), *(one.key for one in figures if one.key)]
        metrics = [one.metric for one in figures if one.metric]
        assert len(keys) == len(set(keys)) and len(metrics) == len(set(metrics))
        assert all(one.help for one in figures if one.metric)
        assert all(value not in ("True", "False") for value in broker.runtime_info().values())

    run(test)


def test_a_console_sees_health_addresses_and_history_of_a_node(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        found = json.loads((await world.call(RequestCode.SHOW_NODE)).body)
        assert (
            found["healthy"] is True and found["role"] == "LEADER" and found["node"]["committed_index"] >= 0
        )
        assert found["members"][world.broker.config.self_id] == world.broker.config.client_addr
        assert [change["role"] for change in found["role_changes"]] == ["LEADER"]

    run(test)
