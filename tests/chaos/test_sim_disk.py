"""The page cache survives a kill; only synced data survives a power cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from dledger.chaos.machine import RunFailed, Settings, World
from dledger.chaos.machine.files import SimFiles
from dledger.runtime.atomic_file import publish, read_file
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane


def machine(seed: int = 1) -> tuple[World, SimFiles]:
    """A machine whose process waits, and its files for use from outside, where syncs take effect at once."""
    world = World(seed)

    async def main(env: Env) -> None:
        await asyncio.Event().wait()

    process = world.spawn(world.node("n0"), main)
    world.run_for(0.1)
    return world, process.files


def reboot(world: World) -> SimFiles:
    async def main(env: Env) -> None:
        await asyncio.Event().wait()

    world.power_cut("n0")
    return world.restart("n0", main).files


def kill(world: World) -> SimFiles:
    async def main(env: Env) -> None:
        await asyncio.Event().wait()

    world.kill("n0")
    return world.restart("n0", main).files


def content(files: SimFiles, path: str) -> bytes | None:
    return read_file(files, path)


def test_reads_see_writes_and_stop_at_the_end() -> None:
    _, files = machine()
    file = files.open("/a", create=True)
    file.pwritev([b"hello ", bytearray(b"wide "), memoryview(b"world")], 0)
    assert file.pread(100, 6) == b"wide world"
    assert file.pread(4, 6) == b"wide"
    assert file.pread(5, 99) == b""
    file.pwritev([b"!"], 20)
    assert file.pread(10, 14) == b"ld\0\0\0\0!"
    file.truncate(3)
    file.allocate(5)
    file.allocate(2)
    assert file.pread(9, 0) == b"hel\0\0" and file.size() == files.size("/a") == 5
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_a_kill_keeps_the_page_cache() -> None:
    world, files = machine()
    files.open("/a", create=True).pwritev([b"unsynced"], 0)
    assert content(kill(world), "/a") == b"unsynced"


def test_a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest() -> None:
    seen: dict[bytes | None, None] = {}
    for seed in range(60):
        world, files = machine(seed)
        file = files.open("/a", create=True)
        files.sync_dir("/")
        file.pwritev([b"durable"], 0)
        file.fdatasync()
        for number in range(3):
            file.pwritev([b"%d" % number], 7 + number)
        seen[content(reboot(world), "/a")] = None
    assert sorted(map(str, seen)) == ["b'durable'", "b'durable0'", "b'durable01'", "b'durable012'"]


def test_a_name_is_durable_only_after_its_directory_was_synced() -> None:
    found: dict[bytes | None, None] = {}
    for seed in range(30):
        world, files = machine(seed)
        file = files.open("/a", create=True)
        file.pwritev([b"x"], 0)
        file.fdatasync()
        found[content(reboot(world), "/a")] = None
    assert sorted(map(str, found)) == ["None", "b'x'"]


def test_a_rename_is_atomic_and_durable_after_the_sync() -> None:
    found: dict[tuple[bytes | None, bytes | None], None] = {}
    for seed in range(30):
        world, files = machine(seed)
        for name in ("/old", "/new"):
            file = files.open(name, create=True)
            file.pwritev([name.encode()], 0)
            file.fdatasync()
        files.sync_dir("/")
        files.rename("/old", "/new")
        files = reboot(world)
        found[content(files, "/old"), content(files, "/new")] = None
    assert sorted(found, key=str) == [(None, b"/old"), (b"/old", b"/new")]

    world, files = machine()
    files.open("/old", create=True)
    files.rename("/old", "/new")
    files.sync_dir("/")
    assert reboot(world).listdir("/") == ["new"]


def test_syncing_one_directory_does_not_make_its_neighbours_durable() -> None:
    lost = kept = 0
    for seed in range(40):
        world, files = machine(seed)
        files.mkdir("/a/deep")
        files.mkdir("/b")
        files.open("/a/deep/x", create=True)
        files.open("/b/y", create=True)
        files.sync_dir("/b")
        files = reboot(world)
        assert files.listdir("/b") == ["y"] and files.is_dir("/a/deep")
        kept, lost = kept + files.exists("/a/deep/x"), lost + (not files.exists("/a/deep/x"))
    assert kept and lost


def test_a_rename_between_directories_takes_its_file_along() -> None:
    world, files = machine()
    files.mkdir("/pool")
    files.mkdir("/data")
    files.open("/pool/next", create=True)
    files.rename("/pool/next", "/data/0")
    files.sync_dir("/data")
    files = reboot(world)
    assert (files.listdir("/pool"), files.listdir("/data")) == ([], ["0"])


def test_removed_names_can_come_back_until_synced() -> None:
    back: dict[bool, None] = {}
    for seed in range(20):
        world, files = machine(seed)
        files.mkdir("/d")
        files.open("/d/a", create=True)
        files.sync_dir("/d")
        files.unlink("/d/a")
        back[reboot(world).exists("/d/a")] = None
    assert len(back) == 2
    world, files = machine()
    files.mkdir("/d/e")
    files.rmtree("/d")
    files.sync_dir("/")
    assert not reboot(world).exists("/d")


def test_names_behave_as_on_a_real_file_system() -> None:
    _, files = machine()
    files.mkdir("/d/e")
    files.mkdir("/d/e")
    files.open("d/z", create=True)
    files.open("/d/./a", create=True)
    assert files.listdir("/d") == ["a", "e", "z"] and files.listdir("/nowhere") == []
    assert files.exists("/d/z") and files.is_dir("/d/e") and not files.is_dir("/d/z")
    files.unlink("/d/nothing")
    files.rmtree("/nothing")
    with pytest.raises(FileNotFoundError):
        files.open("/missing")
    with pytest.raises(FileNotFoundError):
        files.open("/missing/a", create=True)
    with pytest.raises(FileNotFoundError):
        files.rename("/missing", "/d/b")
    with pytest.raises(IsADirectoryError):
        files.open("/d")
    with pytest.raises(IsADirectoryError):
        files.unlink("/d/e")
    with pytest.raises(FileExistsError):
        files.mkdir("/d/a")
    files.mkdir("/d/f")
    files.open("/d/e/x", create=True).allocate(5)
    with pytest.raises(OSError, match="not empty"):
        files.rename("/d/f", "/d/e")
    usage = files.usage("/")
    assert usage.total - usage.free == 4096


def test_a_view_shows_later_writes_and_cannot_be_written() -> None:
    _, files = machine()
    file = files.open("/a", create=True)
    with pytest.raises(ValueError, match="empty"):
        file.view()
    file.allocate(10)
    view = file.view()
    file.pwritev([b"abc"], 2)
    assert bytes(view) == b"\0\0abc\0\0\0\0\0" and file.view() is view
    assert view.readonly
    with pytest.raises(NotImplementedError, match="while mapped"):
        file.pwritev([b"x"], 10)


def test_close_is_refused_while_a_slice_of_the_view_lives() -> None:
    _, files = machine()
    file = files.open("/a", create=True)
    file.allocate(10)
    piece = file.view()[2:4]
    with pytest.raises(BufferError):
        file.close()
    assert file.size() == 10 and bytes(file.view()[2:4]) == bytes(piece)
    piece.release()
    file.close()


def test_a_killed_process_cannot_write_nor_hold_on_to_a_mapping() -> None:
    world, files = machine()
    old = files.open("/a", create=True)
    old.allocate(4)
    piece = old.view()[1:2]
    files_after = kill(world)
    old.pwritev([b"dead"], 0)
    old.fdatasync()
    files.rename("/a", "/b")
    new = files_after.open("/a")
    new.view()
    new.pwritev([b"live"], 0)
    assert new.pread(4, 0) == b"live" and bytes(piece) == b"\0"
    new.close()


def test_a_lock_is_held_until_closed_or_killed() -> None:
    world, files = machine()
    lock = files.lock("/lock")
    with pytest.raises(BlockingIOError):
        files.lock("/lock")
    lock.close()
    files.lock("/lock")
    files = kill(world)
    files.lock("/lock")


def in_job(job: Callable[[Env], None], settings: Settings | None = None) -> World:
    world = World(1, settings=settings)

    async def main(env: Env) -> None:
        await env.workers.run(Lane.DISK, job, env)

    process = world.spawn(world.node("n0"), main)
    world.run_until(lambda: process.exit, 1)
    return world


def test_fsync_on_the_event_loop_fails_the_run() -> None:
    world = World(1)

    async def main(env: Env) -> None:
        env.files.open("/a", create=True).fdatasync()

    world.spawn(world.node("n0"), main)
    with pytest.raises(RunFailed, match="fsync /a: durable work on the event loop"):
        world.run_for(1)


def test_a_read_on_the_event_loop_fails_the_run() -> None:
    world = World(1)

    async def main(env: Env) -> None:
        env.files.open("/a", create=True).pread(1, 0)

    world.spawn(world.node("n0"), main)
    with pytest.raises(RunFailed, match="pread /a: on the event loop"):
        world.run_for(1)


def test_what_left_memory_is_read_by_a_worker_and_then_at_once() -> None:
    world = World(1)
    node = world.node("n0")
    seen: list[bytes | None] = []

    async def main(env: Env) -> None:
        file = env.files.open("/a", create=True)
        file.pwritev([b"x" * 10_000], 0)
        seen.append(file.pread_now(3, 5_000))
        node.disk.evict()
        seen.append(file.pread_now(3, 5_000))
        await env.workers.run(Lane.DISK, file.pread, 100, 4_990)
        seen.append(file.pread_now(3, 5_000))
        seen.append(file.pread_now(3, 9_000))
        file.pwritev([b"y" * 1_000], 8_800)
        seen.append(file.pread_now(3, 9_000))

    world.spawn(node, main)
    world.run_for(1)
    assert seen == [b"xxx", None, b"xxx", None, b"yyy"] and world.cold_reads == 2


def test_short_memory_forgets_now_and_then() -> None:
    world = World(1)
    node = world.node("n0")
    seen: list[bytes | None] = []

    async def main(env: Env) -> None:
        file = env.files.open("/a", create=True)
        file.pwritev([b"x"], 0)
        node.disk.forget(0.5)
        seen.extend(file.pread_now(1, 0) for _ in range(100))
        node.disk.mend()
        assert all(file.pread_now(1, 0) == b"x" for _ in range(100))

    world.spawn(node, main)
    world.run_for(1)
    assert 20 < seen.count(None) < 80 and world.faults == {"short_memory": 1}


def test_a_job_ends_with_its_one_durable_action() -> None:
    def two(env: Env) -> None:
        env.files.open("/a", create=True).fdatasync()
        env.files.sync_dir("/")

    with pytest.raises(RunFailed, match="syncdir /: a job ends with its one durable action"):
        in_job(two)
    in_job(two, Settings(strict_disk=False))


def test_a_power_cut_during_an_fsync_may_lose_what_it_covered() -> None:
    survived: dict[bytes | None, None] = {}
    for seed in range(20):
        world = World(seed, settings=Settings(sync_ns=(10_000_000, 10_000_001)))
        done: list[str] = []

        def write(env: Env) -> None:
            file = env.files.open("/a")
            file.pwritev([b"x"], 0)
            file.fdatasync()

        async def main(env: Env, done: list[str] = done) -> None:
            env.files.open("/a", create=True)
            await env.workers.run(Lane.DISK, env.files.sync_dir, "/")
            done.append("name")
            await env.workers.run(Lane.FLUSH, write, env)
            done.append("content")

        world.spawn(world.node("n0"), main)
        world.run_until(partial(done.__eq__, ["name"]), 1)
        world.run_for(0.005)
        assert done == ["name"]
        survived[content(reboot(world), "/a")] = None
    assert sorted(map(str, survived)) == ["b''", "b'x'"]


def test_published_files_are_old_or_new_after_a_crash_before_any_effect() -> None:
    async def rewrite(env: Env) -> None:
        await publish(env.files, env.workers, Lane.DISK, "/f", b"new")
        await asyncio.Event().wait()

    for power in (False, True):
        outcomes: dict[bytes | None, None] = {}
        for effect in range(1, 9):
            world, files = machine(effect)
            file = files.open("/f", create=True)
            file.pwritev([b"old"], 0)
            file.fdatasync()
            files.sync_dir("/")
            world.kill("n0")
            world.restart("n0", rewrite)
            world.crash_before("n0", effect, power=power)
            world.run_for(1)
            alive = world.nodes["n0"].process is not None
            assert alive == (effect > 5), effect  # create, write, fsync, rename, sync_dir
            found = content(reboot(world), "/f")
            assert found == b"new" or (not alive and found == b"old")
            outcomes[found] = None
        assert len(outcomes) == 2
