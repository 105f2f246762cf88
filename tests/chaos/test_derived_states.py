"""State that was saved beside a log that lost entries later: `dledger serve`, in simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.chaos.machine import World
from dledger.commands import standalone
from dledger.commands.recover import Report, force_single
from dledger.commands.standalone import StandaloneConfig
from dledger.config import NodeConfig, NodeSettings
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.store_files import decode_json, encode_json
from dledger.node.node import Node
from dledger.runtime.atomic_file import publish
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

COUNT = "/store/g/count"


class SmallConfig(StandaloneConfig):
    """A configuration with small files."""

    def node_config(self, group: str) -> NodeConfig:
        config = super().node_config(group)
        return replace(config, segment_size=64 * 1024, max_entry_bytes=16 * 1024, index_units_per_file=256)


class Server:
    """One machine that runs the only node of a group."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = world.node("n0")
        self.config = SmallConfig(
            ("g",), "n0", {"n0": "n0:40911"}, "/store", node=NodeSettings(pool_segments=0)
        )
        self.node: Node | None = None
        self.report: Report | None = None
        self.start()

    def start(self) -> None:
        self.node = None
        self.world.restart("n0", self._main)
        self.world.run_until(lambda: self.node is not None and self.node.serving, 10)

    async def _main(self, env: Env) -> None:
        self.stopping = asyncio.Event()

        def ready(nodes: list[Node]) -> None:
            [self.node] = nodes

        failures = await standalone.main(env, self.config, self.stopping, on_ready=ready)
        assert not failures, failures[0].reason

    def append(self, *bodies: bytes) -> int:
        """Append bodies without waiting. Returns the index of the last entry."""
        indexes: list[int] = []
        process = self.machine.process
        assert process is not None and self.node is not None
        appender = self.node.appender
        assert appender is not None

        def add() -> None:
            for body in bodies:
                appender.reserve(HEADER_SIZE + len(body))
                indexes.append(appender.add((body,), len(body), Kind.RAW))

        process.loop.call_soon(add)
        self.world.run_until(lambda: len(indexes) == len(bodies), 1)
        return indexes[-1]

    def applied(self, index: int) -> None:
        self.world.run_until(lambda: self.node is not None and self.node.applier.applied_index >= index, 5)

    def do(self, act: Callable[[Node], object]) -> None:
        """Call `act` on the node's event loop, without waiting for it."""
        process, node = self.machine.process, self.node
        assert process is not None and node is not None
        process.loop.call_soon(lambda: act(node))

    def stop(self) -> None:
        """Stop in good order: the state is saved."""
        process = self.machine.process
        assert process is not None
        process.loop.call_soon(self.stopping.set)
        self.world.run_until(lambda: self.machine.process is None, 10)

    def saved(self) -> dict[str, Any]:
        """Content of the state file; without a file, the state before any entry."""
        disk = self.machine.disk
        if COUNT not in disk.files("/store"):
            return {"applied": -1, "count": 0}
        inode = disk.inode(COUNT)
        return decode_json(inode.read(0, len(inode.content)))

    def recover(self) -> Report:
        """Run `recover`, which removes everything from the first damage on."""

        async def main(env: Env) -> None:
            self.report = await force_single(env, "/store/g", yes=True, cut_damage=True)

        self.world.spawn("n0", main)
        self.world.run_until(lambda: self.machine.process is None, 10)
        assert self.report is not None
        return self.report

    def write(self, path: str, data: bytes) -> None:
        """Replace the content of a file."""

        async def main(env: Env) -> None:
            await publish(env.files, env.workers, Lane.DISK, path, data)

        self.world.spawn("n0", main)
        self.world.run_until(lambda: self.machine.process is None, 10)

    def counts_what_the_log_holds(self) -> None:
        """Check that the state equals that of a start without a state file."""
        self.stop()
        went_on = self.saved()
        self.machine.disk.directory("/store/g").names.pop("count")
        self.start()
        self.stop()
        anew = self.saved()
        assert (went_on["count"], went_on["digest"]) == (anew["count"], anew["digest"])


def test_a_server_whose_log_lost_what_its_state_had_counted_starts() -> None:
    """The situation is that after a loss of power under ASYNC_FLUSH. Regression: the node ended, and its
    advice did not help."""
    with World(1) as world:
        server = Server(world)
        server.applied(server.append(b"one", b"two"))
        server.stop()
        state = server.saved()
        state["applied"] += 1
        state["count"] += 1
        server.write(COUNT, encode_json(state))
        server.start()
        server.counts_what_the_log_holds()
        assert server.saved()["count"] == 2


@pytest.mark.parametrize("begins", ["with its first entry", "later"])
@pytest.mark.parametrize("content", [b"", b"rotten", b"flipped"])
def test_a_count_that_is_damaged_is_made_again(content: bytes, begins: str) -> None:
    """Regression: the node ended with exit code 70 and asked for the removal of a file that it can make from
    its log."""
    with World(4) as world:
        server = Server(world)
        server.applied(server.append(*[bytes(5000)] * 30))
        node = server.node
        assert node is not None
        if begins == "later":
            world.run_until(lambda: node.snapshots.catalog.manifests, 3)
            server.do(lambda node: node.snapshots.retainer.delete_before(20))
            world.run_until(lambda: node.log.first_index > 0, 10)
        server.stop()
        before = server.saved()
        server.write(
            COUNT, encode_json(before).replace(b"count", b"coumt") if content == b"flipped" else content
        )
        server.start()
        server.stop()
        after = server.saved()
        assert (after["count"], after["digest"]) == (before["count"], before["digest"]) and after[
            "count"
        ] == 30


@pytest.mark.parametrize("state", ["as it was", "put back"])
def test_recover_leaves_no_count_of_what_it_gave_up(state: str) -> None:
    """Regression: the entry of the new cluster has the index at which the state had counted another entry."""
    with World(2) as world:
        server = Server(world)
        server.append(b"one", b"two")
        last = server.append(b"rots")
        server.applied(last)
        node = server.node
        assert node is not None
        pos, _ = node.log.locate(last)
        server.stop()
        before = server.saved()
        assert (before["applied"], before["count"], node.log.last_index) == (last, 3, last)
        server.machine.disk.flip(f"/store/g/dledger-n0/data/{0:020d}", pos + HEADER_SIZE, 1)
        report = server.recover()
        assert report.last_index == last - 1 and report.derived == (COUNT,)
        assert any(COUNT in line for line in report.lines())
        assert COUNT not in server.machine.disk.files("/store")
        if state == "put back":
            server.write(COUNT, encode_json(before))
        server.start()
        server.applied(server.append(b"three"))
        server.counts_what_the_log_holds()
        assert server.saved()["count"] == 3


def test_a_boundary_snapshot_with_an_entry_that_was_given_up_goes() -> None:
    """The snapshot's index is in the log again, in another term: that of the new cluster's entry."""
    with World(3) as world:
        server = Server(world)
        node = server.node
        assert node is not None
        while node.log.end_pos < 64 * 1024:
            last = server.append(bytes(5000))
            server.applied(last)
        world.run_until(lambda: node.snapshots.catalog.manifests, 3)
        [taken] = node.snapshots.catalog.manifests
        pos, _ = node.log.locate(taken.index)
        server.stop()
        server.machine.disk.flip(f"/store/g/dledger-n0/data/{0:020d}", pos + HEADER_SIZE, 1)
        assert server.recover().last_index == taken.index - 1
        server.start()
        assert server.node is not None
        assert server.node.log.term_of(taken.index) not in (None, taken.term)
        assert taken not in server.node.snapshots.catalog.manifests
        server.counts_what_the_log_holds()
