"""Queue locks (41, 42): one owner at a time, whoever leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.clients import queue_locks
from dledger.broker.config import MIN_LOCK_LIVE_MS, SETTINGS
from dledger.formats.state import (
    LOCK_BATCH,
    LOCK_EPOCHS,
    LOCKS,
    MAX_LOCK_BATCH,
    ReplicatedState,
    batch_op,
    pack_op,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_REDIRECT
from tests.broker.fake_node import FakeLog
from tests.broker.harness import FakeConnection, Pending, Reply, World, run, skip_s
from tests.broker.test_delays import leading
from tests.client.fake_cluster import eventually

Queue = tuple[str, int]


def body(client: str, queues: list[Queue], epochs: list[int] | None = None, group: str = "CG") -> bytes:
    """As Java writes it; our clients tell epochs."""
    rows = [{"brokerName": "broker-a", "queueId": queue, "topic": topic} for topic, queue in queues]
    asked = {"clientId": client, "consumerGroup": group, "mqSet": rows, "onlyThisBroker": False}
    asked |= {} if epochs is None else {"epochs": epochs}
    return json.dumps(asked, separators=(",", ":")).encode()


def ask(world: World, client: str, *queues: Queue, group: str = "CG") -> Pending:
    return world.ask(RequestCode.LOCK_BATCH_MQ, None, body(client, list(queues), group=group))


async def lock(world: World, client: str, *queues: Queue, group: str = "CG") -> list[Queue]:
    """Lock queues of `T`; those that the client has then."""
    reply = await ask(world, client, *queues, group=group)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return sorted((row["topic"], row["queueId"]) for row in json.loads(reply.body)["lockOKMQSet"])


async def unlock(world: World, client: str, *queues: Queue) -> None:
    reply = await world.call(RequestCode.UNLOCK_BATCH_MQ, None, body(client, list(queues)))
    assert reply.code == ResponseCode.SUCCESS, reply.remark


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Locks are over after 60 s, and it is seen soon."""
    monkeypatch.setattr(queue_locks, "SWEEP_S", 0.02)
    return {"lock_live_s": 60}


Q0, Q1, Q2 = ("T", 0), ("T", 1), ("T", 2)
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def test_a_queue_has_one_owner_until_it_gives_it_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            assert await lock(world, "c1", Q0, Q1) == [Q0, Q1]
            assert await lock(world, "c2", Q0, Q1, Q2) == [Q2]
            assert await lock(world, "c1", Q0, Q1, Q2) == [Q0, Q1], "what one has it keeps"
            assert await lock(world, "c2", Q0, group="other") == [Q0], "each group for itself"
            await unlock(world, "c2", Q0, Q1)
            assert await lock(world, "c2", Q0) == [], "what is another's is left alone"
            await unlock(world, "c1", Q0)
            assert await lock(world, "c2", Q0) == [Q0]
            rows = world.broker.store.state[LOCKS].rows
            assert {key: row.client for key, row in rows.items()} == {
                ("CG", *Q0): "c2",
                ("CG", *Q1): "c1",
                ("CG", *Q2): "c2",
                ("other", *Q0): "c2",
            }

    run(test)


def test_a_late_unlock_of_another_broker_takes_nothing_that_was_locked_here_since(tmp_path: Path) -> None:
    """It may have lain there unread while that broker was stopped, and its client have the queue again."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            forwarded = FLAG_REDIRECT | FLAG_FORWARDED
            late = body("c1", [Q0, Q1])
            assert await lock(world, "c1", Q0) == [Q0]
            assert (
                await world.ask(RequestCode.LOCK_BATCH_MQ, None, body("c1", [Q1]), flag=forwarded)
            ).code == ResponseCode.SUCCESS
            answer = await world.ask(RequestCode.UNLOCK_BATCH_MQ, None, late, flag=forwarded)
            assert answer.code == ResponseCode.SUCCESS
            assert await lock(world, "c2", Q0, Q1) == [Q1], "who asks by way of another unlocks so, too"
            for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):  # a late one of both
                await world.ask(code, None, late, flag=forwarded)
            assert await lock(world, "c2", Q0) == []
            await unlock(world, "c1", Q0)
            await world.ask(RequestCode.LOCK_BATCH_MQ, None, body("c2", [Q0]), flag=forwarded)
            await world.ask(RequestCode.UNLOCK_BATCH_MQ, None, body("c2", [Q0]), flag=forwarded)
            assert await lock(world, "c1", Q0) == [Q0], "another owner, another way"

    run(test)


@pytest.mark.parametrize("forwarded", [False, True])
@pytest.mark.parametrize("switch", [False, True])
def test_a_late_request_of_an_earlier_epoch_changes_nothing(
    switch: bool, forwarded: bool, tmp_path: Path
) -> None:
    """A queue that its client had locked again had two owners, when a late unlock came in."""

    async def test() -> None:
        log = FakeLog()
        flag = FLAG_REDIRECT | (FLAG_FORWARDED if forwarded else 0)

        async def ask_for(world: World, code: int, client: str, *queues: Queue, epoch: int) -> Reply:
            return await world.ask(code, None, body(client, list(queues), [epoch] * len(queues)), flag=flag)

        async with leading(tmp_path / "a", log) as world:
            await world.send()
            await world.send(queue=1)
            for epoch in (7, 8):
                assert await ask_for(world, LOCK, "c1", Q0, Q1, epoch=epoch)
            if not switch:
                await late(world, ask_for)
        if switch:
            async with leading(tmp_path / "b", log) as world:
                await late(world, ask_for)

    async def late(world: World, ask_for: Callable[..., Any]) -> None:
        assert (await ask_for(world, UNLOCK, "c1", Q0, Q1, epoch=7)).code == 0
        assert await lock(world, "c2", Q0, Q1) == []
        assert json.loads((await ask_for(world, LOCK, "c1", Q0, epoch=7)).body) == {"lockOKMQSet": []}
        await ask_for(world, LOCK, "c1", Q0, epoch=8)
        assert (await ask_for(world, UNLOCK, "c1", Q0, epoch=8)).code == 0
        assert await lock(world, "c2", Q0, Q1) == [Q0]
        assert set(world.broker.store.state[LOCK_EPOCHS].rows) == {("CG", "T", 1)}
        await ask_for(world, UNLOCK, "c2", Q0, epoch=1)
        expected = [] if forwarded else [Q0]  # of a lock without an epoch nobody knows what is late
        assert await lock(world, "c3", Q0) == expected

    run(test)


def test_epochs_are_noted_when_all_voters_know_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 7
            await world.send()
            for code, epoch in ((LOCK, 9), (UNLOCK, 8)):
                await world.ask(code, None, body("c1", [Q0], [epoch]))
            assert not world.broker.store.state[LOCK_EPOCHS].rows
            assert await lock(world, "c2", Q0) == [Q0], "as before"

    run(test)


def test_what_is_not_committed_is_not_said(tmp_path: Path) -> None:
    """A leader that is cut off answers nobody, not even who has the lock already."""

    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            assert await lock(world, "c1", Q0) == [Q0]
            world.node.auto = False
            new, kept = ask(world, "c1", Q1), ask(world, "c1", Q0)
            assert await lock(world, "c2", Q1) == [], "decided by what is pending"
            assert not new.done and not kept.done
            world.node.follow("n1")
            assert (await new).code == (await kept).code == ResponseCode.SYSTEM_ERROR
            assert "outcome unknown" in ((await kept).remark or "")
            refused = await ask(world, "c1", Q0)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(test)


def test_an_owner_that_is_not_heard_of_loses_its_queues(tmp_path: Path, quick: dict[str, Any]) -> None:
    async def test() -> None:
        async with leading(tmp_path, **quick) as world:
            await world.send()
            assert await lock(world, "c1", Q0, Q1) == [Q0, Q1]
            rows = world.broker.store.state[LOCKS].rows
            for _ in range(4):
                assert await lock(world, "c1", Q0) == [Q0]
                await skip_s(20)
            await eventually(lambda: ("CG", *Q1) not in rows)
            assert await lock(world, "c2", Q0, Q1) == [Q1], "one was heard of all the time, one was not"
            await skip_s(60)
            await eventually(lambda: not rows)
            assert locks_of(world).count == 0 and locks_of(world).expired == 3

    run(test)


def locks_of(world: World) -> queue_locks.QueueLocks:
    (found,) = (one for one in world.broker.processors if isinstance(one, queue_locks.QueueLocks))
    return found


def test_the_next_leader_knows_the_owners_and_gives_each_the_whole_time(
    tmp_path: Path, quick: dict[str, Any]
) -> None:
    async def test() -> None:
        async with leading(tmp_path, **quick) as world:
            await world.send()
            assert await lock(world, "c1", Q0) == [Q0]
            await skip_s(45)
            world.node.follow("n1")
            world.clock.value += 3_600_000  # clocks say nothing
            await skip_s(30)
            world.node.lead()
            assert await lock(world, "c2", Q0) == [], "75 s after the owner was heard of"
            assert await lock(world, "c1", Q0) == [Q0]
            await skip_s(60)
            assert await lock(world, "c2", Q0) == [Q0]

    run(test)


def test_a_queue_that_is_not_there_is_not_locked_and_the_others_are(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            retry = ("%RETRY%CG", 0)
            assert await lock(world, "c1", Q0, ("T", 99), ("nothing", 0), ("T", -1), retry) == [retry, Q0]

    run(test)


def test_what_asks_for_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS", 2)

    async def test() -> None:
        async with leading(tmp_path, auto_create_group=True) as world:
            await world.send()
            many = [("T", number) for number in range(MAX_LOCK_BATCH + 1)]
            for client, queues, group, code in (
                ("c1", many, "CG", ResponseCode.INVALID_PARAMETER),
                ("c1", [Q0, Q1, Q2], "CG", ResponseCode.SYSTEM_BUSY),
                ("", [Q0], "CG", ResponseCode.INVALID_PARAMETER),
                ("c" * 256, [Q0], "CG", ResponseCode.INVALID_PARAMETER),
                ("c1", [Q0], "", ResponseCode.INVALID_PARAMETER),
                ("c1", [Q0], "no group", ResponseCode.INVALID_PARAMETER),
            ):
                assert (await ask(world, client, *queues, group=group)).code == code
            assert await lock(world, "c1", Q0, Q1) == [Q0, Q1]
            assert await lock(world, "c1", Q0, Q1) == [Q0, Q1], "what one has is not more"
            assert not world.broker.store.state.skipped

    run(test)


def test_without_room_nothing_is_locked(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 2
            await world.send()
            refused = await ask(world, "c1", Q0)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "upgrade" in (refused.remark or "")

    run(test)


def test_a_lock_outlives_its_connection_as_in_rocketmq(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send()
            other = FakeConnection(serial=2)
            reply = await world.call(RequestCode.LOCK_BATCH_MQ, None, body("c1", [Q0]), connection=other)
            assert reply.code == 0
            world.broker.core.clients.connection_closed(other)  # type: ignore[arg-type]
            assert await lock(world, "c2", Q0) == []

    run(test)


def test_the_time_is_longer_than_clients_hold_on_to_a_lock() -> None:
    assert MIN_LOCK_LIVE_MS > 30_000
    with pytest.raises(ValueError, match="35000"):
        SETTINGS["rebalanceLockMaxLiveTime"].parse("30000")


@pytest.mark.parametrize(
    "change",
    [{"queues": [["T"]]}, {"queues": [["T", -1]]}, {"queues": 3}, {"client": ""}, {"group": "g" * 256}],
)
def test_a_malformed_operation_changes_nothing(change: dict[str, Any]) -> None:
    state = ReplicatedState()
    op = batch_op(LOCK_BATCH, "g", "c", [("T", 0), ("T", 1)])
    assert state.apply(pack_op({**op, **change})) is None and state.skipped == 1
    assert not state[LOCKS].rows
    assert state.apply(pack_op(op)) == LOCK_BATCH and len(state[LOCKS].rows) == 2
