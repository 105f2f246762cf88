"""The pop consumer against a real broker over a fake node: what it takes, gives back, and listens to."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dledger.client import (
    AsyncPopConsumer,
    BrokerRefused,
    ClientClosed,
    ClientError,
    ConsumeStatus,
    PopConsumer,
    PopOptions,
    ReceivedMessage,
)
from dledger.formats.pop_handles import retry_topic_v1
from dledger.formats.properties import POP_CK
from tests.broker.harness import World, run, skip_s
from tests.broker.test_delays import leading
from tests.client.fake_cluster import FakeCluster, eventually

QUICK = PopOptions(invisible_s=600.0, poll_s=0.5, timeout_s=60.0, error_pause_s=0.01, retry_s=(0.01,))


class Route(FakeCluster):
    """A NameServer that knows one broker."""

    def __init__(self, port: int) -> None:
        super().__init__(0, {"T": 4})
        self._port = port

    def _addresses(self) -> dict[int, str]:
        return {0: f"127.0.0.1:{self._port}"}


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[tuple[World, str]]:
    """A broker that leads and listens, and the address of its NameServer."""
    async with leading(root) as world:
        server = world.broker.server
        await server.start("127.0.0.1", 0)
        async with Route(server.addresses[0][1]) as route:
            try:
                yield world, route.namesrv
            finally:
                for connection in server.connections:
                    connection.abort()
                await server.close()


def consumer(namesrv: str, options: PopOptions = QUICK) -> AsyncPopConsumer:
    return AsyncPopConsumer("CG", namesrv, topic="T", from_where="first", options=options)


def test_what_is_popped_is_acknowledged_kept_or_comes_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (world, namesrv), consumer(namesrv) as one, asyncio.timeout(60):
            for number in range(4):
                await world.send("T", b"%d" % number, number % 2, "TAGS\x01a\x02")
            found: list[ReceivedMessage] = []
            while len(found) < 4:
                found += await one.pop()
            assert sorted(message.body for message in found) == [b"0", b"1", b"2", b"3"]
            assert all(message.topic == "T" and message.reconsume_times == 0 for message in found)
            kept = await one.change_invisible(found[0], 300.0)
            assert kept.properties[POP_CK] != found[0].properties[POP_CK]
            with pytest.raises(BrokerRefused, match="is stale"):
                await one.change_invisible(found[0], 1.0)
            await one.ack_all([kept, *found[2:]])
            await one.change_invisible(found[1], 0.0)
            while not (come := await one.pop()):
                pass
            (again,) = come
            assert again.body == found[1].body and again.reconsume_times == 1 and again.topic == "T"
            await one.ack(again)
            assert await one.pop(0.05) == []
            assert world.features.pop.ledger.messages == 0
            with pytest.raises(ClientError, match="was not popped"):
                await one.ack(replace(again, properties={}))

    run(test)


def test_a_listener_s_messages_are_acknowledged_and_those_that_failed_come_again(tmp_path: Path) -> None:
    async def test() -> None:
        seen: list[tuple[bytes, int]] = []
        async with serving(tmp_path) as (world, namesrv), consumer(namesrv) as one:
            for number in range(6):
                await world.send("T", b"%d" % number)

            async def listen(message: ReceivedMessage) -> ConsumeStatus | None:
                seen.append((message.body, message.reconsume_times))
                if len(seen) == 8:
                    await one.close()
                if message.reconsume_times == 0 and message.body in (b"2", b"4"):
                    if message.body == b"2":
                        raise ValueError("not yet")
                    return ConsumeStatus.RECONSUME_LATER
                return None

            async with asyncio.timeout(60):
                await one.listen(listen)
            assert sorted(seen) == sorted([(b"%d" % n, 0) for n in range(6)] + [(b"2", 1), (b"4", 1)])
            assert world.features.pop.ledger.messages == 0

    run(test)


def test_calls_at_the_same_time_share_what_comes_and_end_when_it_is_closed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"first")
            async with consumer(namesrv, dataclasses.replace(QUICK, poll_s=60.0)) as one:
                assert [message.body for message in await one.pop(60.0)] == [b"first"]
                calls = [asyncio.ensure_future(one.pop(60.0)) for _ in range(2)]
                await asyncio.sleep(0.05)
                await world.send("T", b"a")
                ended, waiting = await asyncio.wait(calls, timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
                assert [message.body for call in ended for message in await call] == [b"a"]
                await world.send("T", b"b")
                assert [message.body for call in waiting for message in await call] == [b"b"]
                last = asyncio.ensure_future(one.pop(60.0))
                await asyncio.sleep(0.05)
            with pytest.raises(ClientClosed):
                await last

    run(test)


def test_a_close_waits_for_listeners_and_gives_back_what_they_did_not_get(tmp_path: Path) -> None:
    """A message that was handled is acknowledged; another consumer has the rest at once, not after 600 s."""

    async def test() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()
        handled: list[bytes] = []
        options = dataclasses.replace(QUICK, concurrency=1)

        async def listen(message: ReceivedMessage) -> None:
            begun.set()
            await may_end.wait()
            handled.append(message.body)

        async with serving(tmp_path) as (world, namesrv):
            for number in range(3):
                await world.send("T", b"%d" % number)
            async with consumer(namesrv, options) as one:
                listening = asyncio.ensure_future(one.listen(listen))
                await begun.wait()
                one._stop_soon()
                asyncio.get_running_loop().call_later(0.05, may_end.set)
            await listening
            assert len(handled) == 1
            found: list[bytes] = []
            async with consumer(namesrv) as other, asyncio.timeout(60):
                while len(found) < 2:
                    for message in await other.pop():
                        found.append(message.body)
                        await other.ack(message)
            assert sorted(found + handled) == [b"0", b"1", b"2"]
            assert world.features.pop.ledger.messages == 0

    run(test)


def test_what_is_popped_while_it_closes_is_given_back(tmp_path: Path) -> None:
    async def test() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def listen(message: ReceivedMessage) -> None:
            begun.set()
            await may_end.wait()

        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"first")
            async with consumer(namesrv, dataclasses.replace(QUICK, poll_s=60.0)) as one:
                listening = asyncio.ensure_future(one.listen(listen))
                await begun.wait()
                await eventually(lambda: "broker-a" in one._asked)  # the next pop is asked for
                asked = one._asked["broker-a"]
                one._stop_soon()

                async def send_and_end() -> None:
                    await world.send("T", b"second")
                    await eventually(asked.answer.done)
                    may_end.set()

                ending = asyncio.ensure_future(send_and_end())
            await ending
            await listening
            async with consumer(namesrv) as other, asyncio.timeout(60):
                while not (found := await other.pop()):
                    pass
                assert [message.body for message in found] == [b"second"]

    run(test)


def test_a_listener_may_close_its_consumer(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"last")
            handled: list[bytes] = []

            def use() -> None:
                one = PopConsumer("CG", namesrv, topic="T", from_where="first", options=QUICK)

                def listen(message: ReceivedMessage) -> None:
                    handled.append(message.body)
                    one.close()

                with one:
                    one.listen(listen)

            await asyncio.to_thread(use)
            assert handled == [b"last"] and world.features.pop.ledger.messages == 0

    run(test)


def test_ctrl_c_ends_listening_between_two_messages(tmp_path: Path) -> None:
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    done = threading.Event()
    left: list[int] = []

    async def serve() -> None:
        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"x")
            addresses.put(namesrv)
            await asyncio.to_thread(done.wait, 120)
            left.append(world.features.pop.ledger.messages)

    def listen(message: ReceivedMessage) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        handled.append(message.body)

    handled: list[bytes] = []
    server = threading.Thread(target=run, args=(serve,))
    server.start()
    try:
        with PopConsumer(
            "CG", addresses.get(timeout=60), topic="T", from_where="first", options=QUICK
        ) as one:
            with pytest.raises(KeyboardInterrupt):
                one.listen(listen)
            assert handled == [b"x"]
            assert one.pop(0.01) == [], "it goes on otherwise"
    finally:
        done.set()
        server.join()
    assert left == [0]


def test_what_nobody_waited_for_is_told_no_more_when_its_time_is_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"first")
            options = dataclasses.replace(QUICK, poll_s=3000.0)
            async with consumer(namesrv, options) as one:
                await one.ack((await one.pop(60.0))[0])
                assert await one.pop(0.01) == []  # the broker holds it
                await world.send("T", b"held")
                await eventually(one._asked["broker-a"].answer.done)  # it was given to us,
                await skip_s(601.0)  # and is not ours any more
                (message,) = await one.pop(60.0)
                assert message.body == b"held" and message.reconsume_times == 1
                await one.ack(message)
                assert await one.pop(0.01) == []
                asked = one._asked["broker-a"]
                asked.answer.set_result([])  # nothing came, and nobody waited: the next one asks again
                await world.send("T", b"for the pop that the broker holds still")
                await eventually(lambda: asked.ended_s)
                waiting = asyncio.ensure_future(one.pop(60.0))
                await asyncio.sleep(0.05)
                await world.send("T", b"asked again")
                (message,) = await waiting
                assert message.body == b"asked again"
                await one.ack(message)
                asked = one._ask_for_messages("none of this name")
                one._asked["none of this name"] = asked
                asked.answer.set_exception(ClientError("an outage that is over"))
                assert await one.pop(0.01) == []

    run(test)


def test_the_face_for_threads_and_what_cannot_be_meant(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as (world, namesrv):
            await world.send("T", b"x")

            def use() -> None:
                with PopConsumer("CG", namesrv, topic="T", from_where="first", options=QUICK) as one:
                    (message,) = one.pop()
                    one.ack(one.change_invisible(message, 300.0))
                    assert one.pop(0.01) == []

            await asyncio.to_thread(use)
            assert world.features.pop.ledger.messages == 0
            assert world.broker.store.state.topics[retry_topic_v1("T", "CG")].read_queues == 1

    run(test)
    for wrong in (
        lambda: AsyncPopConsumer("CG", "a:1", topic="T", from_where="timestamp"),
        lambda: AsyncPopConsumer("CG", "a:1", topic=""),
        lambda: PopConsumer("", "a:1", topic="T"),
        lambda: PopOptions(batch_size=33),
        lambda: PopOptions(retry_s=()),
        lambda: PopOptions(invisible_s=0),
    ):
        with pytest.raises(ClientError):
            wrong()
