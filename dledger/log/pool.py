"""Prepared segments: zero-filled files that the log takes by rename (safety.md S6).

Writing into fresh blocks costs several times as much as overwriting. So a worker prepares segments ahead, and
retired ones are reused. Files here are never read: a recycled one holds old entries, which recovery does not
accept because their pos does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dledger.formats.store_files import POOL_DIR
from dledger.runtime import Env, Files, Lane

_ZEROS = bytes(1024 * 1024)
"""Zeros that are written and synced at a time. An fsync of the log that comes in between waits for this much
and no more."""
_BUSY_REST = 3
"""While the log is written to, preparing pauses after each write of `_ZEROS`, for this many times as long as
the write took."""
_RESERVE = 64 * 1024 * 1024
"""Disk space, in bytes, that preparing leaves free in addition to the segment itself. For small segments it
leaves less (`least_free`)."""


class SegmentPool:
    """The prepared files in `<node_dir>/pool/`."""

    def __init__(
        self,
        env: Env,
        node_dir: str,
        segment_size: int,
        target: int,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a pool that prepares up to `target` segments. `busy` says whether the log is being written
        to."""
        self._env = env
        self._busy = busy
        self._dir = f"{node_dir}/{POOL_DIR}"
        self._size = segment_size
        self._target = target
        self._ready: list[str] = []
        self._opened = False
        self._sequence = 0
        self.warm_taken: int = 0
        self.cold_taken: int = 0

    @property
    def ready(self) -> int:
        """Number of segments that the log can take without waiting."""
        return len(self._ready)

    def open(self) -> None:
        """Find the files that an earlier run left (blocking). Unfinished ones are removed."""
        self._opened = True
        files = self._env.files
        files.mkdir(self._dir)
        for name in files.listdir(self._dir):
            path = f"{self._dir}/{name}"
            number = name.partition(".")[0]
            self._sequence = max(self._sequence, int(number) if number.isdigit() else 0)
            if name.endswith(".ready") and files.size(path) == self._size:
                self._ready.append(path)
            else:
                files.unlink(path)

    @property
    def least_free(self) -> int:
        """Free bytes below which no segment can be prepared."""
        return self._size + min(_RESERVE, 2 * self._size)

    async def take(self, path: str, *, fresh: bool = False) -> bool:
        """Move a prepared segment to `path`, durably. Returns True if it was warm, which means that all its
        blocks were written before.

        An empty pool gives a cold file with reserved blocks. So does `fresh`, for a file that must not hold
        old entries. Raises OSError (ENOSPC) if the disk is full.
        """
        run = self._env.workers.run
        warm = bool(self._ready) and not fresh
        if warm:
            source = self._ready.pop(0)
            self.warm_taken += 1
        else:
            source = self._new_name("cold")
            await self._or_remove(source, run(Lane.DISK, _reserve, self._env.files, source, self._size))
            self.cold_taken += 1
        await run(Lane.DISK, self._env.files.rename, source, path)
        await run(Lane.DISK, self._env.files.sync_dir, path.rpartition("/")[0])
        await run(Lane.DISK, self._env.files.sync_dir, self._dir)
        return warm

    async def give_back(self, path: str) -> None:
        """Put a retired segment, whose map is closed, into the pool. If the pool is full, remove the
        segment."""
        run = self._env.workers.run
        if len(self._ready) >= self._target + 1:
            await run(Lane.DISK, self._env.files.unlink, path)
        else:
            name = self._new_name("ready")
            await run(Lane.DISK, self._env.files.rename, path, name)
            self._ready.append(name)  # even if the next fsync fails: a restart finds the file by its name
            await run(Lane.DISK, self._env.files.sync_dir, self._dir)
        await run(Lane.DISK, self._env.files.sync_dir, path.rpartition("/")[0])

    async def give_up_one(self) -> bool:
        """Remove one prepared segment to make room; this is possible before `open`, too. Returns False if
        there is nothing to remove."""
        run, files = self._env.workers.run, self._env.files
        if not self._opened and await run(Lane.DISK, files.exists, self._dir):
            found = await run(Lane.DISK, files.listdir, self._dir)
            path = f"{self._dir}/{found[-1]}" if found else ""
        else:
            path = self._ready.pop() if self._ready else ""
        if path:
            await run(Lane.DISK, files.unlink, path)
        return bool(path)

    async def fill_one(self) -> bool:
        """Prepare one segment if one is missing and the disk has room. Returns False if there is nothing to
        do."""
        if len(self._ready) >= self._target:
            return False
        run = self._env.workers.run
        usage = await run(Lane.DISK, self._env.files.usage, self._dir)
        if usage.free < self.least_free:
            return False
        unfinished = self._new_name("filling")
        await self._or_remove(unfinished, self._fill(unfinished))
        ready = unfinished.removesuffix("filling") + "ready"
        await run(Lane.DISK, self._env.files.rename, unfinished, ready)
        self._ready.append(ready)  # also if its directory cannot be opened now: a roll syncs it again
        await run(Lane.DISK, self._env.files.sync_dir, self._dir)
        return True

    async def _fill(self, unfinished: str) -> None:
        run = self._env.workers.run
        await run(Lane.DISK, _reserve, self._env.files, unfinished, self._size)
        loop = asyncio.get_running_loop()
        for offset in range(0, self._size, len(_ZEROS)):
            # Written piece by piece, so that in between cold reads and derived files can use the lane, and
            # the log's writes the device.
            began = loop.time()
            await run(Lane.DISK, _zero, self._env.files, unfinished, offset, self._size - offset)
            if self._busy():
                await asyncio.sleep(_BUSY_REST * (loop.time() - began))
        await run(Lane.DISK, _sync, self._env.files, unfinished)

    async def _or_remove(self, path: str, work: Awaitable[None]) -> None:
        """Await the work on a file, and remove the file if the work fails. On a full disk, unfinished files
        would use more room with every attempt."""
        try:
            await work
        except OSError:
            await self._env.workers.run(Lane.DISK, self._env.files.unlink, path)
            raise

    def _new_name(self, kind: str) -> str:
        self._sequence += 1
        return f"{self._dir}/{self._sequence:08d}.{kind}"


def _reserve(files: Files, path: str, size: int) -> None:
    file = files.open(path, create=True)
    try:
        file.allocate(size)
        file.fdatasync()
    finally:
        file.close()


def _zero(files: Files, path: str, offset: int, size: int) -> None:
    file = files.open(path)
    try:
        file.pwritev_synced([_ZEROS if size >= len(_ZEROS) else bytes(size)], offset)
    finally:
        file.close()


def _sync(files: Files, path: str) -> None:
    file = files.open(path)
    try:
        file.fdatasync()
    finally:
        file.close()
