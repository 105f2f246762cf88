"""`dledger backup`: a consistent copy of a store while its node runs (decision 0010).

It runs on the node's machine and reads the node's directory. It sends no request to the node, and slows
the node down only by reading from its disk. Only *checked* data is copied: each entry is read, checked by
the rules of recovery, and written to the copy. The index is rebuilt, and snapshots are checked against
their digests. The copy ends with the first complete batch at or after the durable mark (the last index
that was known to be on the disk) of the time when the backup began. So the copy holds every entry that
this node knew to be committed at that time. If the log changes during the reading (retention, or a new
leader that truncates the suffix), the check fails and the copy is started again.

The copy is not a member of the group: it has a new incarnation and no vote. When it is started, it is a
learner until the group's leader has recorded it. `recover --force-single` makes the copy the only member
of a new cluster.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from dledger.files.offline import (
    Found,
    InstallUnfinished,
    StoreUnreadable,
    Walk,
    durable_mark,
    index_file_size,
    node_directory,
    read_checkpoint,
    read_hard_state,
    read_identity,
    walk,
)
from dledger.files.run_lock import lock_of_flushed
from dledger.formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, check_parts, decode_manifest
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    DATA_DIR,
    HARD_STATE_FILE,
    IDENTITY_FILE,
    INDEX_DIR,
    LOCK_FILE,
    SLOT_SIZE,
    SNAPSHOTS_DIR,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
    segment_name,
)
from dledger.runtime import Env, File, Files, Lane
from dledger.runtime.atomic_file import read_file
from dledger.runtime.options import Options

INDEX_FILE_SIZE = 5 * 1024 * 1024 * INDEX_UNIT_SIZE
"""Size of an index file in bytes, which is used for a store that has no index file yet."""
ATTEMPTS = 5
COPY_BYTES = 1 << 20


class BackupFailed(Exception):
    """Raised when no backup was made; the text says why."""


class _Changed(Exception):
    """Raised when the store changed while it was read."""


@dataclass(frozen=True)
class Backup:
    """The result of a backup, with what was copied."""

    directory: str
    node: str
    cluster: str
    first_index: int
    last_index: int
    last_term: int
    committed_hint: int


async def backup(env: Env, store: str, to: str, node: str | None = None) -> Backup:
    """Copy the store into `<to>/dledger-<node>`; by default `<node>` is the store's own node id. Raises
    BackupFailed, StoreUnreadable or OSError."""
    run, files = env.workers.run, env.files
    source = await run(Lane.DISK, node_directory, files, store)
    identity = await run(Lane.DISK, read_identity, files, source)
    target = f"{to.rstrip('/')}/dledger-{node or identity.node}"
    if await run(Lane.DISK, files.exists, target):
        raise BackupFailed(f"{target} already exists: choose another directory")
    try:
        return await _copied(env, source, to, target, identity, node)
    except OSError:  # half a copy is useless, and may fill the disk
        await run(Lane.DISK, files.rmtree, f"{target}.tmp")
        raise


async def _copied(
    env: Env, source: str, to: str, target: str, identity: Identity, node: str | None
) -> Backup:
    run, files = env.workers.run, env.files
    problem = ""
    for _ in range(ATTEMPTS):
        copy = _Copy(files, source, f"{target}.tmp", identity, node, env.ids.uuid())
        await run(Lane.DISK, files.rmtree, copy.directory)
        await run(Lane.DISK, files.mkdir, copy.directory)
        try:
            log = await run(Lane.DISK, copy.log)
            await run(Lane.DISK, copy.snapshots, log)
        except _Changed as error:
            problem = str(error)
            continue
        await run(Lane.DISK, copy.small_files, log)
        for path in copy.written:
            await run(Lane.FLUSH, _sync, files, path)
        for directory in copy.directories:
            await run(Lane.FLUSH, files.sync_dir, directory)
        await run(Lane.FLUSH, files.rename, copy.directory, target)
        await run(Lane.FLUSH, files.sync_dir, to)
        return Backup(
            target,
            copy.identity.node,
            identity.cluster,
            log.first_index,
            log.last_index,
            log.last_term,
            min(copy.committed, log.last_index),
        )
    await run(Lane.DISK, files.rmtree, f"{target}.tmp")
    raise BackupFailed(f"the store changed during {ATTEMPTS} attempts, or it is damaged: {problem}")


class _Copy:
    """One attempt to copy a store. All methods block."""

    def __init__(
        self,
        files: Files,
        source: str,
        directory: str,
        identity: Identity,
        node: str | None,
        incarnation: str,
    ) -> None:
        self._files = files
        self._source = source
        self.directory = directory
        self.identity = replace(identity, node=node or identity.node, incarnation=incarnation)
        self.committed = -1
        self.written: list[str] = []
        self.directories: list[str] = [directory]
        self._size = identity.segment_size
        self._index_size = INDEX_FILE_SIZE
        self._open: dict[str, File] = {}

    def log(self) -> Walk:
        """Copy the segments and the index. Returns what was read of the log."""
        files, source = self._files, self._source
        self._index_size = index_file_size(files, source) or INDEX_FILE_SIZE
        self.committed = read_checkpoint(files, source).committed_index
        wanted = max(durable_mark(files, source), self.committed)
        for name in (DATA_DIR, INDEX_DIR):
            files.mkdir(f"{self.directory}/{name}")
            self.directories.append(f"{self.directory}/{name}")
        try:
            log = walk(files, source, self._size, wanted, self._take)
        except (StoreUnreadable, InstallUnfinished, FileNotFoundError) as error:
            raise _Changed(str(error)) from error
        finally:
            self._close(self.directory)
        if log.last_index < wanted:
            raise _Changed(
                f"the log could be read only up to entry {log.last_index} of {wanted}: {log.stopped_by}"
            )
        return log

    def _close(self, under: str) -> None:
        for path in [path for path in self._open if path.startswith(under)]:
            self._open.pop(path).close()

    def _take(self, piece: Found) -> None:
        self._write(DATA_DIR, piece.start, self._size, piece.offset, piece.data)
        units = b"".join(
            INDEX_UNIT.pack(MAGIC, header.pos, header.size, header.index, header.term)
            for header in piece.headers
        )
        at = piece.headers[0].index * INDEX_UNIT_SIZE if piece.headers else 0
        view = memoryview(units)
        while view:
            start = at - at % self._index_size
            part = view[: self._index_size - (at - start)]
            self._write(INDEX_DIR, start, self._index_size, at - start, part)
            view = view[len(part) :]
            at += len(part)

    def _write(self, directory: str, start: int, size: int, offset: int, data: memoryview) -> None:
        path = f"{self.directory}/{directory}/{segment_name(start)}"
        file = self._open.get(path)
        if file is None:
            self._close(f"{self.directory}/{directory}/")  # pieces come in order: those files are whole
            file = self._open[path] = self._files.open(path, create=True)
            if directory == DATA_DIR:
                file.allocate(size)  # a node that goes on in this segment must not meet a full disk there
            else:
                file.truncate(size)
            self.written.append(path)
        file.pwritev([data], offset)

    def snapshots(self, log: Walk) -> None:
        """Copy the complete snapshots of the state machine. If the log begins at a snapshot, the copy must
        include that snapshot."""
        files = self._files
        source, target = f"{self._source}/{SNAPSHOTS_DIR}", f"{self.directory}/{SNAPSHOTS_DIR}"
        copied = []
        for name in files.listdir(source):
            if not name.isdigit() or not files.is_dir(f"{source}/{name}"):
                continue
            try:
                self._copy_directory(f"{source}/{name}", f"{target}/{name}")
            except FileNotFoundError as error:
                raise _Changed(f"snapshot {name} was removed meanwhile") from error
            damage = _damage_of(files, f"{target}/{name}")
            if not damage:
                copied.append(name)
                continue
            if int(name) == log.begin_pos:
                raise _Changed(f"the snapshot at the beginning of the log is damaged: {damage}")
            files.rmtree(f"{target}/{name}")
            gone = f"{target}/{name}"
            self.directories = [path for path in self.directories if not f"{path}/".startswith(f"{gone}/")]
            self.written = [path for path in self.written if not path.startswith(f"{gone}/")]
        if copied:
            self.directories.append(target)
        if log.begin_pos > 0 and segment_name(log.begin_pos) not in copied:
            raise _Changed(
                f"the log begins at byte {log.begin_pos}, and there is no snapshot for that position"
            )

    def _copy_directory(self, source: str, target: str) -> None:
        files = self._files
        files.mkdir(target)
        self.directories.append(target)
        for name in files.listdir(source):
            if files.is_dir(f"{source}/{name}"):
                self._copy_directory(f"{source}/{name}", f"{target}/{name}")
                continue
            reading = files.open(f"{source}/{name}")
            try:
                writing = files.open(f"{target}/{name}", create=True)
                try:
                    for at in range(0, reading.size(), COPY_BYTES):
                        writing.pwritev([reading.pread(COPY_BYTES, at)], at)
                finally:
                    writing.close()
            finally:
                reading.close()
            self.written.append(f"{target}/{name}")

    def small_files(self, log: Walk) -> None:
        """Write the identity of a new member, a term without a vote, and the checkpoint. The file
        `members` is not written, because the first start finds the configuration in the log."""
        state = read_hard_state(self._files, self._source)
        term = max(state[1].term if state else 0, log.last_term, 0)
        slots = encode_slot(2, HardState(term, None)) + encode_slot(1, HardState(term, None))
        checkpoint = Checkpoint(log.last_index, min(self.committed, log.last_index))
        begins = [(BEGINS_FILE, encode_json({"pos": log.begin_pos, "replace": False}))]
        for name, data in (
            *(begins if log.begin_pos > 0 else ()),
            (HARD_STATE_FILE, slots[: 2 * SLOT_SIZE]),
            (CHECKPOINT_FILE, encode_checkpoint(checkpoint)),
            (LOCK_FILE, lock_of_flushed()),
            (IDENTITY_FILE, encode_json(self.identity)),
        ):
            path = f"{self.directory}/{name}"
            file = self._files.open(path, create=True)
            try:
                file.pwritev([data], 0)
            finally:
                file.close()
            self.written.append(path)


def _damage_of(files: Files, directory: str) -> str:
    """Return why a snapshot is damaged; empty if it is intact."""
    try:
        manifest = decode_manifest(read_file(files, f"{directory}/{MANIFEST_FILE}") or b"")
        parts = {name: read_file(files, f"{directory}/{name}") for name in manifest.parts}
        check_parts(manifest, {name: data for name, data in parts.items() if data is not None})
    except CorruptFile as error:
        return str(error)
    return ""


def _sync(files: Files, path: str) -> None:
    file = files.open(path)
    try:
        file.fdatasync()
    finally:
        file.close()


# The command


async def command(env: Env, args: Options) -> int:
    """Run `backup`. Returns 0 if the backup was made, and 1 if not."""
    try:
        result = await backup(env, args.store, args.to, args.node)
    except (BackupFailed, StoreUnreadable, OSError) as error:
        print(json.dumps({"done": False, "error": str(error)}) if args.json else f"backup: {error}")
        return 1
    if args.json:
        print(json.dumps({"done": True} | asdict(result)))
    else:
        print(
            f"{result.directory}: entries {result.first_index}..{result.last_index}, "
            f"at least {result.committed_hint} committed"
        )
    return 0
