"""Replaces a small file as a whole, so that a reader, also one after a crash, finds the old content or the
new, never a mix."""

from __future__ import annotations

import errno
import os
import stat

from dledger.runtime.files import Files, OsFiles
from dledger.runtime.remote_files import FsspecFiles
from dledger.runtime.workers import Lane, Workers


def read_file(files: Files, path: str) -> bytes | None:
    """Read the content, or None if there is no such file. Blocking."""
    if isinstance(files, FsspecFiles):
        return files.get(path)  # one request, because an object may be replaced between two requests
    if not files.exists(path):
        return None
    file = files.open_read(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


async def publish(
    files: Files, workers: Workers, lane: Lane, path: str, data: bytes, *, like: str | None = None
) -> None:
    """Write `path + '.tmp'`, fsync, rename, and sync the directory. Each job of the workers has only one
    durable action.

    `like` is a file whose permissions are copied, because the content may include a password.
    """
    try:
        await workers.run(lane, write_synced, files, path + ".tmp", data, like)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # half a file would occupy the last free space
            await workers.run(lane, files.unlink, path + ".tmp")
        raise
    await workers.run(lane, files.rename, path + ".tmp", path)
    await workers.run(lane, files.sync_dir, os.path.dirname(path) or ".")


def write_synced(files: Files, path: str, data: bytes, like: str | None = None) -> None:
    """Write a whole file and make its content durable, but not its name. Blocking."""
    file = files.open(path, create=True)
    try:
        if like is not None and isinstance(files, OsFiles):  # before the content is written
            os.chmod(path, stat.S_IMODE(os.stat(like).st_mode))
        file.truncate(0)
        file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Write a file and the directories above it, durably. Readers see the old content or the new. The call
    does several durable actions in one job, so it must be used only for files outside a store. Blocking.
    """
    if isinstance(files, FsspecFiles):
        files.put(path, data)
        return
    directory, name = os.path.split(path)
    files.mkdir(directory)
    hidden = f"{directory}/.{name}.tmp"  # readers of directories skip names that begin with a dot
    write_synced(files, hidden, data)
    files.rename(hidden, path)
    files.sync_dir(directory)
