"""Consumer offsets and queue offsets (safety.md S28)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from dledger.broker.leader_gate import LEADER_ADDR
from dledger.broker.offset.offset_processor import MEMBERS_KNOWN_S
from dledger.formats.entry import Kind, unpack_header
from dledger.formats.state import RESETS
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_REDIRECT
from dledger.remoting.headers import (
    GetMaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from tests.broker.fake_node import FakeLog
from tests.broker.harness import FakeConnection, Pending, Reply, World, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading


def update(world: World, offset: int, queue: int = 0, flag: int = FLAG_REDIRECT) -> Pending:
    header = UpdateConsumerOffsetHeader("CG", "T", queue, offset)
    return world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header, flag=flag)


def ask(world: World, queue: int = 0, zero: bool | None = None) -> Pending:
    header = QueryConsumerOffsetHeader("CG", "T", queue, zero)
    return world.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def query(world: World, queue: int = 0, zero: bool | None = None) -> Reply:
    return await ask(world, queue, zero)


def flush(world: World) -> None:
    assert world.broker.gate.writer is not None
    world.features.offset.offsets.flush()


async def filled(root: Path, count: int = 5, log: FakeLog | None = None) -> World:
    """Its leader has led for long enough to know who is in a group."""
    world = await World(str(root), log).open()
    await skip_s(MEMBERS_KNOWN_S)
    for _ in range(count):
        await world.send()
    await world.send(queue=1)
    await world.pull()  # makes the group
    world.node.commit()
    return world


def test_reports_gather_into_one_entry_a_group(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        before = len(world.node.log.entries)
        for offset in (1, 4, 2):
            update(world, offset, flag=2)
        update(world, 1, queue=1, flag=2)
        flush(world)
        flush(world)
        assert len(world.node.log.entries) == before + 1
        world.node.commit()
        assert (await query(world)).ext == {"offset": "4"}
        assert world.broker.store.state.offsets["CG"] == {("T", 0): 4, ("T", 1): 1}
        update(world, 3, flag=2)
        flush(world)
        assert len(world.node.log.entries) == before + 1

    run(test)


def test_a_two_way_report_is_answered_after_commit(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        pending = update(world, 2)
        flush(world)
        assert not pending.done
        world.node.commit()
        assert pending.reply.code == ResponseCode.SUCCESS
        assert update(world, 2).reply.code == ResponseCode.SUCCESS

    run(test)


def test_a_group_is_set_back_where_somebody_asks_for_it_and_not_by_a_late_report(tmp_path: Path) -> None:
    """It was answered with success, and nothing was done."""

    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        update(world, 4, flag=2)
        flush(world)
        world.node.commit()
        update(world, 3, flag=2)
        update(world, 4, flag=2)
        flush(world)
        world.node.commit()
        assert (await query(world)).ext == {"offset": "4"}, "one-way reports may be late"
        back = update(world, 1)
        assert not back.done
        reading = ask(world)
        world.node.commit()
        assert back.reply.code == ResponseCode.SUCCESS
        assert reading.reply.ext == {"offset": "1"}
        update(world, 2, flag=2)
        flush(world)
        world.node.commit()
        assert (await query(world)).ext == {"offset": "2"}, "it goes on from there"
        for serial in (1, 2):
            other = FakeConnection(serial=serial)
            world.ask(RequestCode.HEART_BEAT, None, heartbeat(f"c{serial}"), connection=other)
        refused = update(world, 0).reply
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "offset 0 of T@0 lies before 2, where group CG is, and other consumers" in (
            refused.remark or ""
        )

    run(test)


def test_nobody_sets_a_group_back_through_a_broker_that_does_not_lead(tmp_path: Path) -> None:
    """It may have lain there unread while that broker was stopped, and its client gone on with the leader:
    the offset that the leader had acknowledged then went back."""

    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        forwarded = FLAG_REDIRECT | FLAG_FORWARDED
        for first in (forwarded, FLAG_REDIRECT):
            on = update(world, 3 if first == forwarded else 4, flag=first)
            flush(world)
            world.node.commit()
            assert on.reply.code == ResponseCode.SUCCESS, "whoever goes forward may come any way"
        late = update(world, 3, flag=forwarded).reply
        assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (
            "offset 3 of T@0 lies before 4, where group CG is, and the commit was forwarded by a follower"
            in (late.remark or "")
        )
        assert LEADER_ADDR not in late.ext, "the broker between would try it again"
        again = update(world, 4, flag=forwarded)
        assert again.reply.code == ResponseCode.SUCCESS, "that is so"
        assert (await query(world)).ext == {"offset": "4"}

    run(test)


def test_a_tool_may_set_a_group_back_whose_consumers_are_connected(tmp_path: Path) -> None:
    """mqadmin resetOffsetByTime -o sets the offset, and then resets by it."""

    async def test() -> None:
        world = await filled(tmp_path)
        connections = [FakeConnection(serial=serial, peer=f"10.0.0.{serial}:1") for serial in (5, 6, 7)]
        for connection, name in zip(connections, ("c1", "c2"), strict=False):
            world.ask(RequestCode.HEART_BEAT, None, heartbeat(name), connection=connection)
        update(world, 3, flag=2)
        flush(world)
        header = UpdateConsumerOffsetHeader("CG", "T", 0, 1)
        for connection, code in zip(connections, (ResponseCode.SYSTEM_ERROR, 1, 0), strict=True):
            asked = world.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET, header, connection=connection, language=LanguageCode.JAVA
            )
            assert (await asked).code == code
        assert (await query(world)).ext == {"offset": "1"}
        assert world.broker.store.state[RESETS].rows["CG", "T"].offset(0) == 1, "its consumers go there"
        again = world.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader("CG", "T", 0, 3),
            connection=connections[2],
            language=LanguageCode.JAVA,
        )
        assert (await again).code == ResponseCode.SYSTEM_ERROR, "it is told that this does not count"

    run(test)


def test_a_consumer_that_is_alone_may_set_its_group_back(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        world.ask(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        update(world, 4, flag=2)
        flush(world)
        assert (await update(world, 2)).code == ResponseCode.SUCCESS
        assert (await query(world)).ext == {"offset": "2"}

    run(test)


async def member(world: World, name: str, serial: int) -> FakeConnection:
    connection = FakeConnection(serial=serial)
    await world.ask(RequestCode.HEART_BEAT, None, heartbeat(name), connection=connection)
    return connection


async def membership(world: World) -> str:
    header = QueryConsumerOffsetHeader("CG", "T", 0, askMembership=True)
    return (await world.call(RequestCode.QUERY_CONSUMER_OFFSET, header)).ext["membership"]


LATE: dict[str, dict[str, object]] = {
    "an older client": {},
    "a client that does not mean it": {"setsBack": False},
    "a client that means it": {"setsBack": True},
    "a tool": {"language": LanguageCode.JAVA},
}


@pytest.mark.parametrize("who", LATE)
@pytest.mark.parametrize("heard", ["nobody", "its sender", "others"])
def test_a_new_leader_sets_no_group_back(who: str, heard: str, tmp_path: Path) -> None:
    """It has heard of nobody yet, and so believed a late commit of the consumer that had the queue before."""

    async def test() -> None:
        log = FakeLog()
        world = await filled(tmp_path / "a", log=log)
        update(world, 4, flag=2)
        flush(world)
        world.node.commit()
        known = await membership(world)
        world = await World(str(tmp_path / "b"), log).open()
        sender = FakeConnection(serial=5)
        if heard == "its sender":
            sender = await member(world, "former", 5)
        elif heard == "others":
            await member(world, "present", 6)
        more = dict(LATE[who])
        language = cast(LanguageCode, more.pop("language", LanguageCode.PYTHON))
        for version in (None, known, await membership(world)) if more.get("setsBack") else (None,):
            header = UpdateConsumerOffsetHeader("CG", "T", 0, 2, membership=version, **more)  # type: ignore[arg-type]
            answer = await world.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, header, connection=sender, language=language
            )
            refused = "setsBack" not in more or more["setsBack"]
            assert (answer.code != ResponseCode.SUCCESS) == refused, answer.remark
            if answer.code == ResponseCode.SYSTEM_BUSY:
                assert "has taken over too recently to know all consumers of the group" in (
                    answer.remark or ""
                )
            assert (await query(world)).ext == {"offset": "4"}

    run(test)


@pytest.mark.parametrize("who", LATE)
@pytest.mark.parametrize("known", [True, False], ids=["members are known", "just elected"])
@pytest.mark.parametrize("offset", [4, 1, 2], ids=["before the reset", "below it", "where it goes"])
def test_no_commit_takes_the_place_of_a_reset(who: str, known: bool, offset: int, tmp_path: Path) -> None:
    """An ordinary commit of a consumer put its group back to where it was before an acknowledged reset, as
    the new leader knew of no consumers."""

    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path / "a", log) as world:
            for _ in range(5):
                await world.send()
            await world.pull()  # makes the group
            await update(world, 4)
            reset = ResetOffsetHeader("CG", "T", -1, True, queueId=0, offset=2)
            assert (await world.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
        world = await World(str(tmp_path / "b"), log).open()
        if known:
            await skip_s(MEMBERS_KNOWN_S)
        more = dict(LATE[who])
        language = cast(LanguageCode, more.pop("language", LanguageCode.PYTHON))
        for flag in (FLAG_REDIRECT, 2):
            header = UpdateConsumerOffsetHeader("CG", "T", 0, offset, **more)  # type: ignore[arg-type]
            pending = world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header, flag=flag, language=language)
            if flag == FLAG_REDIRECT:
                answer = await pending
                fits = more.get("setsBack") is False or offset == 2
                assert (answer.code == 0) == fits, "whoever is no consumer is told"
            flush(world)
            world.node.commit()
            assert (await query(world)).ext == {"offset": "2"}
            assert world.broker.store.state[RESETS].rows["CG", "T"].offset(0) == 2

    run(test)


def test_a_commit_sets_back_whose_sender_knows_the_membership(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        sender = await member(world, "c1", 5)
        update(world, 4, flag=2)
        flush(world)

        async def back(version: str) -> Reply:
            header = UpdateConsumerOffsetHeader("CG", "T", 0, 1, setsBack=True, membership=version)
            return await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header, connection=sender)

        before = await membership(world)
        other = await member(world, "c2", 6)
        leave = UnregisterClientHeader("c2", "", "CG")
        await world.call(RequestCode.UNREGISTER_CLIENT, leave, connection=other)
        assert "the members of the group have changed" in ((await back(before)).remark or "")
        assert (await query(world)).ext == {"offset": "4"}
        assert (await back(await membership(world))).code == ResponseCode.SUCCESS
        assert (await query(world)).ext == {"offset": "1"}
        for name in ("c1", "c2"):
            await world.call(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader(name, "", "CG"))
        empty = await membership(world)
        update(world, 4, flag=2)
        flush(world)
        await member(world, "c3", 7)
        await world.call(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("c3", "", "CG"))
        assert "the members of the group have changed" in ((await back(empty)).remark or "")

    run(test)


def test_an_ordinary_commit_goes_forward_only(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        for offset, stands in ((4, "4"), (2, "4"), (5, "5"), (5, "5")):
            header = UpdateConsumerOffsetHeader("CG", "T", 0, offset, setsBack=False)
            pending = world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            flush(world)
            assert (await pending).code == ResponseCode.SUCCESS
            assert (await query(world)).ext == {"offset": stands}

    run(test)


def test_a_query_waits_until_what_was_reported_before_is_committed(tmp_path: Path) -> None:
    """It reads neither as the older one nor as one that the next leader may not have (S25, S28)."""

    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        assert (await query(world)).ext == {"offset": "0"}
        update(world, 2)
        asked = [ask(world)]
        other = await query(world, queue=1)
        flush(world)
        asked.append(ask(world))
        update(world, 3)
        assert not any(pending.done for pending in asked)
        world.node.commit()
        assert [pending.reply.ext for pending in asked] == [{"offset": "2"}] * 2
        assert other.ext == {"offset": "0"}
        last = ask(world)
        flush(world)
        assert not last.done
        world.node.commit()
        assert last.reply.ext == {"offset": "3"}

    run(test)


def test_a_two_way_report_of_what_is_logged_already_waits_for_its_commit_too(tmp_path: Path) -> None:
    """Found by review: it was answered at once, and the next leader did not have it."""

    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        update(world, 2, flag=2)
        flush(world)
        again = update(world, 2)
        assert not again.done
        world.node.commit()
        assert again.reply.code == ResponseCode.SUCCESS

    run(test)


def test_queries_that_wait_are_refused_when_leadership_ends(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        update(world, 2, flag=2)
        asked = [ask(world)]
        flush(world)
        asked.append(ask(world))
        world.node.follow("n1")
        assert [pending.reply.code for pending in asked] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2

    run(test)


def test_reports_that_never_reached_the_log_are_refused_when_leadership_ends(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        pending = update(world, 2)
        world.node.follow("n1")
        assert pending.reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        world.node.lead()
        assert (await query(world, zero=False)).code == ResponseCode.QUERY_NOT_FOUND

    run(test)


def test_an_offset_beyond_the_committed_end_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        world.node.auto = False
        world.send()
        assert update(world, 6).reply.code == ResponseCode.INVALID_PARAMETER
        assert update(world, 1, queue=9).reply.code == ResponseCode.INVALID_PARAMETER
        assert update(world, -1).reply.code == ResponseCode.SUCCESS
        header = UpdateConsumerOffsetHeader("no group", "T", 0, 1)
        refused = await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert (await query(world, zero=False)).code == ResponseCode.QUERY_NOT_FOUND

    run(test)


def test_a_new_group_starts_at_zero_only_where_the_beginning_is_hot(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        assert (await query(world)).ext == {"offset": "0"}
        assert (await query(world, queue=3)).ext == {"offset": "0"}
        assert (await query(world, zero=False)).code == ResponseCode.QUERY_NOT_FOUND
        world.node.log.cold_below = world.node.log.end_pos
        assert (await query(world)).code == ResponseCode.QUERY_NOT_FOUND

    run(test)


def test_the_broker_flushes_offsets_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        task = asyncio.ensure_future(world.features.offset.offsets.run())
        assert (await update(world, 2)).code == ResponseCode.SUCCESS
        header = unpack_header(world.node.log.data, world.node.log.entries[-1][0])
        assert header.kind == Kind.SYSTEM
        task.cancel()

    run(test)


def test_bounds_and_times_of_a_queue(tmp_path: Path) -> None:
    async def test() -> None:
        world = await filled(tmp_path)
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        now = world.clock.value
        for code, header, field, value in [
            (RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0), "offset", "5"),
            (RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 3), "offset", "0"),
            (RequestCode.GET_MIN_OFFSET, QueueHeader("T", 0), "offset", "0"),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader("T", 0), "timestamp", str(now)),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader("T", 3), "timestamp", "-1"),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("T", 0, now + 1), "offset", "5"),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("T", 0, now, "UPPER"), "offset", "4"),
        ]:
            assert (await world.call(code, header)).ext[field] == value
        missing = await world.call(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("Nothing", 0))
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        task.cancel()

    run(test)
