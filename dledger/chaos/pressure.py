"""A process that sends messages as load. The load can be turned on and off. While it is on, as many messages
are in flight as the window allows.

    python -m dledger.chaos.pressure NAMESRV TOPIC [--window 64] [--size 1024] [--namespace NAME]

It reads commands on standard input, one on each line, and answers each with one line of JSON. Every answer
has the numbers of messages that were acknowledged (`acked`) and that `failed`.

* `on` starts the load.
* `off` stops it. The answer comes when nothing is in flight.
* `count` does nothing else.
* `check`, after `off`, also answers how many acknowledged messages are `lost`, how many messages are `stored`
  in all, and how many attempts were repetitions (`resent`).

The process ends when standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys

import click

from dledger.client.consuming.pull_consumer import AsyncPullConsumer
from dledger.client.errors import ClientError
from dledger.client.message import Message, MessageQueue, SendResult
from dledger.client.options import ClientOptions
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions

LOAD_TOPIC = "Load"
"""The topic to which trials and measurements let this process send."""
ERROR_PAUSE_S = 0.05
PLACES = 64 * 1024
"""Smallest number of queue offsets by which the table of a queue (`_places`) grows."""


class Pressure:
    """While it is on, keeps a fixed number of messages (the window) in flight."""

    def __init__(self, producer: AsyncProducer, topic: str, window: int, size: int) -> None:
        self._producer = producer
        self._message = Message(topic, b"." * size)
        self._window = window
        self._on = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.acked: int = 0
        self.failed: int = 0
        self._places: dict[MessageQueue, bytearray] = {}
        """Maps each queue to a table with a 1 at each queue offset that an acknowledgement named."""

    def on(self) -> None:
        """Fill the window, and keep it full."""
        self._on = True
        while self._under_way < self._window:
            self._under_way += 1
            self._idle.clear()
            self._send()

    async def off(self) -> None:
        """Send no further messages. Returns when nothing is in flight."""
        self._on = False
        await self._idle.wait()

    def _send(self) -> None:
        try:
            self._producer.send_nowait(self._message, self._settled)
        except ClientError as error:
            self._settled(error)

    def _settled(self, result: SendResult | ClientError) -> None:
        if isinstance(result, SendResult):
            self.acked += 1
            self._note(result)
            self._next()
        else:
            self.failed += 1
            asyncio.get_running_loop().call_later(ERROR_PAUSE_S, self._next)

    def _note(self, result: SendResult) -> None:
        places, offset = self._places.setdefault(result.queue, bytearray()), result.queue_offset
        if offset >= len(places):
            places.extend(bytes(max(offset + 1 - len(places), len(places), PLACES)))
        places[offset] = 1

    async def lost(self, consumer: AsyncPullConsumer) -> int:
        """How many acknowledged messages are lost: those whose queue offset is not below the committed end of
        the queue, or was acknowledged for another message as well.

        The offsets of a queue have no gaps, so there is one message at every offset below its end.
        """
        kept = 0
        for queue, places in self._places.items():
            kept += places[: await consumer.highest(queue)].count(1)
        return self.acked - kept

    async def stored(self, consumer: AsyncPullConsumer) -> int:
        """How many messages the topic has. Only this process sends to it."""
        queues = await consumer.queues(self._message.topic)
        return sum([await consumer.highest(queue) for queue in queues])

    def _next(self) -> None:
        if self._on:
            self._send()
            return
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


async def main(namesrv: str, topic: str, window: int, size: int, namespace: str) -> None:
    """Execute commands until standard input is closed."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    client = ClientOptions(namespace=namespace)
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
    async with (
        AsyncProducer("PG_pressure", namesrv, ProducerOptions(compress_over=0), client) as producer,
        AsyncPullConsumer("CG_pressure", namesrv, client=client) as consumer,
    ):
        await producer.queues(topic)
        await consumer.queues(topic)
        pressure = Pressure(producer, topic, window, size)
        while line := await lines.get():
            answer = {}
            if line == "on\n":
                pressure.on()
            elif line == "off\n":
                await pressure.off()
            elif line == "check\n":
                answer["lost"] = await pressure.lost(consumer)
                answer["stored"] = await pressure.stored(consumer)
                answer["resent"] = producer._resent_count
            answer |= {"acked": pressure.acked, "failed": pressure.failed}
            print(json.dumps(answer), flush=True)
        await pressure.off()


@click.command()
@click.argument("namesrv")
@click.argument("topic")
@click.option("--window", type=int, default=64)
@click.option("--size", type=int, default=1024)
@click.option("--namespace", default="")
def command(namesrv: str, topic: str, window: int, size: int, namespace: str) -> None:
    """The command line of the process that `dledger chaos` starts."""
    asyncio.run(main(namesrv, topic, window, size, namespace))


if __name__ == "__main__":
    command()
