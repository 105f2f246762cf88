"""A whole NameServer over its port."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from namesrv_kit import ADDRESS, nameserver, run, until

from dledger.namesrv import service
from dledger.namesrv.config import NamesrvConfig
from dledger.remoting.bodies import ClusterInfo, KvTable, TopicList, TopicRoute, decode_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    GetRouteHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    NoHeader,
    PutKvConfigHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    TopicHeader,
)
from dledger.remoting.registration import DataVersion, decode_data_version
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.settings import ConfigError
from tests.broker.harness import skip_s

OTHER = "10.0.0.2:10911"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_in_both_forms_gives_a_route_in_strict_json(compressed: bool) -> None:
    async def main() -> None:
        async with nameserver() as world:
            assert (await world.register(compressed=compressed)).code == 0
            response = await world.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))
            assert json.loads(response.body) == {
                "brokerDatas": [
                    {
                        "brokerAddrs": {"0": ADDRESS},
                        "brokerName": "broker-a",
                        "cluster": "c",
                        "enableActingMaster": False,
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": "broker-a",
                        "perm": 6,
                        "readQueueNums": 4,
                        "topicSysFlag": 0,
                        "writeQueueNums": 4,
                    }
                ],
            }

    run(main())


def test_an_unknown_topic_is_17_with_its_name() -> None:
    async def main() -> None:
        async with nameserver() as world:
            response = await world.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("X"))
            assert response.code == ResponseCode.TOPIC_NOT_EXIST
            assert (response.remark or "").startswith("No topic route info in name server for the topic: X")

    run(main())


def test_a_route_follows_every_change() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            assert (await world.route()) is not None
            await world.register(OTHER, 2)
            route = await world.route()
            assert route is not None and route.brokerDatas[0].brokerAddrs == {0: ADDRESS, 2: OTHER}
            await world.register(OTHER, 0, term=2)
            route = await world.route()
            assert route is not None and route.brokerDatas[0].brokerAddrs == {0: OTHER}

    run(main())


def test_a_slave_is_told_its_master() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            header = (await world.register(OTHER, 2)).header(RegisterBrokerResponseHeader)
            assert (header.masterAddr, header.haServerAddr) == (ADDRESS, f"ha-{ADDRESS}")

    run(main())


def test_an_old_master_is_refused_with_the_reason() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register(OTHER, 0, term=3)
            response = await world.register(ADDRESS, 0, term=2)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert f"{OTHER} is registered with 3" in (response.remark or "")

    run(main())


@pytest.mark.parametrize(
    "changes, body, remark",
    [
        ({"bodyCrc32": 5}, b"{}", "crc32 not match"),
        ({}, b"{nonsense", "not JSON"),
        ({"compressed": True}, b"{}", "cannot be unpacked"),
        ({"brokerName": ""}, b"", "must not be empty"),
    ],
)
def test_a_bad_registration_is_refused_with_the_reason(
    changes: dict[str, object], body: bytes, remark: str
) -> None:
    async def main() -> None:
        async with nameserver() as world:
            header = RegisterBrokerHeader("broker-a", ADDRESS, "c", "ha", 0)
            for name, value in changes.items():
                setattr(header, name, value)
            response = await world.call(RequestCode.REGISTER_BROKER, header, body)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert remark in (response.remark or "")
            assert (await world.call(RequestCode.REGISTER_BROKER, {"brokerName": "x"})).remark == (
                "the header of REGISTER_BROKER lacks the field brokerAddr"
            )

    run(main())


def test_a_closed_connection_removes_the_broker_at_once() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            world.nameserver.server.connections[0].abort()
            await until(lambda: not world.nameserver.routes.live())
            assert await world.route() is None

    run(main())


def test_a_silent_broker_expires_and_is_hung_up() -> None:
    async def main() -> None:
        config = NamesrvConfig(scan_interval_ms=10)
        async with nameserver(config) as world:
            await world.register(timeout_ms=60_000)
            heartbeat = BrokerHeartbeatHeader("c", ADDRESS, "broker-a")
            for _ in range(2):
                await skip_s(40.0)
                await world.client.invoke_oneway(world.address, RequestCode.BROKER_HEARTBEAT, heartbeat)
                assert (await world.route()) is not None  # asked behind it, on the same connection
                await asyncio.sleep(0.1)  # the NameServer looks
            assert len(world.nameserver.routes.live()) == 1, "80 s after it was registered"
            await skip_s(60.0)
            await until(lambda: not world.client.connected(world.address))
            assert await world.route() is None

    run(main())


def test_unregistering_removes_the_route() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            header = BrokerIdentityHeader("broker-a", ADDRESS, "c", 0)
            assert (await world.call(RequestCode.UNREGISTER_BROKER, header)).code == 0
            assert await world.route() is None

    run(main())


def test_tables_kept_for_decoding_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with nameserver() as world:
            for counter in range(3):
                topics = tuple(f"T{number}" for number in range(4 + counter))
                for broker in ("a", "b", "c"):
                    assert (await world.register(f"{broker}:1", topics=topics, counter=counter)).code == 0
                    assert (
                        await world.register(f"{broker}:2", 1, topics, counter=counter, name=broker)
                    ).code == 0
                route = await world.route(topics[-1])
                assert route is not None and route.queueDatas[0].brokerName == "broker-a"
            sizes = {name: known.size for name, known in world.nameserver._known.items()}
            assert set(sizes) == {"broker-a", "a", "b", "c"}
            assert world.nameserver._known_bytes == sum(sizes.values()) > 0
            monkeypatch.setattr(service, "MAX_KNOWN_BYTES", 2 * sizes["c"])
            assert (await world.register("b:2", 1, topics, name="b")).code == 0
            assert list(world.nameserver._known) == ["c", "b"]
            monkeypatch.setattr(service, "MAX_KNOWN_BYTES", 0)
            assert (await world.register("b:2", 1, topics, name="b")).code == 0
            assert not world.nameserver._known and world.nameserver._known_bytes == 0

    run(test())


def test_tables_are_kept_of_groups_that_are_registered_only() -> None:
    async def test() -> None:
        async with nameserver() as world:
            kept = world.nameserver._known
            assert (await world.register("a:1", name="a", term=3)).code == 0
            assert (await world.register("b:1", name="b")).code == 0
            assert set(kept) == {"a", "b"}
            for number in range(3):
                assert (await world.register("c:1", name=f"c{number}")).code == 0
            assert set(kept) == {"a", "b", "c2"}, "it takes the place of the one before at this address"
            assert (await world.register("d:1", name="a", term=2)).code == ResponseCode.SYSTEM_ERROR
            assert set(kept) == {"b", "c2"}, "what is refused is not kept"
            header = BrokerIdentityHeader("b", "b:1", "c", 0)
            assert (await world.call(RequestCode.UNREGISTER_BROKER, header)).code == 0
            assert (await world.register("a:1", name="a", term=3)).code == 0
            assert set(kept) == {"a", "c2"}
            assert world.nameserver._known_bytes == sum(known.size for known in kept.values())

    run(test())


def test_the_data_version_says_whether_to_register_again() -> None:
    async def main() -> None:
        async with nameserver() as world:
            header = BrokerIdentityHeader("broker-a", ADDRESS, "c", 0)
            version = DataVersion(1, 1, 5)
            response = await world.call(RequestCode.QUERY_DATA_VERSION, header, version.encode())
            assert (response.ext, response.body) == ({"changed": "true"}, b"")
            await world.register()
            response = await world.call(RequestCode.QUERY_DATA_VERSION, header, version.encode())
            assert response.ext == {"changed": "false"}
            assert decode_data_version(response.body) == version
            response = await world.call(RequestCode.QUERY_DATA_VERSION, header, DataVersion(1, 2, 5).encode())
            assert response.ext == {"changed": "true"}

    run(main())


def test_questions_about_clusters_and_topics() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            info = decode_body((await world.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)
            assert info.clusterAddrTable == {"c": ["broker-a"]}
            assert info.brokerAddrTable["broker-a"].master == ADDRESS

            async def topics(code: int, header: ClusterHeader | None = None) -> list[str]:
                return decode_body((await world.call(code, header)).body, TopicList).topicList

            assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T", "TBW102"]
            assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader("c")) == ["T", "TBW102"]
            assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader("x")) == []
            assert await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["c", "broker-a"]
            group = await world.call(
                RequestCode.GET_BROKER_MEMBER_GROUP, BrokerMemberGroupHeader("c", "broker-a")
            )
            assert json.loads(group.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": ADDRESS}
            missing = await world.call(RequestCode.GET_BROKER_MEMBER_GROUP, BrokerMemberGroupHeader("c", "b"))
            assert missing.code == ResponseCode.SYSTEM_ERROR

    run(main())


def test_write_permission_and_topic_deletion() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            name = BrokerNameHeader("broker-a")
            wiped = await world.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
            assert wiped.ext == {"wipeTopicCount": "2"}
            route = await world.route()
            assert route is not None and route.queueDatas[0].perm == 4
            added = await world.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
            assert added.ext == {"addTopicCount": "2"}
            body = route.encode()
            assert (await world.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicHeader("N"), body)).code == 0
            assert isinstance(await world.route("N"), TopicRoute)
            await world.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader("N"))
            assert await world.route("N") is None

    run(main())


def test_kv_entries_survive_a_restart_and_order_topics_reach_routes_and_brokers(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_path=str(tmp_path / "kvConfig.json"))
    order = "ORDER_TOPIC_CONFIG"

    async def first() -> None:
        async with nameserver(config) as world:
            for key, value in (("T", "broker-a:4"), ("U", "x"), ("V", "y")):
                put = await world.call(RequestCode.PUT_KV_CONFIG, PutKvConfigHeader(order, key, value))
                assert put.code == 0
            await world.call(RequestCode.DELETE_KV_CONFIG, KvConfigHeader(order, "V"))

    async def second() -> None:
        async with nameserver(config) as world:
            got = await world.call(RequestCode.GET_KV_CONFIG, KvConfigHeader(order, "T"))
            assert got.ext == {"value": "broker-a:4"}
            table = await world.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespaceHeader(order))
            assert decode_body(table.body, KvTable).table == {"T": "broker-a:4", "U": "x"}
            response = await world.register()
            assert decode_body(response.body, KvTable).table == {"T": "broker-a:4", "U": "x"}
            route = await world.route()
            assert route is not None and route.orderTopicConf == "broker-a:4"
            for code, header in (
                (RequestCode.GET_KV_CONFIG, KvConfigHeader(order, "V")),
                (RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespaceHeader("nothing")),
            ):
                assert (await world.call(code, header)).code == ResponseCode.QUERY_NOT_FOUND

    run(first())
    assert json.loads((tmp_path / "kvConfig.json").read_text()) == {
        "configTable": {order: {"T": "broker-a:4", "U": "x"}}
    }
    run(second())


def test_a_kv_file_that_cannot_be_written_fails_the_request_and_changes_nothing(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_path=str(tmp_path / "no" / "such" / "kvConfig.json"))

    async def main() -> None:
        async with nameserver(config) as world:
            put = await world.call(RequestCode.PUT_KV_CONFIG, PutKvConfigHeader("n", "k", "v"))
            assert put.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be written" in (put.remark or "")
            got = await world.call(RequestCode.GET_KV_CONFIG, KvConfigHeader("n", "k"))
            assert got.code == ResponseCode.QUERY_NOT_FOUND

    run(main())


@pytest.mark.parametrize("content", ["{", "[]", '{"configTable":{"n":5}}'])
def test_a_damaged_kv_file_stops_the_start_and_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(content)

    async def main() -> None:
        async with nameserver(NamesrvConfig(kv_path=str(path))):
            pass

    with pytest.raises(ExceptionGroup) as caught:
        run(main())
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(path) in str(error)


def test_the_configuration_is_shown() -> None:
    async def main() -> None:
        async with nameserver() as world:
            body = (await world.call(RequestCode.GET_NAMESRV_CONFIG)).body
            assert b"bindAddress=127.0.0.1\n" in body

    run(main())


def test_the_configuration_changes_while_it_runs_and_the_file_keeps_it(tmp_path: Path) -> None:
    """318: all of it or nothing; routes follow at once."""
    path = tmp_path / "namesrv.conf"
    path.write_text("# mine\norderMessageEnable = true\n")

    async def main() -> None:
        config = NamesrvConfig(kv_path=str(tmp_path / "kvConfig.json"))
        async with nameserver(config, SettingsSource(str(path))) as world:
            await world.register()
            put = PutKvConfigHeader("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
            (await world.call(RequestCode.PUT_KV_CONFIG, put)).checked()
            update = partial(world.call, RequestCode.UPDATE_NAMESRV_CONFIG, NoHeader())
            route = await world.route()
            assert route is not None and route.orderTopicConf == "broker-a:4"
            for body, code, text in (
                (b"orderMessageEnable=false\nlistenPort=1", 1, "listenPort cannot change while"),
                (b"orderMessageEnable=false\nkvConfigPath=/tmp/x", 16, "in black list: kvConfigPath"),
                (b"orderMessageEnable=false\norderMessage=1", 1, "did you mean 'orderMessageEnable'"),
                (b"orderMessageEnable=no", 1, "'no': expected true or false"),
            ):
                answer = await update(body)
                assert answer.code == code and text in (answer.remark or "")
            assert path.read_text() == "# mine\norderMessageEnable = true\n"
            (await update(b"orderMessageEnable=false\nscanNotActiveBrokerInterval=7000\n")).checked()
            assert path.read_text() == "# mine\norderMessageEnable=false\nscanNotActiveBrokerInterval=7000\n"
            route = await world.route()
            assert route is not None and route.orderTopicConf is None
            shown = (await world.call(RequestCode.GET_NAMESRV_CONFIG)).body
            assert b"orderMessageEnable=false\n" in shown

    run(main())


def test_many_clients_ask_at_once() -> None:
    async def main() -> None:
        async with nameserver() as world:
            await world.register()
            clients = [RemotingClient(world.nameserver.kv._env) for _ in range(20)]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(client.run()) for client in clients]
                answers = await asyncio.gather(
                    *(
                        client.invoke(world.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))
                        for client in clients
                        for _ in range(10)
                    )
                )
                assert {answer.code for answer in answers} == {0}
                for client in clients:
                    await client.close()
                for task in running:
                    task.cancel()

    run(main())
