"""Which broker id the NameServer hears, and when: 0 only of who serves (safety.md S23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.chaos.machine import World as SimWorld
from dledger.host import Role
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import NameServer
from dledger.namesrv.service import main as namesrv_main
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.headers import RegisterBrokerHeader
from tests.broker.harness import World, run
from tests.broker.sim_group import BIG_SEGMENT, NAMES, SimGroup
from tests.client.fake_cluster import eventually

NAMESRV = "ns:9876"


class Told:
    """Stands for the client of the registrar: keeps the broker ids of registrations, which all succeed."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.left = 0

    async def invoke(
        self, addr: str, code: int, header: Any, body: bytes = b"", timeout_s: float = 3.0
    ) -> Response:
        if code == RequestCode.UNREGISTER_BROKER:
            self.left += 1
            return Response(ResponseCode.SUCCESS)
        assert isinstance(header, RegisterBrokerHeader)
        self.ids.append(header.brokerId)
        return Response(ResponseCode.SUCCESS)

    async def heard(self, count: int) -> list[int]:
        """The ids, once there are so many."""
        async with asyncio.timeout(20):
            while len(self.ids) < count:  # noqa: ASYNC110 - looks at what the registrar does
                await asyncio.sleep(0.001)
        return self.ids


@asynccontextmanager
async def registering(root: Path) -> AsyncIterator[tuple[World, Told]]:
    """A broker that does not lead yet, and what its registrar tells."""
    world = await World(str(root), namesrv_addr=(NAMESRV,)).open(lead=False)
    told = Told()
    world.features.registration.registrar._client = told  # type: ignore[assignment]
    task = asyncio.create_task(world.features.registration.registrar.keep_informed(), name="registrar")
    yield world, told
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_leader_claims_id_0_when_its_term_is_open_and_gives_it_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with registering(tmp_path) as (world, told):
            own = world.config.follower_id
            assert own != 0 and await told.heard(1) == [own]
            world.node.stand()
            assert await told.heard(2) == [own, own], "elected, but its term is not open"
            world.node.serve()
            assert await told.heard(3) == [own, own, 0]
            world.node.follow("n1")
            assert await told.heard(4) == [own, own, 0, own]

    run(test)


def test_a_broker_that_was_removed_from_its_group_registers_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with registering(tmp_path) as (world, told):
            await told.heard(1)
            world.node.removed = True
            for _ in range(2):
                world.node.follow(None)
                await eventually(lambda: told.left == 1)
            assert len(told.ids) == 1
            world.node.removed = False  # it is a member again
            world.node.follow("n1")
            await told.heard(2)

    run(test)


class Group(SimGroup):
    """Three whole brokers and a NameServer in one simulated world."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world, segment_size=BIG_SEGMENT, namesrv_addr=(NAMESRV,))
        self.nameserver: NameServer | None = None
        world.node("ns")
        world.spawn("ns", partial(namesrv_main, config=NamesrvConfig(), on_ready=self._named))

    def _named(self, nameserver: NameServer) -> None:
        self.nameserver = nameserver

    @property
    def elected(self) -> str | None:
        """Who leads in the newest term, whether that is open or not."""
        leaders = [
            (one.node.term, name) for name, one in self.brokers.items() if one.node.role is Role.LEADER
        ]
        return max(leaders)[1] if leaders else None

    def registered(self) -> dict[int, str]:
        """What the NameServer knows of the group: broker ids and addresses."""
        assert self.nameserver is not None
        config = self.brokers["n0"].config
        group = self.nameserver.routes.member_group(config.cluster_name, config.broker_name)
        return {} if group is None else dict(group.brokerAddrs)

    def serving(self) -> str | None:
        return next((name for name in NAMES if self.brokers[name].node.serving), None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sample(1)
def test_a_leader_whose_term_cannot_open_is_no_master_to_the_name_server(seed: int) -> None:
    """It was elected, and is then cut off from the others, not from the NameServer."""
    with SimWorld(seed) as world:
        group = Group(world)
        world.run_until(lambda: len(group.brokers) == 3, 5)
        world.run_until(lambda: group.elected, 10)
        first = group.elected
        assert first is not None
        node = group.brokers[first].node
        for name in NAMES:
            if name != first:
                world.partition(first, name)
        world.run_for(0.1)
        assert node.role is Role.LEADER and not node.serving
        known = group.registered()
        assert group.brokers[first].config.client_addr in known.values(), "it was heard"
        assert 0 not in known
        world.heal()
        world.run_until(lambda: group.serving() and 0 in group.registered(), 10)
        leader = group.serving()
        assert leader is not None
        assert group.registered()[0] == group.brokers[leader].config.client_addr
