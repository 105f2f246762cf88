"""Pulls that wait at a leader that is lost are answered by its successor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.longpolling import stranded_pulls, suggestions
from dledger.remoting.bodies import PullsHeld, WaitingPull, decode_held
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_REDIRECT, Response, SerializeType
from dledger.remoting.errors import BadBody, ConnectFailed
from dledger.remoting.link import OnDone
from tests.broker.harness import FakeConnection, Member, Pending, World, pull_header, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.broker.test_forwarding import follower
from tests.broker.turns import MAX_STEPS, Steps
from tests.client.fake_cluster import eventually

ADDRESSES = {"n1": "10.0.0.2:10911", "n2": "10.0.0.3:10911"}
Told = tuple[str, PullsHeld, OnDone]


async def leader(tmp_path: Path) -> tuple[World, list[Told], dict[str, str]]:
    """One of three that leads, what it tells the others, and where it believes them to be."""
    world, told = World(str(tmp_path)), list[Told]()

    def invoke(addr: str, code: int, header: object, body: bytes, timeout_s: float, on_done: OnDone) -> None:
        if code == RequestCode.TELL_PULLS:
            told.append((addr, decode_held(body), on_done))

    world.broker.client.invoke_nowait = invoke  # type: ignore[method-assign]
    members = {**ADDRESSES, "n0": world.config.client_addr}
    world.features.longpolling.stranded._members = lambda: members
    return await world.open(), told, members


def hold(
    world: World, *, language: LanguageCode = LanguageCode.GO, flag: int = 0, queue: int = 0, offset: int = 1
) -> Pending:
    header = pull_header("T", queue, offset, sysFlag=6, suspendTimeoutMillis=15_000)
    return world.ask(RequestCode.PULL_MESSAGE, header, flag=flag, language=language)


def test_the_others_are_told_of_pulls_of_clients_that_do_not_notice(tmp_path: Path) -> None:
    async def test() -> None:
        world, told, _ = await leader(tmp_path)
        await world.send()
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.features.longpolling.stranded.run())
            for language, flag in (
                (LanguageCode.PYTHON, 0),  # notices
                (LanguageCode.GO, FLAG_REDIRECT),  # goes to who leads
                (LanguageCode.JAVA, 0),  # of the version that we announce: notices
            ):
                hold(world, language=language, flag=flag)
            waits = hold(world)
            assert not waits.done
            await eventually(lambda: len(told) == 2)
            pull = WaitingPull("c1", "CG", "T", 0, 1, waits.opaque, SerializeType.JSON, "10.0.0.9")
            assert sorted(addr for addr, _, _ in told) == sorted(ADDRESSES.values())
            assert [held.pulls for _, held, _ in told] == [[pull], [pull]]
            assert told[0][1].term == world.node.term

            hold(world, queue=0, offset=1)  # before it is told two are one
            later = hold(world, queue=0, offset=1)
            told[0][2](Response(ResponseCode.SUCCESS))
            told[1][2](ConnectFailed("away"))
            await eventually(lambda: len(told) == 3)
            assert told[2][0] == told[0][0], "who did not take it is left alone"
            assert [one.opaque for one in told[2][1].pulls] == [later.opaque]
            told[2][2](Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
            await skip_s(stranded_pulls.RETRY_S + 0.1)
            last = hold(world)
            await eventually(lambda: len(told) == 4)
            assert told[3][0] == told[1][0], "an older one is not told"
            assert [one.opaque for one in told[3][1].pulls][-1] == last.opaque
            running.cancel()

    run(test)


def test_members_that_come_later_are_told_and_those_that_blink_stay(tmp_path: Path) -> None:
    async def test() -> None:
        world, told, members = await leader(tmp_path)
        await world.send()
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.features.longpolling.stranded.run())
            del members["n2"]
            members["n1"] = ""
            await skip_s(stranded_pulls.RETRY_S + 0.1)
            hold(world)
            await eventually(lambda: sorted(world.features.longpolling.stranded._others) == ["n1"])
            assert [addr for addr, _, _ in told] == [ADDRESSES["n1"]], "not connected just now, yet a member"
            members["n3"] = "10.0.0.4:10911"
            await skip_s(stranded_pulls.RETRY_S + 0.1)
            hold(world)
            await eventually(lambda: "n3" in world.features.longpolling.stranded._others)
            hold(world)
            await eventually(lambda: told[-1][0] == "10.0.0.4:10911")
            running.cancel()

    run(test)


async def kept(tmp_path: Path, *pulls: WaitingPull, term: int = 2, **changes: Any) -> World:
    """A follower of n1 that knows of these pulls there, and hears the consumer `c1` of `CG`."""
    world, _ = await follower(tmp_path, **changes)
    await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
    await tell(world, *pulls, term=term)
    return world


async def tell(world: World, *pulls: WaitingPull, term: int) -> None:
    body = PullsHeld(term, list(pulls)).encode()
    assert (await Member(world).call(RequestCode.TELL_PULLS, None, body)).code == 0


def waiting(
    opaque: int, client: str = "c1", queue: int = 0, host: str = "10.0.0.9", at: int = 0
) -> WaitingPull:
    return WaitingPull(client, "CG", "T", queue, at, opaque, SerializeType.JSON, host)


def test_who_leads_next_answers_and_suggests_itself(tmp_path: Path) -> None:
    async def test() -> None:
        others = (
            waiting(902, client="unheard"),
            waiting(903, queue=2, host="10.0.0.77"),
            waiting(906, queue=3, at=1),  # more than there is
        )
        world = await kept(tmp_path, waiting(900), waiting(901, queue=1), *others)
        await tell(world, waiting(904), term=1)  # of a leader before that one
        await tell(world, waiting(905, queue=1), term=2)
        replies = world.connection.replies
        assert not {900, 901, 905} & replies.keys()
        world.node.lead()
        await eventually(lambda: 905 in replies)
        assert replies[900].code == replies[905].code == ResponseCode.PULL_NOT_FOUND
        assert not {901, 902, 903, 904, 906} & replies.keys(), "the last ones, where it is sure whose"
        assert replies[900].ext["nextBeginOffset"] == "0"
        own = str(world.config.follower_id)
        assert replies[900].ext["suggestWhichBrokerId"] == own
        await world.send()
        assert (await world.pull(offset=0)).ext["suggestWhichBrokerId"] == own
        await skip_s(suggestions.SUGGEST_S + 1)
        assert (await world.pull(offset=0)).ext["suggestWhichBrokerId"] == "0"
        assert world.features.longpolling.stranded.answered == 2

    run(test)


def test_another_follower_answers_what_the_new_leader_did_not(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path, waiting(900), waiting(901, queue=1))
        world.node.follow(None)
        world.node.follow("n2")
        await tell(world, waiting(950, queue=1), term=4)  # it asks there again: that was answered
        await skip_s(stranded_pulls.LEADER_FIRST_S)
        await eventually(lambda: 900 in world.connection.replies)
        assert not {901, 950} & world.connection.replies.keys()
        world.node.follow("n2")
        world.node.lead()
        await eventually(lambda: 950 in world.connection.replies)

    run(test)


def test_what_the_next_leader_tells_before_it_is_known_is_not_stranded(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path, waiting(900))
        await tell(world, waiting(950, queue=1), term=4)
        world.node.follow(None)
        world.node.follow("n2")
        assert world.node.term == 4
        await skip_s(stranded_pulls.LEADER_FIRST_S)
        await eventually(lambda: 900 in world.connection.replies)
        await tell(world, waiting(951, queue=1), term=10**9)  # no term at all
        world.node.follow("n1")
        await skip_s(stranded_pulls.LEADER_FIRST_S)
        await eventually(lambda: 950 in world.connection.replies)

    run(test)


def test_a_leader_that_leads_again_may_be_another_process(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path, waiting(900))
        world.node.follow("n1")
        await skip_s(stranded_pulls.LEADER_FIRST_S)
        await eventually(lambda: 900 in world.connection.replies)

    run(test)


def test_where_followers_do_not_forward_only_the_next_leader_answers(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path, waiting(900), forward_to_leader=False)
        world.node.follow("n2")
        await skip_s(stranded_pulls.LEADER_FIRST_S)
        await tell(world, waiting(901), term=world.node.term)
        world.node.lead()
        await eventually(lambda: 901 in world.connection.replies)
        assert 900 not in world.connection.replies

    run(test)


def test_many_known_pulls_make_no_new_one_dear(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path)
        pulls = [waiting(at, queue=at) for at in range(stranded_pulls.MAX_KEPT)]
        now = asyncio.get_running_loop().time()
        world.features.longpolling.stranded._keep(pulls, now)
        told = pulls[: stranded_pulls.SLICE]
        steps = Steps().of(lambda: world.features.longpolling.stranded._keep(told, now))
        assert steps < MAX_STEPS, "one tell in a turn of the loop"
        assert len(world.features.longpolling.stranded._kept) == stranded_pulls.MAX_KEPT

    run(test)


def test_what_is_over_is_not_answered(tmp_path: Path) -> None:
    async def test() -> None:
        world = await kept(tmp_path, waiting(900))
        await skip_s(stranded_pulls.PULL_LIVES_S + 1)
        await tell(world, waiting(901, queue=1), term=2)
        world.node.lead()
        await eventually(lambda: 901 in world.connection.replies)
        assert 900 not in world.connection.replies

    run(test)


def test_what_is_refused_or_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranded_pulls, "MAX_KEPT", 2)
    for wrong in ('0,0,4294967296,0,"h"', '-1,0,1,0,"h"', '0,-1,1,0,"h"', '0,0,1,2,"h"', "0,0,1,0"):
        with pytest.raises(BadBody):
            decode_held(b'{"term":1,"pulls":[["c","g","t",%b]]}' % wrong.encode())

    async def test() -> None:
        world = await kept(tmp_path, *(waiting(900 + queue, queue=queue) for queue in range(4)))
        world.node.lead()
        await eventually(lambda: {902, 903} <= world.connection.replies.keys())
        assert not {900, 901} & world.connection.replies.keys(), "the oldest make room"

    run(test)


def test_a_broker_that_stops_answers_pulls_that_it_forwarded(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        waits, sent = hold(world), world.send(flag_bits=0)
        came_by_suggestion = FakeConnection(serial=2)
        suggestions.suggest_here(came_by_suggestion, 1)  # type: ignore[arg-type]
        header = pull_header("T", 0, 1, sysFlag=6, suspendTimeoutMillis=15_000)
        also = world.ask(RequestCode.PULL_MESSAGE, header, flag=0, connection=came_by_suggestion)
        assert len(wire.sent) == 3
        world.broker.forwarder.farewell()
        assert waits.reply.code == ResponseCode.PULL_NOT_FOUND
        assert waits.reply.ext["nextBeginOffset"] == "1"
        assert waits.reply.ext["suggestWhichBrokerId"] == "2", "n1, as a route from before it led lists it"
        assert also.reply.ext["suggestWhichBrokerId"] == "0", "it takes another one for the leader"
        assert not sent.done, "nobody knows what becomes of it"
        wire.answer[0](Response(ResponseCode.SUCCESS))
        wire.answer[1](Response(ResponseCode.SUCCESS, ext={"queueOffset": "1"}))
        assert sent.reply.code == ResponseCode.SUCCESS and len(world.broker.forwarder) == 0

    run(test)


def test_an_answer_of_the_leader_suggests_the_broker_that_forwarded(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        suggestions.suggest_here(world.connection, 3)  # type: ignore[arg-type]
        waits = hold(world)
        wire.answer[0](Response(ResponseCode.SUCCESS, ext={"suggestWhichBrokerId": "0"}))
        assert waits.reply.ext["suggestWhichBrokerId"] == "3"

    run(test)
