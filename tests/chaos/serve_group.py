"""`dledger serve` on simulated machines, with small files, and a client that appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from node_group import OPERATORS, operator_machine

from dledger.chaos.machine import World
from dledger.chaos.machine.disk import Disk
from dledger.commands import standalone
from dledger.commands.standalone import NODE_DEFAULTS, StandaloneConfig
from dledger.config import NodeConfig
from dledger.errors import NodeFailed
from dledger.formats.store_files import decode_json
from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

SEGMENT = 64 * 1024


class SmallConfig(StandaloneConfig):
    """A configuration with small files."""

    def node_config(self, group: str) -> NodeConfig:
        config = super().node_config(group)
        return replace(config, segment_size=SEGMENT, max_entry_bytes=16 * 1024, index_units_per_file=256)


class ServeGroup:
    """One process on each machine, with a node of each group. `changes` are settings of all nodes."""

    def __init__(
        self, world: World, names: Iterable[str] = ("n0",), groups: tuple[str, ...] = ("g",), **changes: Any
    ) -> None:
        self.world = world
        self.names = tuple(names)
        self.groups = groups
        self.peers = {name: f"{name}:40911" for name in self.names}
        self.nodes: dict[str, list[Node]] = {}
        self.failures: dict[str, list[NodeFailed]] = {}
        """Results of the processes that ended, as `serve` returns them. A process that raised is not in
        it."""
        self._stops: dict[str, asyncio.Event] = {}
        self._changes = {"pool_segments": 0} | changes
        self._clients = 0
        for name in self.names:
            world.node(name)
        for name in self.names:
            self.start(name)
        world.run_until(self.all_serve, 10)

    def start(self, name: str) -> None:
        self.failures.pop(name, None)
        self.nodes.pop(name, None)
        self.world.restart(name, partial(self._main, name=name))

    async def _main(self, env: Env, name: str) -> None:
        config = SmallConfig(
            self.groups,
            name,
            self.peers,
            "/store",
            node=replace(NODE_DEFAULTS, allowed_sources=OPERATORS, **self._changes),
        )
        stop = self._stops[name] = asyncio.Event()

        def ready(nodes: list[Node]) -> None:
            self.nodes[name] = nodes

        self.failures[name] = await standalone.main(env, config, stop, on_ready=ready)

    def all_serve(self) -> bool:
        """Whether each group has a leader that takes appends."""
        nodes = [node for nodes in self.nodes.values() for node in nodes]
        return all(
            any(node.config.group == group and node.serving for node in nodes) for group in self.groups
        )

    def leader(self) -> str:
        """Wait for the leader of the first group; returns its name."""
        self.world.run_until(self.all_serve, 10)
        return next(name for name, nodes in self.nodes.items() if nodes[0].serving)

    def stop(self, *names: str) -> None:
        """Stop these machines' processes, as SIGTERM does."""
        for name in names:
            self.ask_to_stop(name)
        self.world.run_until(lambda: all(not self.runs(name) for name in names), 20)

    def ask_to_stop(self, name: str) -> None:
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(self._stops[name].set)

    def runs(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def disk(self, name: str) -> Disk:
        return self.world.nodes[name].disk

    def fill(self, name: str) -> None:
        """Fill the disk of this machine: nothing more fits."""
        self.disk(name).room(self.disk(name).used())

    def append(self, *bodies: bytes, group: str = "g") -> list[int | str]:
        """Append bodies by a client, one after another. Returns for each the index, or the text of the
        refusal."""
        answers: list[int | str] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, self.peers, 3.0, group=group) as client:
                for body in bodies:
                    try:
                        answers.append(await client.append(body))
                    except RequestFailed as refused:
                        answers.append(str(refused) if refused.code is None else refused.code.name)

        self._run(main)
        self.world.run_until(lambda: len(answers) == len(bodies), 10 + 4 * len(bodies))
        return answers

    def prefer(self, node: str, group: str = "g") -> None:
        """Let an operator change the configuration, without waiting for the result."""

        async def main(env: Env) -> None:
            async with DLedgerClient(env, self.peers, 3.0, group=group) as client:
                await client.prefer([node])

        self._run(main)

    def _run(self, main: Callable[[Env], Coroutine[Any, Any, None]]) -> None:
        self._clients += 1
        self.world.spawn(operator_machine(self.world, self._clients), main)

    def saved(self, name: str, group: str = "g") -> dict[str, Any]:
        """The content of the node's file `count`."""
        inode = self.disk(name).inode(f"/store/{group}/count")
        return decode_json(inode.read(0, len(inode.content)))
