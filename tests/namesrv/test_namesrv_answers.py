"""What a client gets of a route: the form of JSON by its version, its zone; and what brokers are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import cast

import pytest
from namesrv_kit import nameserver

from dledger import AsyncProducer, ClientOptions
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import NameServer
from dledger.remoting.bodies import TopicRoute, decode_body
from dledger.remoting.codes import RequestCode
from dledger.remoting.fastjson import dumps, dumps_relaxed, loads
from dledger.remoting.frames import encode_request
from dledger.remoting.headers import RegisterBrokerHeader
from dledger.remoting.registration import DataVersion, Registration, TopicConfig, encode_registration
from dledger.remoting.server import Connection
from tests.broker.harness import FakeConnection, Reply, decode, make_env, run

STRICT, RELAXED = (
    b'"brokerAddrs":{"0":"10.0.0.1:1","2":"10.0.0.2:1"}',
    b'"brokerAddrs":{0:"10.0.0.1:1",2:"10.0.0.2:1"}',
)


class World:
    """A NameServer without a port."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.nameserver = NameServer(make_env(), config or NamesrvConfig())
        self.nameserver.server.loop = asyncio.get_running_loop()

    def ask(self, frame: bytes) -> Reply:
        connection = FakeConnection()
        [request] = decode(frame)
        self.nameserver.server.dispatch(cast(Connection, connection), request)
        [reply] = connection.replies.values()
        return reply

    def register(self, name: str, addresses: Mapping[int, str], zone: str | None = None) -> Reply:
        body = encode_registration(Registration({"T": TopicConfig("T", 4, 4, 6)}, DataVersion(1, 1, 1)))
        for number, address in addresses.items():
            header = RegisterBrokerHeader(name, address, "c", "", number, zoneName=zone)
            reply = self.ask(encode_request(RequestCode.REGISTER_BROKER, 1, header, len(body)) + body)
            assert reply.code == 0
        return reply

    def route(self, version: int = 479, **fields: str) -> bytes:
        text = {
            "code": 105,
            "extFields": {"topic": "T", **fields},
            "flag": 0,
            "opaque": 1,
            "version": version,
        }
        header = json.dumps(text | {"language": "JAVA", "serializeTypeCurrentRPC": "JSON"}).encode()
        frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        reply = self.ask(frame)
        assert reply.code == 0
        return reply.body

    def names(self, **fields: str) -> list[str]:
        route = decode_body(self.route(**fields), TopicRoute)
        names = [data.brokerName for data in route.brokerDatas]
        assert [data.brokerName for data in route.queueDatas] == names
        return names


@pytest.mark.parametrize(
    ("version", "asked", "expected"),
    [
        (479, {}, STRICT),
        (401, {}, STRICT),
        (400, {}, RELAXED),
        (317, {}, RELAXED),
        (0, {}, RELAXED),
        (317, {"acceptStandardJsonOnly": "true"}, STRICT),
        (317, {"acceptStandardJsonOnly": "false"}, RELAXED),
    ],
)
def test_clients_before_4_9_4_get_fastjson(version: int, asked: dict[str, str], expected: bytes) -> None:
    async def test() -> None:
        world = World()
        world.register("b", {0: "10.0.0.1:1", 2: "10.0.0.2:1"})
        for _ in range(2):  # the second is the one that was kept
            body = world.route(version, **asked)
            assert expected in body
            assert loads(body) == json.loads(world.route())

    run(test)


def test_numbers_as_keys_stay_numbers_and_nothing_else_changes() -> None:
    value = {"b": {10: 'a"1":x', 2: None}, "a": [{"x": {3: {}}}, 1.5, True, "ü\n"], "n": None}
    assert dumps_relaxed(value) == '{"a":[{"x":{3:{}}},1.5,true,"ü\\n"],"b":{10:"a\\"1\\":x"}}'.encode()
    assert loads(dumps_relaxed(value)) == json.loads(dumps(value))


def test_a_client_in_zone_mode_gets_its_zone_and_groups_without_a_master() -> None:
    async def test() -> None:
        world = World()
        world.register("east", {0: "10.0.0.1:1", 1: "10.0.0.2:1"}, "East")
        world.register("west", {0: "10.0.1.1:1"}, "west")
        world.register("nowhere", {0: "10.0.2.1:1"})
        world.register("orphan", {0: "10.0.3.1:1", 1: "10.0.3.2:1"}, "west")
        every = ["east", "nowhere", "orphan", "west"]
        east = {"__ZONE_MODE": "true", "__ZONE_NAME": "east"}
        assert world.names() == every
        assert world.names(**east) == ["east"]
        assert world.names(**east | {"__ZONE_NAME": "WEST"}) == ["orphan", "west"]
        assert world.names(**east | {"__ZONE_NAME": "north"}) == []
        for off in ({"__ZONE_MODE": "false"}, {"__ZONE_NAME": "  "}, {"__ZONE_MODE": "yes"}):
            assert world.names(**east | off) == every
        gone = {"brokerName": "orphan", "brokerAddr": "10.0.3.1:1", "clusterName": "c", "brokerId": "0"}
        world.ask(encode_request(RequestCode.UNREGISTER_BROKER, 1, gone, 0))
        assert world.names(**east) == ["east", "orphan"]
        assert b'{0:"10.0.0.1:1",1:"10.0.0.2:1"}' in world.route(317, **east)
        shown = {one["brokerName"]: one.get("zoneName") for one in json.loads(world.route())["brokerDatas"]}
        assert shown == {"east": "East", "west": "west", "nowhere": None, "orphan": "west"}
        world.register("east", {0: "10.0.0.1:1"}, "north")
        assert world.names(**east) == ["orphan"]

    run(test)


@pytest.mark.parametrize("told", [True, False])
def test_brokers_are_told_order_configurations_unless_switched_off(told: bool) -> None:
    async def test() -> None:
        world = World(NamesrvConfig(return_orders=told))
        done: list[object] = []
        world.nameserver.kv.change("ORDER_TOPIC_CONFIG", "T", "b:4", done.append)
        async with asyncio.timeout(60):
            task = asyncio.create_task(world.nameserver.kv.run())
            while not done:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()
        body = world.register("b", {0: "10.0.0.1:1"}).body
        assert (b'{"T":"b:4"}' in body) is told
        assert b'"orderTopicConf":"b:4"' in world.route()

    run(test)


def test_our_client_asks_for_its_zone() -> None:
    async def test() -> None:
        async with nameserver() as world:
            body = encode_registration(Registration({"T": TopicConfig("T", 2, 2, 6)}, DataVersion(1, 1, 1)))
            for name, zone in (("east", "east"), ("west", "west")):
                header = RegisterBrokerHeader(name, f"{name}:1", "c", "", 0, zoneName=zone)
                assert (await world.call(RequestCode.REGISTER_BROKER, header, body)).code == 0
            for zone, names in (("", {"east", "west"}), ("West", {"west"})):
                options = ClientOptions(zone=zone)
                async with AsyncProducer("PG", world.address, client=options) as producer:
                    assert {queue.broker_name for queue in await producer.queues("T")} == names

    run(test)
