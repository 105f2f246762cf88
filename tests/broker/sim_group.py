"""Three whole brokers, and a client that knows all of them, in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from dledger.broker.app import main
from dledger.broker.broker import Broker, NodeFactory
from dledger.broker.config import NODE_DEFAULTS, BrokerConfig
from dledger.broker.store.message_store import StoreLimits
from dledger.chaos.machine import World
from dledger.formats.record import decode_records
from dledger.node.node import Node
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import QueueHeader
from dledger.runtime.env import Env
from tests.broker.harness import pull_header, send_header

NAMES = ("n0", "n1", "n2")
PORT = 10911
BIG_SEGMENT = 8 * 1024 * 1024 + 256 * 1024
"""Enough for the largest entry that is allowed, and a small piece of the simulated disk."""
LIMITS = StoreLimits(
    flush_interval_s=0.05, snapshot_interval_s=0.3, hot_units_queue=16, index_slots=101, index_units=400
)


class SimGroup:
    """Brokers by machine, what they acknowledged and what was read of them.

    `changes` are settings of every broker beside those that simulation needs.
    """

    def __init__(
        self,
        world: World,
        make_node: NodeFactory = Node,
        segment_size: int = NODE_DEFAULTS.segment_size,
        **changes: Any,
    ) -> None:
        self.world = world
        self.brokers: dict[str, Broker] = {}
        self.sent: dict[int, bytes] = {}
        """Queue offset -> body, as acknowledged."""
        self.read: dict[int, bytes] = {}
        self.low = -1
        """The lowest offset of the queue when it was read."""
        self._make_node = make_node
        self._stops: dict[str, asyncio.Event] = {}
        self._segment_size = segment_size
        self._changes = changes
        for name in (*NAMES, "client"):
            world.node(name)
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        self.brokers.pop(name, None)
        self.world.restart(name, partial(self._broker, name=name))

    async def _broker(self, env: Env, name: str) -> None:
        config = BrokerConfig(
            config_export_s=0,
            store_root="/store",
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in NAMES},
            broker_ip=f"10.0.0.{NAMES.index(name) + 1}",
            node=replace(NODE_DEFAULTS, pool_segments=1, segment_size=self._segment_size),
            store=LIMITS,
            **self._changes,
        )

        def ready(broker: Broker) -> None:
            self.brokers[name] = broker

        stop = self._stops[name] = asyncio.Event()
        await main(env, config, stop, on_ready=ready, make_node=self._make_node)

    def stop(self, name: str) -> None:
        """As by SIGTERM; what it raises comes out of the world."""
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(self._stops[name].set)
        self.world.run_until(lambda: name not in self.alive(), 20)

    def alive(self) -> list[str]:
        return [name for name in NAMES if self.world.nodes[name].process is not None]

    @property
    def leader(self) -> str | None:
        """Who takes messages."""
        for name, broker in self.brokers.items():
            if name in self.alive() and broker.gate.writer is not None:
                return name
        return None

    def led(self) -> str:
        self.world.run_until(lambda: self.leader, 10)
        assert self.leader is not None
        return self.leader

    def idle(self) -> bool:
        """The client's work is done."""
        return self.world.nodes["client"].process is None

    def begin(self, work: Callable[[Env], Coroutine[Any, Any, None]]) -> None:
        self.world.spawn("client", work)

    def do(self, work: Callable[[Env], Coroutine[Any, Any, None]]) -> None:
        """Run a client to its end."""
        self.begin(work)
        self.world.run_until(self.idle, 60)

    async def produce(self, env: Env, count: int, size: int = 0) -> None:
        """Send bodies of `size` bytes and a number, each until somebody acknowledges it, whoever leads."""
        async with asyncio.TaskGroup() as group:
            client = RemotingClient(env)
            dialer = group.create_task(client.run(), name="dialer")
            target = 0
            for number in range(count):
                body = b"%d" % number + bytes(size)
                while not await self._send(client, NAMES[target % 3], body):
                    target += 1
                    await asyncio.sleep(0.02)
            await client.close()
            dialer.cancel()

    async def _send(self, client: RemotingClient, name: str, body: bytes) -> bool:
        header = send_header("T", 0, "")
        try:
            reply = await client.invoke(f"{name}:{PORT}", RequestCode.SEND_MESSAGE_V2, header, body, 0.5)
        except RemotingError:
            return False
        if reply.code == ResponseCode.SUCCESS:
            offset = int(reply.ext["queueOffset"])
            assert offset not in self.sent, "a queue offset was used twice"
            self.sent[offset] = body
        return reply.code == ResponseCode.SUCCESS

    async def consume(self, env: Env, name: str) -> None:
        """Read the queue from 0 on as a consumer does: it is moved to the lowest offset first."""
        async with asyncio.TaskGroup() as group:
            client = RemotingClient(env)
            dialer = group.create_task(client.run(), name="dialer")
            self.read.clear()
            reply = await client.invoke(
                f"{name}:{PORT}", RequestCode.GET_MIN_OFFSET, QueueHeader(topic="T", queueId=0)
            )
            self.low = int(reply.ext["offset"])
            offset = 0
            while True:
                header = pull_header("T", 0, offset)
                reply = await client.invoke(f"{name}:{PORT}", RequestCode.PULL_MESSAGE, header)
                if reply.code == ResponseCode.PULL_OFFSET_MOVED:
                    assert reply.remark == "OFFSET_TOO_SMALL" and offset < self.low
                    assert int(reply.ext["nextBeginOffset"]) == self.low == int(reply.ext["minOffset"])
                elif reply.code == ResponseCode.SUCCESS:
                    for place, record in enumerate(decode_records(reply.body)):
                        self.read[offset + place] = record.body
                else:
                    break
                offset = int(reply.ext["nextBeginOffset"])
            await client.close()
            dialer.cancel()

    def check(self, name: str) -> None:
        """What this master gives out is what was acknowledged, from its lowest offset on."""
        self.do(partial(self.consume, name=name))
        assert sorted(self.read) == list(range(self.low, max(self.sent) + 1))
        for offset, body in self.read.items():
            assert self.sent.get(offset, body) == body
