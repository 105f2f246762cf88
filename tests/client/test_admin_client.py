"""The client of an operator: its two faces, and what of a cluster it sees. On a real group:
tests/cluster/test_group_administration.py."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from dledger import AdminClient, AsyncAdminClient, ClientClosed, ClientError, NoBroker
from dledger.admin.asking import ClusterView
from dledger.admin.blocking import Blocking
from dledger.remoting.bodies import BrokerData, ClusterInfo, MessageQueue
from tests.client.fake_cluster import GROUP, FakeCluster

AREAS = ("topics", "groups", "offsets", "messages", "brokers", "namesrv", "accounts")


@pytest.mark.parametrize("area", AREAS)
def test_every_method_has_a_twin_that_waits(area: str) -> None:
    coroutines = {
        name
        for name, method in inspect.getmembers(type(getattr(AsyncAdminClient("a:1"), area)))
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    }
    face = type(getattr(AdminClient("a:1"), area))
    twins = {name: one for name, one in vars(face).items() if isinstance(one, Blocking)}
    original = type(getattr(AsyncAdminClient("a:1"), area)).__name__
    place = f"{face.__name__} in {face.__module__.replace('.', '/')}.py"
    missing, gone = sorted(coroutines - twins.keys()), sorted(twins.keys() - coroutines)
    assert not missing, f"add to {place}: {missing[0]} = Blocking({original}.{missing[0]})"
    assert not gone, f"remove {gone[0]} from {place}: {original} has no such method"
    assert len(coroutines) > 5, f"the methods of {area} were not found"
    assert all(one.__doc__ and one._method.__name__ == name for name, one in twins.items())


def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(ClientClosed):
        AdminClient("127.0.0.1:1").topics.names()


def view(**groups: dict[int, str]) -> ClusterView:
    table = {name: BrokerData("C", name, addresses) for name, addresses in groups.items()}
    return ClusterView(ClusterInfo(table, {"C": list(groups), "D": []}))


def test_the_brokers_of_a_cluster() -> None:
    seen = view(b={0: "b:0", 1: "b:1"}, a={2: "a:2", 0: "a:0"})
    assert seen.masters("C") == {"a": "a:0", "b": "b:0"} and seen.masters(None, "b") == {"b": "b:0"}
    assert seen.addresses() == ["a:0", "a:2", "b:0", "b:1"]
    assert seen.name_of("a:2") == "a" and seen.group("b").brokerAddrs[1] == "b:1"
    for wrong in (lambda: seen.masters("E"), lambda: seen.name_of("x:1"), lambda: seen.group("c")):
        with pytest.raises(ClientError, match=r"C, D|x:1|a, b"):
            wrong()


def test_an_operators_commit_names_the_membership_that_it_was_made_for() -> None:
    """One that arrives late sets no group back whose consumers are others by then."""

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncAdminClient(fake.namesrv) as admin,
            asyncio.timeout(60),
        ):
            queue, leader = MessageQueue("orders", GROUP, 0), fake.brokers[0].address
            await admin.offsets.commit(leader, "readers", queue, 7)
            await admin.offsets.commit(leader, "readers", queue, 3)
            assert await admin.offsets.committed(leader, "readers", queue) == 3
            assert [(one.setsBack, one.membership) for one in fake.commits] == [(True, "1.7")] * 2

    asyncio.run(main())


def test_a_group_without_a_master_is_told() -> None:
    seen = view(a={0: "a:0"}, b={1: "b:1"})
    for cluster, name in ((None, None), ("C", None), (None, "b"), ("D", None)):
        with pytest.raises(NoBroker, match=r"no master of (b|any broker) is registered"):
            seen.masters(cluster, name)
    assert seen.masters(None, "a") == {"a": "a:0"}


def test_the_queues_of_an_ordered_topic_are_said_of_each_broker_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table: dict[str, str] = {}
    names = AsyncAdminClient("a:1").namesrv

    async def put(namespace: str, key: str, value: str) -> None:
        table[key] = value

    async def get(namespace: str, key: str) -> str | None:
        return table.get(key)

    async def delete(namespace: str, key: str) -> None:
        del table[key]

    for method in (put, get, delete):
        monkeypatch.setattr(names, method.__name__, method)

    async def steps() -> list[str | None]:
        seen = []
        for step in (
            names.put_order("T", {"a": 4, "b": 4}),
            names.put_order("T", {"c": 2, "a": 2}),
            names.drop_order("T", ["a", "x"]),
            names.drop_order("T", ["x"]),
            names.drop_order("T", ["b", "c"]),
            names.drop_order("T", ["b"]),
        ):
            await step
            seen.append(table.get("T"))
        return seen

    assert asyncio.run(steps()) == ["a:4;b:4", "a:2;b:4;c:2", "b:4;c:2", "b:4;c:2", None, None]
