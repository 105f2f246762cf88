"""Three whole brokers and a client in one simulated world: crash, failover, restart, one course per seed."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from broker.app import main
from broker.broker import Broker
from broker.config import BrokerConfig
from broker.store.message_store import StoreLimits
from chaos.sim import Settings, Trace, World
from formats.record import decode_records
from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.errors import RemotingError
from runtime.env import Env
from tests.broker.harness import pull_header, send_header

NAMES = ("n0", "n1", "n2")
PORT = 10911
SETTINGS = Settings()
LIMITS = StoreLimits(flush_interval_s=0.05, snapshot_interval_s=0.3, hot_units_queue=16)


class Group:
    """Brokers by machine; a client that knows all of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: dict[str, Broker] = {}
        self.acknowledged: dict[int, bytes] = {}
        """Queue offset -> body."""
        self.consumed: list[bytes] = []
        for name in (*NAMES, "client"):
            world.node(name)
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        self.brokers.pop(name, None)
        self.world.restart(name, partial(self._broker, name=name))

    async def _broker(self, env: Env, name: str) -> None:
        config = BrokerConfig(
            store_root="/store",
            self_id=name,
            peers={peer: f"{peer}:40911" for peer in NAMES},
            broker_ip=f"10.0.0.{NAMES.index(name) + 1}",
            segment_size=8 * 1024 * 1024 + 256 * 1024,
            pool_segments=1,
            http_port=0,
        )

        def ready(broker: Broker) -> None:
            self.brokers[name] = broker

        await main(env, config, asyncio.Event(), on_ready=ready, limits=LIMITS)

    @property
    def leader(self) -> str | None:
        for name, broker in self.brokers.items():
            if self.world.nodes[name].process is not None and broker.gate.sealer is not None:
                return name
        return None

    def run_client(self, work: object) -> None:
        self.world.spawn("client", work)  # type: ignore[arg-type]

    async def produce(self, env: Env, first: int, last: int) -> None:
        """Send each body until somebody acknowledges it, whoever leads."""
        async with asyncio.TaskGroup() as group:
            client = RemotingClient(env)
            dialer = group.create_task(client.run(), name="dialer")
            target = 0
            for number in range(first, last):
                body = b"%d" % number
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
            self.acknowledged[int(reply.ext["queueOffset"])] = body
        return reply.code == ResponseCode.SUCCESS

    async def consume(self, env: Env, name: str) -> None:
        """Read the queue from its beginning to its end."""
        async with asyncio.TaskGroup() as group:
            client = RemotingClient(env)
            dialer = group.create_task(client.run(), name="dialer")
            self.consumed.clear()
            while True:
                header = pull_header("T", 0, len(self.consumed))
                reply = await client.invoke(f"{name}:{PORT}", RequestCode.PULL_MESSAGE, header)
                if reply.code != ResponseCode.SUCCESS:
                    break
                self.consumed += [record.body for record in decode_records(reply.body)]
            await client.close()
            dialer.cancel()


def idle(world: World) -> bool:
    return world.nodes["client"].process is None


def scenario(world: World, power: bool) -> Group:
    """Produce, lose the leader in the middle, go on, bring it back, read everything from each leader."""
    group = Group(world)
    world.run_until(lambda: group.leader, 10)
    group.run_client(partial(group.produce, first=0, last=60))
    world.run_until(lambda: len(group.acknowledged) >= 30, 10)
    first = group.leader
    assert first is not None
    if power:
        world.power_cut(first)
    else:
        world.kill(first)
    world.run_until(lambda: idle(world), 20)
    group.start(first)
    world.run_until(lambda: first in group.brokers and caught_up(group), 10)
    world.run_for(0.5)  # snapshots
    second = group.leader
    assert second is not None and second != first
    world.kill(second)
    world.run_until(lambda: group.leader not in (None, second), 10)
    third = group.leader
    assert third is not None
    group.run_client(partial(group.consume, name=third))
    world.run_until(lambda: idle(world), 10)
    return group


def caught_up(group: Group) -> bool:
    return len({broker.store.applied_index for broker in group.brokers.values()}) == 1


@pytest.mark.parametrize(("seed", "power"), [(1, False), (2, True), (3, True)])
def test_nothing_acknowledged_is_lost_or_moved(seed: int, power: bool) -> None:
    with World(seed, settings=SETTINGS) as world:
        group = scenario(world, power)
        assert len(group.acknowledged) == 60
        for offset, body in group.acknowledged.items():
            assert group.consumed[offset] == body
        assert all(body in group.acknowledged.values() for body in group.consumed)


def test_one_seed_is_one_course_of_events() -> None:
    traces = []
    for _ in range(2):
        trace = Trace()
        with World(11, settings=SETTINGS, trace=trace) as world:
            scenario(world, power=True)
        traces.append(list(trace.lines))
    assert traces[0] == traces[1] and len(traces[0]) > 1000
