"""A client that was opened before `os.fork()`: in the child it says so, and leaves the parent's alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientClosed,
    FromWhere,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from dledger.remoting.codes import RequestCode
from tests.client.consumer_kit import CHILD_PATIENCE, QUICK, consume, fill, until
from tests.client.fake_cluster import FakeCluster
from tests.client.test_sync import running


def in_child(check: Callable[[], None]) -> None:
    """Run something in a forked child, for a minute at most; what fails there fails here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            check()
            code = 0
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_blocking_method_says_so_in_a_child_and_a_new_client_works() -> None:
    with running(FakeCluster(topics={"orders": 2})) as fake:
        fill(fake, 4)
        with (
            Producer("producers", fake.namesrv) as producer,
            PullConsumer("reports", fake.namesrv) as reader,
            PushConsumer("group", fake.namesrv, print, topic="orders", options=QUICK) as consumer,
        ):
            producer.send(Message("orders", b"parent"))
            queues = reader.queues("orders")
            reader.assign(queues, start=FromWhere.FIRST)
            queue, message = queues[0], Message("orders", b"child")
            calls: list[Callable[[], Any]] = [
                lambda: producer.send(message),
                lambda: producer.send("orders", b"child"),
                lambda: producer.send_async(message, print),
                lambda: producer.send_oneway(message),
                lambda: producer.send_batch([message]),
                lambda: producer.begin(message),
                lambda: producer.begin_batch([message]),
                lambda: asyncio.run(producer.asend(message)),
                lambda: producer.flush(),
                lambda: producer.create_topic("other"),
                lambda: producer.queues("orders"),
                lambda: producer.has_route("orders"),
                lambda: reader.queues("orders"),
                lambda: reader.assign(queues),
                lambda: reader.subscribe("orders"),
                lambda: reader.poll(),
                lambda: reader.commit(),
                lambda: reader.committed(queue),
                lambda: reader.seek(queue, 0),
                lambda: reader.seek_to_begin(queue),
                lambda: reader.seek_to_end(queue),
                lambda: reader.seek_to_time(queue, 0),
                lambda: reader.position(queue),
                lambda: reader.offset_at(queue, 0),
                lambda: reader.lowest(queue),
                lambda: reader.highest(queue),
                lambda: consumer.wait(),
                lambda: consumer.subscribe("other"),
                lambda: consumer.queues,
            ]

            def check() -> None:
                for number, call in enumerate(calls):
                    with pytest.raises(ClientClosed, match="fork"):
                        call()
                        raise AssertionError(f"call {number} went on")
                for client in (producer, reader, consumer):
                    client.close()
                    client.close()
                with Producer("producers", fake.namesrv) as fresh:
                    fresh.send(Message("orders", b"fresh"))
                with producer:  # the same object has a life of its own here
                    producer.send(message)

            heard = len(fake.brokers[0].requests)
            in_child(check)
            assert RequestCode.UNREGISTER_CLIENT not in fake.brokers[0].requests[heard:]
            assert isinstance(producer.send(Message("orders", b"parent again")).queue_offset, int)
            assert len(reader.poll(60)) > 0
            assert sorted(set(fake.bodies("orders"))) == [
                b"0", b"1", b"2", b"3", b"child", b"fresh", b"parent", b"parent again"
            ]  # fmt: skip


def test_leaving_a_block_in_a_child_says_nothing_in_the_parent_s_name() -> None:
    with (
        running(FakeCluster(topics={"orders": 1})) as fake,
        PushConsumer("group", fake.namesrv, print, topic="orders", options=QUICK) as consumer,
        Producer("producers", fake.namesrv) as producer,
    ):
        until(lambda: consumer.queues)
        producer.send(Message("orders", b"x"))

        def check() -> None:
            consumer.__exit__(None, None, None)
            producer.__exit__(None, None, None)

        in_child(check)
        assert fake.brokers[0].clients["group"]
        producer.send(Message("orders", b"y"))


def test_an_async_client_says_so_in_a_child_and_writes_nothing_there() -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 2}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
            AsyncPullConsumer("reports", fake.namesrv) as reader,
            AsyncPushConsumer("group", fake.namesrv, print, topic="orders", options=QUICK) as consumer,
        ):
            await producer.send(Message("orders", b"parent"))
            queues = await reader.queues("orders")
            await reader.assign(queues, start=FromWhere.FIRST)
            message = Message("orders", b"child")

            async def nowait() -> None:
                producer.send_nowait(message, print)

            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: producer.send(message),
                nowait,
                lambda: producer.send_batch([message]),
                lambda: producer.send_oneway(message),
                lambda: producer.flush(),
                lambda: producer.prepare("other"),
                lambda: producer.queues("orders"),
                lambda: producer.create_topic("other"),
                lambda: reader.queues("orders"),
                lambda: reader.assign(queues),
                lambda: reader.poll(),
                lambda: reader.commit(),
                lambda: reader.committed(queues[0]),
                lambda: reader.seek_to_end(queues[0]),
                lambda: consumer.wait(),
            ]

            def check() -> None:
                async def child() -> None:
                    for number, call in enumerate(calls):
                        with pytest.raises(ClientClosed, match="fork"):
                            async with asyncio.timeout(60):
                                await call()
                            raise AssertionError(f"call {number} went on")
                    for client in (producer, reader, consumer):
                        await client.close()
                        await client.__aexit__(None, None, None)

                asyncio.run(child())

            in_child(check)
            await producer.send(Message("orders", b"parent again"))
            assert sorted(fake.bodies("orders")) == [b"parent", b"parent again"]

    asyncio.run(main())


CHILD = """
import os, sys
from dledger.client import Message, Producer
# If the child waited here for messages of its parent, it would wait longer than the test does.
options = ProducerOptions(timeout_s=60.0, attempt_timeout_s=20.0, close_timeout_s=1000.0)
with Producer("producers", sys.argv[1], options, PATIENT) as producer:
    producer.send(Message("orders", b"parent"))
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        producer.send(Message("orders", b"parent again"))
        print("child ended with", code)
# Both leave the block and the interpreter here.
"""


def test_a_child_that_leaves_the_interpreter_ends_at_once() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        ended = subprocess.run(
            [sys.executable, "-c", CHILD_PATIENCE + CHILD, fake.namesrv],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "child ended with 0\n", "")
        assert fake.bodies("orders") == [b"parent", b"parent again"]


def test_a_child_may_use_the_instance_name_of_its_parent_s_consumer() -> None:
    """The registry of open consumers begins anew in a child; the group sorts out the rest."""
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 1)
        got: list[bytes] = []

        def check() -> None:
            consume(PushConsumer, fake, lambda message: got.append(message.body), lambda: got)

        in_child(check)
