"""Reading a real file without waiting for the device (safety.md S8)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.runtime.atomic_file import publish
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile, OsFiles
from dledger.runtime.workers import Lane

SIZE = 1 << 20


def a_file(directory: Path, content: bytes) -> OsFile:
    file = OsFiles().open(str(directory / "f"), create=True)
    file.pwritev([content], 0)
    file.fdatasync()
    return file


def test_what_is_in_memory_is_read_at_once(tmp_path: Path) -> None:
    file = a_file(tmp_path, b"0123456789")
    assert file.pread_now(4, 3) == b"3456"
    assert file.pread_now(4, 8) == b"89", "short at the end, as a read is"
    assert file.pread_now(4, 100) == b""
    file.close()


def test_what_is_not_in_memory_is_left_to_a_worker(tmp_path: Path) -> None:
    file = a_file(tmp_path, bytes(range(256)) * (SIZE // 256))
    descriptor = os.open(file.path, os.O_RDONLY)
    for _ in range(20):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if file.pread_now(32, SIZE // 2) is None:
            break
    else:
        pytest.skip("this file system keeps what nobody needs, or cannot say what it keeps")
    os.close(descriptor)
    file.pread(32, SIZE // 2)
    assert file.pread_now(32, SIZE // 2) == bytes(range(32))
    file.close()


def test_it_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path, b"0123456789")

    def not_now(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not now")

    monkeypatch.setattr(os, "preadv", not_now)
    assert file.pread_now(4, 3) is None
    monkeypatch.setattr(os, "preadv", lambda *_: 2)
    assert file.pread_now(4, 3) is None, "a part of it is not in memory"
    file.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM])
def test_where_nobody_can_tell_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    file = a_file(tmp_path, b"0123456789")

    def refuse(*_: object) -> int:
        raise OSError(code, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.pread_now(4, 3) == b"3456"
    file.close()


def test_an_error_of_the_device_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path, b"0123456789")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "preadv", fail)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match="broken") as caught:
        file.pread_now(4, 3)
    assert caught.value.filename == file.path
    file.close()


def test_a_file_that_found_no_room_leaves_no_part_of_itself(tmp_path: Path) -> None:
    """It would hold the last room there is, until the next try."""

    def failing(file: OsFile, buffers: object, offset: int) -> None:
        os.write(os.open(file.path, os.O_WRONLY), b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario() -> None:
        path = str(tmp_path / "state")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(OsFile, "pwritev", failing)
            await publish(OsFiles(), production_env("x").workers, Lane.DISK, path, b"all")

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_as_full_as_df_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 of 100 blocks are kept back for root: 60 used and 30 free are two thirds, not 70 percent."""
    told = SimpleNamespace(f_blocks=100, f_bfree=40, f_bavail=30, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    usage = OsFiles().usage("/")
    assert (usage.total, usage.free) == (90 * 4096, 30 * 4096)
    assert usage.used_ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_refused_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    """A named pipe without a writer would be waited for, a device read without end."""
    make(tmp_path / "odd")
    for ask in (OsFiles().open_read, OsFiles().size):
        with pytest.raises(OSError, match=r"directory|not a regular file"):
            ask(str(tmp_path / "odd"))
