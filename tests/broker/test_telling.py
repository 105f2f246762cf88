"""Consumers that the leader does not hear are told to it by the brokers that do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dledger.broker.clients import client_table, membership_relay
from dledger.broker.longpolling import subscription_wait
from dledger.remoting.bodies import (
    ClientConnection,
    ConsumersHere,
    Subscription,
    decode_told,
    told_body,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import BadBody, ConnectionLost
from dledger.remoting.headers import ConsumerGroupHeader
from dledger.remoting.server import Connection
from tests.broker.harness import FakeConnection, Member, World, run
from tests.broker.test_clients import consumers, heartbeat, notices
from tests.client.fake_cluster import eventually

LEADER = "10.0.0.2:10911"


def here(*names: str, group: str = "CG", tags: str = "*", version: int = 1) -> ConsumersHere:
    wanted = [Subscription("T", tags, subVersion=version)]
    found = [ClientConnection(name, "10.9.9.9:1", "JAVA", 400) for name in names]
    return ConsumersHere(group, "CONSUME_PASSIVELY", "CLUSTERING", "x", wanted, found)


async def tell(world: World, link: FakeConnection, *groups: ConsumersHere) -> None:
    body = told_body([one.encode() for one in groups])
    assert (await Member(world).call(RequestCode.TELL_CONSUMERS, None, body, connection=link)).code == 0


def member(world: World) -> FakeConnection:
    """The connection of another broker of the group."""
    return Member(world).connection


def test_who_is_told_counts_like_who_is_heard(tmp_path: Path, long_gap: None) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        link = member(world)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("a"))
        assert await notices(world.connection) == 1
        await tell(world, link, here("a", "b"))
        assert await consumers(world) == ["a", "b"]
        assert await notices(world.connection) == 1 and await notices(link) == 1
        await tell(world, link, here("a", "b"))
        assert await notices(world.connection) == await notices(link) == 0, "nothing new"
        shown = await world.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("CG"))
        assert [one["clientId"] for one in json.loads(shown.body)["connectionSet"]] == ["a", "b"]
        await tell(world, link, here("c"))
        assert await consumers(world) == ["a", "c"]
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c"))
        await tell(world, link, here())
        assert await consumers(world) == ["a", "c"], "it speaks for itself now"

    run(test)


def test_a_consumer_that_two_brokers_hear_stays_when_one_of_them_goes(tmp_path: Path) -> None:
    """At a planned switch the old leader told of them first; when it stopped nobody was known for 30 s."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        first, second = member(world), FakeConnection(serial=2, peer="10.0.0.2:40001")
        await tell(world, first, here("a", "b"))
        await tell(world, second, here("b", "c"))
        assert await consumers(world) == ["a", "b", "c"]
        await tell(world, first, ConsumersHere("CG", "", "", ""))
        assert await consumers(world) == ["b", "c"]
        assert world.broker.core.clients.consumers["CG"].subscriptions, "who hears nobody wants nothing"
        await tell(world, first, here("b"))
        gone(world, second)
        assert await consumers(world) == ["b"]
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("b"))
        gone(world, first)
        assert await consumers(world) == ["b"], "it speaks for itself now"
        ended(world, first)
        assert world.broker.core.clients._elsewhere == 0

    run(test)


def test_a_group_that_only_others_hear_can_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_wait, "WAIT_S", 60.0)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        link = member(world)
        for tag in ("A", "B"):
            await world.send(properties=f"TAGS\x01{tag}\x02")
        waits = world.pull(sysFlag=0, subscription="", subVersion=1)
        await tell(world, link, here("b", tags="B"))
        assert [record.queue_offset for record in (await waits).records] == [1]

    run(test)


def gone(world: World, link: FakeConnection) -> None:
    world.broker.core.clients.connection_closed(cast(Connection, link))


def ended(world: World, link: FakeConnection) -> None:
    world.node.follow("n1")
    world.node.lead()


def expired(world: World, link: FakeConnection) -> None:
    world.broker.core.clients.expire(asyncio.get_running_loop().time() + 1)


@pytest.mark.parametrize("event", [gone, ended, expired])
def test_it_is_forgotten_with_who_told_it(
    tmp_path: Path, event: Callable[[World, FakeConnection], None]
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        link = member(world)
        await tell(world, link, here("b"), here("d", group="OTHER"))
        event(world, link)
        assert await consumers(world) == await consumers(world, "OTHER") == []
        assert world.broker.core.clients.consumers == {}
        await tell(world, link, here("b"))
        assert await consumers(world) == ["b"]

    run(test)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "MAX_ELSEWHERE", 2)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        body = told_body([here("b").encode()])
        link = member(world)
        broken = await Member(world).call(RequestCode.TELL_CONSUMERS, None, body[:-2])
        assert broken.code == ResponseCode.SYSTEM_ERROR
        await tell(world, link, here("b", "c", "d"))
        assert await consumers(world) == ["b", "c"], "no more than the limit"
        await tell(world, link, here("x", group="OTHER"))
        assert "OTHER" not in world.broker.core.clients.consumers, "no room for it: nothing of it stays"
        await tell(world, link, here("d"))
        assert await consumers(world) == ["d"], "what went makes room"

    run(test)


class Leader:
    """In place of the broker that leads: what it was told."""

    def __init__(self, world: World) -> None:
        self.told: list[dict[str, list[str]]] = []
        self.fails = 0
        world.broker.client.invoke = self.invoke  # type: ignore[method-assign]

    async def invoke(self, addr: str, code: int, header: Any, body: bytes, timeout_s: float) -> Response:
        assert (addr, code) == (LEADER, RequestCode.TELL_CONSUMERS)
        if self.fails:
            self.fails -= 1
            raise ConnectionLost(f"{addr}: lost")
        groups = decode_told(body)
        self.told.append({one.groupName: [client.clientId for client in one.clients] for one in groups})
        return Response(0)

    async def hears(self, wanted: dict[str, list[str]]) -> list[dict[str, list[str]]]:
        """The requests that it gets, once they have told it these members, by group, and nothing else."""

        def heard() -> dict[str, list[str]]:
            return {name: ids for told in self.told for name, ids in told.items()}

        await eventually(lambda: heard().keys() >= wanted.keys())
        told, expected = self.told, heard()
        assert expected == wanted
        self.told = []
        return told


def test_a_follower_tells_all_at_first_and_then_what_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_gap: None
) -> None:
    monkeypatch.setattr(membership_relay, "SETTLE_S", 0.001)
    monkeypatch.setattr(membership_relay, "RETRY_S", 0.001)
    monkeypatch.setattr(membership_relay, "TELL_AGAIN_S", 3600.0)
    monkeypatch.setattr(membership_relay, "MAX_TELL", 800)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        member(world)
        other = FakeConnection()
        leader = Leader(world)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.features.clients.relay.run_following())
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("a"))
            await asyncio.sleep(0.02)
            assert leader.told == [], "it leads itself"
            leader.fails = 1
            world.node.follow("n1")
            assert await leader.hears({"CG": ["a"]}) == [{"CG": ["a"]}]
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("b"), connection=other)
            assert await leader.hears({"CG": ["a", "b"]}) == [{"CG": ["a", "b"]}]
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("b"), connection=other)
            await asyncio.sleep(0.02)
            assert leader.told == [], "the same again"
            for name in ("X", "Y"):
                await world.call(RequestCode.HEART_BEAT, None, heartbeat("b", name), connection=other)
            await leader.hears({"X": ["b"], "Y": ["b"]})
            gone(world, other)
            told = await leader.hears({"CG": ["a"], "X": [], "Y": []})
            assert len(told) > 1, "no request is longer than so"
            world.features.clients.relay.lost(LEADER)
            told = await leader.hears({"CG": ["a"]})
            assert told == [{"CG": ["a"]}], "the connection was a new one"
            await notices(world.connection)  # those of what changed so far
            for name, count in (("X", 0), ("CG", 1)):
                fields = msgspec.Raw(msgspec.json.encode({"consumerGroup": name}))
                request = Request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=fields)
                world.features.clients.relay.pass_on(request)
                assert await notices(world.connection) == count
            task.cancel()

    run(test)


def test_broken_bodies() -> None:
    for body in (b"", b"[]", b'{"groups":[{}]}', b'{"groups":[{"groupName":"G","clients":[1]}]}'):
        with pytest.raises(BadBody):
            decode_told(body)
