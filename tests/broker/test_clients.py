"""Heartbeats, consumer lists, notices."""

from __future__ import annotations

import json
from pathlib import Path

from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import ConsumerGroupHeader, UnregisterClientHeader
from tests.broker.harness import FakeConnection, World, run


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


async def consumers(world: World, group: str = "CG") -> list[str]:
    reply = await world.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(group))
    if reply.code == ResponseCode.SYSTEM_ERROR:
        return []
    ids: list[str] = json.loads(reply.body)["consumerIdList"]
    return ids


def notices(connection: FakeConnection) -> int:
    count = sum(code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for code, _ in connection.notices)
    connection.notices.clear()
    return count


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
        assert list(world.broker.clients.producers["PG"]) == ["c1"]

    run(test)


def test_members_hear_of_changes_only(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        first, second = FakeConnection(serial=1), FakeConnection(serial=2)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=first)
        notices(first)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=first)
        assert notices(first) == 0
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c2"), connection=second)
        assert notices(first) == 1 and notices(second) == 1
        await world.call(
            RequestCode.HEART_BEAT, None, heartbeat("c2", tags="A", version=2), connection=second
        )
        assert notices(first) == 1
        world.broker.clients.connection_closed(second)  # type: ignore[arg-type]
        assert notices(first) == 1
        assert await consumers(world) == ["c1"]

    run(test)


def test_a_client_that_came_back_over_another_connection_stays(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        old, new = FakeConnection(serial=1), FakeConnection(serial=2)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=old)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"), connection=new)
        world.broker.clients.connection_closed(old)  # type: ignore[arg-type]
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
        assert world.broker.clients.expire(before=1e12) == 3
        assert await consumers(world) == [] and not world.broker.clients.producers

    run(test)


def test_followers_list_the_same_consumers_and_a_new_leader_makes_their_groups(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open(lead=False)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        assert await consumers(world) == ["c1"] and not world.broker.store.state.groups
        world.node.lead()
        world.node.commit()
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
        assert not world.broker.clients.consumers and not world.broker.clients.producers

    run(test)
