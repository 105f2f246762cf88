"""A group of any size in the simulator whose members change: nodes, operators' commands, closed-loop writers.

Commands and writes go through the real `DLedgerClient`, as programs on machines of their own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import node_group

from dledger.chaos.machine import World
from dledger.chaos.machine.disk import Disk
from dledger.config import NodeConfig
from dledger.election.preferred import PreferredSettings
from dledger.formats.entry import Kind
from dledger.formats.record import decode_record
from dledger.host import Role
from dledger.messages import Code
from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

SETTINGS: dict[str, Any] = {
    "segment_size": 256 * 1024,
    "max_entry_bytes": 64 * 1024,
    "index_units_per_file": 256,
    "pool_segments": 1,
    "allowed_sources": node_group.OPERATORS,
    "preferred": PreferredSettings(settle_s=0.5, short_lived_s=3.0, backoff_min_s=1.0, backoff_max_s=8.0),
}


class Writer:
    """Appends one entry after another, each when the one before is acknowledged. Keeps the acknowledged
    entries."""

    def __init__(self, group: MemberGroup, name: str, pause_s: float = 0.002) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.unknown = 0
        self.times: list[float] = []
        self.stopped = False
        self._group = group
        self._name = name
        self._pause_s = pause_s
        group.world.node(name)
        group.world.spawn(name, self._main)

    async def _main(self, env: Env) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        async with DLedgerClient(env, self._group.seeds, 1.0) as client:
            while not self.stopped:
                number += 1
                body = b"%s %d" % (self._name.encode(), number)
                try:
                    index = await client.append(body)
                except RequestFailed:
                    self.unknown += 1
                else:
                    assert self.acknowledged.setdefault(index, body) == body
                    self.times.append(loop.time())
                await asyncio.sleep(self._pause_s)

    def longest_pause(self, since: int = 0) -> float:
        """The longest time in seconds between two acknowledgements, from the `since`-th on."""
        times = self.times[since:]
        return max(after - before for before, after in itertools.pairwise(times))


class MemberGroup:
    """Nodes by name. Each was started with a static configuration of its own."""

    def __init__(self, world: World, founders: Iterable[str] = ("n0", "n1", "n2"), **settings: Any) -> None:
        self.world = world
        self.founders = tuple(founders)
        self.settings = {**SETTINGS, **settings}
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, node_group.ListHost] = {}
        self.seeds = {name: self.address(name) for name in self.founders}
        self._static: dict[str, dict[str, str]] = {}
        self._commands = 0
        self._leaders: dict[int, str] = {}
        self._entries: dict[int, tuple[int, int, int, bytes]] = {}
        for name in self.founders:
            world.node(name)
        for name in self.founders:
            self.start(name)

    @staticmethod
    def address(name: str) -> str:
        return f"{name}:40911"

    def start(self, name: str, **settings: Any) -> None:
        """Start a node. Its dLegerPeers are the founders and itself, as at its first start."""
        self.world.node(name)
        static = self._static.setdefault(name, {**self.seeds, name: self.address(name)})
        self.world.restart(name, partial(self._main, name=name, static=static, more=settings))

    async def _main(self, env: Env, name: str, static: dict[str, str], more: dict[str, Any]) -> None:
        config = NodeConfig(
            group="g0", self_id=name, peers=static, store_dir="/store", **{**self.settings, **more}
        )
        self.hosts[name] = node_group.ListHost()
        self.nodes[name] = Node(env, config, self.hosts[name])
        await self.nodes[name].run()

    def wipe(self, name: str) -> Disk:
        """The machine loses its power and gets a new, empty disk. Returns the old disk.

        At its next start the node lists the present nodes in dLegerPeers. Otherwise the first node of a group
        of one that has grown would found the group a second time.
        """
        self.world.power_cut(name)
        self._static[name] = {other: self.address(other) for other in sorted(self.nodes)}
        machine = self.world.nodes[name]
        old, machine.disk = machine.disk, Disk(self.world, f"{name}/{machine.boots}")
        return old

    def alive(self) -> list[str]:
        return [n for n in sorted(self.nodes) if self.world.nodes[n].process is not None]

    def leader(self) -> str | None:
        serving = [name for name in self.alive() if self.nodes[name].serving]
        return max(serving, key=lambda name: self.nodes[name].term) if serving else None

    def await_leader(self, limit_s: float = 10) -> str:
        self.world.run_until(self.leader, limit_s)
        name = self.leader()
        assert name is not None
        return name

    def voters(self) -> tuple[str, ...]:
        """The voters of the leader's committed configuration. Empty while there is none, or it is not
        committed."""
        leader = self.leader()
        if leader is None or self.nodes[leader].members.pending(self.nodes[leader].commit_index):
            return ()
        return self.nodes[leader].members.voters

    def await_voters(self, *names: str, limit_s: float = 20) -> None:
        self.world.run_until(lambda: self.voters() == names, limit_s)

    def await_replaced(self, name: str) -> None:
        """Wait until another store than the founding one is a voter under this id, and knows it."""

        def replaced() -> bool:
            node = self.nodes[name]
            first = node.members.identity.members.get(name)
            mine = node.members.identity.incarnation
            return (
                first not in (None, mine)
                and node.role is Role.FOLLOWER
                and name in self.voters()
                and node.membership.counts(node.trust.hello())
            )

        self.world.run_until(replaced, 20)

    def begin(
        self,
        work: Callable[[DLedgerClient], Awaitable[Any]],
        timeout_s: float = 5.0,
        ask: Iterable[str] | None = None,
    ) -> list[tuple[Any, RequestFailed | None]]:
        """Start an operator's command. The list gets (result, None) or (None, error) when the command ends.

        `ask`: the nodes that the operator knows; all by default.
        """
        outcome: list[tuple[Any, RequestFailed | None]] = []

        async def main(env: Env) -> None:
            known = ask or sorted({*self.seeds, *self.nodes})
            seeds = {name: self.address(name) for name in known}
            async with DLedgerClient(env, seeds, timeout_s) as client:
                try:
                    outcome.append((await work(client), None))
                except RequestFailed as error:
                    outcome.append((None, error))

        self._commands += 1
        self.world.spawn(node_group.operator_machine(self.world, self._commands), main)
        return outcome

    def command(self, work: Callable[[DLedgerClient], Awaitable[Any]], timeout_s: float = 5.0) -> Any:
        """Run a command to its end. RequestFailed when it was refused."""
        outcome = self.begin(work, timeout_s)
        self.world.run_until(lambda: outcome, timeout_s + 5)
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def insist(self, work: Callable[[DLedgerClient], Awaitable[Any]], tries: int = 50) -> Any:
        """Repeat a command while another change is pending."""
        for _ in range(tries):
            try:
                return self.command(work)
            except RequestFailed as error:
                if error.code is not Code.CONFIG_PENDING:
                    raise
                self.world.run_for(0.1)
        raise AssertionError("always pending")

    def grow(self, *names: str) -> None:
        """Add nodes one by one. Each must be a voter before the next is added."""
        for name in names:
            self.start(name)
            self.insist(lambda client, name=name: client.add_member(name, self.address(name)))
            self.world.run_until(lambda name=name: name in self.voters(), 20)

    def look(self) -> None:
        """Check what must hold at any time: one leader per term, equal entries at equal indexes."""
        for name in sorted(self.nodes):
            for entry in self.hosts[name].entries:
                assert self._entries.setdefault(entry[0], entry) == entry, f"{name} differs at {entry[0]}"
        for name in self.alive():
            node = self.nodes[name]
            if node.role.value == "LEADER":
                assert self._leaders.setdefault(node.term, name) == name, f"two leaders in {node.term}"

    def settle(self, names: Iterable[str], *writers: Writer) -> None:
        """Heal everything, and check that all of `names` hold the same log, with every acknowledged entry at
        its index."""
        for writer in writers:
            writer.stopped = True
        self.world.heal()
        for name in names:
            if self.world.nodes[name].process is None:
                self.start(name)
        self.world.run_for(2.0)
        self.await_leader()
        last = self.command(lambda client: client.append(b"the last"))
        self.world.run_until(
            lambda: all(self.hosts[n].entries and self.hosts[n].entries[-1][0] >= last for n in names), 30
        )
        self.look()
        for writer in writers:
            for index, body in sorted(writer.acknowledged.items()):
                entry = self._entries[index]
                assert entry[2] == Kind.RAW and decode_record(entry[3]).body == body, f"{body!r} is lost"

    def append_some(self, count: int) -> int:
        """Append a few entries. Returns the index of the last one."""
        last = -1
        for number in range(count):
            last = self.command(lambda client, number=number: client.append(b"some %d" % number))
        return last

    def fill(self, leader: str, count: int, size: int) -> int:
        """Append bodies of `size` bytes on the leader, as fast as its limits allow. Returns the index of the
        last one."""
        indexes: list[int] = []
        node = self.nodes[leader]

        def seal() -> None:
            appender = node.appender
            assert appender is not None
            for _ in range(20):
                if appender.room and len(indexes) < count:
                    indexes.append(appender.add_system(bytes(size), Kind.RAW))

        while len(indexes) < count:
            process = self.world.nodes[leader].process
            assert process is not None
            process.loop.call_soon(seal)
            self.world.run_for(0.005)
        self.world.run_until(lambda: node.commit_index >= indexes[-1], 5)
        return indexes[-1]
