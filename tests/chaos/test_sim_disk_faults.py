"""Faults of disks: no room, errors, slow and hung devices, rot, and what survives a power cut in each
mode."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from functools import partial

import pytest

from dledger.chaos.machine import Settings, Trace, World
from dledger.chaos.machine.disk import Disk
from dledger.chaos.machine.files import SimFiles
from dledger.chaos.machine.inode import BLOCK, SECTOR, apply_op, torn
from dledger.runtime.atomic_file import read_file
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane


async def wait(env: Env) -> None:
    await asyncio.Event().wait()


def machine(seed: int = 1, trace: Trace | None = None) -> tuple[World, SimFiles, Disk]:
    """A machine whose process waits, and its files for use from outside, where syncs take effect at once."""
    world = World(seed, trace=trace)
    process = world.spawn(world.node("n0"), wait)
    world.run_for(0.1)
    return world, process.files, process.node.disk


def reboot(world: World, mode: str = "none") -> SimFiles:
    world.power_cut("n0", mode)
    return world.restart("n0", wait).files


def code(action: Callable[[], object]) -> str:
    """The errno that an action ends with, or "ok"."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


# -- room --------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_new_blocks_and_takes_writes_to_old_ones() -> None:
    world, files, disk = machine()
    file = files.open("/a", create=True)
    file.allocate(4 * BLOCK)
    assert disk.used() == 4 * BLOCK
    disk.room(6 * BLOCK)
    assert (files.usage("/").total, files.usage("/").free) == (6 * BLOCK, 2 * BLOCK)
    assert code(lambda: file.pwritev([bytes(4 * BLOCK)], 0)) == "ok"
    assert code(lambda: file.allocate(7 * BLOCK)) == "ENOSPC" and file.size() == 4 * BLOCK
    assert code(lambda: file.allocate(6 * BLOCK)) == "ok"
    assert files.usage("/").free == 0
    assert code(lambda: file.pwritev([b"x"], 6 * BLOCK)) == "ENOSPC"
    assert code(lambda: files.open("/b", create=True)) == "ENOSPC" and not files.exists("/b")
    assert code(lambda: files.mkdir("/d")) == "ENOSPC"
    assert code(lambda: files.rename("/a", "/c")) == "ok"
    assert code(lambda: file.fdatasync()) == "ok"
    assert world.faults == {"disk_room": 1, "enospc": 4}
    disk.room(None)
    assert code(lambda: files.open("/b", create=True)) == "ok"


def test_a_write_that_does_not_fit_leaves_what_did() -> None:
    _, files, disk = machine()
    file = files.open("/a", create=True)
    disk.room(2 * BLOCK)
    assert code(lambda: file.pwritev([b"a" * BLOCK, b"b" * (2 * BLOCK)], 10)) == "ENOSPC"
    assert file.pread(9 * BLOCK, 0) == bytes(10) + b"a" * BLOCK + b"b" * (BLOCK - 10)
    assert files.usage("/").free == 0


def test_a_hole_has_no_room_until_it_is_written_or_allocated() -> None:
    _, files, disk = machine()
    file = files.open("/a", create=True)
    disk.room(3 * BLOCK)
    file.truncate(10 * BLOCK)
    assert disk.used() == 0 and file.size() == 10 * BLOCK
    assert code(lambda: file.pwritev([b"x"], 5 * BLOCK)) == "ok"
    assert code(lambda: file.pwritev([b"y"], 0)) == "ok"
    assert disk.used() == 2 * BLOCK
    assert code(lambda: file.allocate(4 * BLOCK)) == "ENOSPC"
    assert code(lambda: file.allocate(2 * BLOCK)) == "ok"
    assert code(lambda: file.pwritev([b"z"], 2 * BLOCK)) == "ENOSPC"
    assert code(lambda: file.pwritev([b"z"], 5 * BLOCK + 9)) == "ok"
    disk.room(None)
    file.allocate(10 * BLOCK)
    assert disk.used() == 10 * BLOCK
    file.truncate(BLOCK + 1)
    assert disk.used() == 2 * BLOCK


def test_room_comes_back_when_the_last_user_of_a_removed_file_closes_it() -> None:
    world, files, disk = machine()
    disk.room(2 * BLOCK)
    file = files.open("/a", create=True)
    file.allocate(2 * BLOCK)
    files.unlink("/a")
    assert code(lambda: files.open("/b", create=True)) == "ENOSPC"
    file.close()
    assert code(lambda: files.open("/b", create=True).allocate(BLOCK)) == "ok"
    files.unlink("/b")
    assert disk.used() == BLOCK
    world.kill("n0")
    assert disk.used() == 0


def test_a_power_cut_keeps_the_account_of_room() -> None:
    world, files, disk = machine()
    file = files.open("/a", create=True)
    files.sync_dir("/")
    file.allocate(5 * BLOCK)
    assert reboot(world).size("/a") == disk.used() == 0


# -- errors ------------------------------------------------------------------------------------------


def test_failing_operations_end_with_eio_as_often_as_asked_and_where_asked() -> None:
    world, files, disk = machine()
    for path in ("/log", "/log/deep", "/logs"):
        files.mkdir(path)
    inside = files.open("/log/deep/a", create=True)
    outside = files.open("/logs/a", create=True)
    disk.fail("write", 2, "/log")
    disk.fail("read", path="/log/deep/a")
    assert code(lambda: outside.pwritev([b"x"], 0)) == "ok"
    assert code(lambda: inside.pwritev([b"x"], 0)) == "EIO"
    assert code(lambda: inside.allocate(100)) == "EIO"
    assert code(lambda: inside.truncate(50)) == "ok"
    assert code(lambda: outside.pread(1, 0)) == "ok"
    assert code(lambda: inside.pread(1, 0)) == "EIO"
    assert code(lambda: inside.pread(1, 0)) == "ok"
    disk.fail("open")
    assert code(lambda: files.open("/new", create=True)) == "EIO" and not files.exists("/new")
    assert code(lambda: files.open("/logs/a")) == "ok"
    disk.fail("fsync", 9)
    assert code(lambda: files.sync_dir("/")) == "EIO"
    disk.mend()
    assert code(lambda: files.sync_dir("/")) == "ok" and not disk.troubled
    assert world.faults == {"eio_write": 2, "eio_read": 1, "eio_open": 1, "eio_fsync": 1}
    with pytest.raises(ValueError, match="one of"):
        disk.fail("unlink")


def test_a_failed_write_may_leave_a_part() -> None:
    left: dict[bytes, None] = {}
    for seed in range(20):
        _, files, disk = machine(seed)
        file = files.open("/a", create=True)
        disk.fail("write")
        assert code(partial(file.pwritev, [b"abc"], 0)) == "EIO"
        left[file.pread(9, 0)] = None
    assert sorted(left) == [b"", b"a", b"ab", b"abc"]


def test_after_a_failed_fsync_the_next_one_lies() -> None:
    shown: dict[bytes, int] = {}
    for seed in range(40):
        world, files, disk = machine(seed)
        file = files.open("/a", create=True)
        files.sync_dir("/")
        file.pwritev([b"old"], 0)
        file.fdatasync()
        file.pwritev([b"new"], 0)
        disk.fail("fsync")
        assert code(file.fdatasync) == "EIO"
        assert code(file.fdatasync) == "ok"  # nothing to do: the pages count as clean
        now = file.pread(3, 0)
        shown[now] = shown.get(now, 0) + 1
        assert read_file(reboot(world, "all"), "/a") == b"old"
    assert sorted(shown) == [b"new", b"old"] and min(shown.values()) > 5


def test_a_failed_fsync_may_have_written_some_of_it_but_not_all() -> None:
    found: dict[bytes | None, None] = {}
    for seed in range(60):
        world, files, disk = machine(seed)
        file = files.open("/a", create=True)
        files.sync_dir("/")
        file.allocate(3)
        file.fdatasync()
        for number in range(3):
            file.pwritev([b"x"], number)
        disk.fail("fsync")
        assert code(file.fdatasync) == "EIO"
        file.pwritev([b"later"], 3)
        file.fdatasync()
        content = read_file(reboot(world), "/a")
        assert content is not None and content.endswith(b"later")
        found[content[:3]] = None
    assert len(found) == 7 and b"xxx" not in found


def test_a_job_whose_fsync_failed_has_its_error_and_may_tidy_up() -> None:
    world = World(1)
    outcome: list[str] = []

    def job(env: Env) -> None:
        file = env.files.open("/a", create=True)
        file.pwritev([b"x"], 0)
        try:
            file.fdatasync()
        finally:
            env.files.unlink("/a")

    async def main(env: Env) -> None:
        try:
            await env.workers.run(Lane.FLUSH, job, env)
        except OSError as error:
            outcome.append(errno.errorcode[error.errno or 0])

    world.node("n0").disk.fail("fsync")
    process = world.spawn("n0", main)
    world.run_until(lambda: process.exit, 1)
    assert outcome == ["EIO"]


# -- slow and hung devices ---------------------------------------------------------------------------


def write(env: Env, path: str, data: bytes = b"x") -> None:
    file = env.files.open(path)
    file.pwritev([data], 0)
    file.fdatasync()


def writing(world: World, seen: list[float], pauses_s: float = 0.0) -> None:
    """Start a process that makes a byte durable again and again."""

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        env.files.open("/a", create=True)
        await env.workers.run(Lane.DISK, env.files.sync_dir, "/")
        while True:
            before = loop.time()
            await env.workers.run(Lane.FLUSH, write, env, "/a")
            seen.append(loop.time() - before)
            await env.workers.run(Lane.DISK, len, b"")
            await asyncio.sleep(pauses_s)

    world.spawn(world.node("n0"), main)


def test_a_slow_disk_makes_its_jobs_slow() -> None:
    world, spent = World(1), list[float]()
    writing(world, spent)
    world.run_for(1)
    quick = len(spent)
    world.nodes["n0"].disk.slow(100)
    world.run_for(1)
    slow = len(spent) - quick
    assert 1000 < quick < 4000 and quick / slow > 50
    process = world.nodes["n0"].process
    assert process is not None
    idle = process.workers.run(Lane.DISK, len, b"")
    world.run_for(0.000_2)
    assert idle.done()  # it does not use the disk
    world.nodes["n0"].disk.slow(1)
    world.run_for(1)
    assert len(spent) - quick - slow > 1000
    assert world.faults == {"disk_slow": 1}


def test_jobs_on_a_hung_disk_end_when_it_goes_on() -> None:
    world, spent = World(1), list[float]()
    ticks: list[float] = []
    writing(world, spent)
    world.run_for(0.5)
    disk, process = world.nodes["n0"].disk, world.nodes["n0"].process
    assert process is not None

    def tick() -> None:
        process.loop.call_later(0.1, tick)
        ticks.append(world.time)

    disk.hang()
    disk.hang()
    process.loop.call_soon(tick)
    count = len(spent)
    world.run_for(5)
    assert len(spent) - count <= 1 and len(ticks) == 50  # the loop is well
    disk.resume()
    world.run_for(0.5)
    assert max(spent) == pytest.approx(5, abs=0.01) and len(spent) > count + 500
    assert world.faults == {"disk_hang": 1}


@pytest.mark.parametrize("power", [False, True])
def test_a_power_cut_loses_what_hangs_and_a_kill_does_not(power: bool) -> None:
    world, files, disk = machine()
    files.open("/a", create=True)
    files.sync_dir("/")
    process = world.nodes["n0"].process
    assert process is not None
    disk.hang()
    process.workers.run(Lane.FLUSH, write, process.env, "/a")
    process.workers.run(Lane.FLUSH, write, process.env, "/a", b"never begun")
    world.run_for(1)
    assert files.size("/a") == 1 and disk.inode("/a").durable == b""
    if power:
        world.power_cut("n0", "none")
    else:
        world.kill("n0")
    world.run_for(1)
    world.restart("n0", wait)
    disk.resume()
    world.run_for(1)
    assert disk.inode("/a").durable == (b"" if power else b"x")


def test_closing_the_workers_on_a_hung_disk_makes_nothing_durable() -> None:
    world, files, disk = machine()
    files.open("/a", create=True)
    files.sync_dir("/")
    process = world.nodes["n0"].process
    assert process is not None
    disk.hang()
    for data in (b"one", b"two"):
        process.workers.run(Lane.FLUSH, write, process.env, "/a", data)
    process.workers.close()
    assert disk.inode("/a").durable == b"" and files.size("/a") == 3
    disk.resume()
    world.run_for(0.1)
    assert disk.inode("/a").durable == b"two"


# -- rot ---------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_in_the_cache_on_the_device_and_in_mappings() -> None:
    for synced in (False, True):
        world, files, disk = machine()
        file = files.open("/a", create=True)
        files.sync_dir("/")
        file.pwritev([b"aaaa"], 0)
        if synced:
            file.fdatasync()
        view = file.view()
        disk.flip("/a", 2, 1)
        assert bytes(view) == file.pread(4, 0) == b"aaca"
        disk.zero("/a", 0, 2)
        assert bytes(view) == file.pread(4, 0) == b"\0\0ca"
        assert read_file(reboot(world, "all"), "/a") == b"\0\0ca"
        with pytest.raises(IndexError):
            disk.flip("/a", 4, 0)
        with pytest.raises(IndexError):
            disk.zero("/a", 2, 3)
        assert world.faults["flip"] == world.faults["zero"] == 1


def test_a_lost_file_does_not_come_back_and_its_neighbours_stay_as_they_were() -> None:
    for mode in ("none", "all"):
        world, files, disk = machine()
        for name in ("/old", "/a", "/b"):
            files.open(name, create=True)
        files.sync_dir("/")
        files.rename("/old", "/new")
        files.unlink("/b")
        handle = files.open("/new")
        disk.lose("/new")
        assert files.listdir("/") == ["a"] and handle.size() == 0
        assert reboot(world, mode).listdir("/") == (["a"] if mode == "all" else ["a", "b"])
        with pytest.raises(FileNotFoundError):
            disk.lose("/new")


@pytest.mark.parametrize("path", ["/d", "/"])
def test_a_wiped_directory_is_gone_for_good(path: str) -> None:
    world, files, disk = machine()
    files.mkdir("/d/e")
    files.open("/d/e/x", create=True).pwritev([b"x"], 0)
    files.open("/y", create=True)
    files.sync_dir("/d/e")
    files.sync_dir("/")
    assert disk.files() == ["/d/e/x", "/y"] and disk.files("/d") == ["/d/e/x"]
    world.kill("n0")
    disk.wipe(path)
    files = world.restart("n0", wait).files
    assert disk.files() == (["/y"] if path == "/d" else [])
    files.mkdir("/d")
    assert files.listdir("/d") == []
    files = reboot(world)
    assert files.listdir("/") == (["d", "y"] if path == "/d" else ["d"]) and files.listdir("/d") == []


def test_a_misdirected_write_lands_elsewhere_once() -> None:
    places: dict[int, None] = {}
    for seed in range(30):
        world, files, disk = machine(seed)
        files.sync_dir("/")
        short, file = files.open("/short", create=True), files.open("/a", create=True)
        file.allocate(4 * SECTOR)
        disk.misdirect()
        short.pwritev([b"stays"], 0)
        file.pwritev([b"lost"], SECTOR + 7)
        file.pwritev([b"here"], 0)
        content = file.pread(9999, 0)
        assert len(content) == 4 * SECTOR and content[SECTOR + 7 : SECTOR + 11] == bytes(4)
        assert content[:4] == b"here" and short.pread(9, 0) == b"stays"
        places[content.index(b"lost")] = None
        assert world.faults == {"misdirect": 1}
        assert not disk.troubled
    assert sorted(places) == [7, 2 * SECTOR + 7, 3 * SECTOR + 7]


# -- power cuts --------------------------------------------------------------------------------------


def test_a_power_cut_can_keep_all_or_nothing() -> None:
    for mode, expected in (("none", (b"durable", False)), ("all", (b"durable, unsynced", True))):
        for seed in range(5):
            world, files, _ = machine(seed)
            file = files.open("/a", create=True)
            files.sync_dir("/")
            file.pwritev([b"durable"], 0)
            file.fdatasync()
            file.pwritev([b", unsynced"], 7)
            files.open("/new", create=True)
            files = reboot(world, mode)
            assert (read_file(files, "/a"), files.exists("/new")) == expected
            assert world.faults == {f"power_cut_{mode}": 1}
    with pytest.raises(ValueError, match="one of prefix, torn, none, all"):
        world.power_cut("n0", "some")


def test_a_torn_power_cut_may_keep_a_later_write_without_an_earlier_one_and_parts_of_one() -> None:
    found: dict[bytes, None] = {}
    for seed in range(200):
        world, files, _ = machine(seed)
        file = files.open("/a", create=True)
        files.sync_dir("/")
        file.allocate(4 * SECTOR)
        file.pwritev([b"d"], 3 * SECTOR)
        file.fdatasync()
        file.pwritev([b"a" * SECTOR * 2], 0)
        file.pwritev([b"b" * SECTOR], 2 * SECTOR)
        content = read_file(reboot(world, "torn"), "/a")
        assert content is not None and content[3 * SECTOR] == ord("d")
        found[content[:: SECTOR // 2]] = None
    sectors = {pattern[:6:2].replace(b"\0", b".") for pattern in found}
    assert sectors == {b"...", b"a..", b".a.", b"aa.", b"..b", b"a.b", b".ab", b"aab"}
    assert {pattern[:2] for pattern in found} == {b"aa", b"\0\0"}  # a sector is whole


def history(seed: int) -> tuple[bytearray, list[tuple[int, bytes | None]]]:
    """A durable content and pending operations."""
    rng = random.Random(seed)
    durable = bytearray(rng.randbytes(rng.randrange(5 * SECTOR)))
    ops: list[tuple[int, bytes | None]] = []
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.2:
            ops.append((rng.randrange(6 * SECTOR), None))
        else:
            ops.append((rng.randrange(5 * SECTOR), rng.randbytes(rng.randrange(1, 2 * SECTOR))))
    return durable, ops


def test_each_sector_is_as_it_was_at_some_time_and_so_is_the_length() -> None:
    for seed in range(400):
        durable, ops = history(seed)
        states = [bytearray(durable)]
        for op in ops:
            states.append(apply_op(bytearray(states[-1]), op))
        result, lost = torn(bytearray(durable), ops, random.Random(seed), len(durable))
        assert len(result) in [len(state) for state in states]
        assert 0 <= lost <= len(ops)
        if any(data is None for _, data in ops):
            continue  # what a cut-off part held may come back as zeros: looked at by hand
        for start in range(0, len(result), SECTOR):
            piece = bytes(result[start : start + SECTOR])
            padded = [bytes(state[start : start + len(piece)]).ljust(len(piece), b"\0") for state in states]
            assert piece in padded, (seed, start)


def test_torn_names_keep_what_they_build_on() -> None:
    found: dict[tuple[str, ...], None] = {}
    for seed in range(80):
        world, files, _ = machine(seed)
        files.mkdir("/d")
        for name in ("/d/a", "/d/b"):
            files.open(name, create=True)
        files.rename("/d/a", "/d/c")
        files = reboot(world, "torn")
        found[tuple(files.listdir("/d"))] = None
    assert sorted(found) == [(), ("a",), ("a", "b"), ("b",), ("b", "c"), ("c",)]


def test_torn_names_keep_the_order_of_changes_to_one_name() -> None:
    found: dict[tuple[str, ...], None] = {}
    for seed in range(60):
        world, files, _ = machine(seed)
        for name in ("/f", "/tmp"):
            files.open(name, create=True)
        files.sync_dir("/")
        files.rename("/tmp", "/f")
        files.unlink("/f")
        found[tuple(reboot(world, "torn").listdir("/"))] = None
    assert sorted(found) == [(), ("f",), ("f", "tmp")]


def test_a_seed_decides_what_a_torn_power_cut_leaves() -> None:
    def run(seed: int) -> list[str]:
        trace = Trace()
        world, files, disk = machine(seed, trace)
        file = files.open("/a", create=True)
        for number in range(20):
            file.pwritev([bytes([number]) * 700], 650 * number)
        disk.fail("fsync")
        code(file.fdatasync)
        file.pwritev([b"x" * 5000], 0)
        trace.add(0, "n0", "content", repr(read_file(reboot(world, "torn"), "/a")))
        return trace.lines

    assert run(3) == run(3) != run(4)


def test_settings_of_the_device_size_show_in_usage() -> None:
    world = World(1, settings=Settings(disk_bytes=1 << 20))
    files = world.spawn(world.node("n0"), wait).files
    assert files.usage("/").total == files.usage("/").free == 1 << 20
