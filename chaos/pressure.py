"""Load from a process of its own, turned on and off: as many messages under way as the window allows.

    python -m chaos.pressure NAMESRV TOPIC [--window 64] [--size 1024]

Commands on standard input, one line each, each answered with one JSON line: `on`, `off` (answered when
nothing is under way), `count`. Ends when standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from client.errors import ClientError
from client.message import Message, SendResult
from client.options import ProducerOptions
from client.producer import AsyncProducer

ERROR_PAUSE_S = 0.05


class Pressure:
    """A window of messages without acknowledgement, while it is on."""

    def __init__(self, producer: AsyncProducer, topic: str, window: int, size: int) -> None:
        self._producer = producer
        self._message = Message(topic, b"." * size)
        self._window = window
        self._on = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.acked = 0
        self.failed = 0

    def on(self) -> None:
        """Fill the window, and keep it full."""
        self._on = True
        while self._under_way < self._window:
            self._under_way += 1
            self._idle.clear()
            self._send()

    async def off(self) -> None:
        """Send nothing more; returns when nothing is under way."""
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
            self._next()
        else:
            self.failed += 1
            asyncio.get_running_loop().call_later(ERROR_PAUSE_S, self._next)

    def _next(self) -> None:
        if self._on:
            self._send()
            return
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


async def main(arguments: argparse.Namespace) -> None:
    """Until standard input is closed."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
    async with AsyncProducer("PG_pressure", arguments.namesrv, ProducerOptions(compress_over=0)) as producer:
        await producer.queues(arguments.topic)
        pressure = Pressure(producer, arguments.topic, arguments.window, arguments.size)
        while line := await lines.get():
            if line == "on\n":
                pressure.on()
            elif line == "off\n":
                await pressure.off()
            print(json.dumps({"acked": pressure.acked, "failed": pressure.failed}), flush=True)
        await pressure.off()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--size", type=int, default=1024)
    asyncio.run(main(parser.parse_args()))
