"""The content of a store directory, read once before anything is scanned.

A live store may be audited. Its checkpoint is read first, and the audit requires only entries up to the
committed index in it. Data that is written later may be read, but is never reported as missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dledger.audit.findings import Finding, ReplicaRow, finding
from dledger.audit.membership import FOUNDERS_UNKNOWN, Members, read_members
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC, known_magic, unpack_header
from dledger.formats.index_file import NAME_DIGITS
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, Manifest, decode_manifest
from dledger.formats.state import DELETIONS
from dledger.formats.state_file import SNAPSHOT_FILE, STATE_DIR, CorruptSnapshot, unpack_snapshot
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    DATA_DIR,
    IDENTITY_FILE,
    INDEX_DIR,
    POOL_DIR,
    SNAPSHOTS_DIR,
    Checkpoint,
    CorruptFile,
    Identity,
    decode_checkpoint,
    decode_identity,
    decode_json,
    parse_segment_name,
    segment_name,
)
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

NODE_PREFIX = "dledger-"
QUEUES_DIR = "consumequeue"
COMMITLOG_DIR = "commitlog"
_ANYWHERE = 1 << 62


class StoreError(Exception):
    """Raised when a path is not a store directory, or cannot be read. The audit cannot run."""


class UnreadableStore(StoreError):
    """Raised when a store exists and cannot be read. `node` is its node, empty if that is not known."""

    def __init__(self, path: str, node: str, error: OSError) -> None:
        super().__init__(f"{path}: {error}")
        self.node = node


@dataclass(frozen=True)
class Segment:
    """One segment file of the log. `start` is the log offset of its first byte; `size` is the size of the
    file in bytes.

    `first_index` is the index in its first header, None if no entry begins there.
    """

    start: int
    size: int
    first_index: int | None


@dataclass(frozen=True)
class Replica:
    """One node's log directory. `data` is the directory of its segments. `queue_root` and `key_root` are the
    directories of ConsumeQueues and IndexFiles, empty if they do not exist or may belong to another node.
    `applied` is the entry after which the broker's state file was taken, -1 if there is none."""

    name: str
    store: str
    directory: str
    queue_root: str
    identity: Identity | None
    checkpoint: Checkpoint | None
    segment_size: int
    segments: tuple[Segment, ...]
    index_end: int
    head_unit: bool
    problems: tuple[Finding, ...]
    data: str = ""
    key_root: str = ""
    state_file: str = ""
    applied: int = -1
    deleted: tuple[tuple[str, int], ...] = ()
    """Deleted topics according to the state file, each with the log offset up to which its messages belong to
    the deleted topic."""
    snapshots: tuple[Manifest, ...] = ()
    """Boundary snapshots with a valid manifest, by position."""
    begins: int = -1
    """Where the log begins, -1 if the node never recorded it. A node records it before it removes earlier
    segments, and before it installs a snapshot in their place."""
    units_due: int = 0
    """See `ReplicaRow`."""
    members: Members = FOUNDERS_UNKNOWN

    @property
    def base_index(self) -> int:
        """The entry before the beginning of the log, if a snapshot names it and the node recorded that its
        log begins there or later; else -1.

        A log without segments begins at its newest snapshot, which was just installed.
        """
        start = self.segments[0].start if self.segments else None
        if start is not None and start > self.begins:
            return -1
        named = [found.index for found in self.snapshots if start is None or found.pos == start]
        return named[-1] if named else -1

    @property
    def committed(self) -> int:
        """Highest index that this replica knew to be committed; -1 if it knew none."""
        return self.checkpoint.committed_index if self.checkpoint else -1

    @property
    def group(self) -> str:
        """Name of the replica's group; empty for a store without identity."""
        return self.identity.group if self.identity else ""

    def row(self) -> ReplicaRow:
        """Return the replica as a row."""
        identity = self.identity
        return ReplicaRow(
            replica=self.name,
            store=self.store,
            group=self.group,
            cluster=identity.cluster if identity else "",
            incarnation=identity.incarnation if identity else "",
            members=len(self.members.voters),
            claimed_end=self.checkpoint.end_index if self.checkpoint else -1,
            committed=self.committed,
            segments=len(self.segments),
            segment_size=self.segment_size,
            index_end=self.index_end,
            head_unit=int(self.head_unit),
            ours=int(identity is not None),
            queues=int(bool(self.queue_root)),
            base_index=self.base_index,
            applied=self.applied,
            units_due=self.units_due,
            node=identity.node if identity else "",
            voters=",".join(self.members.voters),
            voters_since=self.members.since,
        )


@dataclass(frozen=True)
class SegmentTask:
    """Everything that a scan of one segment needs.

    * `first_index`: index in its first header, -1 if no entry begins there.
    * `next_first`: first index of the next segment that begins with an entry, None if there is none.
    * `next_start`: log offset of that next segment, -1 if it follows this one directly.
    """

    replica: str
    directory: str
    queue_root: str
    start: int
    size: int
    segment_size: int
    committed: int
    next_first: int | None
    index_end: int
    first_index: int = -1
    data: str = ""
    key_root: str = ""
    state_file: str = ""
    next_start: int = -1
    applied: int = -1
    deleted: tuple[tuple[str, int], ...] = ()

    @property
    def path(self) -> str:
        """Path of the segment's file."""
        return self.path_of(self.start)

    def path_of(self, start: int) -> str:
        """Path of the file of another segment of the same log."""
        return segment_path(self.data or f"{self.directory}/{DATA_DIR}", start)


def segment_path(data: str, start: int) -> str:
    """Path of a segment's file in the directory of segments."""
    return f"{data}/{segment_name(start)}"


def open_stores(files: Files, paths: list[str]) -> list[Replica]:
    """Return all replicas under the given directories (`storePathRootDir`), with unique names. Blocking.
    Raises StoreError if one of them cannot be examined, or is given twice."""
    if len(set(paths)) < len(paths):
        raise StoreError("a store directory is given twice: give one of each node")
    replicas = [replica for path in paths for replica in open_store(files, path)]
    names = [replica.name for replica in replicas]
    if len(set(names)) == len(names):
        return replicas
    return [renamed(replica, f"{replica.name}@{replica.store}") for replica in replicas]


def renamed(replica: Replica, name: str) -> Replica:
    """Return this replica under another name."""
    problems = tuple(problem._replace(replica=name) for problem in replica.problems)
    return replace(replica, name=name, problems=problems)


def open_store(files: Files, path: str, *, listed: bool = True) -> list[Replica]:
    """Return the replicas of one store: usually one, or several if nodes share the directory. Blocking.
    Raises StoreError, and UnreadableStore for a store whose files cannot be read."""
    path = path.rstrip("/") or "/"
    node = ""
    try:
        if not files.is_dir(path):
            raise StoreError(f"{path}: no such directory")
        names = files.listdir(path)
        if DATA_DIR in names and INDEX_DIR in names:
            return [_open_replica(files, _Place(path, path), listed)]
        parent, _, name = path.rpartition("/")
        if name.startswith(NODE_PREFIX) and INDEX_DIR in names:
            node = name.removeprefix(NODE_PREFIX)
            return [_open_replica(files, _place(files, parent, path), listed)]
        nodes = [name for name in names if name.startswith(NODE_PREFIX) and files.is_dir(f"{path}/{name}")]
        if not nodes:
            below = _groups_below(files, path, names)
            raise StoreError(
                f"{path}: this is not a store (storePathRootDir): it holds no directory "
                f"{NODE_PREFIX}<id>{below}"
            )
        if len(nodes) == 1:
            node = nodes[0].removeprefix(NODE_PREFIX)
            return [_open_replica(files, _place(files, path, f"{path}/{nodes[0]}"), listed)]
        return [_open_replica(files, _Place(path, f"{path}/{name}"), listed) for name in nodes]
    except OSError as error:
        raise UnreadableStore(path, node, error) from error


def open_claims(files: Files, path: str) -> list[Replica]:
    """Return the replicas of one store, but leave out segments and data about them, because these take long
    to read in a large store."""
    return open_store(files, path, listed=False)


def _groups_below(files: Files, path: str, names: list[str]) -> str:
    """Return a hint for an error: where a stand-alone node has the directories of its groups."""
    inner = [directory for name in names if files.is_dir(directory := f"{path}/{name}")]
    found = [
        directory
        for directory in inner
        if any(name.startswith(NODE_PREFIX) for name in files.listdir(directory))
    ]
    return f"; one is in {', '.join(found)} (each group has its own)" if found else ""


class _Place(NamedTuple):
    """Directories of one replica (see `Replica`)."""

    store: str
    directory: str
    data: str = ""
    queue_root: str = ""
    key_root: str = ""
    state_file: str = ""


def _place(files: Files, store: str, directory: str) -> _Place:
    """Find the directories of the only node under a `storePathRootDir`.

    Apache's brokers may keep the segments beside the node's directory (storePathCommitLog) instead of in it.
    """
    data = f"{directory}/{DATA_DIR}"
    beside = f"{store}/{COMMITLOG_DIR}"
    if not files.is_dir(data) and _holds_entries(files, beside):
        data = beside
    queues = f"{store}/{QUEUES_DIR}"
    if not files.is_dir(queues) and files.exists(f"{directory}/{IDENTITY_FILE}"):
        # A node makes its pool at its first start. Without any of these it is a backup of the log alone.
        started = any(map(files.is_dir, (f"{directory}/{POOL_DIR}", f"{store}/{STATE_DIR}")))
        queues = queues if started else ""
    keys = f"{store}/{INDEX_DIR}"
    has_keys = any(len(name) == NAME_DIGITS and name.isdigit() for name in files.listdir(keys))
    state_file = f"{store}/{STATE_DIR}/{SNAPSHOT_FILE}"
    return _Place(
        store,
        directory,
        data,
        queues,
        keys if has_keys else "",
        state_file if files.exists(state_file) else "",
    )


def _holds_entries(files: Files, directory: str) -> bool:
    """Whether the files of a directory are segments, and not those of a CommitLog without DLedger."""
    starts = [start for name in files.listdir(directory) if (start := parse_segment_name(name)) is not None]
    return any(
        peek_first_index(files, f"{directory}/{segment_name(start)}", start) is not None for start in starts
    )


def _open_replica(files: Files, place: _Place, listed: bool) -> Replica:
    directory = place.directory
    name = directory.rpartition("/")[2].removeprefix(NODE_PREFIX)
    problems: list[Finding] = []
    checkpoint_data = read_file(files, f"{directory}/{CHECKPOINT_FILE}")  # before anything else (live stores)
    checkpoint = decode_checkpoint(checkpoint_data) if checkpoint_data is not None else None
    if checkpoint is None or checkpoint.committed_index < 0:
        if checkpoint is not None:
            said = "says that nothing is committed"
        else:
            said = "is not there" if checkpoint_data is None else "is damaged"
        problems.append(finding("NO_COMMITTED_INDEX", name, f"the checkpoint file {said}"))
    identity = _read_identity(files, directory, name, problems)
    if not listed:
        return Replica(
            name=name,
            store=place.store,
            directory=directory,
            queue_root="",
            identity=identity,
            checkpoint=checkpoint,
            segment_size=0,
            segments=(),
            index_end=0,
            head_unit=False,
            problems=(),
        )
    data = place.data or f"{directory}/{DATA_DIR}"
    # Read before the segments are listed: those of a live log then hold every entry that has a unit.
    index_end = _index_end(files, directory, name, problems)
    segments = list(_list_segments(files, data, name, problems))
    sizes = [segment.size for segment in segments]
    segment_size = max(sizes, default=0)
    if identity is not None:
        wrong = _size_misfit(identity.segment_size, segments)
        if wrong:
            problems.append(finding("IDENTITY", name, wrong))
        else:
            segment_size = identity.segment_size
    begins = _read_begins(files, directory, name, problems)  # read last: a live node writes it first
    snapshots = tuple(_list_snapshots(files, directory, name, problems))
    members = _read_members(files, directory, name, identity, checkpoint, problems)
    first = segments[0].first_index if segments else None
    applied, deleted = _read_state(files, place.state_file, name, problems)
    return Replica(
        name=name,
        store=place.store,
        directory=directory,
        queue_root=place.queue_root,
        data=data,
        key_root=place.key_root,
        state_file=place.state_file,
        applied=applied,
        deleted=deleted,
        identity=identity,
        checkpoint=checkpoint,
        segment_size=segment_size,
        segments=tuple(segments),
        index_end=index_end,
        head_unit=first is not None and first > 0 and _has_unit(files, directory, first - 1),
        problems=tuple(problems),
        snapshots=snapshots,
        begins=begins,
        units_due=_units_due(files, directory, name, index_end, segments, begins),
        members=members,
    )


def _size_misfit(said: int, segments: list[Segment]) -> str:
    """Return the reason why segments cannot have the size in the identity file; empty if they can.

    A file that is too short may have been cut. Then the other files have that size, or begin at multiples of
    it.
    """
    sizes = {segment.size for segment in segments}
    longer = max(sizes, default=0) > said
    elsewhere = said > 0 and any(segment.start % said for segment in segments)
    all_of_another = len(sizes) == 1 and said not in sizes and len(segments) > 1
    if said > 0 and not longer and not elsewhere and not all_of_another:
        return ""
    there = ", ".join(map(str, sorted(sizes - {said})[:3]))
    return f"identity file: it says segments of {said} bytes; there are files of {there or 'that size'}" + (
        " that begin elsewhere" if elsewhere and not sizes - {said} else ""
    )


def _units_due(
    files: Files, directory: str, name: str, index_end: int, segments: list[Segment], begins: int
) -> int:
    """Compute `ReplicaRow.units_due`. All units of a segment are written before the next segment gets its
    first entry.

    `index_end` was read before the segments were listed. A live node may have begun a new segment since then.
    """
    filled = [segment for segment in segments if segment.first_index is not None]
    sealed_end = filled[-1].first_index or 0 if filled else 0
    if index_end >= sealed_end or begins > filled[-1].start:  # the log is being replaced
        return 0
    unreadable: list[Finding] = []
    again = _index_end(files, directory, name, unreadable)
    return sealed_end if again < sealed_end and not unreadable else 0


def log_start(files: Files, log: Replica | SegmentTask) -> int:
    """Log offset where a replica's log begins now, from its record or its first segment. Raises OSError."""
    names = files.listdir(log.data or f"{log.directory}/{DATA_DIR}")
    starts = [start for name in names if (start := parse_segment_name(name)) is not None]
    noted = _read_begins(files, log.directory, "", [])
    return max(min(starts, default=0), 0 if noted == _ANYWHERE else noted)


def _read_begins(files: Files, directory: str, name: str, problems: list[Finding]) -> int:
    """Read `Replica.begins`. An invalid file is added to `problems`; the result is then higher than any
    offset."""
    path = f"{directory}/{BEGINS_FILE}"
    try:
        data = read_file(files, path)
        said = decode_json(data).get("pos") if data is not None else -1
        if not isinstance(said, int):
            raise CorruptFile("it holds no position")
    except (CorruptFile, ValueError) as error:
        problems.append(finding("IDENTITY", name, f"{path}: {error}"))
        return _ANYWHERE
    return said


def _list_snapshots(files: Files, directory: str, name: str, problems: list[Finding]) -> Iterator[Manifest]:
    for file_name in files.listdir(f"{directory}/{SNAPSHOTS_DIR}"):
        pos = parse_segment_name(file_name)
        if pos is None:
            continue
        path = f"{directory}/{SNAPSHOTS_DIR}/{file_name}"
        try:
            data = read_file(files, f"{path}/{MANIFEST_FILE}")
            if data is None:
                raise CorruptFile("no manifest")
            manifest = decode_manifest(data)
            if manifest.pos != pos:
                raise CorruptFile(f"the manifest is of the snapshot at {manifest.pos}")
        except (CorruptFile, ValueError, OSError) as error:
            if files.exists(path):  # else a live node has removed it meanwhile
                code = "UNREADABLE" if isinstance(error, OSError) else "SNAPSHOT_DAMAGED"
                problems.append(finding(code, name, f"{path}: {error}", segment=pos))
        else:
            yield manifest


def _index_end(files: Files, directory: str, name: str, problems: list[Finding]) -> int:
    """First index without a unit; 0 if the index files cannot be read, which is added to `problems`."""
    index = UnitFiles(files, f"{directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
    try:
        return index.end()
    except OSError as error:
        problems.append(finding("UNREADABLE", name, f"index file: {error}"))
        return 0
    finally:
        index.close()


def _has_unit(files: Files, directory: str, number: int) -> bool:
    """Whether the index files hold this unit. False if they cannot be read, which `_index_end` has
    reported."""
    index = UnitFiles(files, f"{directory}/{INDEX_DIR}", INDEX_UNIT_SIZE)
    try:
        magic, _, _, said, _ = INDEX_UNIT.unpack(index.read(number, 1))
    except OSError:
        return False
    finally:
        index.close()
    return bool(magic == MAGIC and said == number)


def _read_state(
    files: Files, path: str, name: str, problems: list[Finding]
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Read `Replica.applied` and `Replica.deleted` from the state file."""
    try:
        data = read_file(files, path) if path else None
        if data is None:
            return -1, ()
        held = unpack_snapshot(data)
        return held.applied, tuple((row.name, row.at) for row in held.state[DELETIONS].rows.values())
    except OSError as error:
        problems.append(finding("UNREADABLE", name, f"{path}: {error}"))
        return -1, ()
    except CorruptSnapshot as error:
        problems.append(finding("STATE_DAMAGED", name, f"{path}: {error}"))
        return -1, ()


def _read_identity(files: Files, directory: str, name: str, problems: list[Finding]) -> Identity | None:
    data = read_file(files, f"{directory}/{IDENTITY_FILE}")
    if data is None:
        return None  # a store of Apache's
    try:
        identity = decode_identity(data)
    except (CorruptFile, ValueError) as error:
        problems.append(finding("IDENTITY", name, f"identity file: {error}"))
        return None
    named = directory.rpartition("/")[2]
    if named.startswith(NODE_PREFIX) and named != f"{NODE_PREFIX}{identity.node}":
        text = f"{directory} contains the store of node {identity.node}"
        problems.append(finding("MISPLACED", name, text))
    return identity


def _read_members(
    files: Files,
    directory: str,
    name: str,
    identity: Identity | None,
    checkpoint: Checkpoint | None,
    problems: list[Finding],
) -> Members:
    """Read the members of the group. If the file is invalid, that is added to `problems`, and they are the
    founders."""
    try:
        return read_members(files, directory, identity, checkpoint.committed_index if checkpoint else -1)
    except CorruptFile as error:
        problems.append(finding("IDENTITY", name, f"members file: {error}"))
        return Members(-1, tuple(sorted(identity.members if identity else ())))


def _list_segments(files: Files, data: str, name: str, problems: list[Finding]) -> Iterator[Segment]:
    for file_name in files.listdir(data):
        start = parse_segment_name(file_name)
        if start is None:
            continue
        path = f"{data}/{file_name}"
        try:
            yield Segment(start, files.size(path), peek_first_index(files, path, start))
        except FileNotFoundError:
            # Listed and gone: retired by a live node, unless the name itself is broken.
            if files.exists(path):
                problems.append(
                    finding("UNREADABLE", name, f"{path}: a link whose target is missing", segment=start)
                )
                yield Segment(start, 0, None)
        except OSError:
            yield Segment(start, 0, None)  # the scan will say why


def peek_first_index(files: Files, path: str, start: int) -> int | None:
    """Index of the entry that begins a segment; None if there is none. Raises OSError if the segment cannot
    be read."""
    file = files.open_read(path)
    try:
        data = file.pread(HEADER_SIZE, 0)
    finally:
        file.close()
    try:
        header = unpack_header(data)
    except struct.error:
        return None
    believable = known_magic(header) and header.pos == start and header.size == HEADER_SIZE + header.body_size
    return header.index if believable and header.index >= 0 else None


def _holds(segment: Segment, following: Segment | None, index: int) -> bool:
    if segment.first_index is None or index < segment.first_index:
        return False
    return following is None or following.first_index is None or index < following.first_index


def segment_tasks(replica: Replica) -> list[SegmentTask]:
    """Make one task for each segment of a replica."""
    tasks: list[SegmentTask] = []
    filled: Segment | None = None
    for segment, following in zip(
        reversed(replica.segments), (None, *reversed(replica.segments)), strict=False
    ):
        tasks.append(
            SegmentTask(
                replica=replica.name,
                directory=replica.directory,
                queue_root=replica.queue_root,
                start=segment.start,
                size=segment.size,
                segment_size=replica.segment_size,
                committed=replica.committed,
                next_first=filled.first_index if filled is not None else None,
                index_end=replica.index_end,
                first_index=-1 if segment.first_index is None else segment.first_index,
                data=replica.data,
                key_root=replica.key_root,
                state_file=replica.state_file if _holds(segment, following, replica.applied) else "",
                next_start=filled.start if filled is not None else -1,
                applied=replica.applied,
                deleted=tuple(one for one in replica.deleted if one[1] > segment.start),
            )
        )
        if segment.first_index is not None:
            filled = segment
    return tasks[::-1]
