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
from test_node import CLIENT_S, Group, ListHost

from dledger.config import NodeConfig
from dledger.context.config_log import ConfigLog
from dledger.election.configuration import Configuration, encode_configuration
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.files.identity import StoreFiles
from dledger.formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.snapshot import encode_manifest, make_manifest
from dledger.formats.store_files import Identity, decode_json, encode_json, segment_name
from dledger.log.base import LogBase
from dledger.node.node import Node
from dledger.node.powerloss import Verdict
from dledger.peers.log_client import DLedgerClient
from dledger.runtime.env import production_env

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
    unsure: list[tuple[int, int]]
    """Entries that may be configurations."""


class Store:
    """One node's, closed; copies of it are damaged and opened."""

    def __init__(self, config: NodeConfig, work: Path) -> None:
        self.config = config
        self.good = work / "good"
        self.copy = work / "copy"
        shutil.copytree(config.store_dir, self.good)
        self.index_size = config.index_units_per_file * INDEX_UNIT_SIZE
        self.node_dir = Path(config.node_dir).relative_to(config.store_dir)

    def files(self) -> list[str]:
        """All but the log, its index, and what is prepared."""
        root = self.good / self.node_dir
        found = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
        return [str(path) for path in found if path.parts[0] not in ("data", "index", "pool")]

    def place_of(self, index: int) -> tuple[int, int]:
        """(pos, size) of an entry."""
        name = segment_name(index * INDEX_UNIT_SIZE // self.index_size * self.index_size)
        data = (self.good / self.node_dir / "index" / name).read_bytes()
        unit = INDEX_UNIT.unpack_from(data, index * INDEX_UNIT_SIZE % self.index_size)
        return unit[1], unit[2]

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
            story = Story(
                found.identity, found.hard_state.loaded, found.configs, where, found.reason, found.unsure
            )
            await node._store.close(found.checkpoint, clean=False)
            await log.close()
            return story
        finally:
            env.workers.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, unused_tcp_ports: Callable[[int], list[int]]) -> Store:
    """The store of a node with a snapshot at its log's beginning and a configuration entry behind it."""
    directory = tmp_path_factory.mktemp("group")
    group = Group(directory, unused_tcp_ports(3))

    def config(name: str) -> NodeConfig:
        return replace(group.config(name), segment_size=SEGMENT, max_entry_bytes=SEGMENT // 4)

    async def fill() -> None:
        for name in group.peers:
            group.start(name, config(name))
        await group.append([b"x" * 1000] * 100)
        async with DLedgerClient(production_env("operator"), group.peers, CLIENT_S) as client:
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


REFUSED = ("begins", "identity")
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
                with pytest.raises(NodeFailed, match=r"beginning of the log cannot|identity") as told:
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

    def also_rot(root: Path) -> None:
        (root / "members").unlink()
        flip(f"data/{segment_name(whole.log[0].pos)}", 500, root)  # one before it may still lie there

    found = store.opened(also_rot)
    assert found.unsure == [(whole.log[1], whole.log[1])] and found.configs == whole.configs
    assert not (store.copy / store.node_dir / "members").exists(), "written when the rot is repaired"


def test_a_configuration_of_which_there_is_no_copy_is_waited_for(store: Store) -> None:
    """It is rotten; the file goes on to name it, so that it is not forgotten when the log goes on."""
    whole = store.opened(nothing)
    ((index, _),) = whole.configs
    pos, size = store.place_of(index)

    def damage(root: Path) -> None:
        (root / "members").write_bytes(encode_json({"copies": [], "indexes": [index]}))
        start = pos - pos % SEGMENT
        flip(f"data/{segment_name(start)}", pos + size - 1 - start, root)

    found = store.opened(damage)
    assert found.unsure == [(index, index)] and found.configs == []
    files = StoreFiles(production_env("n1"), replace(store.config, store_dir=str(store.copy)))
    files._members_told = True
    ((_, config),) = whole.configs
    asyncio.run(files.save_configs([(index + 5, 1, config)], found.unsure))
    assert decode_json((store.copy / store.node_dir / "members").read_bytes())["indexes"] == [
        index,
        index + 5,
    ]


def test_a_file_of_an_older_program_that_kept_no_copies_counts_as_lost(store: Store) -> None:
    whole = store.opened(nothing)
    assert store.opened(lambda root: (root / "members").write_bytes(encode_json({"indexes": []}))) == whole


def test_what_the_founders_became_may_be_lost(store: Store) -> None:
    """Without members and without the snapshot that its log begins at, what the founders became is lost."""

    def damage(root: Path) -> None:
        (root / "members").unlink()
        for manifest in (root / "snapshots").glob("*/manifest"):
            manifest.unlink()

    def ahead(root: Path) -> None:
        """Damage the store, and add a snapshot that was received and never installed."""
        damage(root)
        parts = {"state": b""}
        manifest = make_manifest(10_000, 9, 100 * SEGMENT, 1, 1, encode_configuration(Configuration()), parts)
        directory = root / "snapshots" / segment_name(manifest.pos)
        directory.mkdir()
        (directory / "manifest").write_bytes(encode_manifest(manifest))
        (directory / "state").write_bytes(b"")

    assert store.opened(ahead) == store.opened(damage)
    found = store.opened(damage)
    before = found.log[1] - 1
    assert found.unsure == [(before, before)]
    members = ConfigLog(store.config)
    members.open(found.identity, [], None, found.unsure)
    assert members.doubtful(found.log[2])
    members.open(found.identity, found.configs, None, found.unsure)
    assert not members.doubtful(found.log[2]), "the configuration behind it is newer"


def test_a_group_whose_stores_all_lost_members_and_have_rot_heals_by_itself(
    tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repair needs no leader. What one of them cannot read is the configuration itself."""
    group = Group(tmp_path, unused_tcp_ports(3))
    founders = list(group.peers)

    async def stop() -> None:
        for name in list(group.tasks):
            await group.stop(name)

    async def scenario() -> None:
        for name in founders:
            group.start(name)
        await group.append([b"x" * 100] * 50)
        async with DLedgerClient(production_env("operator"), group.peers, CLIENT_S) as client:
            await client.prefer(["n1"])
        await group.append([b"y" * 100] * 50)
        await group.agree(100)
        node = group.nodes["n1"]
        (config,) = node.members.indexes
        wanted = node.members.current
        places = {
            name: group.nodes[name].log.locate(at)
            for name, at in zip(founders, (config, 20, 90), strict=True)
        }
        await stop()
        for name, (pos, size) in places.items():
            root = Path(group.config(name).node_dir)
            (root / "members").unlink()
            flip(f"data/{segment_name(0)}", pos + size - 1, root)
        for name in founders:
            group.start(name)
        await group.append([b"z"])
        for name in founders:
            node = group.nodes[name]
            await group.until(lambda node=node: not node.members.unsure and not node.log.faulty)
            assert node.members.current == wanted and node.members.indexes == [config]
            await group.until(lambda node=node: node.status()["reasons"] == [])
            members = Path(group.config(name).node_dir) / "members"
            await group.until(members.exists)
        follower = next(node for node in group.nodes.values() if not node.serving)
        follower.members.unsure.add(config + 1, config + 3)
        follower.health.look()
        assert not follower.elector.may_stand and "does not stand" in str(follower.status()["reasons"])
        whose_log_is_longest_waits_for_the_members(follower, monkeypatch)
        follower.repaired()
        await group.until(lambda: not follower.members.unsure)
        assert follower.elector.may_stand and follower.members.indexes == [config]
        await stop()

    asyncio.run(scenario())


def whose_log_is_longest_waits_for_the_members(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all voters lost power (S9) somebody must say who "all" are. Within one turn of the loop."""
    monkeypatch.setattr("dledger.node.trust.judge", lambda *_: Verdict.VOTE)
    node.trust._lost_power, node.elector.may_vote = True, False
    leader, node.elector.leader_id = node.elector.leader_id, None
    unsure = list(node.members.unsure)
    node.trust.stands_back(100.0)
    assert node.trust._lost_power and not node.elector.may_vote and node.members.unsure
    for first, last in unsure:
        node.members.unsure.remove(first, last)
    node.trust.stands_back(200.0)
    node.elector.leader_id = leader
    assert not node.trust._lost_power and node.elector.may_vote
    for first, last in unsure:
        node.members.unsure.add(first, last)
    monkeypatch.undo()


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
