"""Three real nodes on loopback in one process: elect, replicate, fail over, rejoin, refuse strangers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.config import NodeConfig
from dledger.errors import NodeFailed
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.host import Chunk, LogReader, Role
from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import production_env
from tests.broker.harness import skip_s
from tests.steady import steady

SEGMENT = 16 * 1024 * 1024
READ_S = 60.0
"""How long a read of a client waits for its read point."""
CLIENT_S = 600.0
"""Longer than any test runs."""
pytestmark = pytest.mark.usefixtures("patient_dials")


class ListHost:
    """Collects the bodies of applied message entries."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.committed = -1
        self.terms_served: list[int] = []
        self.roles: list[Role] = []

    async def open(self, log: LogReader) -> int:
        return -1

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        return []

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None: ...

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None: ...

    async def kept_from(self) -> int | None:
        return None

    def apply(self, chunk: Chunk) -> None:
        offset = 0
        for _ in range(chunk.count):
            header = unpack_header(chunk.data, offset)
            if header.kind == Kind.MESSAGE:
                self.bodies.append(bytes(chunk.data[offset + HEADER_SIZE : offset + header.size]))
            offset += header.size
        assert offset == len(chunk.data)

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        self.roles.append(role)

    def on_serving(self, term: int) -> None:
        self.terms_served.append(term)

    def on_commit(self, commit_index: int) -> None:
        self.committed = commit_index

    def on_stopped_serving(self, term: int) -> None: ...


class Group:
    """Starts, stops and watches nodes."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.peers = {f"n{place}": f"127.0.0.1:{port}" for place, port in enumerate(ports)}
        self.directory = directory
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, ListHost] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def config(self, name: str) -> NodeConfig:
        return NodeConfig(
            "g",
            name,
            self.peers,
            str(self.directory / name),
            bind_host="127.0.0.1",
            segment_size=SEGMENT,
            index_units_per_file=4096,
            pool_segments=0,
            # What a pause of the process does not use up.
            hello_timeout_s=20.0,
            dial_timeout_s=20.0,
            disk_stall_s=600.0,
            read_timeout_s=READ_S,
        )

    def start(self, name: str, config: NodeConfig | None = None) -> None:
        self.hosts[name] = ListHost()
        self.nodes[name] = Node(production_env(name), config or self.config(name), self.hosts[name])
        self.tasks[name] = asyncio.create_task(self.nodes[name].run(), name=name)

    async def stop(self, name: str) -> None:
        task = self.tasks.pop(name)
        del self.nodes[name]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                for task in self.tasks.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(0.002)

    @property
    def leader(self) -> Node | None:
        return next((node for node in self.nodes.values() if node.serving), None)

    async def elected(self) -> Node:
        await self.until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader

    async def append(self, bodies: list[bytes]) -> None:
        leader = await self.elected()
        assert leader.appender is not None
        end = steady(self.nodes.values())
        last = -1
        for body in bodies:
            leader.appender.reserve(HEADER_SIZE + len(body))
            last = leader.appender.add((body,), len(body))
        await self.until(lambda: leader.commit_index >= last)
        end()

    async def agree(self, count: int) -> list[bytes]:
        await self.until(
            lambda: all(len(host.bodies) >= count for name, host in self.hosts.items() if name in self.nodes)
        )
        histories = [self.hosts[name].bodies for name in self.nodes]
        assert all(history == histories[0] for history in histories)
        return histories[0]


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(3)


@asynccontextmanager
async def group_of_three(directory: Path, ports: list[int]) -> AsyncIterator[Group]:
    group = Group(directory, ports)
    for name in group.peers:
        group.start(name)
    try:
        yield group
    finally:
        for name in list(group.tasks):
            await group.stop(name)


def test_entries_reach_all_and_survive_the_leader(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            first = [b"a%d" % number for number in range(500)]
            await group.append(first)
            assert await group.agree(500) == first
            leader = await group.elected()
            name, term = leader.config.self_id, leader.term
            await group.stop(name)
            second = [b"b%d" % number for number in range(500)]
            await group.append(second)
            assert (await group.elected()).term > term
            group.start(name)
            assert await group.agree(1000) == first + second

    asyncio.run(scenario())


def test_a_minority_commits_nothing(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            leader = await group.elected()
            assert leader.appender is not None
            end = steady(group.nodes.values())
            await group.agree(0)
            for name in [name for name in group.peers if name != leader.config.self_id]:
                await group.stop(name)
            leader.appender.reserve(HEADER_SIZE + 3)
            index = leader.appender.add((b"no!",), 3)
            end()
            await group.until(lambda: leader.role is not Role.LEADER)
            assert leader.commit_index < index
            assert not leader.serving

    asyncio.run(scenario())


def test_all_stopped_and_started_again_loses_nothing(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        bodies = [b"m%d" % number for number in range(300)]
        async with group_of_three(tmp_path, ports) as group:
            await group.append(bodies)
        async with group_of_three(tmp_path, ports) as group:
            await group.append([b"more"])
            assert await group.agree(301) == [*bodies, b"more"]

    asyncio.run(scenario())


def test_a_wiped_node_comes_back_as_a_learner_and_is_recorded(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            bodies = [b"m%d" % number for number in range(300)]
            await group.append(bodies)
            leader = await group.elected()
            name = next(name for name in group.peers if name != leader.config.self_id)
            await group.stop(name)
            (tmp_path / name).rename(tmp_path / "gone")
            group.start(name)
            await group.until(lambda: Role.FOLLOWER in group.hosts[name].roles)
            assert group.hosts[name].roles[0] is Role.LEARNER
            assert await group.agree(300) == bodies
            await group.until(lambda: leader.commit_index == leader.log.last_index)
            # the new incarnation is a full member: it counts without reconnecting, and the group outlives
            # first the other follower, then the old leader
            other = next(peer for peer in group.peers if peer not in (name, leader.config.self_id))
            await group.stop(other)
            await group.append([b"with the new one"])
            group.start(other)
            await group.agree(301)
            await group.stop((await group.elected()).config.self_id)
            await group.append([b"after"])

    asyncio.run(scenario())


def test_leadership_moves_on_request_without_an_election_timeout(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            await group.append([b"x"])
            leader = await group.elected()
            steady(group.nodes.values())
            term = leader.term
            target = next(name for name in group.peers if name != leader.config.self_id)
            await group.until(lambda: leader.peers.connected(target))
            assert await leader.leadership.transfer(target, 20.0)
            await group.until(lambda: group.nodes[target].serving)
            assert group.nodes[target].term == term + 1
            await group.append([b"y"])
            assert await group.agree(2) == [b"x", b"y"]

    asyncio.run(scenario())


def test_a_peer_with_another_flush_mode_is_refused(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, ports)
        group.start("n0")
        group.start("n1", replace(group.config("n1"), sync_flush=False))
        group.start("n2")
        await asyncio.sleep(0.3)
        assert group.leader is None, "a group forms only when all members agree on its settings"
        await group.stop("n1")
        group.start("n1")
        await group.elected()
        for name in list(group.tasks):
            await group.stop(name)

    asyncio.run(scenario())


def test_a_port_in_use_and_a_store_in_use_are_said(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, ports)
        group.start("n0")
        await group.until(lambda: group.nodes["n0"].elections._timer is not None)
        second = Node(production_env("x"), group.config("n0"), ListHost())
        with pytest.raises(NodeFailed, match="in use by another process") as store:
            await second.run()
        third = Node(
            production_env("y"), replace(group.config("n0"), store_dir=str(tmp_path / "y")), ListHost()
        )
        with pytest.raises(NodeFailed, match=str(ports[0])) as port:
            await third.run()
        assert store.value.exit_code == port.value.exit_code == 1, "may be started again"
        await group.stop("n0")

    asyncio.run(scenario())


def test_the_client_protocol_appends_reads_and_tells(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            await group.elected()
            steady(group.nodes.values())
            async with DLedgerClient(production_env("client"), group.peers, CLIENT_S) as client:
                index = await client.append(b"hello")
                entry = await client.get(index)
                assert (entry.body, entry.kind) == (b"hello", Kind.RAW)
                with pytest.raises(RequestFailed, match="committed entries are"):
                    await client.get(index + 100)
                roles = [(await client.metadata(address))["role"] for address in group.peers.values()]
                assert sorted(roles) == ["FOLLOWER", "FOLLOWER", "LEADER"]
            await group.agree(0)
            assert all(host.bodies == [] for host in group.hosts.values()), "raw entries are not messages"

    asyncio.run(scenario())


def test_garbage_on_the_peer_port_closes_only_that_connection(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            await group.elected()
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x05\0\x03abc", b"\0\0\0"):
                reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
                writer.write(garbage)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 60)
                writer.close()
            await group.append([b"still here"])
            assert await group.agree(1) == [b"still here"]

    asyncio.run(scenario())


def test_every_node_gives_a_read_point_to_clients(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        async with group_of_three(tmp_path, ports) as group:
            await group.elected()
            steady(group.nodes.values())
            async with DLedgerClient(production_env("client"), group.peers, CLIENT_S) as client:
                index = await client.append(b"hello")
                assert await client.read_index() >= index
                for name, address in group.peers.items():
                    assert index <= await client.read_index(address) <= group.nodes[name].applied_index
            for name in list(group.peers)[1:]:
                await group.stop(name)
            async with DLedgerClient(production_env("client"), group.peers, CLIENT_S) as client:
                assert (await client.get(index)).body == b"hello", "what is committed never changes"
                asked = asyncio.create_task(client.read_index(group.peers["n0"]))
                await group.until(lambda: group.nodes["n0"].reads._waiting == 1)
                await skip_s(READ_S)
                with pytest.raises(RequestFailed, match="no read point in time"):
                    await asked

    asyncio.run(scenario())
