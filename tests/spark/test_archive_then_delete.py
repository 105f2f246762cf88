"""The recipe "Archive, then delete" of docs/howto/keep-the-disk-in-bounds.md, run on a real group."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dledger.client import Message, Producer
from dledger.formats.snapshot import BEGINS_FILE
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "keep-the-disk-in-bounds.md"
SEGMENT = 9 * 1024 * 1024
MESSAGES = 10_000
BODY = bytes(2000)
LIMIT_S = 300.0


def commands() -> list[str]:
    """The shell commands of the recipe."""
    section = PAGE.read_text().split("## Archive, then delete\n")[1].split("\n## ")[0]
    return re.findall(r"```\n(.*?)```", section, re.DOTALL)


def test_the_recipe_of_the_page(tmp_path: Path) -> None:
    spec = ClusterSpec(base_port=find_base_port(start=24000), segment_size=SEGMENT, pool_segments=1)
    group = LocalCluster.create(tmp_path / "dledger-data", spec)
    try:
        group.start()
        group.create_topic("orders")
        with Producer("orders", group.namesrv_addr) as producer:
            for number in range(MESSAGES):
                producer.send_async(Message("orders", b"%d " % number + BODY), lambda answer: None)
            producer.flush()
        group.wait_caught_up(LIMIT_S)
        peers = group.broker_properties("n0")["dLegerPeers"]
        archive, delete = commands()
        archive = archive.replace("2026-11-21", datetime.now(UTC).isoformat())
        delete = re.sub(r'--peers ".*?"', f'--peers "{peers}"', delete)
        for command in (archive, delete):
            script = command.replace("dledger ", f"{sys.executable} -m dledger ", 1)
            if "FIRST=" in command:
                script = command.replace("\ndledger ", f"\n{sys.executable} -m dledger ")
            done = subprocess.run(
                ["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        nodes = [group.store(node) / f"dledger-{node}" for node in spec.node_ids]
        wait_for(
            lambda: all((node / BEGINS_FILE).exists() for node in nodes) or None,
            LIMIT_S,
            lambda: "not deleted",
        )
        bodies = archived(tmp_path / "archive")
        assert len(bodies) < MESSAGES
        import dledger

        left = dledger.read(servers=group.namesrv_addr, subscribe="orders", columns=["value"]).read_all()
        bodies |= {number_of(value) for value in left["value"].to_pylist()}
        assert bodies == set(range(MESSAGES))
    finally:
        group.stop()


def archived(root: Path) -> set[int]:
    """The numbers of the messages in the archive."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(root, partitioning="hive").to_table(columns=["value"])
    return {number_of(value) for value in table["value"].to_pylist()}


def number_of(body: bytes) -> int:
    return int(body.split(b" ")[0])
