"""Deletions: nothing of what is deleted is in what is made again under that name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.topic import deletion_service
from dledger.formats.life import Life
from dledger.formats.message_ids import encode_message_id
from dledger.formats.record import Record
from dledger.formats.state import DELETIONS, LOCKS, POPS, RESETS, TOPIC_BIRTHS, TRANSACTIONS
from dledger.remoting.bodies import LockRequest, MessageQueue
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.frames import Fields
from dledger.remoting.headers import (
    ConsumerSendMsgBackHeader,
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    DeleteTopicHeader,
    GroupHeader,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    TopicConfigHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from tests.broker.fake_node import FakeLog
from tests.broker.harness import FakeConnection, Pending, Reply, World, pull_header, run, skip_s
from tests.broker.pop_calls import pop
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading
from tests.client.fake_cluster import eventually

GONE = ResponseCode.TOPIC_NOT_EXIST


async def delete(world: World, topic: str = "T") -> None:
    reply = await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic))
    assert (reply.code, reply.remark) == (0, None)


async def delete_group(world: World, group: str = "CG", *, clean: bool = True) -> None:
    header = DeleteSubscriptionGroupHeader(group, clean)
    assert (await world.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0


async def create(world: World, topic: str = "T", queues: int = 4) -> Reply:
    return await world.call(RequestCode.UPDATE_AND_CREATE_TOPIC, creation(topic, queues))


def creation(topic: str = "T", queues: int = 4) -> CreateTopicHeader:
    return CreateTopicHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")


async def report(world: World, offset: int, queue: int = 0) -> Reply:
    header = UpdateConsumerOffsetHeader("CG", "T", queue, offset)
    return await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def where(world: World, queue: int = 0, group: str = "CG") -> Reply:
    header = QueryConsumerOffsetHeader(group, "T", queue, False)
    return await world.call(RequestCode.QUERY_CONSUMER_OFFSET, header)


def pull(world: World, offset: int, queue: int = 0, **more: Any) -> Pending:
    return world.ask(RequestCode.PULL_MESSAGE, pull_header("T", queue, offset, **more))


async def bodies(world: World, topic: str = "T", queue: int = 0) -> list[bytes]:
    return [record.body for record in (await world.pull(topic, queue)).records]


async def come(world: World, topic: str, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            await asyncio.sleep(0.002)
            found = (await world.pull(topic)).records
    return found


def test_a_topic_made_again_begins_at_0_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for number in range(6):
                await world.send(body=b"old %d" % number, properties="KEYS\x01k\x02")
            await pull(world, 0)
            await report(world, 5)
            await delete(world)
            assert (await world.send(defaultTopic="none")).code == GONE
            assert (await pull(world, 0)).code == GONE
            await delete(world)  # twice is once
            await create(world)
            reply = await world.send(body=b"new")
            assert reply.ext["queueOffset"] == "0"
            assert await bodies(world) == [b"new"]
            assert (await where(world)).code == ResponseCode.QUERY_NOT_FOUND

    run(test)


def test_what_is_asked_for_by_its_place_or_key_is_gone_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            follow = asyncio.ensure_future(world.broker.index.run())
            old = await world.send(body=b"old", properties="KEYS\x01k\x02")
            await delete(world)
            await create(world)
            new = await world.send(body=b"new", properties="KEYS\x01k\x02")
            found = await world.call(RequestCode.QUERY_MESSAGE, QueryMessageHeader("T", "k", 32, 0, 1 << 60))
            assert [record.body for record in found.records] == [b"new"]
            for reply, code in ((old, ResponseCode.SYSTEM_ERROR), (new, 0)):
                place = int(reply.ext["msgId"][16:], 16)
                assert (
                    await world.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(place))
                ).code == code
            follow.cancel()

    run(test)


def test_it_holds_for_the_next_leader_and_for_one_that_plays_the_log_again(tmp_path: Path) -> None:
    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path / "a", log) as world:
            for number in range(3):
                await world.send(body=b"old %d" % number)
            await world.broker.store.save_snapshot()
            await delete(world)
            await create(world)
            await world.send(body=b"new 0")
            await world.broker.store.flush()
            assert await bodies(world) == [b"new 0"]
        # From the snapshot before the deletion, from one behind it, and from nothing.
        for number, root in enumerate((tmp_path / "a", tmp_path / "a", tmp_path / "b")):
            async with leading(root, log) as world:
                assert await bodies(world) == [b"new %d" % one for one in range(1 + number)]
                sent = await world.send(body=b"new %d" % (1 + number))
                assert sent.ext["queueOffset"] == str(1 + number)
                await world.broker.store.save_snapshot()

    run(test)


def test_no_file_of_it_is_left_and_none_is_taken_for_the_new_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            store = world.broker.store
            for queue in range(4):
                await world.send(queue=queue)
            await store.flush()
            directory = tmp_path / "consumequeue" / "T"
            assert len(list(directory.iterdir())) == 4
            await delete(world)
            await create(world)
            await world.send(body=b"new", queue=2)
            await store.flush()
            await store.save_snapshot()
            assert [one.name for one in directory.iterdir()] == ["2"]
            (unit,) = directory.glob("2/*")
            queue = store.queues.get("T", 2)
            assert queue is not None and unit.read_bytes()[:20] == bytes(queue.tail[:20])
            await delete(world)
            await store.save_snapshot()
            assert not directory.exists()

    run(test)


def test_retention_of_the_old_topic_hides_nothing_of_the_new_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for _ in range(3):
                await world.send()
            parts: dict[str, bytes] = {}
            for name, piece in world.broker.store.snapshot():
                parts[name] = parts.get(name, b"") + piece
            await delete(world)
            await create(world)
            for number in range(5):
                await world.send(body=b"new %d" % number)
            await world.broker.store.log_begins(parts)
            assert len(await bodies(world)) == 5

    run(test)


def test_consumers_of_now_hear_of_it_and_begin_at_0_of_the_new_one(tmp_path: Path) -> None:
    """One that is at an offset of the old topic neither reads on from there, nor says it of the new one."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"))
            for _ in range(5):
                await world.send()
            await pull(world, 0)
            held = pull(world, 5, sysFlag=2, suspendTimeoutMillis=30_000)
            await report(world, 3)
            await delete(world)
            assert (await held).code == GONE
            await create(world)
            for _ in range(6):
                await world.send(body=b"new")
            assert (await report(world, 4)).remark == "Offset has been previously reset"
            moved = await pull(world, 4, sysFlag=1, commitOffset=4)
            assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
            assert (await where(world)).code == ResponseCode.QUERY_NOT_FOUND
            assert len((await pull(world, 0)).records) == 6
            await report(world, 2)
            assert (await where(world)).ext["offset"] == "2"

    run(test)


def test_what_was_reported_and_is_not_in_the_log_goes_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for _ in range(3):
                await world.send()
            await pull(world, 0)
            world.node.auto = False
            header = UpdateConsumerOffsetHeader("CG", "T", 0, 2)
            waiting = world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            ending = world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
            making = world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, creation())
            for _ in range(3):
                world.send(body=b"new")
            late = world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            assert late.reply.code == ResponseCode.INVALID_PARAMETER, "beyond the end of what is committed"
            world.node.auto = True
            for _ in range(3):
                await asyncio.sleep(0.02)
                world.node.commit()
            for one in (waiting, ending, making):
                await one
            assert (await where(world)).code == ResponseCode.QUERY_NOT_FOUND

    run(test)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_what_waits_for_its_time_does_not_come(tmp_path: Path, again: bool) -> None:
    async def test() -> None:
        async with leading(tmp_path, delay_levels=[60_000] * 18) as world:
            await create(world)
            await world.send(body=b"old", properties="DELAY\x0118\x02")
            await delete(world)
            if again:
                await create(world)
                await world.send(body=b"new", properties="DELAY\x0118\x02")
            await skip_s(60)
            if again:
                assert [one.body for one in await come(world, "T", 1)] == [b"new"]
            await eventually(lambda: world.features.schedule.delays.dropped == 1)
            if again:
                assert await bodies(world) == [b"new"]

    run(test)


def test_a_message_that_was_given_back_does_not_come(tmp_path: Path) -> None:
    """Neither from a delay level, nor from the retry topic where it is already."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send(body=b"old")
            await pull(world, 0)
            record = (await world.pull()).records[0]
            header = ConsumerSendMsgBackHeader(record.physical_offset, "CG", 1)
            assert (await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
            retry = await come(world, "%RETRY%CG", 1)
            assert f"ORIGIN_MESSAGE_ID\x01{encode_message_id(record.store_host, record.physical_offset)}" in (
                retry[0].properties
            )
            await delete(world)
            await create(world)
            assert await bodies(world, "%RETRY%CG") == []
            assert (await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code != 0

    run(test)


def test_locks_and_pops_go_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            await pull(world, 0)
            lock = LockRequest("CG", "c", [MessageQueue("T", "broker-a", 0)])
            await world.call(RequestCode.LOCK_BATCH_MQ, None, lock.encode())
            state = world.broker.store.state
            assert len(state[LOCKS].rows) == 1
            await delete(world)
            assert not state[LOCKS].rows and not state[POPS].rows and not state[RESETS].rows
            assert not state[TRANSACTIONS].rows and list(state[DELETIONS].rows) == ["T"]
            assert "T" not in state.queues and world.broker.store.queues.get("T", 0) is None

    run(test)


@pytest.mark.parametrize("clean", [False, True])
def test_a_group_is_deleted(tmp_path: Path, clean: bool) -> None:
    """With its offsets, its retry topic and dead letters if the request says so."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            for _ in range(3):
                await world.send()
            await pull(world, 0)
            await report(world, 2)
            state = world.broker.store.state
            assert "CG" in state.groups and "%RETRY%CG" in state.topics
            await delete_group(world, clean=clean)
            assert "CG" not in state.groups
            assert ("%RETRY%CG" in state.topics) is not clean
            await pull(world, 0)
            reply = await where(world)
            assert reply.code == (ResponseCode.QUERY_NOT_FOUND if clean else 0)

    run(test)


def test_what_a_group_popped_does_not_come_to_one_of_its_name(tmp_path: Path) -> None:
    """But what is another group's by its name stays."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            for topic in ("T", "U_V", "V"):
                await create(world, topic)
                await world.send(topic, b"old")
            for group, topic in (("CG", "T"), ("CG", "U_V"), ("CG_U", "V")):
                assert (await pop(world, topic, consumerGroup=group, invisibleTime=50)).code == 0
            assert [record.body for record in await come(world, "%RETRY%CG_T", 1)] == [b"old"]
            await come(world, "%RETRY%CG_U_V", 2)
            world.broker.settings.now = replace(world.config, retry_topic_v2=True)
            await world.send("T", b"newer")
            assert (await pop(world, invisibleTime=50)).code == 0
            await come(world, "%RETRY%CG+T", 1)
            await delete_group(world)
            topics = world.broker.store.state.topics
            assert not {"%RETRY%CG", "%RETRY%CG_T", "%RETRY%CG+T"} & topics.keys()
            assert "%RETRY%CG_U_V" in topics
            again = (await pop(world)).records  # from the beginning of the topic
            assert {record.topic for record in again} == {"T"} and len(again) == 2

    run(test)


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "a b", "BenchmarkTest"])
def test_what_brokers_need_is_not_deleted(tmp_path: Path, topic: str) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            reply = await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic))
            assert reply.code == ResponseCode.INVALID_PARAMETER

    run(test)


def test_the_registered_table_loses_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for name in ("A", "B", "C"):
                await create(world, name)
            table = world.features.topic.table
            await table.prepare()
            before, encoded = len(table), table.encoded
            await delete(world, "B")
            text = b",".join(table.entries())
            assert len(table) == before - 1 and b'"B"' not in text and b'"A"' in text and b'"C"' in text
            assert table.encoded <= encoded + 1, "the others are not encoded again"
            assert table.size == len(text)

    run(test)


def test_what_was_popped_is_not_copied_and_who_waits_hears(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send(body=b"old")
            assert len((await pop(world, invisibleTime=10_000)).records) == 1
            waiting = pop(world, pollTime=20_000)
            assert world.features.pop.ledger.messages == 1 and not waiting.done
            await delete(world)
            assert (await waiting).code == GONE
            assert world.features.pop.ledger.messages == 0
            await create(world)
            await skip_s(11)
            await asyncio.sleep(0.05)
            assert world.features.pop.revives.revived == 0
            assert await bodies(world) == []
            topics = world.broker.store.state.topics
            assert not [name for name in topics if name.startswith("%RETRY%CG") and "T" in name[9:]]

    run(test)


def test_what_is_remembered_goes_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that the log knows nothing of any more, and resets that nobody will hear."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            client = FakeConnection(serial=7)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat("c"), connection=client)
            for name in ("A", "B", "T"):
                await create(world, name)
                await delete(world, name)
            state, sweep = world.broker.store.state, world.features.topic.deletion_service.sweep
            assert list(state[DELETIONS].rows) == ["A", "B", "T"] and len(state[RESETS].rows) == 1
            sweep()
            await asyncio.sleep(0.01)
            assert len(state[DELETIONS].rows) == 3 and len(state[RESETS].rows) == 1, "they are needed"
            monkeypatch.setattr(deletion_service, "KEPT", 1)
            world.node.log.begin_pos = state[DELETIONS].rows["B"].at
            world.broker.core.clients.connection_closed(client)  # type: ignore[arg-type]
            sweep()
            await asyncio.sleep(0.01)
            assert list(state[DELETIONS].rows) == ["T"] and not state[RESETS].rows

    run(test)


def test_half_messages_of_a_deleted_topic_end_as_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, transaction_timeout_ms=30) as world:
            await create(world)
            half = await world.send(body=b"old", properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02")
            assert half.code == 0 and len(world.broker.store.state[TRANSACTIONS].rows) == 1
            await delete(world)
            await create(world)
            await eventually(lambda: not world.broker.store.state[TRANSACTIONS].rows)
            assert world.features.transaction.checks.lost == 1
            assert await bodies(world) == []

    run(test)


async def life_of(world: World, code: RequestCode, header: Fields) -> str:
    return (await world.call(code, header)).ext["life"]


def test_a_late_deletion_takes_no_topic_that_was_made_since(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            asked = TopicConfigHeader("T", byLeader=True)
            await world.send()
            first = await life_of(world, RequestCode.GET_TOPIC_CONFIG, asked)
            assert Life.parse(first).cluster == world.node.cluster_id
            for life in ("other.1", "nonsense", first.replace(".", ".9")):
                await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T", life))
                assert "T" in world.broker.store.state.topics, life
            answer = await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T", first))
            assert answer.code == 0 and "T" not in world.broker.store.state.topics
            await world.send()
            second = await life_of(world, RequestCode.GET_TOPIC_CONFIG, asked)
            assert Life.parse(second).born > Life.parse(first).born
            late = await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T", first))
            assert late.code == 0, "that one is gone"
            assert world.broker.store.state.next_offset("T", 0) == 1
            await create(world)
            assert await life_of(world, RequestCode.GET_TOPIC_CONFIG, asked) == second, "a change is no birth"
            await delete(world)  # names no life
            assert "T" not in world.broker.store.state.topics

    run(test)


@pytest.mark.parametrize("clean", [True, False])
def test_a_late_deletion_takes_no_group_that_was_made_since(clean: bool, tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            asked = GroupHeader("CG", byLeader=True)
            code, config = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"CG"}'
            lives = []
            for _ in range(2):
                assert (await world.call(code, None, config)).code == 0
                lives.append(await life_of(world, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked))
                header = DeleteSubscriptionGroupHeader("CG", clean, lives[0])
                assert (await world.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
                assert ("CG" in world.broker.store.state.groups) == (len(lives) == 2)
            assert lives[0] != lives[1]

    run(test)


def test_a_follower_says_nothing_of_a_life_that_the_leader_is_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            world.node.follow(None)
            for code, header in (
                (RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader("T", byLeader=True)),
                (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("CG", byLeader=True)),
            ):
                assert (await world.call(code, header)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (await world.call(RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader("T"))).code == 0

    run(test)


def test_lives_are_noted_when_all_voters_know_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 7
            await world.send()
            assert not world.broker.store.state[TOPIC_BIRTHS].rows
            life = await life_of(world, RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader("T"))
            assert Life.parse(life).born == 0
            world.node.appender.state_version = 8
            await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T", life))
            assert "T" not in world.broker.store.state.topics

    run(test)
