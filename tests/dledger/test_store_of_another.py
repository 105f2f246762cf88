"""A node does not make its store where another node has one: what is in there would seem to be gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.config import NodeConfig
from dledger.errors import EXIT_CONFIG, NodeFailed
from dledger.files.foreign import other_node
from dledger.node.node import Node
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from tests.dledger.test_node import ListHost

FILES = OsFiles()


class Served(ListHost):
    """Says when its node serves."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def on_serving(self, term: int) -> None:
        self.event.set()


class OneNode:
    """The only member of its group, with a small store."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.port = port

    def config(self, node: str) -> NodeConfig:
        return NodeConfig(
            "g",
            node,
            {node: f"127.0.0.1:{self.port}"},
            str(self.root),
            bind_host="127.0.0.1",
            segment_size=16 << 20,
            pool_segments=0,
        )

    def run(self, node: str) -> bool:
        """Start the node, let it lead, stop it. Whether it led."""

        async def scenario() -> bool:
            host = Served()
            running = asyncio.create_task(Node(production_env("test"), self.config(node), host).run())
            served = asyncio.create_task(host.event.wait())
            await asyncio.wait({running, served}, return_when=asyncio.FIRST_COMPLETED)
            served.cancel()
            running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                return host.event.is_set()
            return False

        return asyncio.run(scenario())


@pytest.fixture
def one(tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]) -> OneNode:
    return OneNode(tmp_path / "s", unused_tcp_ports(1)[0])


def test_another_id_is_refused_and_nothing_is_made(one: OneNode) -> None:
    one.run("n0")
    before = sorted(path.name for path in one.root.iterdir())
    with pytest.raises(NodeFailed) as refused:
        one.run("n7")
    assert refused.value.exit_code == EXIT_CONFIG
    assert "this store belongs to n0" in refused.value.reason
    assert "dLegerSelfId is n7" in refused.value.reason
    assert sorted(path.name for path in one.root.iterdir()) == before
    one.run("n0")


@pytest.mark.parametrize("lost", ["identity", "data", "data/*"])
def test_a_store_that_lost_a_part_is_one_still(lost: str, one: OneNode) -> None:
    one.run("n0")
    for path in list((one.root / "dledger-n0").glob(lost)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with pytest.raises(NodeFailed) as refused:
        one.run("n1")
    assert refused.value.exit_code == EXIT_CONFIG
    assert "belongs to n0" in refused.value.reason


@pytest.mark.parametrize("node", ["n0", "n7"])
def test_of_two_stores_in_one_directory_neither_starts(node: str, one: OneNode) -> None:
    """What an older version of this program made of another id."""
    one.run("n7")
    (one.root / "dledger-n7").rename(one.root / "kept")
    one.run("n0")
    (one.root / "kept").rename(one.root / "dledger-n7")
    with pytest.raises(NodeFailed) as refused:
        one.run(node)
    assert refused.value.exit_code == EXIT_CONFIG
    assert "n0" in refused.value.reason
    assert "n7" in refused.value.reason
    assert "move the other away" in refused.value.reason


def test_the_directory_of_a_node_is_no_storepathrootdir(one: OneNode) -> None:
    one.run("n0")
    inner = OneNode(one.root / "dledger-n0", one.port)
    for node in ("n0", "n7"):
        with pytest.raises(NodeFailed) as refused:
            inner.run(node)
        assert refused.value.exit_code == EXIT_CONFIG
        assert "set storePathRootDir to the directory above it" in refused.value.reason
    assert not (inner.root / "dledger-n0").exists()


@pytest.mark.parametrize("left", ["dledger-n7", "dledger-n7/pool", "dledger-n0.old", "dledger-n7.bak"])
def test_what_is_no_store_of_another_node_keeps_none_from_starting(left: str, one: OneNode) -> None:
    one.run("n0")
    (one.root / left).mkdir(parents=True)
    if "." in left:
        shutil.copytree(one.root / "dledger-n0", one.root / left, dirs_exist_ok=True)
    assert other_node(FILES, str(one.root), "n0") == ""
    one.run("n0")


def test_a_file_with_such_a_name_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "dledger-n7").write_text("a note")
    assert other_node(FILES, str(tmp_path), "n0") == ""
    assert other_node(FILES, str(tmp_path / "missing"), "n0") == ""
