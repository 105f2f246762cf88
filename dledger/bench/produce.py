"""Sends messages as fast as acknowledgements allow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from dledger.bench.report import Load, Tally
from dledger.client import (
    AsyncProducer,
    ClientError,
    Message,
    ProducerOptions,
    SendResult,
    TopicNotFound,
)
from dledger.runtime import Env

ERROR_PAUSE_S = 0.1
"""How long a slot waits after an error, in seconds, so that failures do not become a busy loop."""


class _Slot:
    """Keeps one request in flight: its acknowledgement starts the next request."""

    __slots__ = ("_loop", "_messages", "_producer", "_run", "_started")

    def __init__(self, run: _Run, producer: AsyncProducer, message: Message) -> None:
        self._run = run
        self._loop = run.loop
        self._producer = producer
        self._messages = [message] * run.load.batch
        self._started = 0.0

    def go(self) -> None:
        run = self._run
        if run.stopping:
            run.slot_ended()
            return
        self._started = self._loop.time()
        try:
            if run.load.batch == 1:
                self._producer.send_nowait(self._messages[0], self.done)
            else:
                self._producer.send_batch_nowait(self._messages, self.done)
        except ClientError as error:
            self.done(error)

    def done(self, result: SendResult | ClientError) -> None:
        run = self._run
        tally = run.tally
        if isinstance(result, SendResult):
            tally.latency.record(self._loop.time() - self._started)
            tally.messages += run.load.batch
            if tally.messages >= run.enough:
                run.stopping = True
            self.go()
        else:
            tally.errors += run.load.batch
            tally.last_error = str(result)
            self._loop.call_later(ERROR_PAUSE_S, self.go)


class _Run:
    def __init__(self, load: Load, tally: Tally) -> None:
        self.load = load
        self.tally = tally
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        self.enough = 1 << 62
        self.ended = asyncio.Event()
        self._slots_left = load.window

    def slot_ended(self) -> None:
        self._slots_left -= 1
        if self._slots_left == 0:
            self.ended.set()


async def produce(
    env: Env,
    load: Load,
    cpu_s: Callable[[], float],
    progress: Callable[[Tally], None],
    settle: Callable[[], None],
) -> dict[str, object]:
    """Run the load. The topic is created if it is missing.

    `settle` is called once before the measured part, to set up garbage collection; `progress` is called
    every second. Raises ClientError if the topic cannot be used.
    """
    tally = Tally(cpu_s)
    run = _Run(load, tally)
    options = ProducerOptions(compress_over=0, max_pending=load.window * max(load.batch, 1) + 1)
    message = Message(load.topic, env.random.randbytes(load.size))
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(AsyncProducer("bench", load.namesrv, options, env=env))
            for _ in range(load.connections)
        ]
        await _ensure_topic(producers[0], load)
        for producer in producers:
            await producer.prepare(load.topic)
        slots = [_Slot(run, producers[number % len(producers)], message) for number in range(load.window)]
        for slot in slots:
            slot.go()
        await asyncio.sleep(load.warmup_s)
        settle()
        tally.begin(run.loop.time())
        if load.messages is not None:
            run.enough = load.messages
        await _until_over(run, load, progress)
        tally.body_bytes = tally.messages * load.size
        result = tally.result(load, "produce", run.loop.time())
        run.stopping = True
        await run.ended.wait()
        result["size"] = load.size
        result["warmup_s"] = load.warmup_s
        result["resent"] = sum(producer._resent_count for producer in producers)
        return result


async def _until_over(run: _Run, load: Load, progress: Callable[[Tally], None]) -> None:
    end = None if load.seconds is None else run.loop.time() + load.seconds
    last = run.loop.time()
    while not run.stopping:
        now = run.loop.time()
        if end is not None and now >= end:
            return
        if now - last >= 1.0:
            last = now
            progress(run.tally)
        await asyncio.sleep(0.01 if end is None else min(0.01, end - now))


async def _ensure_topic(producer: AsyncProducer, load: Load) -> None:
    try:
        await producer.prepare(load.topic)
        created_by_sending = not producer.has_route(load.topic)
    except TopicNotFound:
        created_by_sending = True
    if created_by_sending:
        await producer.create_topic(load.topic, load.queues)
