"""`recover --force-single` and `backup` of stores whose log begins at a snapshot."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from test_node import ListHost

from dledger.commands.backup import BackupFailed, backup
from dledger.commands.recover import RecoverRefused, force_single
from dledger.config import NodeConfig
from dledger.election.configuration import encode_configuration, founding
from dledger.formats.snapshot import make_manifest
from dledger.formats.store_files import (
    Checkpoint,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    segment_name,
)
from dledger.log.base import LogBase
from dledger.log.hard_state import HardStateFile
from dledger.log.reading import store_time_of
from dledger.log.store import LogStore
from dledger.node.node import Node
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from dledger.snapshots.catalog import SnapshotCatalog
from tests.dledger.test_snapshot_store import SEGMENT, UNITS, append

pytestmark = pytest.mark.usefixtures("index_in_memory")

MEMBERS = {"n0": "i0", "n1": "i1", "n2": "i2"}
LATE_MS = 1 << 42
"""Store time of the snapshot's last record: of a leader whose clock was wrong by decades."""
BASE = LogBase(1000, 5, 100 * SEGMENT, 77, LATE_MS)
PARTS = {"a": b"1"}


class OnePartHost(ListHost):
    """Its snapshot is that of the stores here."""

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        return PARTS.items()


async def installed(directory: Path, entries: int, *, cut_short: bool = False) -> Path:
    """A stopped node's store: a snapshot and entries behind it, or an old log that it is to replace."""
    env = production_env()
    store = directory / "dledger-n0"
    store.mkdir(parents=True)
    (store / "identity").write_bytes(encode_json(Identity("g", "n0", "i0", SEGMENT, "old-cluster", MEMBERS)))
    state = HardStateFile.open(env.files, str(store))
    state.save(HardState(5, None))
    state.close()
    catalog = SnapshotCatalog(env, str(store), 64)
    await catalog.open()
    log = LogStore(
        env, str(store), segment_size=SEGMENT, index_units_per_file=UNITS, pool_segments=0, sync_flush=True
    )
    await log.open(power_lost=False, discard_above_mark=False)
    flusher = asyncio.create_task(log.run_flusher())
    if cut_short:
        await append(log, 60, term=2)
    config = encode_configuration(founding(MEMBERS))
    assert BASE.chain is not None
    await catalog.publish(make_manifest(1000, 5, BASE.pos, BASE.chain, LATE_MS, config, PARTS), PARTS)
    await catalog.say_begins(BASE.pos, replace=cut_short)
    last = 59
    if not cut_short:
        await log.reset(BASE)
        if entries:
            await append(log, entries, term=6)
        last = 1000 + entries
    flusher.cancel()
    await asyncio.gather(flusher, return_exceptions=True)
    await log.close()
    (store / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(last, last)))
    return store


async def serves(directory: Path, port: int) -> tuple[int, int, int]:
    """Start the node until it serves: (first index, last index, voters)."""
    config = NodeConfig(
        "g",
        "n0",
        {"n0": f"127.0.0.1:{port}", "n1": "127.0.0.1:1", "n2": "127.0.0.1:2"},
        str(directory),
        bind_host="127.0.0.1",
        segment_size=SEGMENT,
        index_units_per_file=UNITS,
        pool_segments=0,
        max_entry_bytes=16 * 1024,
    )
    node = Node(production_env(), config, OnePartHost())
    task = asyncio.create_task(node.run())
    try:
        async with asyncio.timeout(20):
            while not node.serving and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return node.log.first_index, node.log.last_index, len(node.membership.voters)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_short_segment_where_the_log_goes_on_counts_as_missing(
    tmp_path: Path, size: int, unused_tcp_ports: Callable[[int], list[int]]
) -> None:
    """An earlier run was cut short when it made it. Found by review: "Done", and no node started on that."""

    async def scenario() -> None:
        store = await installed(tmp_path, 0)
        segment = store / "data" / segment_name(BASE.pos)
        segment.write_bytes(bytes(size))
        await force_single(production_env("x"), str(tmp_path), yes=True)
        assert segment.stat().st_size == SEGMENT
        assert await serves(tmp_path, unused_tcp_ports(1)[0]) == (1001, 1002, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("entries", [0, 5])
def test_a_store_that_begins_at_a_snapshot_goes_on_alone(
    tmp_path: Path, entries: int, unused_tcp_ports: Callable[[int], list[int]]
) -> None:
    async def scenario() -> None:
        await installed(tmp_path, entries)
        report = await force_single(production_env("x"), str(tmp_path), yes=True)
        assert (report.first_index, report.last_index, report.rotten) == (1001, 1000 + entries, "")
        assert report.last_term == (6 if entries else 5)
        assert report.founders == (), "its own beginning"
        if entries == 0:
            first_file = tmp_path / "dledger-n0" / "data" / f"{BASE.pos:020d}"
            assert store_time_of(first_file.read_bytes()) == LATE_MS, "time does not go back (S15)"
        first, last, voters = await serves(tmp_path, unused_tcp_ports(1)[0])
        assert first == 1001 and last > report.last_index + 1 and voters == 1

    asyncio.run(scenario())


def test_a_store_whose_install_was_cut_short_is_not_forced(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await installed(tmp_path, 0, cut_short=True)
        before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        with pytest.raises(RecoverRefused, match="start the node once"):
            await force_single(production_env("x"), str(tmp_path), yes=True, cut_damage=True)
        assert {path: path.read_bytes() for path in before} == before

    asyncio.run(scenario())


@pytest.mark.parametrize("entries", [0, 5])
def test_a_backup_of_a_store_that_begins_at_a_snapshot_is_whole(
    tmp_path: Path, entries: int, unused_tcp_ports: Callable[[int], list[int]]
) -> None:
    async def scenario() -> None:
        await installed(tmp_path / "n0", entries)
        copy = await backup(production_env("x"), str(tmp_path / "n0"), str(tmp_path / "to"))
        assert (copy.first_index, copy.last_index) == (1001, 1000 + entries)
        catalog = SnapshotCatalog(production_env(), copy.directory, 64)
        await catalog.open()
        assert catalog.begins == BASE.pos and await catalog.load(catalog.manifests[0]) == PARTS
        await force_single(production_env("y"), str(tmp_path / "to"), yes=True)
        first, _, voters = await serves(tmp_path / "to", unused_tcp_ports(1)[0])
        assert (first, voters) == (1001, 1)

    asyncio.run(scenario())


def test_a_snapshot_loses_its_name_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks meanwhile, also after a crash, sees it whole or not at all."""
    seen: list[list[str]] = []
    rmtree = OsFiles.rmtree

    def looked_at(files: OsFiles, path: str) -> None:
        seen.append([name for name in files.listdir(str(Path(path).parent)) if not name.endswith(".tmp")])
        rmtree(files, path)

    async def scenario() -> None:
        store = await installed(tmp_path, 5)
        catalog = SnapshotCatalog(production_env(), str(store), 64)
        await catalog.open()
        (manifest,) = catalog.manifests
        monkeypatch.setattr(OsFiles, "rmtree", looked_at)
        await catalog.prune(manifest.pos + 1)
        assert seen[-1] == [] == catalog.manifests and list((store / "snapshots").iterdir()) == []
        await catalog.publish(manifest, PARTS)
        shutil.rmtree(store / "snapshots" / f"{manifest.pos:020d}")
        await catalog.discard(manifest)  # it is gone already
        assert catalog.manifests == []

    asyncio.run(scenario())


def test_a_damaged_snapshot_is_not_copied(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await installed(tmp_path, 5)
        catalog = SnapshotCatalog(production_env(), str(store), 64)
        await catalog.open()
        later = replace(catalog.manifests[0], pos=BASE.pos + SEGMENT)
        await catalog.publish(later, PARTS)  # its digest is another's
        copy = await backup(production_env("x"), str(tmp_path), str(tmp_path / "to"))
        found = [path.name for path in (Path(copy.directory) / "snapshots").iterdir()]
        assert found == [f"{BASE.pos:020d}"]
        (store / "snapshots" / found[0] / "a").write_bytes(b"2")
        with pytest.raises(BackupFailed, match=r"beginning of the log is damaged.*CRC differs"):
            await backup(production_env("x"), str(tmp_path), str(tmp_path / "again"))

    asyncio.run(scenario())
