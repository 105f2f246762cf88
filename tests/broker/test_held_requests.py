"""Pulls and pops that wait get no messages that they would be refused by now."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.harness import World, run
from tests.broker.pop_calls import notification, pop, take
from tests.broker.test_delays import leading


async def put_topic(world: World, perm: int, queues: int = 4) -> None:
    header = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": "4",
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
    }
    assert (await world.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0


async def put_group(world: World, **config: Any) -> None:
    body = json.dumps({"groupName": "CG", **config}).encode()
    assert (await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0


async def closed(world: World) -> None:
    await put_group(world, consumeEnable=False)


async def gone(world: World) -> None:
    header = {"groupName": "CG", "cleanOffset": "true"}
    assert (await world.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0


async def unreadable(world: World) -> None:
    await put_topic(world, 2)


async def fewer(world: World) -> None:
    await put_topic(world, 6, 3)


NO = ResponseCode.NO_PERMISSION
CHANGES = pytest.mark.parametrize(
    ("change", "code"),
    [
        (closed, NO),
        (unreadable, NO),
        (gone, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (fewer, ResponseCode.INVALID_PARAMETER),
    ],
)


@CHANGES
@pytest.mark.parametrize("wanted", [("TAG", "*"), ("SQL92", "a IS NULL")])
def test_a_pull(tmp_path: Path, change: Any, code: int, wanted: tuple[str, str]) -> None:
    async def test() -> None:
        async with leading(tmp_path, auto_create_group=False, property_filter=True) as world:
            await put_topic(world, 6)
            await put_group(world)
            kind, expression = wanted
            how = {"sysFlag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspendTimeoutMillis": 15_000}
            waiting = world.pull("T", 3, expressionType=kind, subscription=expression, **how)
            assert not waiting.done and world.features.longpolling.pulls.held.count == 1
            await change(world)
            assert (await world.send("T", b"x", 3)).code == 0
            assert (await waiting).code == code

    run(test)


@CHANGES
@pytest.mark.parametrize("ask", [pop, notification])
def test_a_pop(tmp_path: Path, change: Any, code: int, ask: Any) -> None:
    async def test() -> None:
        async with leading(tmp_path, auto_create_group=False) as world:
            await put_topic(world, 6)
            await put_group(world)
            await take(world, queue=3)
            waiting = (
                ask(world, queue=3, pollTime=15_000) if ask is pop else ask(world, poll_ms=15_000, queueId=3)
            )
            await asyncio.sleep(0)
            assert not waiting.done and world.features.pop.pops.held.count == 1
            await change(world)
            assert (await world.send("T", b"x", 3)).code == 0
            assert (await waiting).code == code

    run(test)
