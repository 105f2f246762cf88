"""`recover --force-single`: what it says, what it changes, what joins afterwards and what is refused."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_node import CLIENT_S, Group

from dledger.commands.recover import RecoverRefused, command, force_single
from dledger.commands.reset_term import reset_term
from dledger.config import NodeConfig
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.files.offline import StoreUnreadable, durable_mark, node_directory, read_identity, walk
from dledger.formats.entry import HEADER_SIZE, unpack_header
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE
from dledger.formats.store_files import HardState, encode_json, segment_name
from dledger.host import Role
from dledger.log.hard_state import HardStateFile
from dledger.peers.log_client import DLedgerClient
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile
from tests.command_line import options
from tests.steady import steady

pytestmark = pytest.mark.usefixtures("patient_dials")

BODIES = [b"m%d" % number for number in range(300)]


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(3)


async def majority_lost(directory: Path, ports: list[int]) -> Group:
    """Three nodes wrote BODIES in one term and are stopped; their stores are all there, to entry 300."""
    while True:
        group = Group(directory, ports)
        for name in group.peers:
            group.start(name)
        await group.append(BODIES)
        await group.agree(len(BODIES))
        last = {node.log.last_index for node in group.nodes.values()}
        for name in list(group.tasks):
            await group.stop(name)
        if last == {len(BODIES)}:
            return group
        for name in group.peers:  # the machine stood still: they elected twice
            shutil.rmtree(directory / name)


async def stop_all(group: Group) -> None:
    for name in list(group.tasks):
        await group.stop(name)


async def holds(group: Group, name: str, bodies: list[bytes]) -> None:
    """Wait until the node has applied exactly these."""
    await group.until(lambda: len(group.hosts[name].bodies) >= len(bodies))
    assert group.hosts[name].bodies == bodies


def settled(group: Group, name: str) -> bool:
    """Whether the node is a voter by a configuration that is committed."""
    leader = group.nodes["n0"]
    return group.nodes[name].role is Role.FOLLOWER and leader.commit_index == leader.log.last_index


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_without_yes_nothing_changes_and_everything_is_said(
    tmp_path: Path, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        store = str(tmp_path / "n0")
        before = contents(tmp_path / "n0")
        args = options("recover", "--force-single", "--store", store)
        assert await command(production_env("x"), args) == 1
        assert contents(tmp_path / "n0") == before
        text = capsys.readouterr().out
        assert "Everything that was acknowledged after entry 300 (term" in text
        assert "Nothing was changed" in text and "add --yes" in text
        args = options("recover", "--force-single", "--store", store, "--json")
        assert await command(production_env("x"), args) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["done"] is False and report["last_index"] == 300 and report["durable_mark"] == 300
        assert report["rotten"] == "" and report["node"] == "n0"
        assert group.peers

    asyncio.run(scenario())


def test_one_store_goes_on_alone_with_everything_it_had_and_refuses_the_old_members(
    tmp_path: Path, ports: list[int]
) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        old = read_identity(production_env("x").files, group.config("n0").node_dir)
        report = await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert report.last_index == 300
        new = read_identity(production_env("x").files, group.config("n0").node_dir)
        assert new.cluster != old.cluster and new.incarnation != old.incarnation
        group.start("n0")
        leader = await group.elected()
        assert leader.term > report.last_term + 1000  # above whatever the lost ones elected
        assert leader.status()["voters"] == ["n0"]
        await group.append([b"alone"])
        await holds(group, "n0", [*BODIES, b"alone"])
        # members of the old cluster are refused, and elect nobody that would take from this one
        group.start("n1")
        await asyncio.sleep(0.5)
        assert not leader.peers.connected("n1") and leader.serving
        await group.stop("n1")
        await stop_all(group)

    asyncio.run(scenario())


def test_it_may_be_repeated_and_waits_for_the_node_to_stop(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        for _ in range(3):
            await force_single(production_env("x"), str(tmp_path / "n2"), yes=True)
        group.start("n2")
        await group.append([b"more"])
        await holds(group, "n2", [*BODIES, b"more"])
        with pytest.raises(RecoverRefused, match="in use: stop the node first"):
            await force_single(production_env("x"), str(tmp_path / "n2"), yes=True)
        await stop_all(group)

    asyncio.run(scenario())


def test_a_run_that_was_cut_short_before_any_step_is_made_good_by_the_next(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("_append_config", "_clear_units", "_save_term", "_publish")

    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)

        async def fail(*args: object) -> None:
            raise OSError("cut short")

        for step in steps:
            with monkeypatch.context() as patch:
                patch.setattr(f"dledger.commands.recover._Forced.{step}", fail)
                with pytest.raises(OSError, match="cut short"):
                    await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        group.start("n0")
        await group.append([b"more"])
        await holds(group, "n0", [*BODIES, b"more"])
        await stop_all(group)

    asyncio.run(scenario())


def test_a_poisoned_store_keeps_what_lies_behind_its_mark(tmp_path: Path, ports: list[int]) -> None:
    """The mark lags behind the fsync; a normal start of a poisoned store would drop what lies behind it."""

    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        directory = Path(group.config("n0").node_dir)
        (directory / "poisoned").write_bytes(b"a write or fsync of the log failed: EIO")
        index = directory / "index" / segment_name(0)
        data = bytearray(index.read_bytes())
        data[200 * 32 :] = bytes(len(data) - 200 * 32)
        index.write_bytes(data)
        assert durable_mark(production_env("x").files, str(directory)) == 199
        report = await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert (report.durable_mark, report.last_index) == (199, 300)
        assert "EIO" in report.poisoned and any("EIO" in line for line in report.lines())
        group.start("n0")
        await group.append([b"more"])
        await holds(group, "n0", [*BODIES, b"more"])
        assert group.nodes["n0"].status()["reasons"] == []
        await stop_all(group)

    asyncio.run(scenario())


def test_votes_that_cannot_be_read_are_no_obstacle(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        (Path(group.config("n0").node_dir) / "hardstate").write_bytes(bytes(1024))
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        group.start("n0")
        await group.append([b"more"])
        await stop_all(group)

    asyncio.run(scenario())


def test_damage_is_refused_unless_it_is_to_be_cut(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        directory = Path(group.config("n0").node_dir)
        segment = directory / "data" / segment_name(0)
        data = bytearray(segment.read_bytes())
        offset = 0
        while unpack_header(data, offset).index < 120:
            offset += unpack_header(data, offset).size
        data[offset + HEADER_SIZE] ^= 1
        segment.write_bytes(data)
        before = contents(directory / "data")
        with pytest.raises(RecoverRefused, match=r"entries 120\.\.300 were stored here and cannot be read"):
            await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert contents(directory / "data") == before
        report = await force_single(production_env("x"), str(tmp_path / "n0"), yes=True, cut_damage=True)
        assert report.last_index == 119 and "body CRC differs" in report.rotten
        group.start("n0")
        await group.append([b"more"])
        await holds(group, "n0", [*BODIES[:119], b"more"])
        await stop_all(group)

    asyncio.run(scenario())


@pytest.mark.parametrize("index_lost", [False, True])
def test_what_is_given_up_does_not_come_back(tmp_path: Path, ports: list[int], index_lost: bool) -> None:
    """Segments behind the damage hold entries that a start without an index would take for the log's."""

    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        size = group.config("n0").segment_size
        group.start("n0")
        group.start("n1")
        leader = await group.elected()
        name = leader.config.self_id
        while leader.log.end_pos < 2 * size:
            await group.append([bytes(1 << 20)])
        await stop_all(group)
        directory = Path(group.config(name).node_dir)
        with (directory / "data" / segment_name(0)).open("r+b") as segment:
            offset = 0
            while True:
                segment.seek(offset)
                header = unpack_header(segment.read(HEADER_SIZE))
                if header.index == 120:
                    break
                offset += header.size
            segment.seek(offset + HEADER_SIZE)
            segment.write(b"rot")
        if index_lost:  # and with it all that says how far the log went, but for the segments themselves
            shutil.rmtree(directory / "index")
            (directory / "checkpoint").unlink()
        before = contents(directory / "data")
        with pytest.raises(RecoverRefused, match="--cut-damage"):
            await force_single(production_env("x"), str(tmp_path / name), yes=True)
        assert contents(directory / "data") == before
        await force_single(production_env("x"), str(tmp_path / name), yes=True, cut_damage=True)
        assert [file.name for file in (directory / "data").iterdir()] == [segment_name(0)]
        group.start(name)
        await group.append([b"more"])
        await holds(group, name, [*BODIES[:119], b"more"])
        await stop_all(group)

    asyncio.run(scenario())


def test_a_segment_without_room_for_the_entry_is_closed_first(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        directory = Path(group.config("n0").node_dir)
        size = group.config("n0").segment_size
        group.start("n0")
        group.start("n1")
        leader = await group.elected()
        body = bytes(1 << 20)
        while size - leader.log.end_pos > 2 * len(body):
            await group.append([body])
        await group.append([bytes(size - leader.log.end_pos - HEADER_SIZE - 40)])
        name = leader.config.self_id
        bodies = group.hosts[name].bodies
        await stop_all(group)
        directory = Path(group.config(name).node_dir)
        await force_single(production_env("x"), str(tmp_path / name), yes=True)
        assert (directory / "data" / segment_name(size)).stat().st_size == size
        found = walk(production_env("x").files, str(directory), size)
        assert found.end_pos > size
        group.start(name)
        await group.append([b"more"])
        assert group.nodes[name].members.index == found.last_index
        await holds(group, name, [*bodies, b"more"])
        await stop_all(group)

    asyncio.run(scenario())


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    files = production_env("x").files
    with pytest.raises(StoreUnreadable, match="expected one dledger-<id> directory, found: none"):
        node_directory(files, str(tmp_path))
    for group in ("blue", "green"):
        (tmp_path / group / "dledger-n0").mkdir(parents=True)
    where = f"{tmp_path}/blue, {tmp_path}/green"
    with pytest.raises(StoreUnreadable, match=f"found: none; one is in {where} "):
        node_directory(files, str(tmp_path))
    (tmp_path / "dledger-n0").mkdir()
    with pytest.raises(StoreUnreadable, match="is this a store directory"):
        read_identity(files, node_directory(files, str(tmp_path)))
    (tmp_path / "dledger-n1").mkdir()
    with pytest.raises(StoreUnreadable, match="found: dledger-n0, dledger-n1"):
        node_directory(files, str(tmp_path))


def test_others_join_the_new_cluster_with_empty_stores(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        for name in ("n1", "n2"):
            (tmp_path / name).rename(tmp_path / f"{name}-lost")
        for name in group.peers:
            group.start(name)
        await group.append([b"alone"])
        end = steady(group.nodes.values())
        async with DLedgerClient(production_env("client"), {"n0": group.peers["n0"]}, CLIENT_S) as client:
            for name in ("n1", "n2"):
                await client.add_member(name, group.peers[name])
                await group.until(lambda name=name: settled(group, name))
        assert await group.agree(301) == [*BODIES, b"alone"]
        end()
        await group.stop("n0")
        await group.append([b"without the one that was saved"])
        await stop_all(group)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [0, 4096])
def test_a_short_segment_that_an_earlier_run_left_is_made_whole(
    tmp_path: Path, ports: list[int], size: int
) -> None:
    """With it, no further run came to an end, or the node did not start."""

    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        data = Path(group.config("n0").node_dir) / "data"
        whole = group.config("n0").segment_size
        (data / segment_name(whole)).write_bytes(bytes(size))
        assert (await force_single(production_env("x"), str(tmp_path / "n0"), yes=False)).rotten == ""
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert {path.stat().st_size for path in data.iterdir()} == {whole}
        group.start("n0")
        await group.append([b"more"])
        await holds(group, "n0", [*BODIES, b"more"])
        await stop_all(group)

    asyncio.run(scenario())


def test_a_segment_that_was_cut_short_keeps_its_entries(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        [segment] = (Path(group.config("n0").node_dir) / "data").iterdir()
        whole = segment.stat().st_size
        files = production_env("x").files
        end = walk(files, group.config("n0").node_dir, whole).end_pos
        with segment.open("r+b") as file:
            file.truncate(end)
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert segment.stat().st_size == whole
        group.start("n0")
        await holds(group, "n0", BODIES)
        await stop_all(group)

    asyncio.run(scenario())


def test_a_full_disk_leaves_no_part_of_a_segment(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: OsFile, size: int) -> None:
        file.truncate(4096)
        raise OSError(errno.ENOSPC, "No space left on device", file.path)

    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        directory = Path(group.config("n0").node_dir)
        [segment] = (directory / "data").iterdir()
        size = segment.stat().st_size
        monkeypatch.setattr(
            "dledger.commands.recover.MIN_BLANK_SIZE", size
        )  # there is no room in the first one
        with monkeypatch.context() as patch:
            patch.setattr(OsFile, "allocate", full)
            with pytest.raises(OSError, match="No space left"):
                await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert [path.stat().st_size for path in (directory / "data").iterdir()] == [size]
        assert not list((directory / "pool").glob("recover*"))
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        group.start("n0")
        await holds(group, "n0", BODIES)
        await stop_all(group)

    asyncio.run(scenario())


SMALL = 64 * 1024


class SmallGroup(Group):
    """With short segments."""

    def config(self, name: str) -> NodeConfig:
        return replace(super().config(name), segment_size=SMALL, max_entry_bytes=16 * 1024)

    def snapshots(self, name: str) -> dict[int, str]:
        """Digests by pos."""
        return {one.pos: one.digest for one in self.nodes[name].snapshots.catalog.manifests}

    async def roll(self, name: str) -> None:
        """Fill a segment, and wait for the node's snapshot at its end."""
        end = ((await self.elected()).log.end_pos // SMALL + 1) * SMALL
        while (await self.elected()).log.end_pos <= end:
            await self.append([bytes(10_000)])
        await self.until(lambda: end in self.snapshots(name))


@pytest.mark.parametrize("runs", [1, 2])
def test_snapshots_of_the_new_members_are_those_of_the_one_that_went_on(
    tmp_path: Path, ports: list[int], runs: int
) -> None:
    """Before the first configuration entry a snapshot names the founders, and those are others now. Found by
    review: the audit called a healthy group critical (SNAPSHOT_DIFFERS)."""

    async def scenario() -> None:
        group = SmallGroup(tmp_path, ports)
        for name in group.peers:
            group.start(name)
        await group.elected()
        first_config = 1 << 62
        for _ in range(runs):
            await group.roll("n0")
            before = {one.pos: one.index for one in group.nodes["n0"].snapshots.catalog.manifests}
            await stop_all(group)
            report = await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
            assert any("name the founders" in line for line in report.lines())
            left = {int(path.name) for path in (tmp_path / "n0" / "dledger-n0" / "snapshots").iterdir()}
            assert left == {pos for pos, index in before.items() if index >= first_config}
            assert len(left) + len(report.founders) == len(before) > len(left)
            first_config = min(first_config, report.last_index + 1)
            group.start("n0")  # its host keeps no state: it makes snapshots anew
            await group.elected()
            await group.roll("n0")
        shutil.rmtree(tmp_path / "n1")
        group.start("n1")
        steady(group.nodes.values())
        async with DLedgerClient(production_env("op"), {"n0": group.peers["n0"]}, CLIENT_S) as client:
            await client.add_member("n1", group.peers["n1"])
        await group.until(lambda: settled(group, "n1"))
        await group.roll("n1")
        mine, other = group.snapshots("n0"), group.snapshots("n1")
        common = mine.keys() & other.keys()
        assert len(common) > runs and all(mine[pos] == other[pos] for pos in common)
        await stop_all(group)

    asyncio.run(scenario())


def test_snapshots_stay_where_the_next_start_gives_up_what_is_before_them(
    tmp_path: Path, ports: list[int]
) -> None:
    """Retention was cut short when it had noted where the log begins, and the snapshot there is damaged."""

    async def scenario() -> None:
        group = SmallGroup(tmp_path, ports)
        for name in group.peers:
            group.start(name)
        await group.elected()
        for _ in range(4):
            await group.roll("n0")
        await stop_all(group)
        node = tmp_path / "n0" / "dledger-n0"
        begins = sorted(path.name for path in (node / "snapshots").iterdir())[1]
        (node / BEGINS_FILE).write_bytes(encode_json({"pos": int(begins), "replace": False}))
        manifest = node / "snapshots" / begins / MANIFEST_FILE
        manifest.write_bytes(manifest.read_bytes()[:-3])
        report = await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        assert report.founders == ()
        group.start("n0")
        await group.until(lambda: group.nodes["n0"].serving)
        await stop_all(group)

    asyncio.run(scenario())


def poison(group: Group, name: str, term: int) -> None:
    node_dir = node_directory(production_env("x").files, str(group.directory / name))
    hard_state = HardStateFile.open(production_env("x").files, node_dir)
    hard_state.save(HardState(term, None))
    hard_state.close()


def test_a_group_whose_stores_have_a_strangers_term_goes_on_after_reset_term(
    tmp_path: Path, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        for name in group.peers:
            poison(group, name, (1 << 63) - 1)
        group.start("n0")
        with pytest.raises(NodeFailed, match="recover --reset-term") as failed:
            await group.tasks.pop("n0")
        assert failed.value.exit_code == EXIT_STORE
        del group.nodes["n0"]
        for name in group.peers:
            said = ["recover", "--reset-term", "--store", str(tmp_path / name)]
            assert await command(production_env("x"), options(*said)) == 1
            assert "new term    1" in capsys.readouterr().out
            said += ["--term", "1234", "--yes"]
            assert await command(production_env("x"), options(*said)) == 0
        for name in group.peers:
            group.start(name)
        await group.append([b"again"])
        assert await group.agree(len(BODIES) + 1) == [*BODIES, b"again"]
        assert (await group.elected()).term > 1234
        await stop_all(group)

    asyncio.run(scenario())


def test_a_term_that_elections_made_is_not_lowered(tmp_path: Path, ports: list[int]) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        poison(group, "n0", 5000)
        store = str(tmp_path / "n0")
        with pytest.raises(RecoverRefused, match="is not lowered"):
            await reset_term(production_env("x"), store, 4000, yes=True)
        for wrong in (0, 1 << 63):
            poison(group, "n0", (1 << 63) - 1)
            with pytest.raises(RecoverRefused, match="above"):
                await reset_term(production_env("x"), store, wrong, yes=True)

    asyncio.run(scenario())


def test_a_strangers_term_does_not_keep_one_store_from_going_on_alone(
    tmp_path: Path, ports: list[int]
) -> None:
    async def scenario() -> None:
        group = await majority_lost(tmp_path, ports)
        poison(group, "n0", (1 << 63) - 1)
        await force_single(production_env("x"), str(tmp_path / "n0"), yes=True)
        group.start("n0")
        await group.append([b"alone"])
        assert group.nodes["n0"].term < 5000
        await stop_all(group)

    asyncio.run(scenario())
