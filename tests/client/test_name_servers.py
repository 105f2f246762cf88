"""Several NameServers: what one does not know is unknown only when no other one knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from dledger.admin.client import AsyncAdminClient
from dledger.client import AsyncProducer, ClientError, Message, TopicNotFound
from dledger.client.bulk.ranges import RangeOptions, RangeReader
from dledger.client.core import ClientCore
from dledger.client.options import ClientOptions
from dledger.client.routes import merge_clusters, merge_routes
from dledger.remoting.bodies import BrokerData, ClusterInfo, KvTable, QueueData, TopicList, TopicRoute
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import GetRouteHeader, KvConfigHeader
from dledger.remoting.limits import ServerLimits
from dledger.remoting.server import Connection, RemotingServer
from dledger.runtime.env import production_env
from tests.client.fake_cluster import FakeCluster, eventually


class Knowing:
    """A NameServer that answers from tables, which a test fills and empties."""

    def __init__(self) -> None:
        self.topics: dict[str, list[str]] = {}
        """Topic -> names of the broker groups that have it."""
        self.brokers: dict[str, dict[int, str]] = {}
        self.values: dict[str, str] = {}
        self.refuses = False
        """Whether it refuses every question, as RocketMQ's does for a while after its start."""
        self.asked = 0
        handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._topics,
            RequestCode.GET_KV_CONFIG: self._value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._values,
        }
        self._env = production_env("knowing")
        self._server = RemotingServer(
            self._env,
            handlers={code: self._counted(handler) for code, handler in handlers.items()},
            limits=ServerLimits(close_grace_s=0.05),
            name="knowing",
        )

    async def __aenter__(self) -> Knowing:
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._server.connections:
            connection.abort()
        await self._server.close()
        self._env.workers.close()

    @property
    def address(self) -> str:
        host, port = self._server.addresses[0]
        return f"{host}:{port}"

    def has(self, topic: str, *groups: str) -> None:
        self.topics[topic] = list(groups)
        self.brokers |= {group: {0: f"{group}.test:1"} for group in groups if group not in self.brokers}

    def forget(self) -> None:
        """Be as it is after a restart."""
        self.topics.clear()
        self.brokers.clear()
        self.values.clear()

    def _counted(
        self, handler: Callable[[Connection, Request], None]
    ) -> Callable[[Connection, Request], None]:
        def answer(connection: Connection, request: Request) -> None:
            self.asked += 1
            if self.refuses:
                connection.respond(request, ResponseCode.SYSTEM_ERROR, remark="name server not ready")
            else:
                handler(connection, request)

        return answer

    def _data(self, names: Sequence[str]) -> list[BrokerData]:
        return [BrokerData("C", name, self.brokers[name]) for name in names]

    def _route(self, connection: Connection, request: Request) -> None:
        groups = self.topics.get(request.header(GetRouteHeader).topic)
        if groups is None:
            connection.respond(request, ResponseCode.TOPIC_NOT_EXIST, remark="none")
            return
        route = TopicRoute([QueueData(name, 2, 2, 6) for name in groups], self._data(groups))
        connection.respond(request, 0, body=route.encode())

    def _cluster(self, connection: Connection, request: Request) -> None:
        table = {data.brokerName: data for data in self._data(list(self.brokers))}
        info = ClusterInfo(table, {"C": list(table)} if table else {})
        connection.respond(request, 0, body=info.encode())

    def _topics(self, connection: Connection, request: Request) -> None:
        connection.respond(request, 0, body=TopicList(list(self.topics)).encode())

    def _value(self, connection: Connection, request: Request) -> None:
        value = self.values.get(request.header(KvConfigHeader).key)
        if value is None:
            connection.respond(request, ResponseCode.QUERY_NOT_FOUND, remark="none")
        else:
            connection.respond(request, 0, ext={"value": value})

    def _values(self, connection: Connection, request: Request) -> None:
        if self.values:
            connection.respond(request, 0, body=KvTable(self.values).encode())
        else:
            connection.respond(request, ResponseCode.QUERY_NOT_FOUND, remark="none")


Test = Callable[[Knowing, Knowing], Awaitable[None]]


def with_two(test: Test) -> None:
    async def main() -> None:
        async with Knowing() as one, Knowing() as other:
            await test(one, other)

    asyncio.run(main())


def core_of(*servers: Knowing, first: int, options: ClientOptions | None = None) -> ClientCore:
    """A client that begins with the NameServer number `first`."""
    core = ClientCore(None, [server.address for server in servers], options or ClientOptions())
    core.name_servers.current = first
    return core


BOTH_WAYS = pytest.mark.parametrize("first", [0, 1], ids=["empty one first", "empty one last"])


@BOTH_WAYS
def test_a_send_finds_the_topic_that_one_of_two_nameservers_does_not_know(first: int) -> None:
    async def main() -> None:
        async with Knowing() as empty, FakeCluster(topics={"orders": 1}) as fake:
            fake.default_queues = 0
            async with AsyncProducer("producers", [empty.address, fake.namesrv]) as producer:
                producer._core.name_servers.current = first
                await producer.send(Message("orders", b"x"))
                assert producer._core.name_servers.current == 1  # it stays with the one that knows
                with pytest.raises(TopicNotFound):
                    await producer.send(Message("nowhere", b"x"))

    asyncio.run(main())


@BOTH_WAYS
def test_a_topic_is_created_although_one_nameserver_knows_no_broker(first: int) -> None:
    async def main() -> None:
        async with (
            Knowing() as empty,
            FakeCluster() as fake,
            AsyncProducer("producers", [empty.address, fake.namesrv]) as producer,
        ):
            producer._core.name_servers.current = first
            await producer.create_topic("made", queues=1)
            await producer.send(Message("made", b"x"))
            await producer.delete_topic("made")
            assert "made" not in fake.topics

    asyncio.run(main())


@BOTH_WAYS
def test_what_operators_and_jobs_list_is_what_all_nameservers_know(first: int) -> None:
    async def test(empty: Knowing, full: Knowing) -> None:
        full.has("orders", "a", "b")
        full.has("%RETRY%billing", "a")
        full.values["orders"] = "a:2"
        addresses = [empty.address, full.address]
        async with AsyncAdminClient(addresses) as admin:
            current = admin._core.name_servers

            def again() -> None:
                current.current = first

            again()
            assert await admin.topics.names() == ["%RETRY%billing", "orders"]
            again()
            assert await admin.groups.names() == ["billing"]
            again()
            view = await admin.brokers.cluster()
            assert list(view.masters("C")) == ["a", "b"] and view.clusters() == ["C"]
            again()
            assert await admin.topics.clusters("orders") == ["C"]
            again()
            assert len((await admin.topics.route("orders")).queueDatas) == 2
            again()
            assert await admin.namesrv.get("ORDER_TOPIC_CONFIG", "orders") == "a:2"
            again()
            assert await admin.namesrv.all_of("ORDER_TOPIC_CONFIG") == {"orders": "a:2"}
            assert await admin.namesrv.get("ORDER_TOPIC_CONFIG", "others") is None
        async with RangeReader(addresses, RangeOptions("reports")) as reader:
            reader._core.name_servers.current = first
            assert await reader.topics() == ["%RETRY%billing", "orders"]
            reader._core.name_servers.current = first
            assert await reader.system_topics() == ["%RETRY%billing", "orders"]
            reader._core.name_servers.current = first
            assert len(await reader.queues("orders")) == 4

    with_two(test)


@BOTH_WAYS
def test_nameservers_that_each_know_a_part_are_taken_together(first: int) -> None:
    async def test(one: Knowing, other: Knowing) -> None:
        one.has("orders", "a")
        one.has("bills", "a")
        other.has("orders", "b", "c")
        async with core_of(one, other, first=first) as core:
            route = await core.refresh("orders")
            assert [data.brokerName for data in route.queueDatas] == ["a", "b", "c"]
            assert list(await core.cluster()) == ["a", "b", "c"]
            assert [data.brokerName for data in (await core.refresh("bills")).queueDatas] == ["a"]

    with_two(test)


@BOTH_WAYS
def test_a_nameserver_that_was_just_started_takes_nothing_from_a_known_route(first: int) -> None:
    async def test(one: Knowing, other: Knowing) -> None:
        for server in (one, other):
            server.has("orders", "a", "b")
        async with core_of(one, other, first=first) as core:
            await core.refresh("orders")
            (one, other)[core.name_servers.current].forget()
            await core.refresh("orders")
            (one, other)[1 - core.name_servers.current].has("orders", "a")
            core.name_servers.current = 1 - core.name_servers.current  # the one that has heard of a part
            route = await core.refresh("orders")
            assert [data.brokerName for data in route.queueDatas] == ["a", "b"]
            for server in (one, other):  # when all say so, it is so
                server.has("orders", "a")
            assert len((await core.refresh("orders")).queueDatas) == 1
            one.forget()
            other.forget()
            with pytest.raises(TopicNotFound):
                await core.refresh("orders")

    with_two(test)


def test_one_nameserver_is_asked_for_a_route_that_has_not_shrunk() -> None:
    async def test(one: Knowing, other: Knowing) -> None:
        for server in (one, other):
            server.has("orders", "a")
        async with core_of(one, other, first=0) as core:
            await core.refresh("orders")
            before = one.asked + other.asked
            await core.refresh("orders")
            assert one.asked + other.asked == before + 1

    with_two(test)


def test_a_broker_that_only_one_nameserver_hears_of_is_found_by_and_by() -> None:
    async def test(one: Knowing, other: Knowing) -> None:
        for server in (one, other):
            server.has("orders", "a")
        async with core_of(one, other, first=0, options=ClientOptions(route_poll_s=0.01)) as core:
            await core.refresh("orders")
            (one, other)[1 - core.name_servers.current].has("orders", "a", "b")
            await eventually(lambda: len(core.routes["orders"].queueDatas) == 2)

    with_two(test)


@BOTH_WAYS
def test_the_refusal_of_one_nameserver_is_not_the_word_of_all(first: int) -> None:
    async def test(one: Knowing, other: Knowing) -> None:
        one.refuses = True
        other.has("orders", "a")
        async with core_of(one, other, first=first) as core:
            assert (await core.refresh("orders")).queueDatas and await core.cluster()
            with pytest.raises(ClientError, match="not ready") as caught:  # it may be known there
                await core.refresh("bills")
            assert not isinstance(caught.value, TopicNotFound)

    with_two(test)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_dead_nameserver_beside_an_empty_one_hides_nothing(first: int) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            empty, full = [await stack.enter_async_context(Knowing()) for _ in range(2)]
            full.has("orders", "a")
            addresses = [empty.address, "127.0.0.1:1", full.address]
            core = await stack.enter_async_context(ClientCore(None, addresses, ClientOptions()))
            for _ in range(2):
                core.name_servers.current = first
                assert (await core.refresh("orders")).queueDatas
                assert list(await core.cluster()) == ["a"]
                core.routes.clear()

    asyncio.run(main())


def test_the_word_of_the_nameserver_that_knows_a_master_counts() -> None:
    without, with_master = {1: "b:1"}, {0: "b:0", 1: "b:1"}
    routes = [
        TopicRoute([QueueData("b", queues, queues, 6)], [BrokerData("C", "b", addresses)])
        for queues, addresses in ((1, without), (4, with_master), (8, {0: "old:0"}))
    ]
    merged = merge_routes(routes)
    assert merged.queueDatas == routes[1].queueDatas and merged.brokerDatas == routes[1].brokerDatas
    infos = [ClusterInfo({"b": route.brokerDatas[0]}, {"C": ["b"]}) for route in routes]
    assert merge_clusters(infos) == infos[1]
    assert merge_routes(routes[:1]) == routes[0]
