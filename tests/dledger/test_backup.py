"""`backup` of a running node: consistent under live writes, clean for the audit, and nobody's former self."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_node import Group

from dledger.commands import backup as module
from dledger.commands.backup import BackupFailed, backup, command
from dledger.commands.dump import dump
from dledger.commands.recover import force_single
from dledger.config import NodeConfig
from dledger.files.offline import read_checkpoint, read_hard_state, read_identity, walk
from dledger.files.run_lock import RunLock
from dledger.formats.entry import Kind
from dledger.formats.store_files import segment_name
from dledger.host import Role
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile
from tests.command_line import audit as audit
from tests.command_line import options
from tests.steady import steady

SMALL = 1024 * 1024
ENV = production_env("backup")


class SmallGroup(Group):
    """Segments of 1 MiB, so that the log rolls while it is copied."""

    def config(self, name: str) -> NodeConfig:
        return replace(
            super().config(name),
            segment_size=SMALL,
            max_entry_bytes=128 * 1024,
            index_units_per_file=512,
            checkpoint_interval_s=0.2,
        )


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(3)


async def running(directory: Path, ports: list[int]) -> SmallGroup:
    group = SmallGroup(directory, ports)
    for name in group.peers:
        group.start(name)
    await group.elected()
    return group


async def stop_all(group: Group) -> None:
    for name in list(group.tasks):
        await group.stop(name)


async def checkpoint_of(group: Group, name: str, index: int) -> None:
    """Until the store of a node says that this entry is committed: from then on a backup holds it."""
    directory = group.config(name).node_dir
    await group.until(lambda: read_checkpoint(ENV.files, directory).committed_index >= index)


def bodies(start: int, count: int) -> list[bytes]:
    return [b"%d " % number + bytes(1000) for number in range(start, start + count)]


def test_a_backup_under_live_writes_is_whole_and_holds_what_was_committed(
    tmp_path: Path, ports: list[int]
) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        done = asyncio.Event()
        written: list[bytes] = []

        async def write() -> None:
            while not done.is_set():
                more = bodies(len(written), 50)
                await group.append(more)
                written.extend(more)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(), name="write")
            await group.until(lambda: len(written) > 1500)
            for number, name in enumerate(group.peers):
                committed = group.nodes[name].commit_index
                await checkpoint_of(group, name, committed)
                to = str(tmp_path / f"backup{number}")
                result = await backup(ENV, str(tmp_path / name), to)
                assert result.last_index >= committed and result.committed_hint >= committed
                lines = list(dump(ENV.files, [f"{result.directory}/data"], 0))
                # (the bodies of this test are no records; a break of the log ends the listing)
                assert all(
                    line.problem.startswith("the body is not a record") for line in lines if line.problem
                )
                assert [line.index for line in lines] == list(range(result.last_index + 1))
            done.set()
        await stop_all(group)

    asyncio.run(scenario())
    leftovers = sorted(path.name for path in tmp_path.glob("backup*/*"))
    assert leftovers == ["dledger-n0", "dledger-n1", "dledger-n2"]


def test_the_index_is_complete_and_the_audit_finds_nothing(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        leader = await group.elected()
        assert leader.appender is not None
        steady(group.nodes.values())  # the log ends where it is copied
        for body in bodies(0, 2000):
            last = leader.appender.add_system(body, Kind.RAW)
        await group.until(lambda: all(node.applied_index >= last for node in group.nodes.values()))
        await checkpoint_of(group, "n1", last)
        await backup(ENV, str(tmp_path / "n1"), str(tmp_path / "copy"))
        await stop_all(group)

    asyncio.run(scenario())
    original, copy = tmp_path / "n1" / "dledger-n1", tmp_path / "copy" / "dledger-n1"
    for name in ("data", "index"):
        for path in sorted((copy / name).iterdir()):
            assert path.read_bytes() == (original / name / path.name).read_bytes(), path
    assert audit(["verify", str(tmp_path / "copy")]) == 0
    lock = RunLock.take(ENV.files, str(copy), "another machine")
    assert lock.last_run().clean, "under ASYNC_FLUSH, too: all of the copy is fsynced"
    lock.close()


def test_a_restored_store_is_a_newcomer_without_a_vote_that_is_filled_up_and_recorded(
    tmp_path: Path, ports: list[int]
) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        first = bodies(0, 500)
        await group.append(first)
        await group.agree(500)
        leader = (await group.elected()).config.self_id
        name = next(name for name in group.peers if name != leader)
        node_dir = Path(group.config(name).node_dir)
        await checkpoint_of(group, name, 500)
        result = await backup(ENV, str(tmp_path / name), str(tmp_path / "copy"))
        before, after = read_identity(ENV.files, str(node_dir)), read_identity(ENV.files, result.directory)
        assert after == replace(before, incarnation=after.incarnation) and after != before
        state = read_hard_state(ENV.files, result.directory)
        assert state is not None and state[1].vote is None and state[1].term >= result.last_term
        second = bodies(500, 500)
        await group.append(second)
        await group.stop(name)
        shutil.rmtree(node_dir)
        shutil.move(result.directory, node_dir)
        group.start(name)
        await group.until(lambda: Role.FOLLOWER in group.hosts[name].roles)
        assert group.hosts[name].roles[0] is Role.LEARNER
        assert await group.agree(1000) == first + second
        await stop_all(group)

    asyncio.run(scenario())


def test_a_backup_becomes_a_cluster_of_its_own_by_force(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        first = bodies(0, 500)
        await group.append(first)
        await group.agree(500)
        await checkpoint_of(group, "n0", 500)
        await backup(ENV, str(tmp_path / "n0"), str(tmp_path / "elsewhere"), "n2")
        await stop_all(group)
        assert (tmp_path / "elsewhere" / "dledger-n2").is_dir()
        await force_single(ENV, str(tmp_path / "elsewhere"), yes=True)
        (tmp_path / "n2").rename(tmp_path / "old-n2")
        (tmp_path / "elsewhere").rename(tmp_path / "n2")
        group.start("n2")
        await group.append([b"more"])
        await group.until(lambda: len(group.hosts["n2"].bodies) > 500)
        assert group.hosts["n2"].bodies == [*first, b"more"]
        await stop_all(group)

    asyncio.run(scenario())


def test_the_command_says_what_it_did_and_overwrites_nothing(
    tmp_path: Path, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        await group.append(bodies(0, 10))
        await checkpoint_of(group, "n0", 9)
        words = ["backup", "--store", str(tmp_path / "n0"), "--to", str(tmp_path / "copy"), "--json"]
        args = options(*words)
        assert await command(ENV, args) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["done"] and result["last_index"] >= 9 and result["node"] == "n0"
        assert await command(ENV, args) == 1
        assert "already exists" in json.loads(capsys.readouterr().out)["error"]
        await stop_all(group)

    asyncio.run(scenario())


def test_a_damaged_store_gives_no_backup(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await running(tmp_path, ports)
        await group.append(bodies(0, 100))
        await group.agree(100)
        await stop_all(group)
        path = tmp_path / "n0" / "dledger-n0" / "data" / segment_name(0)
        data = bytearray(path.read_bytes())
        data[20_000] ^= 1
        path.write_bytes(data)
        with pytest.raises(BackupFailed, match="or it is damaged: the log could be read only up to"):
            await backup(ENV, str(tmp_path / "n0"), str(tmp_path / "copy"))
        assert not (tmp_path / "copy" / "dledger-n0").exists()

    asyncio.run(scenario())


def test_a_log_that_loses_its_front_under_the_reader_is_copied_anew(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention with snapshots: the first segment goes away while it is read."""

    async def scenario() -> None:
        group = await running(tmp_path, ports)
        await group.append(bodies(0, 3000))
        await group.agree(3000)
        await stop_all(group)
        node_dir = tmp_path / "n0" / "dledger-n0"
        snapshot = node_dir / "snapshots" / segment_name(SMALL)
        assert (snapshot / "manifest").exists()
        real = walk
        attempts: list[int] = []

        def retiring(*args: object) -> object:
            attempts.append(len(attempts))
            if len(attempts) == 1:
                (node_dir / "data" / segment_name(0)).write_bytes(bytes(SMALL))
                try:
                    return real(*args)  # type: ignore[arg-type]
                finally:
                    (node_dir / "data" / segment_name(0)).unlink()
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "walk", retiring)
        result = await backup(ENV, str(tmp_path / "n0"), str(tmp_path / "copy"))
        assert result.first_index > 0 and result.last_index == 3000
        copied = Path(result.directory) / "snapshots" / segment_name(SMALL) / "manifest"
        assert copied.read_bytes() == (snapshot / "manifest").read_bytes() and len(attempts) == 2
        assert not (Path(result.directory) / "data" / segment_name(0)).exists()

    asyncio.run(scenario())


def test_a_backup_has_few_files_open_and_leaves_nothing_when_it_fails(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of a thousand segments is copied by a process that may open a thousand files."""
    written: list[OsFile] = []
    most = 0

    def allocate(file: OsFile, size: int) -> None:
        nonlocal most
        written.append(file)
        most = max(most, sum(one._fd >= 0 for one in written))
        if full and len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserved(file, size)

    async def scenario() -> None:
        nonlocal full
        group = await running(tmp_path, ports)
        await group.append(bodies(0, 6000))
        await stop_all(group)
        monkeypatch.setattr(OsFile, "allocate", allocate)
        await backup(ENV, str(tmp_path / "n1"), str(tmp_path / "copy"))
        assert len(written) > 5 and most == 1
        written.clear()
        full = True
        with pytest.raises(OSError, match="No space"):
            await backup(ENV, str(tmp_path / "n1"), str(tmp_path / "other"))
        assert not list((tmp_path / "other").iterdir())

    full = False
    reserved = OsFile.allocate
    asyncio.run(scenario())
