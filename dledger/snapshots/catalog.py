"""The directory `snapshots` of a store: one directory for each snapshot, named by its log position.

A snapshot is written into `<pos>.tmp`, and every file is fsynced. Then one rename publishes it. To remove a
snapshot, it is first renamed back to `<pos>.tmp`. So the next start, a backup or an audit finds a snapshot as
a whole or not at all. A damaged or unfinished snapshot is removed when it is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from dledger.errors import DISK_IS_FULL, OUT_OF_MEANS
from dledger.formats.snapshot import (
    BEGINS_FILE,
    MANIFEST_FILE,
    Manifest,
    check_parts,
    decode_manifest,
    encode_manifest,
)
from dledger.formats.store_files import (
    SNAPSHOTS_DIR,
    CorruptFile,
    decode_json,
    encode_json,
    parse_segment_name,
    segment_name,
)
from dledger.log.base import LogBase
from dledger.log.index_units import RETRY_S
from dledger.replication.install import Offer
from dledger.runtime import Env, Lane
from dledger.runtime.atomic_file import publish, read_file, write_synced
from dledger.runtime.files import Files, FileStamp

READ_TRIES = 10
"""How often reading a snapshot is tried, with `RETRY_S` seconds between two tries. After that, this process
no longer uses the snapshot."""
T = TypeVar("T")
_UNFINISHED = ".tmp"
"""Ending of the directory name of a snapshot that is being written or removed."""


class SnapshotCatalog:
    """The snapshots of one store. Only one change is made at a time, and a snapshot is always read as a
    whole."""

    def __init__(self, env: Env, node_dir: str, keep: int) -> None:
        self._env = env
        self.directory: str = f"{node_dir}/{SNAPSHOTS_DIR}"
        self._begins_file = f"{node_dir}/{BEGINS_FILE}"
        self._keep = keep
        self._manifests: dict[int, Manifest] = {}
        self._written_ms: dict[int, int] = {}
        self._lock = asyncio.Lock()
        self.changing: asyncio.Lock = asyncio.Lock()
        """Held while the beginning of the log moves, so that only one task moves it."""
        self.begins: int | None = None
        """Log position at which the log begins, as the file `begins` of the store says. None if there is no
        such file."""
        self.replacing: bool = False
        """True while an install is past its point of no return. Then the log must begin at `begins`, whatever
        entries it holds."""

    @property
    def manifests(self) -> list[Manifest]:
        """Manifests of all usable snapshots, sorted by position."""
        return [self._manifests[pos] for pos in sorted(self._manifests)]

    def written_ms(self) -> dict[int, int]:
        """Maps the position of a snapshot to when it was written, in ms of this machine's clock at that time.
        A position is missing if the time is not known."""
        return {pos: self._written_ms[pos] for pos in self._manifests if pos in self._written_ms}

    def has(self, pos: int) -> bool:
        """Whether there is a snapshot at this log position."""
        return pos in self._manifests

    def bases(self) -> dict[int, LogBase]:
        """Maps each position at which a log may begin (because a snapshot is there) to the base of such a
        log."""
        return {pos: base_of(manifest) for pos, manifest in self._manifests.items()}

    def lowest(self, pos: int) -> Manifest | None:
        """The first snapshot at `pos` or later. A log that begins at `pos` needs it to restore the state.
        None if there is none."""
        return next((manifest for manifest in self.manifests if manifest.pos >= pos), None)

    async def open(self) -> None:
        """Find the existing snapshots. Raises OSError, or CorruptFile if the file `begins` is damaged."""
        run, files = self._env.workers.run, self._env.files
        said = await run(Lane.DISK, read_file, files, self._begins_file)
        if said is not None:
            value = decode_json(said)
            pos, replacing = value.get("pos"), value.get("replace")
            if not isinstance(pos, int) or not isinstance(replacing, bool):
                raise CorruptFile(f"{self._begins_file}: wrong type of field")
            self.begins, self.replacing = pos, replacing
        await run(Lane.DISK, files.mkdir, self.directory)
        names = await run(Lane.DISK, files.listdir, self.directory)
        # A rename of the last process may be in memory only, if that process was killed (S2). Retention
        # relies on renames.
        await run(Lane.DISK, files.sync_dir, self.directory)
        for name in names:
            pos = parse_segment_name(name)
            path = f"{self.directory}/{name}"
            if pos is not None:
                found = await self._tried(path, _read_manifest)
                if found is None:
                    continue  # it may be readable at another start
                if isinstance(found, Manifest) and found.pos == pos:
                    self._manifests[pos] = found
                    stamp = await self._tried(f"{path}/{MANIFEST_FILE}", _stamp)
                    if stamp is not None:
                        self._written_ms[pos] = stamp.changed_ms
                    continue
                self._env.log.warning("snapshot removed", path=path, why=str(found))
                await self._take_away(path)
            elif name.endswith(_UNFINISHED):
                await run(Lane.DISK, files.rmtree, path)

    async def say_begins(self, pos: int, *, replace: bool = False) -> None:
        """Record durably where the log begins."""
        data = encode_json({"pos": pos, "replace": replace})
        await publish(self._env.files, self._env.workers, Lane.DISK, self._begins_file, data)
        self.begins, self.replacing = pos, replace

    async def publish(self, manifest: Manifest, parts: Mapping[str, bytes]) -> None:
        """Write a snapshot durably and publish it under its name. If this raises OSError, the snapshot does
        not count as published."""
        run, files = self._env.workers.run, self._env.files
        path = self._path(manifest.pos)
        unfinished = f"{path}{_UNFINISHED}"
        async with self._lock:
            if manifest.pos in self._manifests:
                return
            await self._take_away(path)  # a damaged snapshot, or an unfinished one
            try:
                await run(Lane.DISK, files.mkdir, unfinished)
                for name, data in (*sorted(parts.items()), (MANIFEST_FILE, encode_manifest(manifest))):
                    await run(Lane.DISK, write_synced, files, f"{unfinished}/{name}", data)
            except OSError as error:
                if error.errno in DISK_IS_FULL:  # an unfinished snapshot would take up the last room
                    await run(Lane.DISK, files.rmtree, unfinished)
                raise
            await run(Lane.DISK, files.sync_dir, unfinished)
            await run(Lane.DISK, files.rename, unfinished, path)
            await run(Lane.DISK, files.sync_dir, self.directory)
            self._manifests[manifest.pos] = manifest
            self._written_ms[manifest.pos] = self._env.wall.now_ms()

    async def load(self, manifest: Manifest) -> dict[str, bytes] | None:
        """Read and check all parts of a snapshot. Returns None if the snapshot is damaged (then it is
        removed), gone, or not readable.

        It waits while too many files are open.
        """
        path = self._path(manifest.pos)
        parts = await self._tried(path, lambda files, path: _load(files, path, manifest))
        if parts is None:
            if self._manifests.get(manifest.pos) is manifest:
                del self._manifests[manifest.pos]
            return None
        if isinstance(parts, dict):
            return parts
        self._env.log.error("snapshot is damaged", path=path, why=parts)
        await self.discard(manifest)
        return None

    async def _tried(self, path: str, job: Callable[[Files, str], T]) -> T | None:
        """Run a job that reads the snapshot at `path`, and return its result. Returns None if the job failed
        `READ_TRIES` times.

        It waits while too many files are open.
        """
        tries, waited = 0, False
        while True:
            try:
                return await self._env.workers.run(Lane.DISK, job, self._env.files, path)
            except OSError as error:
                passing = error.errno in OUT_OF_MEANS
                if tries == 0 and not (passing and waited):
                    self._env.log.error("snapshot not readable", path=path, error=error)
                waited, tries = True, tries + (not passing)
                if tries >= READ_TRIES:
                    return None
            await asyncio.sleep(RETRY_S)

    async def discard(self, manifest: Manifest) -> None:
        """Remove a snapshot that must not be used any more. If it cannot be removed now, the next start
        removes it."""
        async with self._lock:
            if self._manifests.get(manifest.pos) is manifest:
                await self._remove(manifest.pos)

    async def prune(self, begin_pos: int) -> None:
        """Remove the snapshots that are not needed: those before `begin_pos`, and some of the others if there
        are more than the limit of snapshots that are kept.

        `begin_pos` must be the position at which the log begins. Do not call this while the beginning of the
        log moves. The snapshot that the file `begins` names as the beginning of the log is kept even beyond
        the limit, because the log may be about to begin there.
        """
        async with self._lock:
            unneeded = [pos for pos in sorted(self._manifests) if pos < begin_pos]
            needed = [pos for pos in sorted(self._manifests) if pos >= begin_pos]
            thinned = [pos for pos in superfluous(needed, self._keep) if pos != self.begins]
            for pos in unneeded + thinned:
                manifest = self._manifests.get(pos)
                if manifest is None:
                    continue  # `load` found it unreadable meanwhile
                removed = await self._remove(pos)
                if not removed and await self._env.workers.run(
                    Lane.DISK, self._env.files.exists, self._path(pos)
                ):
                    self._manifests[pos] = manifest  # it is still whole, and is removed the next time

    async def _remove(self, pos: int) -> bool:
        """Remove a snapshot. Returns False if a part of it stays because too many files are open."""
        del self._manifests[pos]
        self._written_ms.pop(pos, None)
        try:
            await self._take_away(self._path(pos))
        except OSError as error:
            if error.errno not in OUT_OF_MEANS:
                raise
            self._env.log.warning("snapshot not removed", path=self._path(pos), error=error)
            return False
        return True

    def _path(self, pos: int) -> str:
        return f"{self.directory}/{segment_name(pos)}"

    async def _take_away(self, path: str) -> None:
        """Remove what exists at this path, and the rest of an earlier removal of it. It is no error if there
        is nothing."""
        run, files = self._env.workers.run, self._env.files
        going = f"{path}{_UNFINISHED}"
        if await run(Lane.DISK, files.exists, going):
            # an earlier removal may have failed at this step
            await run(Lane.DISK, files.sync_dir, self.directory)
            await run(Lane.DISK, files.rmtree, going)
        if await run(Lane.DISK, files.exists, path):
            await run(Lane.DISK, files.rename, path, going)
            await run(Lane.DISK, files.sync_dir, self.directory)  # the name must go before the content
            await run(Lane.DISK, files.rmtree, going)


def superfluous(positions: list[int], keep: int) -> list[int]:
    """Choose snapshots to remove, so that at most `keep` remain (but at least three). The first one and the
    two newest are never chosen.

    The snapshot whose two neighbours are closest together is removed first. So the snapshots that remain are
    spread evenly, and retention finds one near any position.
    """
    left = sorted(positions)
    gone = []
    while len(left) > max(keep, 3):
        place = min(range(1, len(left) - 2), key=lambda at: (left[at + 1] - left[at - 1], at))
        gone.append(left.pop(place))
    return gone


def base_of(manifest: Manifest) -> LogBase:
    """The base of a log that begins at this snapshot."""
    return LogBase(manifest.index, manifest.term, manifest.pos, manifest.chain, manifest.store_time_ms)


def offer_of(manifest: Manifest) -> Offer:
    """The offer by which a leader announces this snapshot to a peer."""
    return Offer(manifest.index, manifest.term, manifest.pos, manifest.chain, manifest.total, manifest.digest)


# Below: blocking, for worker jobs.


def _stamp(files: Files, path: str) -> FileStamp | None:
    return files.stamp(path)


def _read_manifest(files: Files, path: str) -> Manifest | str:
    try:
        data = read_file(files, f"{path}/{MANIFEST_FILE}")
        if data is None:
            return "no manifest"
        manifest = decode_manifest(data)
        for name, part in manifest.parts.items():
            if files.size(f"{path}/{name}") != part.size:
                return f"part {name} has another size"
    except (CorruptFile, FileNotFoundError, ValueError) as error:
        return str(error)
    return manifest


def _load(files: Files, path: str, manifest: Manifest) -> dict[str, bytes] | str:
    try:
        parts = {name: read_file(files, f"{path}/{name}") for name in manifest.parts}
        whole = {name: data for name, data in parts.items() if data is not None}
        check_parts(manifest, whole)
    except CorruptFile as error:
        return str(error)
    return whole
