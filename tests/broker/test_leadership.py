"""Who is served when: refusals with a hint, requests that wait for a term, hand-over (safety.md S24)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import (
    CreateTopicHeader,
    GetMaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from tests.broker.harness import World, run


def test_a_follower_refuses_with_the_leaders_address(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.meta["n1"] = {"client_addr": "10.0.0.2:10911"}
        world.node.follow("n1")
        asked = [
            world.send(),
            world.pull(),
            world.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0)),
            world.ask(RequestCode.GET_MIN_OFFSET, QueueHeader("T", 0)),
            world.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader("T", 0, 1)),
            world.ask(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("CG", "T", 0)),
            world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("CG", "T", 0, 1)),
            world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", "TBW102", 1, 1, 6)),
        ]
        for pending in asked:
            assert pending.reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert pending.reply.ext == {"leaderAddr": "10.0.0.2:10911"}
            assert "10.0.0.2:10911" in (pending.reply.remark or "")
        world.node.follow(None)
        assert world.send().reply.ext == {}

    run(test)


def test_requests_wait_for_the_term_to_open(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open(lead=False)
        world.node.stand()
        waiting, bad = world.send(), world.send("bad topic!")
        assert not waiting.done
        world.node.serve()
        assert (await waiting).code == ResponseCode.SUCCESS
        assert bad.reply.code == ResponseCode.INVALID_PARAMETER

    run(test)


def test_requests_wait_for_a_term_no_longer_than_the_limit(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), hold_while_opening_bytes=3000).open(lead=False)
        world.node.stand()
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting, large = world.send(), world.send(body=b"x" * 3000)
        assert large.reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not waiting.done
        assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert loop.time() - began >= 0.05
        later = world.send()
        world.node.follow("n1")
        assert later.reply.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)


def test_a_hand_over_holds_requests_and_then_says_who_leads(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.meta["n1"] = {"client_addr": "10.0.0.2:10911"}
        world.node.transfer_to = "n1"
        sent = world.send()
        moving = asyncio.ensure_future(world.broker.hand_over())
        assert await moving
        assert sent.reply.code == ResponseCode.SUCCESS
        assert world.send().reply.ext["leaderAddr"] == "10.0.0.2:10911"

    run(test)


def test_a_node_without_successor_goes_on_serving(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()

        async def nobody(timeout_s: float) -> bool:
            return False

        world.node.step_aside = nobody  # type: ignore[method-assign]
        assert not await world.broker.hand_over()
        assert (await world.send()).code == ResponseCode.SUCCESS

    run(test)


def test_after_a_hand_over_that_failed_offsets_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        world.node.auto = False
        first = world.send()
        assert not await world.broker.hand_over()
        second = world.send()
        world.node.commit()
        assert [first.reply.ext["queueOffset"], second.reply.ext["queueOffset"]] == ["0", "1"]

    run(test)
