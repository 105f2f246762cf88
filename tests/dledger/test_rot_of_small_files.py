"""A flipped bit in any of a store's small files: the node opens as it was, or says which file is damaged.

Never may it open as something else: another log, term, vote, name, or other members. `hardstate` has two
copies of two slots, so there a flip must not even be felt.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_node import Group, ListHost

from dledger.client import DLedgerClient
from dledger.config import NodeConfig
from dledger.election.configuration import Configuration
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.log.base import LogBase
from dledger.node import Node
from formats.store_files import Identity, segment_name
from runtime.env import production_env

SEGMENT = 64 * 1024
FLIPS = 24
"""Bits of each file, spread over it."""


@dataclass(frozen=True)
class Story:
    """What a store says when it is opened."""

    identity: Identity
    hard_state: object
    configs: list[tuple[int, Configuration]]
    log: tuple[Any, ...]
    reason: str


class Store:
    """One node's, closed; copies of it are damaged and opened."""

    def __init__(self, config: NodeConfig, work: Path) -> None:
        self.config = config
        self.good = work / "good"
        self.copy = work / "copy"
        shutil.copytree(config.store_dir, self.good)
        self.node_dir = Path(config.node_dir).relative_to(config.store_dir)

    def files(self) -> list[str]:
        """All but the log, its index, and what is prepared."""
        root = self.good / self.node_dir
        found = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
        return [str(path) for path in found if path.parts[0] not in ("data", "index", "pool")]

    def opened(self, damage: Callable[[Path], object]) -> Story:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.good, self.copy)
        damage(self.copy / self.node_dir)
        return asyncio.run(self._open())

    async def _open(self) -> Story:
        env = production_env("rot")
        node = Node(env, replace(self.config, store_dir=str(self.copy)), ListHost())
        try:
            found = await node._store.open(node.log, node.snapshots)
            log = node.log
            where = (log.base, log.first_index, log.last_index, log.last_term, log.last_chain)
            story = Story(found.identity, found.hard_state.loaded, found.configs, where, found.reason)
            await node._store.close(found.checkpoint, clean=False)
            await log.close()
            return story
        finally:
            env.workers.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, unused_tcp_ports: Callable[[int], list[int]]) -> Store:
    """Of a node with a snapshot at its log's beginning and a configuration entry behind it."""
    directory = tmp_path_factory.mktemp("group")
    group = Group(directory, unused_tcp_ports(3))

    def config(name: str) -> NodeConfig:
        return replace(group.config(name), segment_size=SEGMENT, max_entry_bytes=SEGMENT // 4)

    async def fill() -> None:
        for name in group.peers:
            group.start(name, config(name))
        await group.append([b"x" * 1000] * 100)
        async with DLedgerClient(production_env("operator"), group.peers) as client:
            await client.prefer(["n1"])
        await group.append([b"y" * 1000] * 200)
        node = group.nodes["n1"]

        def shortened() -> bool:
            node.snapshots.retainer.delete_before(node.log.last_index - 230)
            return node.log.first_index > 0

        await group.until(shortened)
        for name in list(group.tasks):
            await group.stop(name)

    asyncio.run(fill())
    return Store(config("n1"), tmp_path_factory.mktemp("copies"))


REFUSED = ("begins", "identity", "members")
"""A node that cannot read these does not guess."""


@pytest.mark.parametrize(
    "kind", ["begins", "checkpoint", "hardstate", "identity", "lock", "members", "snapshots"]
)
def test_a_flipped_bit_changes_nothing_or_is_told(store: Store, kind: str) -> None:
    whole = store.opened(nothing)
    names = [name for name in store.files() if name.split("/")[0] == kind]
    assert names and whole.reason == ""
    for name in names:
        size = (store.good / store.node_dir / name).stat().st_size
        for place in range(0, size, max(1, size // FLIPS)):
            damage = partial(flip, name, place)
            if kind in REFUSED:
                with pytest.raises(NodeFailed, match=r"begins cannot|identity|members") as told:
                    store.opened(damage)
                assert told.value.exit_code == EXIT_STORE and "delete this node's store" in str(told.value)
            else:
                assert store.opened(damage) == expected(whole, name), f"bit {place % 8} of byte {place}"


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["lost", "empty"])
def test_a_node_without_term_and_vote_or_name_is_another_one(
    store: Store, change: Callable[[Path], object]
) -> None:
    """Its former self may have voted (S7, S18). What it has of the log is the same."""
    whole = store.opened(nothing)
    for name in ("hardstate", "identity"):
        try:
            story = store.opened(lambda root, name=name: change(root / name))
        except NodeFailed as error:
            assert name == "identity" and "identity" in str(error)
            continue
        assert story.identity.incarnation != whole.identity.incarnation
        assert story.log == whole.log and story.configs == whole.configs


def test_members_that_are_lost_are_looked_for_in_the_whole_log(store: Store) -> None:
    """Not only in the last segment, and only once: founders who were replaced must not vote again."""
    whole = store.opened(nothing)
    ((index, _),) = whole.configs
    assert whole.log[1] < index < whole.log[2] - 2 * SEGMENT // 1000, "in the middle"
    assert store.opened(lambda root: (root / "members").unlink()) == whole
    assert (store.copy / store.node_dir / "members").exists()

    def also_rot(root: Path) -> None:
        (root / "members").unlink()
        first = sorted((root / "data").iterdir())[0]
        flip(f"data/{first.name}", 500, root)

    with pytest.raises(NodeFailed, match=r"members is lost, and the log cannot stand in for it"):
        store.opened(also_rot)


def nothing(_: Path) -> None:
    """No damage."""


def flip(name: str, place: int, root: Path) -> None:
    """One bit of one byte."""
    data = bytearray((root / name).read_bytes())
    data[place] ^= 1 << place % 8
    (root / name).write_bytes(data)


def expected(whole: Story, name: str) -> Story:
    """Without the snapshot at the log's beginning it is not known what came before."""
    base, *rest = whole.log
    assert isinstance(base, LogBase)
    if name != f"snapshots/{segment_name(base.pos)}/manifest":
        return whole
    return replace(whole, log=(replace(base, term=-1, chain=None), *rest))
