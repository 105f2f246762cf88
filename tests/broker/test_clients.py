"""Heartbeats, consumer lists, notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dledger.broker.clients import notices as client_notices
from dledger.broker.clients.notices import SLICE, Notices
from dledger.broker.http.server import BrokerCollector
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import ConsumerGroupHeader, UnregisterClientHeader
from dledger.remoting.server import Connection
from tests.broker.harness import FakeConnection, World, run, skip_s


def heartbeat(client: str, group: str = "CG", topic: str = "T", tags: str = "*", version: int = 1) -> bytes:
    """As the C++ client writes it: ordinals, no codes, a newline at the end."""
    subscription = {"topic": topic, "subString": tags, "subVersion": str(version)}
    consumer = {
        "groupName": group,
        "consumeType": 1,
        "messageModel": 1,
        "consumeFromWhere": 0,
        "subscriptionDataSet": [subscription],
    }
    value = {"clientID": client, "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": [consumer]}
    return json.dumps(value).encode() + b"\n"


def second(client: str, tags: str = "*", *, without: bool = True) -> bytes:
    """A heartbeat of version 2: without subscriptions, or with all of them."""
    value = json.loads(heartbeat(client, tags=tags)) | {"heartbeatFingerprint": 17, "withoutSub": without}
    if without:
        value["consumerDataSet"][0]["subscriptionDataSet"] = []
    return json.dumps(value).encode()


def metrics(world: World) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(world.broker))
    return registry


async def consumers(world: World, group: str = "CG") -> list[str]:
    reply = await world.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(group))
    if reply.code == ResponseCode.SYSTEM_ERROR:
        return []
    ids: list[str] = json.loads(reply.body)["consumerIdList"]
    return ids


async def end_gap() -> None:
    """The running gap ends, and what waited for it is sent."""
    await skip_s(client_notices.GAP_S)
    await skip_s(0)


async def notices(connection: FakeConnection) -> int:
    """How many came, with those that wait for the end of a gap. No gap is left."""
    await end_gap()
    await end_gap()
    count = sum(code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for code, _ in connection.notices)
    connection.notices.clear()
    return count


def test_heartbeats_without_subscriptions_count_while_nothing_changed(tmp_path: Path) -> None:
    """Version 2: IS_SUB_CHANGE has the client send all of it again."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        one, two = FakeConnection(1), FakeConnection(2)

        async def beat(body: bytes, connection: FakeConnection = one) -> tuple[str | None, str | None]:
            ext = (await world.call(RequestCode.HEART_BEAT, None, body, connection=connection)).ext
            return ext.get("IS_SUPPORT_HEART_BEAT_V2"), ext.get("IS_SUB_CHANGE")

        def wanted() -> list[str]:
            return [one.subString for one in world.broker.core.clients.consumers["CG"].subscriptions.values()]

        assert await beat(heartbeat("c1")) == (None, None)
        fresh = FakeConnection(3)
        assert await beat(second("c3"), fresh) == ("true", "true")  # nobody knows what it subscribes
        assert await beat(second("c3"), fresh) == ("true", "true")
        assert await beat(second("c1", without=False)) == ("true", "false")
        for _ in range(2):
            assert await beat(second("c1")) == ("true", "false")
            assert wanted() == ["*"] and sorted(await consumers(world)) == ["c1", "c3"]
        await beat(heartbeat("c2", tags="a", version=2), two)  # another member wants something else
        assert wanted() == ["a"]
        assert await beat(second("c1")) == ("true", "true")
        assert await beat(second("c1", without=False)) == ("true", "false")
        assert await beat(second("c1")) == ("true", "false")

    run(test)


def test_a_heartbeat_joins_and_creates_the_group(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        assert await consumers(world) == []
        reply = await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        assert reply.code == ResponseCode.SUCCESS
        assert await consumers(world) == ["c1"]
        world.node.commit()
        assert "CG" in world.broker.store.state.groups
        retry = world.broker.store.state.topics["%RETRY%CG"]
        assert (retry.read_queues, retry.perm) == (1, 6)
        assert list(world.broker.core.clients.producers["PG"]) == ["c1"]

    run(test)


def test_members_hear_of_changes_only(tmp_path: Path, long_gap: None) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        first, second = FakeConnection(serial=1), FakeConnection(serial=2)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=first)
        await notices(first)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=first)
        assert await notices(first) == 0
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c2"), connection=second)
        assert await notices(first) == 1 and await notices(second) == 1
        await world.call(
            RequestCode.HEART_BEAT, None, heartbeat("c2", tags="A", version=2), connection=second
        )
        assert await notices(first) == 1
        world.broker.core.clients.connection_closed(second)  # type: ignore[arg-type]
        assert await notices(first) == 1
        assert await consumers(world) == ["c1"]

    run(test)


def test_changes_in_a_row_are_told_at_once_and_then_together(tmp_path: Path, long_gap: None) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        connections = [FakeConnection(serial=number) for number in range(200)]
        first = connections[0]
        for number, connection in enumerate(connections):
            await world.call(RequestCode.HEART_BEAT, None, heartbeat(f"c{number}"), connection=connection)
            await asyncio.sleep(0)
            assert first.notices, "nobody waits for the first change"
            assert len(first.notices) == 1 + number // 50, "the changes of one gap wait for its end"
            if number % 50 == 49:
                await end_gap()
        assert await notices(first) == 1 + 4, "one for each gap of 50 changes"
        assert await notices(connections[-1]) == 1, "and the last one hears of the last"
        assert await notices(first) == 0

    run(test)


def test_very_many_members_are_told_a_slice_at_a_time() -> None:
    async def test() -> None:
        told: list[int] = []
        turns = 0

        def sends(name: str) -> list[Callable[[], None]]:
            return [partial(told.append, number) for number in range(500)]

        many = Notices(sends)
        many.changed("A")
        many.changed("B")
        while len(told) < 1000:
            assert len(told) <= turns * SLICE
            turns += 1
            await asyncio.sleep(0)
        assert turns == 1000 // SLICE and told == [*range(500)] * 2

    run(test)


def test_very_many_groups_that_change_at_once_are_told_a_slice_at_a_time() -> None:
    async def test() -> None:
        told: list[str] = []
        many = Notices(lambda name: [partial(told.append, name)] * 10)
        before = 0
        for number in range(100):
            many.changed(f"G{number}")
        assert len(told) <= SLICE
        while len(told) < 1000:
            await asyncio.sleep(0)
            assert len(told) - before <= SLICE
            before = len(told)

    run(test)


def test_a_client_that_came_back_over_another_connection_stays(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        old, new = FakeConnection(serial=1), FakeConnection(serial=2)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=old)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=new)
        world.broker.core.clients.connection_closed(old)  # type: ignore[arg-type]
        assert await consumers(world) == ["c1"]

    run(test)


def test_unregister_and_silence_end_a_membership(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for client in ("c1", "c2"):
            await world.call(RequestCode.HEART_BEAT, None, heartbeat(client))
        header = UnregisterClientHeader("c1", "", "CG")
        assert (await world.call(RequestCode.UNREGISTER_CLIENT, header)).code == 0
        assert await consumers(world) == ["c2"]
        assert world.broker.core.clients.expire(before=1e12) == 3
        assert await consumers(world) == [] and not world.broker.core.clients.producers

    run(test)


def test_followers_know_the_consumers_and_a_new_leader_lists_them_and_makes_their_groups(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open(lead=False)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        assert not world.broker.store.state.groups
        asked = await world.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader("CG"))
        assert asked.code == ResponseCode.SERVICE_NOT_AVAILABLE, "it may have been started a moment ago"
        world.node.lead()
        world.node.commit()
        assert await consumers(world) == ["c1"]
        assert "CG" in world.broker.store.state.groups

    run(test)


def test_bad_heartbeats_are_answered_and_change_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for body in (
            b"",
            b"[]",
            b"{",
            heartbeat(""),
            heartbeat("c1", group="bad group"),
            heartbeat("c" * 256),
        ):
            reply = await world.call(RequestCode.HEART_BEAT, None, body)
            assert reply.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        assert not world.broker.core.clients.consumers and not world.broker.core.clients.producers

    run(test)


def test_members_that_subscribe_differently_are_told_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the messages were lost in silence, as with RocketMQ."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        first, second = FakeConnection(serial=1), FakeConnection(serial=2)

        async def beat(connection: FakeConnection, client: str, tags: str) -> str | None:
            beating = heartbeat(client, tags=tags)
            reply = await world.call(RequestCode.HEART_BEAT, None, beating, connection=connection)
            assert reply.code == ResponseCode.SUCCESS
            return reply.remark

        assert await beat(first, "c1", "A || B") is None
        assert await beat(second, "c2", "B||A") is None, "the same in another order"
        said = await beat(second, "c2", "C") or ""
        for part in ("consumer group CG have different subscriptions", "c1 wants T A || B", "c2 wants T C"):
            assert part in said
        assert await beat(first, "c1", "A || B") == said
        assert sum(said in line for line in caplog.messages) == 1
        figures = generate_latest(metrics(world)).decode()
        assert 'dledger_consumer_group_subscriptions{group="CG"} 2.0' in figures
        world.broker.core.clients.connection_closed(cast(Connection, second))
        assert await beat(first, "c1", "A || B") is None
        assert (
            'dledger_consumer_group_subscriptions{group="CG"}' not in generate_latest(metrics(world)).decode()
        )

    run(test)


def test_other_subscriptions_of_broadcast_consumers_are_their_own_matter(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for serial, tags in enumerate("AB"):
            body = heartbeat(f"c{serial}", tags=tags).replace(b'"messageModel": 1', b'"messageModel": 0')
            connection = FakeConnection(serial=serial + 1)
            reply = await world.call(RequestCode.HEART_BEAT, None, body, connection=connection)
            assert reply.remark is None

    run(test)


def test_two_consumers_of_one_client_id_are_told_and_a_client_that_comes_back_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        first, second = FakeConnection(serial=1), FakeConnection(serial=2)

        async def beat(connection: FakeConnection) -> str | None:
            reply = await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=connection)
            return reply.remark

        assert await beat(first) is None
        assert await beat(second) is None, "it may have connected anew before the old connection was closed"
        assert "group CG share one client id" in (await beat(first) or "")
        assert "one client id, so each of them receives the same messages: c1" in (await beat(second) or "")
        assert 'shared_client_ids{group="CG"} 1.0' in generate_latest(metrics(world)).decode()

        calm = await World(str(tmp_path / "calm")).open()
        for serial in range(1, 5):  # each closes the one before
            connection = FakeConnection(serial=serial)
            again = await calm.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=connection)
            assert again.remark is None
            connection.closed = True

    run(test)


def test_clients_ask_whether_their_subscription_could_be_served(tmp_path: Path) -> None:
    """Java clients do before they start with one by SQL, and take code 1 for a broker that has none."""

    async def test() -> None:
        world = await World(str(tmp_path)).open(lead=False)
        off = await World(str(tmp_path), property_filter=False).open(lead=False)
        for broker, kind, text, code in (
            (world, "TAG", "a > 3", ResponseCode.SUCCESS),
            (world, "SQL92", "a > 3", ResponseCode.SUCCESS),
            (world, "SQL92", "a > 'x'", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            (world, "JS", "a > 3", ResponseCode.SYSTEM_ERROR),
            (off, "TAG", "a > 3", ResponseCode.SUCCESS),
            (off, "SQL92", "a > 3", ResponseCode.SYSTEM_ERROR),
        ):
            wanted = {"topic": "T", "subString": text, "expressionType": kind, "tagsSet": None}
            body = json.dumps({"clientId": "c", "group": "CG", "subscriptionData": wanted}).encode()
            reply = await broker.call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
            assert reply.code == code
        assert reply.remark == "The broker does not support consumer to filter message by SQL92"

    run(test)


def test_a_heartbeat_that_says_the_same_again_is_quick_and_keeps_its_client(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        one, other = FakeConnection(serial=1), FakeConnection(serial=2)

        async def beat(connection: FakeConnection, client: str, topic: str = "T", version: int = 1) -> None:
            body = heartbeat(client, topic=topic, version=version)
            assert (await world.call(RequestCode.HEART_BEAT, None, body, connection=connection)).code == 0

        clients = world.broker.core.clients
        await beat(one, "c1")
        member = clients.consumers["CG"].members["c1"]
        member.last_seen -= 100
        before = member.last_seen
        await beat(one, "c1")
        assert clients.consumers["CG"].members["c1"] is member, "nothing was made anew"
        assert member.last_seen >= before + 100 and clients.expire(before + 1) == 0

        # What another one did to the group must not stay because this one says nothing new.
        await beat(other, "c2", topic="U")
        assert list(clients.consumers["CG"].subscriptions) == ["U"]
        await beat(one, "c1")
        assert list(clients.consumers["CG"].subscriptions) == ["T"]

        # Nor that it went, or that its id is used elsewhere.
        clients.remove_consumer("CG", "c1")
        await beat(one, "c1")
        assert await consumers(world) == ["c1", "c2"]
        await beat(other, "c1")
        await beat(one, "c1")
        assert clients.consumers["CG"].members["c1"].connection is one

    run(test)


def test_a_group_made_by_command_gets_its_retry_topic_with_its_first_consumer(
    tmp_path: Path,
) -> None:
    """Tools ask by its route where the group stands (consumerProgress)."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        body = json.dumps({"groupName": "MADE", "retryQueueNums": 2}).encode()
        made = await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert made.code == ResponseCode.SUCCESS
        assert "%RETRY%MADE" not in world.broker.store.state.topics
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c", "MADE"))
        world.node.commit()
        assert world.broker.store.state.topics["%RETRY%MADE"].read_queues == 2

    run(test)
