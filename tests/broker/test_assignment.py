"""Queues that brokers divide, and how consumers are to ask for their messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.loadbalance.allocation import STRATEGIES, for_pop
from dledger.formats.state import REQUEST_MODES
from dledger.remoting.bodies import BrokerData, MessageQueue, QueueData, TopicRoute
from dledger.remoting.codes import RequestCode, ResponseCode
from tests.broker.harness import FakeConnection, Reply, World, run
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading

ALL = {"queueId": -1, "brokerName": "broker-a", "topic": "T"}


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", number) for number in range(count)]


@pytest.mark.parametrize(
    ("strategy", "clients", "wanted"),
    [
        ("AVG", 1, [[0, 1, 2, 3, 4]]),
        ("AVG", 2, [[0, 1, 2], [3, 4]]),
        ("AVG", 7, [[0], [1], [2], [3], [4], [], []]),
        ("AVG_BY_CIRCLE", 2, [[0, 2, 4], [1, 3]]),
    ],
)
def test_every_queue_is_one_client_s(strategy: str, clients: int, wanted: list[list[int]]) -> None:
    names = [f"c{number}" for number in range(clients)]
    found = [[queue.queueId for queue in STRATEGIES[strategy](name, queues(5), names)] for name in names]
    assert found == wanted
    assert STRATEGIES[strategy]("nobody", queues(5), names) == []


@pytest.mark.parametrize(
    ("share", "clients", "wanted"),
    [
        (0, 3, [[-1]] * 3),
        (2, 3, [[-1]] * 3),
        (1, 4, [[0, 1], [1, 2], [2, 3], [0, 3]]),
        (1, 6, [[0], [1], [2], [3], [0], [1]]),
    ],
)
def test_clients_share_queues_that_they_pop(share: int, clients: int, wanted: list[list[int]]) -> None:
    names = [f"c{number}" for number in range(clients)]
    found = [
        [queue.queueId for queue in for_pop(STRATEGIES["AVG"], name, queues(4), names, share)]
        for name in names
    ]
    assert found == wanted


async def ask(world: World, client: str = "c1", **more: Any) -> Reply:
    body = {"topic": "T", "consumerGroup": "CG", "clientId": client, "strategyName": "AVG", **more}
    body.setdefault("messageModel", "CLUSTERING")
    return await world.call(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())


def told(reply: Reply) -> list[tuple[int, str]] | None:
    assert reply.code == 0, reply
    found = json.loads(reply.body).get("messageQueueAssignments")
    return None if found is None else [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


def mode(world: World, **more: Any) -> Any:
    body = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0, **more}
    return world.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())


def test_consumers_pull_their_part_until_they_are_to_pop(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T")
            assert told(await ask(world)) is None  # nobody is known yet
            for number, name in enumerate(("c1", "c2")):
                connection = FakeConnection(serial=number + 1)
                await world.call(RequestCode.HEART_BEAT, None, heartbeat(name), connection=connection)
            assert told(await ask(world, "c1")) == [(0, "PULL"), (1, "PULL")]
            assert told(await ask(world, "c2")) == [(2, "PULL"), (3, "PULL")]
            assert (await mode(world)).code == 0
            assert world.broker.store.state[REQUEST_MODES].rows["T", "CG"].mode == "POP"
            reply = await ask(world, "c1")
            assert told(reply) == [(-1, "POP")]
            assert json.loads(reply.body)["messageQueueAssignments"][0]["messageQueue"] == ALL
            assert told(await ask(world, topic="%RETRY%CG")) == [(0, "PULL")]
            assert len(told(await ask(world, messageModel="BROADCASTING")) or ()) == 4
            assert (await ask(world, strategyName="NONE")).code == ResponseCode.INVALID_PARAMETER
            for wrong, code in (
                ({"topic": "NONE"}, ResponseCode.TOPIC_NOT_EXIST),
                ({"topic": "%RETRY%CG"}, ResponseCode.NO_PERMISSION),
                ({"consumerGroup": "no group"}, ResponseCode.INVALID_PARAMETER),
                ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
                ({"popShareQueueNum": 1 << 40}, ResponseCode.INVALID_PARAMETER),
            ):
                assert (await mode(world, **wrong)).code == code, wrong

    run(test)


@pytest.mark.parametrize("auto", [True, False])
def test_the_mode_of_a_group_may_be_set_before_its_first_consumer_comes(tmp_path: Path, auto: bool) -> None:
    """As tools do. The group is made with it, where a consumer would make it."""

    async def test() -> None:
        async with leading(tmp_path, auto_create_group=auto) as world:
            await world.send("T")
            reply = await mode(world, consumerGroup="EARLY")
            assert reply.code == (0 if auto else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            assert ("EARLY" in world.broker.store.state.groups) is auto

    run(test)


def test_the_queues_of_other_broker_groups_come_from_a_nameserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with leading(tmp_path, namesrv_addr=("127.0.0.1:1",)) as world:
            await world.send("T")
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
            refused = await ask(world)
            assert refused.code == ResponseCode.SYSTEM_ERROR and "no NameServer could name" in str(
                refused.remark
            )

            class Answer:
                code = 0
                remark = None
                body = TopicRoute(
                    [QueueData("broker-a", 9, 9, 6), QueueData("broker-b", 2, 2, 6), QueueData("c", 3, 3, 2)],
                    [BrokerData("C", "broker-b", {0: "b:1"})],
                ).encode()

            async def invoke(*arguments: object, **more: object) -> Answer:
                return Answer()

            monkeypatch.setattr(world.broker.client, "invoke", invoke)
            reply = json.loads((await ask(world)).body)["messageQueueAssignments"]
            names = [one["messageQueue"]["brokerName"] for one in reply]
            assert sorted(names) == ["broker-a"] * 4 + ["broker-b"] * 2
            monkeypatch.undo()
            assert len(told(await ask(world)) or ()) == 6  # as it was a moment ago

    run(test)


def test_the_queues_that_only_some_nameservers_know_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "127.0.0.1:1": [],
        "127.0.0.1:2": [QueueData("broker-b", 2, 2, 6)],
        "127.0.0.1:3": [QueueData("broker-b", 2, 2, 6), QueueData("broker-c", 1, 1, 6)],
    }

    class Answer:
        remark = None

        def __init__(self, queues: list[QueueData]) -> None:
            self.code = 0 if queues else ResponseCode.TOPIC_NOT_EXIST
            self.body = TopicRoute(queues, []).encode()

    async def invoke(address: str, *arguments: object, **more: object) -> Answer:
        return Answer(known[address])

    async def test() -> None:
        async with leading(tmp_path, namesrv_addr=tuple(known)) as world:
            await world.send("T")
            await world.call(RequestCode.HEART_BEAT, None, heartbeat("c1"))
            monkeypatch.setattr(world.broker.client, "invoke", invoke)
            reply = json.loads((await ask(world)).body)["messageQueueAssignments"]
            names = [one["messageQueue"]["brokerName"] for one in reply]
            assert sorted(names) == ["broker-a"] * 4 + ["broker-b"] * 2 + ["broker-c"]
            monkeypatch.undo()

    run(test)
