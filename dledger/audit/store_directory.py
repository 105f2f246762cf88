"""The content of a store directory, read once before anything is scanned.

A live store may be audited. Its checkpoint is read first, and the audit requires only entries up to the
committed index in it. Data that is written later may be read, but is never reported as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dledger.audit.findings import Finding, ReplicaRow, finding
from dledger.audit.membership import FOUNDERS_UNKNOWN, Members
from dledger.audit.segment_places import (
    NO_PLACES,
    QUEUES_DIR,
    ROOT_KEY,
    SELF_ID_KEY,
    Segment,
    SegmentPlaces,
    find_directories,
    list_segments,
    read_broker_conf,
)
from dledger.audit.small_files import (
    ANYWHERE,
    NODE_PREFIX,
    Claims,
    list_snapshots,
    read_begins,
    read_checkpoint,
    read_claims,
    read_group,
    read_identity,
)
from dledger.audit.unit_files import UnitFiles
from dledger.formats.entry import APACHE_MAGICS, INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.index_file import NAME_DIGITS
from dledger.formats.snapshot import Manifest
from dledger.formats.state_file import SNAPSHOT_FILE, STATE_DIR
from dledger.formats.store_files import (
    DATA_DIR,
    IDENTITY_FILE,
    INDEX_DIR,
    POOL_DIR,
    Checkpoint,
    Identity,
    parse_segment_name,
)
from dledger.runtime import Files
from dledger.runtime.settings import ConfigError

_NO_CLAIMS = Claims()


class StoreError(Exception):
    """Raised when a path is not a store directory, or cannot be read. The audit cannot run."""


class UnreadableStore(StoreError):
    """Raised when a store exists and cannot be read. `node` is its node, empty if that is not known."""

    def __init__(self, path: str, node: str, error: OSError) -> None:
        super().__init__(f"{path}: {error}")
        self.node = node


@dataclass(frozen=True)
class Replica:
    """One node's log directory. `places` are the directories of its segments. `queue_root` and `key_root` are
    the directories of ConsumeQueues and IndexFiles, empty if they do not exist or may belong to another node.
    """

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
    places: SegmentPlaces = NO_PLACES
    key_root: str = ""
    state_file: str = ""
    state_dir: str = ""
    """Directory of the broker's state file, empty if it may belong to another node."""
    claims: Claims = _NO_CLAIMS
    snapshots: tuple[Manifest, ...] = ()
    """Boundary snapshots with a valid manifest, by position."""
    begins: int = -1
    """Where the log begins, -1 if the node never recorded it. A node records it before it removes earlier
    segments, and before it installs a snapshot in their place."""
    units_due: int = 0
    """See `ReplicaRow`."""
    members: Members = FOUNDERS_UNKNOWN
    whole_units: bool = True
    """Whether the last index unit is one that was written for its entry."""

    @property
    def applied(self) -> int:
        """The entry after which the broker's state file was taken, -1 if there is none."""
        return self.claims.applied

    @property
    def deleted(self) -> tuple[tuple[str, int], ...]:
        """Deleted topics according to the state file, each with the log offset up to which its messages
        belong to the deleted topic."""
        return self.claims.deleted

    @property
    def snapshot_index(self) -> int:
        """Highest entry of which a boundary snapshot existed before the segments were listed; -1 if there was
        none."""
        return max((one.index for one in self.snapshots if one.pos in self.claims.snapshots), default=-1)

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
            written=self.claims.written,
            snapshot_index=self.snapshot_index,
            whole_units=int(self.whole_units),
            begins=-1 if self.begins == ANYWHERE else self.begins,
        )


@dataclass(frozen=True)
class SegmentTask:
    """Everything that a scan of one segment needs.

    * `first_index`: index in its first header, -1 if no entry begins there.
    * `next_first`: first index of the next segment that begins with an entry, None if there is none.
    * `ours`: whether a node of this project wrote the log.
    * `configs`: indexes of the configuration entries according to the file `members`, None if it does not
      say.
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
    places: SegmentPlaces = NO_PLACES
    key_root: str = ""
    state_file: str = ""
    next_start: int = -1
    applied: int = -1
    deleted: tuple[tuple[str, int], ...] = ()
    ours: bool = False
    configs: tuple[int, ...] | None = None

    @property
    def path(self) -> str:
        """Path of the segment's file."""
        return self.path_of(self.start)

    def path_of(self, start: int) -> str:
        """Path of the file of this segment, or of the next one with entries."""
        return self.places.path_of(start)


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
    """Return the replicas of one store: usually one, or several if nodes share the directory. The path may
    also be the broker.conf of a broker of Apache's. Blocking. Raises StoreError, and UnreadableStore for a
    store whose files cannot be read."""
    path = path.rstrip("/") or "/"
    node = ""
    try:
        if not files.is_dir(path):
            if not files.exists(path):
                raise StoreError(f"{path}: no such directory")
            return [_open_replica(files, _place_of_conf(files, path), listed)]
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
    except ConfigError as error:
        raise StoreError(str(error)) from error
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
    """Directories of one replica (see `Replica`). `data`: those of its segments."""

    store: str
    directory: str
    data: tuple[str, ...] = ()
    queue_root: str = ""
    key_root: str = ""
    state_file: str = ""
    state_dir: str = ""


def _place_of_conf(files: Files, path: str) -> _Place:
    """Find the directories of the store of the broker with this broker.conf."""
    conf = read_broker_conf(files, path)
    if not files.is_dir(conf.root):
        raise StoreError(f"{path}: {conf.root}: no such directory ({ROOT_KEY})")
    nodes = [name for name in files.listdir(conf.root) if name.startswith(NODE_PREFIX)]
    wanted = [name for name in nodes if conf.node in ("", name.removeprefix(NODE_PREFIX))]
    if len(wanted) != 1:
        there = ", ".join(nodes) or f"no directory {NODE_PREFIX}<id>"
        raise StoreError(
            f"{path}: {conf.root} ({ROOT_KEY}) holds {there}: set {SELF_ID_KEY} to the id of the node"
        )
    place = _place(files, conf.root, f"{conf.root}/{wanted[0]}")
    return place._replace(store=path, data=conf.directories or place.data)


def _place(files: Files, store: str, directory: str) -> _Place:
    """Find the directories of the only node under a `storePathRootDir`."""
    ours = files.exists(f"{directory}/{IDENTITY_FILE}")
    queues = f"{store}/{QUEUES_DIR}"
    if not files.is_dir(queues) and ours:
        # A node makes its pool at its first start. Without any of these it is a backup of the log alone.
        started = any(map(files.is_dir, (f"{directory}/{POOL_DIR}", f"{store}/{STATE_DIR}")))
        queues = queues if started else ""
    keys = f"{store}/{INDEX_DIR}"
    has_keys = any(len(name) == NAME_DIGITS and name.isdigit() for name in files.listdir(keys))
    state_file = f"{store}/{STATE_DIR}/{SNAPSHOT_FILE}"
    return _Place(
        store,
        directory,
        () if ours else find_directories(files, store, directory),
        queues,
        keys if has_keys else "",
        state_file if files.exists(state_file) else "",
        f"{store}/{STATE_DIR}",
    )


def _open_replica(files: Files, place: _Place, listed: bool) -> Replica:
    directory = place.directory
    name = directory.rpartition("/")[2].removeprefix(NODE_PREFIX)
    problems: list[Finding] = []
    checkpoint = read_checkpoint(files, directory, name, problems)  # before anything else (live stores)
    identity = read_identity(files, directory, name, problems)
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
    # Read before the segments are listed: those of a live log then hold every entry that has a unit, and all
    # that other files say.
    claims = read_claims(files, directory, place.state_file, name, problems)
    index_end = _index_end(files, directory, name, problems)
    places, segments = list_segments(files, place.data or (f"{directory}/{DATA_DIR}",), name, problems)
    sizes = [segment.size for segment in segments]
    segment_size = max(sizes, default=0)
    if identity is not None:
        wrong = _size_misfit(identity.segment_size, segments)
        if wrong:
            problems.append(finding("IDENTITY", name, wrong))
        if not wrong or _is_size_of(identity.segment_size, segments):
            segment_size = identity.segment_size
    begins = read_begins(files, directory, name, problems)  # read last: a live node writes it first
    snapshots = tuple(list_snapshots(files, directory, name, problems))
    members = read_group(files, directory, name, identity, checkpoint, problems)
    first = segments[0].first_index if segments else None
    return Replica(
        name=name,
        store=place.store,
        directory=directory,
        queue_root=place.queue_root,
        places=places,
        key_root=place.key_root,
        state_file=place.state_file,
        state_dir=place.state_dir,
        claims=claims,
        identity=identity,
        checkpoint=checkpoint,
        segment_size=segment_size,
        segments=segments,
        index_end=index_end,
        head_unit=first is not None and first > 0 and _has_unit(files, directory, first - 1),
        problems=tuple(problems),
        snapshots=snapshots,
        begins=begins,
        units_due=_units_due(files, directory, name, index_end, segments, begins),
        members=members,
        whole_units=index_end == 0 or _has_unit(files, directory, index_end - 1),
    )


def _size_misfit(said: int, segments: Sequence[Segment]) -> str:
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


def _is_size_of(said: int, segments: Sequence[Segment]) -> bool:
    """Whether some segments have this size and all begin at multiples of it, so that files of other sizes are
    wrong."""
    return (
        said > 0
        and any(one.size == said for one in segments)
        and not any(one.start % said for one in segments)
    )


def _units_due(
    files: Files, directory: str, name: str, index_end: int, segments: Sequence[Segment], begins: int
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
    names = [name for directory in log.places.directories for name in files.listdir(directory)]
    starts = [start for name in names if (start := parse_segment_name(name)) is not None]
    noted = read_begins(files, log.directory, "", [])
    return max(min(starts, default=0), 0 if noted == ANYWHERE else noted)


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
    return bool(magic in APACHE_MAGICS and said == number)


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
                places=replica.places.only({segment.start, filled.start if filled else segment.start}),
                key_root=replica.key_root,
                state_file=replica.state_file if _holds(segment, following, replica.applied) else "",
                next_start=filled.start if filled is not None else -1,
                applied=replica.applied,
                deleted=tuple(one for one in replica.deleted if one[1] > segment.start),
                ours=replica.identity is not None,
                configs=replica.members.places,
            )
        )
        if segment.first_index is not None:
            filled = segment
    return tasks[::-1]
