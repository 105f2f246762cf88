"""How many steps of the interpreter a message takes: three brokers and a client on one loop, calls counted.

Seconds depend on the machine and on what else runs; calls hardly do. Each limit is some tenths above what was
counted when it was written: who makes a path longer meets it here, and says why in the commit that raises it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dledger._fast import FAST
from dledger.broker.config import BrokerConfig
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from tests.broker.harness import send_header
from tests.broker.test_app import configs, running, send, steady_leader

ROOT = str(Path(__file__).resolve().parents[2]) + "/"
MESSAGES = 400
BODY = b"x" * 1024


class Steps:
    """Calls on the thread of the loop between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.python = 0
        self.c = 0
        self.system: Counter[str] = Counter()
        """Number of system calls by name: turns of the loop (`poll`), `send`, `recv_into`."""
        self.places: Counter[str] = Counter()

    def __enter__(self) -> Steps:
        gc.collect()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.python += 1
            code = frame.f_code
            self.places[f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}"] += 1
        elif event == "c_call":
            self.c += 1
            name = getattr(argument, "__name__", "")
            if name in ("poll", "send", "recv_into", "recv"):
                self.system[name] += 1

    def told(self, messages: int) -> str:
        """For who looks for what became longer."""
        system = {name: round(count / messages, 2) for name, count in self.system.items()}
        rows = [f"{count / messages:8.2f} {place}" for place, count in self.places.most_common(60)]
        return "\n".join(
            [f"python {self.python / messages:.1f}, c {self.c / messages:.1f} a message, {system}", *rows]
        )


async def one_after_the_other(client: RemotingClient, config: BrokerConfig) -> None:
    for _ in range(MESSAGES):
        (await send(client, config, BODY)).checked()


async def side_by_side(client: RemotingClient, config: BrokerConfig) -> None:
    header = send_header("T", 0, "UNIQ_KEY\x01AC14000200002A4F5B6C000000010001\x02")  # as all clients do

    async def sender() -> None:
        for _ in range(MESSAGES // 64):
            reply = await client.invoke(config.client_addr, RequestCode.SEND_MESSAGE_V2, header, BODY)
            reply.checked()

    await asyncio.gather(*(sender() for _ in range(64)))


TRIES = 3
"""What a busy machine adds (heartbeats, timers: it takes longer) is not of the message. The least counts."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "python", "c"),
    [(one_after_the_other, 1100, 880), (side_by_side, 62, 64)]
    if FAST is not None
    else [(one_after_the_other, 1180, 960), (side_by_side, 74, 130)],
)
def test_a_message_takes_no_more_steps_than_it_did(tmp_path: Path, load: Any, python: int, c: int) -> None:
    async def test(number: int) -> Steps:
        async with running(*configs(tmp_path / str(number), 3)) as (nodes, client):
            leader = await steady_leader(nodes)
            for _ in range(50):
                (await send(client, leader.config, BODY)).checked()
            with Steps() as steps:
                await load(client, leader.config)
            return steps

    for number in range(TRIES):
        steps = asyncio.run(test(number))
        told = steps.told(MESSAGES)
        print(told)
        if steps.python <= python * MESSAGES and steps.c <= c * MESSAGES:
            return
    pytest.fail(told)
