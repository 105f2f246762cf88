"""Finds the directories that hold the segments of a log.

A node of this project has one, `dledger-<id>/data`. Apache's brokers can spread the log over several:
`storePathDLedgerCommitLog` takes a list of paths, `readOnlyCommitLogStorePaths` names those to which nothing
is written any more, and every segment is in one of them. Neither the store nor the names of the files say
which, so the list comes from broker.conf, or directories below `storePathRootDir` are looked at.

All functions block.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from dledger.audit.findings import Finding, finding
from dledger.audit.small_files import NODE_PREFIX
from dledger.formats.entry import HEADER_SIZE, known_magic, unpack_header
from dledger.formats.store_files import DATA_DIR, INDEX_DIR, parse_segment_name, segment_name
from dledger.runtime import Files
from dledger.runtime.properties_file import read_properties
from dledger.runtime.settings import ConfigError

QUEUES_DIR = "consumequeue"
ROOT_KEY = "storePathRootDir"
WRITTEN_KEY = "storePathDLedgerCommitLog"
READ_ONLY_KEY = "readOnlyCommitLogStorePaths"
SELF_ID_KEY = "dLegerSelfId"
MAX_CONF_SIZE = 1024 * 1024
"""Largest size of a broker.conf, in bytes."""
_NO_SEGMENTS = (DATA_DIR, INDEX_DIR, QUEUES_DIR)
"""Directories of a store that are not looked at for further segments."""


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
class SegmentPlaces:
    """The directories with the segments of one log, and where each segment is.

    `elsewhere`: log offsets, ascending, of segments that are not in the first directory, each with the number
    of its directory.
    """

    directories: tuple[str, ...]
    elsewhere: tuple[tuple[int, int], ...] = ()

    @property
    def first(self) -> str:
        """The first directory: that of a log with only one."""
        return self.directories[0]

    def path_of(self, start: int) -> str:
        """Path of the segment that begins at this log offset."""
        at = bisect_left(self.elsewhere, (start, 0))
        found = self.elsewhere[at : at + 1]
        number = found[0][1] if found and found[0][0] == start else 0
        return f"{self.directories[number]}/{segment_name(start)}"

    def only(self, starts: Collection[int]) -> SegmentPlaces:
        """Return the same places, but only of these segments, so that a task of one segment is small."""
        if not self.elsewhere:
            return self
        return replace(self, elsewhere=tuple(one for one in self.elsewhere if one[0] in starts))


NO_PLACES = SegmentPlaces(("",))
"""Those of a replica whose files are not read here."""


@dataclass(frozen=True)
class BrokerConf:
    """What the broker.conf of a broker of Apache's says about its store. `node`: dLegerSelfId, empty if it is
    not there. `directories`: those with segments, empty if the broker uses its default."""

    root: str
    node: str
    directories: tuple[str, ...]


def read_broker_conf(files: Files, path: str) -> BrokerConf:
    """Read a broker.conf. Relative paths in it begin at its directory. Raises ConfigError, and OSError if the
    file cannot be read."""
    if files.size(path) > MAX_CONF_SIZE:
        raise ConfigError(f"{path}: neither a store directory (storePathRootDir) nor a broker.conf")
    said = {one.key: one.value.strip() for one in read_properties(files, path)}
    above = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")

    def absolute(named: str) -> str:
        return (named if named.startswith("/") else f"{above}/{named}").rstrip("/") or "/"

    if not said.get(ROOT_KEY):
        raise ConfigError(
            f"{path}: neither a store directory (storePathRootDir) nor a broker.conf that sets {ROOT_KEY}"
        )
    listed = [said.get(key, "").split(",") for key in (WRITTEN_KEY, READ_ONLY_KEY)]
    if not any(name.strip() for name in listed[0]):
        listed = []  # the default: there is no list of paths then
    directories = dict.fromkeys(absolute(name.strip()) for names in listed for name in names if name.strip())
    for directory in directories:
        if not files.is_dir(directory):
            raise ConfigError(
                f"{path}: {directory}: no such directory: write the paths of the copy into a copy of "
                "this file"
            )
    return BrokerConf(absolute(said[ROOT_KEY]), said.get(SELF_ID_KEY, ""), tuple(directories))


def find_directories(files: Files, store: str, directory: str) -> tuple[str, ...]:
    """Return the directories with segments of the only node under a `storePathRootDir`, which Apache's broker
    wrote: `data` in the node's directory, and all directories in the store that hold entries."""
    data = f"{directory}/{DATA_DIR}"
    found = [data] if files.is_dir(data) else []
    known = set(_segment_names(files, data))
    for above in (store, directory):
        for name in files.listdir(above):
            path = f"{above}/{name}"
            if name in _NO_SEGMENTS or name.startswith(NODE_PREFIX) or not files.is_dir(path):
                continue
            names = set(_segment_names(files, path))
            if names - known and holds_entries(files, path):  # else it is a copy of what is already found
                found.append(path)
                known |= names
    return tuple(found) or (data,)


def _segment_names(files: Files, directory: str) -> list[str]:
    return [name for name in files.listdir(directory) if parse_segment_name(name) is not None]


def holds_entries(files: Files, directory: str) -> bool:
    """Whether the files of a directory are segments, and not those of a CommitLog without DLedger."""
    return any(
        peek_first_index(files, f"{directory}/{name}", int(name)) is not None
        for name in _segment_names(files, directory)
    )


def list_segments(
    files: Files, directories: Sequence[str], name: str, problems: list[Finding]
) -> tuple[SegmentPlaces, tuple[Segment, ...]]:
    """List the segments of these directories in the order of the log. Of files with the same name, the one
    that holds entries counts, and the others are added to `problems`."""
    found: dict[int, tuple[Segment, int]] = {}
    for number, directory in enumerate(directories):
        for segment in _segments_of(files, directory, name, problems):
            before, where = found.setdefault(segment.start, (segment, number))
            if where == number:
                continue
            text = f"{directories[where]} and {directory} both hold this file"
            problems.append(finding("SEGMENT_TWICE", name, text, segment=segment.start))
            if before.first_index is None:
                found[segment.start] = segment, number
    elsewhere = tuple((start, found[start][1]) for start in sorted(found) if found[start][1])
    places = SegmentPlaces(tuple(directories), elsewhere)
    return places, tuple(found[start][0] for start in sorted(found))


def _segments_of(files: Files, data: str, name: str, problems: list[Finding]) -> Iterator[Segment]:
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
