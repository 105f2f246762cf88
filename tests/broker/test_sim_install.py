"""Whole brokers with small segments in simulation: retention, and a broker brought up by a snapshot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from broker.app import main
from broker.broker import Broker
from broker.config import BrokerConfig
from broker.store.message_store import StoreLimits
from chaos.sim import Settings, World
from chaos.sim.disk import Directory
from dledger.config import NodeConfig
from dledger.host import Host
from dledger.log.retention import RetentionSettings
from dledger.node import Node
from formats.record import decode_records
from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.errors import RemotingError
from remoting.headers import QueueHeader
from runtime.env import Env
from tests.audit.engine import audit
from tests.broker.harness import pull_header, send_header

NAMES = ("n0", "n1", "n2")
PORT = 10911
SEGMENT = 64 * 1024
LIMITS = StoreLimits(flush_interval_s=0.05, snapshot_interval_s=0.3, hot_units_queue=16)


def small_node(env: Env, config: NodeConfig, host: Host) -> Node:
    """A node whose segments hold about a dozen messages of the test."""
    retention = RetentionSettings(interval_s=0.1)
    small = replace(
        config,
        segment_size=SEGMENT,
        max_entry_bytes=16 * 1024,
        index_units_per_file=64,
        retention=retention,
        push_bytes=16 * 1024,
    )
    return Node(env, small, host)


class Group:
    """Brokers by machine; a client that knows all of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: dict[str, Broker] = {}
        self.sent: dict[int, bytes] = {}
        """Queue offset -> body, as acknowledged."""
        self.read: dict[int, bytes] = {}
        self.low = -1
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
            pool_segments=1,
        )

        def ready(broker: Broker) -> None:
            self.brokers[name] = broker

        await main(env, config, asyncio.Event(), on_ready=ready, limits=LIMITS, make_node=small_node)

    def alive(self) -> list[str]:
        return [name for name in NAMES if self.world.nodes[name].process is not None]

    @property
    def leader(self) -> str | None:
        for name, broker in self.brokers.items():
            if name in self.alive() and broker.gate.sealer is not None:
                return name
        return None

    def led(self) -> str:
        self.world.run_until(lambda: self.leader, 10)
        assert self.leader is not None
        return self.leader

    def node(self, name: str) -> Node:
        node = self.brokers[name].node
        assert isinstance(node, Node)
        return node

    def do(self, work: object) -> None:
        """Run a client to its end."""
        self.world.spawn("client", work)  # type: ignore[arg-type]
        self.world.run_until(lambda: self.world.nodes["client"].process is None, 60)

    async def produce(self, env: Env, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            client = RemotingClient(env)
            dialer = group.create_task(client.run(), name="dialer")
            target = 0
            for number in range(count):
                body = b"%d" % number + bytes(4000)
                while not await self._send(client, NAMES[target % 3], body):
                    target += 1
                    await asyncio.sleep(0.02)
            await client.close()
            dialer.cancel()

    async def _send(self, client: RemotingClient, name: str, body: bytes) -> bool:
        try:
            reply = await client.invoke(
                f"{name}:{PORT}", RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), body, 0.5
            )
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

    def cut_front(self, names: list[str], index: int) -> None:
        for name in names:
            process = self.world.nodes[name].process
            assert process is not None
            process.loop.call_soon(self.node(name).snapshots.retainer.delete_before, index)
        self.world.run_until(lambda: all(self.node(name).log.first_index > index - 40 for name in names), 5)
        self.world.run_for(0.5)

    def check(self, name: str) -> None:
        """What this master gives out is what was acknowledged, from its lowest offset on."""
        self.do(partial(self.consume, name=name))
        assert self.low > 0
        assert sorted(self.read) == list(range(self.low, max(self.sent) + 1))
        for offset, body in self.read.items():
            assert self.sent.get(offset, body) == body


def export(place: Directory, target: Path) -> None:
    """A simulated directory as a real one."""
    target.mkdir(parents=True, exist_ok=True)
    for name, thing in place.names.items():
        if isinstance(thing, Directory):
            export(thing, target / name)
        else:
            (target / name).write_bytes(bytes(thing.content))


def copies(world: World, target: Path) -> list[Path]:
    """The stores as they are at this instant."""
    for name in NAMES:
        export(world.nodes[name].disk.directory("/store"), target / name)
    return [target / name for name in NAMES]


def assert_clean(stores: list[Path]) -> None:
    report = audit(stores)
    assert report.exit_code == 0, report.ordered()
    assert len(report.replicas) == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_broker_brought_up_by_a_snapshot_serves_as_master(seed: int, tmp_path: Path) -> None:
    with World(seed, settings=Settings()) as world:
        group = Group(world)
        first = group.led()
        group.do(partial(group.produce, count=30))
        victim = next(name for name in NAMES if name != first)
        world.run_for(1.5)  # a checkpoint
        world.kill(victim)
        group.do(partial(group.produce, count=120))
        others = group.alive()
        group.cut_front(others, group.node(first).log.last_index - 40)
        group.check(first)
        before = group.low
        group.start(victim)
        world.run_until(lambda: victim in group.brokers, 5)
        world.run_until(lambda: group.node(victim).log.first_index > 0, 5)
        assert_clean(copies(world, tmp_path / "installing"))
        world.run_until(lambda: group.node(victim).snapshots.receiver.done, 5)
        assert_clean(copies(world, tmp_path / "installed"))
        world.run_until(
            lambda: (
                victim in group.brokers
                and group.brokers[victim].store.applied_index == group.node(first).commit_index
            ),
            10,
        )
        assert group.node(victim).status()["installs_done"] == 1
        group.do(partial(group.produce, count=10))
        # now it has to lead
        world.kill(first)
        leader = group.led()
        if leader != victim:
            process = world.nodes[leader].process
            assert process is not None
            process.loop.call_soon(
                lambda: process.loop.create_task(group.node(leader).transfer_leadership(victim))
            )
            world.run_until(lambda: group.leader == victim, 5)
        group.do(partial(group.produce, count=10))
        group.check(victim)
        assert group.low == before
        # and it starts again from what it has
        group.start(first)
        world.run_for(1.0)
        world.power_cut(victim)
        group.led()
        group.start(victim)
        world.run_until(lambda: victim in group.brokers, 5)
        world.run_for(2.5)  # a checkpoint
        stores = copies(world, tmp_path / "at last")
        assert_clean(stores)
        for name in ("counters", "manifest"):
            path = max((stores[2] / "dledger-n2" / "snapshots").iterdir()) / name
            path.write_bytes(path.read_bytes()[:-1] + b"!")
            report = audit(stores)
            assert [found.code for found in report.findings if found.severity] == ["SNAPSHOT_DAMAGED"]
        queue = group.brokers[victim].store.queues.get("T", 0)
        assert queue is not None and queue.bounds.min == before
        digests: dict[int, str] = {}
        for name in group.alive():
            for manifest in group.node(name).snapshots.catalog.manifests:
                assert digests.setdefault(manifest.pos, manifest.digest) == manifest.digest


@pytest.mark.parametrize("seed", [4, 5])
def test_retention_moves_on_while_messages_flow_and_survives_a_power_loss_of_all(seed: int) -> None:
    with World(seed, settings=Settings()) as world:
        group = Group(world)
        leader = group.led()
        for _ in range(3):
            group.do(partial(group.produce, count=60))
            leader = group.led()
            group.cut_front(group.alive(), group.node(leader).log.last_index - 20)
            group.check(leader)
            for name in NAMES:
                world.power_cut(name)
            for name in NAMES:
                group.start(name)
            leader = group.led()
            group.check(leader)
