"""Limits on topics, with those of retries and dead letters: their number, and the bytes of a registration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.topic import topic_creation as catalog
from dledger.broker.topic.topic_names import system_topics
from dledger.broker.topic.topic_table import encode_topic
from dledger.formats.state import TopicConfig
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.limits import MAX_FRAME_SIZE
from tests.broker.harness import World, make_config, run
from tests.broker.test_admin import create
from tests.broker.test_clients import consumers, heartbeat


def room_for(root: Path, *topics: TopicConfig) -> dict[str, Any]:
    """Settings that leave just room for these."""
    entries = [encode_topic(config) for config in system_topics(make_config(str(root))).values()]
    entries += [encode_topic(config) for config in topics]
    return {"max_topic_table_bytes": len(b",".join(entries))}


def test_a_topic_that_would_not_fit_into_a_registration_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        topics = TopicConfig("A", 4, 4, 6), TopicConfig("B", 4, 4, 6)
        world = await World(str(tmp_path), **room_for(tmp_path, *topics)).open()
        world.node.auto = False
        assert not create(world, "A").done and not create(world, "B").done, (
            "both fit, and wait for the commit"
        )
        refused = create(world, "C").reply
        assert refused.code == ResponseCode.SYSTEM_ERROR and refused.remark is not None
        assert (
            "bytes of topics in a registration" in refused.remark and "another broker group" in refused.remark
        )
        assert (await world.send("C")).code == ResponseCode.SYSTEM_ERROR, "nor on first use"
        world.node.auto = True
        world.node.commit()
        assert world.features.topic.table.size == world.config.max_topic_table_bytes
        assert create(world, "A", queues=10).reply.code == ResponseCode.SYSTEM_ERROR, "a change that grows"
        assert (await create(world, "A", queues=3)).code == ResponseCode.SUCCESS
        assert create(world, "A", attributes="+k=v").reply.code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_a_new_leadership_counts_what_was_there(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **room_for(tmp_path, TopicConfig("A", 4, 4, 6))).open()
        assert (await create(world, "A")).code == ResponseCode.SUCCESS
        world.node.follow("n1")
        world.node.lead()
        assert create(world, "B").reply.code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_a_table_that_is_too_large_already_may_shrink(tmp_path: Path) -> None:
    async def test() -> None:
        root = str(tmp_path)
        world = await World(root).open()
        assert (await create(world, "A", queues=1000)).code == ResponseCode.SUCCESS
        world = await World(root, world.node.log, max_topic_table_bytes=1).open()
        assert (await create(world, "A", queues=1001)).code == ResponseCode.SUCCESS, "no larger than before"
        assert (await create(world, "A", queues=4)).code == ResponseCode.SUCCESS
        assert create(world, "A", queues=1000).reply.code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_pending_topics_count(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_topics=2).open()
        world.node.auto = False
        assert not create(world, "A").done and not create(world, "B").done
        refused = create(world, "C").reply
        assert refused.code == ResponseCode.SYSTEM_ERROR and "the limit of 2 topics" in str(refused.remark)
        assert not create(world, "A", queues=7).done, "a change is no new topic"

    run(test)


def test_topics_that_every_broker_has_do_not_count(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_topics=1).open()
        assert (await create(world, "BenchmarkTest", queues=3)).code == ResponseCode.SUCCESS
        world.node.follow("n1")
        world.node.lead()
        assert (await create(world, "A")).code == ResponseCode.SUCCESS
        assert create(world, "B").reply.code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_a_group_whose_retry_topic_has_no_room_is_not_made_and_its_pulls_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **room_for(tmp_path, TopicConfig("T", 4, 4, 6))).open()
        monkeypatch.setattr(catalog, "INTERNAL_TABLE_BYTES", 0)
        await create(world, "T")
        state = world.broker.store.state
        reply = await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        assert reply.code == ResponseCode.SUCCESS, "it speaks for other groups, too"
        assert await consumers(world) == ["c1"], "as on the followers"
        assert list(world.broker.core.clients.producers["PG"]) == ["c1"]
        pulled = await world.pull("T")
        assert pulled.code == ResponseCode.SYSTEM_ERROR
        assert "bytes of topics" in str(pulled.remark) and "%RETRY%CG" in str(pulled.remark)
        assert not state.groups and list(state.topics) == ["T"]
        world.node.follow("n1")
        world.node.lead()  # makes the groups of the consumers that it knows
        assert not state.groups and list(state.topics) == ["T"]

    run(test)


def test_a_heartbeat_counts_for_its_other_groups_when_one_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **room_for(tmp_path, TopicConfig("%RETRY%made", 1, 1, 6))).open()
        monkeypatch.setattr(catalog, "INTERNAL_TABLE_BYTES", 0)
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c0", group="made"))
        both = json.loads(heartbeat("c1", group="no-room"))
        both["consumerDataSet"] += json.loads(heartbeat("c1", group="made"))["consumerDataSet"]
        reply = await world.call(RequestCode.HEART_BEAT, None, json.dumps(both).encode())
        assert reply.code == ResponseCode.SUCCESS
        assert await consumers(world, "made") == ["c0", "c1"]
        world.node.commit()
        assert list(world.broker.store.state.groups) == ["made"]

    run(test)


def test_retry_and_dead_letter_topics_count_but_their_number_keeps_none_of_them_out(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), max_topics=1).open()
        assert (await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))).code == ResponseCode.SUCCESS
        world.node.commit()
        assert list(world.broker.store.state.topics) == ["%RETRY%CG"]
        for refused in (create(world, "T"), world.send("T")):
            assert refused.reply.code == ResponseCode.SYSTEM_ERROR
            assert "the limit of 1 topics" in str(refused.reply.remark)
        assert (await world.send("%RETRY%CG")).code == ResponseCode.SUCCESS
        assert (await world.send("%RETRY%CG", reconsumeTimes=17)).code == ResponseCode.SUCCESS
        world.node.commit()
        assert list(world.broker.store.state.topics) == ["%RETRY%CG", "%DLQ%CG"]

    run(test)


def test_retry_and_dead_letter_topics_have_room_when_users_have_none_left(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **room_for(tmp_path, TopicConfig("A", 4, 4, 6))).open()
        assert (await create(world, "A")).code == ResponseCode.SUCCESS
        assert create(world, "B").reply.code == ResponseCode.SYSTEM_ERROR
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        assert (await world.send("%RETRY%CG", reconsumeTimes=17)).code == ResponseCode.SUCCESS
        world.node.commit()
        assert list(world.broker.store.state.topics) == ["A", "%RETRY%CG", "%DLQ%CG"]

    run(test)


def test_what_is_refused_does_not_count(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **room_for(tmp_path, TopicConfig("A", 4, 4, 6))).open()
        for _ in range(3):
            refused = create(world, "A", attributes="+k=" + "x" * 300_000).reply
            assert refused.code == ResponseCode.INVALID_PARAMETER and "the limit is 65536" in str(
                refused.remark
            )
        assert (await create(world, "A")).code == ResponseCode.SUCCESS, "there is still room for it"

    run(test)


def test_a_topic_that_the_log_does_not_take_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        writer = world.broker.gate.writer
        assert writer is not None
        before = (writer.table_bytes, writer.topics)

        def refuse(body: bytes, kind: int = 0) -> int:
            raise ValueError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(writer._appender, "add_system", refuse)
            with pytest.raises(ValueError, match="not now"):
                writer.put_topic(TopicConfig("A", 4, 4, 6))
        assert (writer.table_bytes, writer.topics) == before
        writer.put_topic(TopicConfig("A", 4, 4, 6))
        assert writer.topics == before[1] + 1

    run(test)


def test_the_largest_table_fits_into_a_frame(tmp_path: Path) -> None:
    config = make_config(str(tmp_path))
    assert config.max_topic_table_bytes + catalog.INTERNAL_TABLE_BYTES + 64 * 1024 <= MAX_FRAME_SIZE
    longest = encode_topic(TopicConfig("x" * 127, 1024, 1024, 7, False, 2**31 - 1))
    assert len(longest) < 2 * 127 + 170
