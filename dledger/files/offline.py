"""Reads store directories without their node, entry by entry, for `recover` and `backup`. Blocking.

Everything is read with `pread` and accepted by the rules of recovery (safety.md S1, S5, S11). The walk ends
at the first bytes that are not the next entry. Whether this is the end of the log, a torn tail or corruption
follows from the durable mark (the last index unit, S4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from dledger.formats.entry import (
    COVERED,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    CorruptEntry,
    EntryHeader,
    IndexUnit,
    Kind,
    check_entry,
    is_blank,
)
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, decode_manifest
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    DATA_DIR,
    HARD_STATE_FILE,
    IDENTITY_FILE,
    INDEX_DIR,
    SLOT_SIZE,
    SNAPSHOTS_DIR,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    decode_checkpoint,
    decode_hard_state,
    decode_identity,
    decode_json,
    parse_segment_name,
    segment_name,
)
from dledger.log.base import LogBase
from dledger.log.reading import store_time_of
from dledger.runtime import File, Files
from dledger.runtime.atomic_file import read_file

WINDOW = 2 * MAX_ENTRY_SIZE
"""Number of bytes read at once. The largest entry fits, wherever it begins."""


class InstallUnfinished(Exception):
    """Raised when the replacement of the log by a snapshot was begun and not finished. The text says what to
    do."""


class StoreUnreadable(Exception):
    """Raised when the directory is not a store, or not one that this command can use. The text says why."""


@dataclass
class Walk:
    """Result of `walk`: the log as it was accepted."""

    begin_pos: int = 0
    first_index: int = 0
    last_index: int = -1
    """Index of the last entry whose batch is whole (S11)."""
    last_term: int = -1
    last_chain: int = 0
    end_pos: int = 0
    stopped_by: str = ""
    """Description of the bytes behind the last entry, if they were neither blank nor the wanted end;
    otherwise empty."""
    covered: bool = False
    """Whether the CRC of the last entry covers its channel (`formats.entry.COVERED`)."""
    newest_ms: int = -1
    """Highest store time of a record, in ms."""
    first_config: int = -1
    """Index of the first configuration entry, -1 if there is no such entry."""


@dataclass(frozen=True)
class Found:
    """A part of one segment that was accepted: whole entries, or the blank tail (`headers` is empty then)."""

    start: int
    """Offset of the segment's first byte in the log."""
    offset: int
    data: memoryview
    headers: list[EntryHeader]


def node_directory(files: Files, store: str) -> str:
    """Return the only `dledger-<id>` directory of a storePathRootDir, or the given directory if it is one
    itself. Raises StoreUnreadable if there is no such directory, or more than one."""
    if files.is_dir(f"{store}/{DATA_DIR}") or files.exists(f"{store}/{IDENTITY_FILE}"):
        return store.rstrip("/")
    found = [name for name in files.listdir(store) if name.startswith("dledger-") and "." not in name]
    if len(found) != 1:
        names = ", ".join(found) or f"none{groups_below(files, store)}"
        raise StoreUnreadable(f"{store}: expected one dledger-<id> directory, found: {names}")
    return f"{store.rstrip('/')}/{found[0]}"


def groups_below(files: Files, store: str) -> str:
    """Return a part of an error text: where a stand-alone node has the directories of its groups."""
    paths = [path for name in files.listdir(store) if files.is_dir(path := f"{store.rstrip('/')}/{name}")]
    found = [path for path in paths if any(name.startswith("dledger-") for name in files.listdir(path))]
    return f"; one is in {', '.join(found)} (each group has its own)" if found else ""


def read_identity(files: Files, node_dir: str) -> Identity:
    """Read the identity of the store. Raises StoreUnreadable if that is not possible."""
    data = read_file(files, f"{node_dir}/{IDENTITY_FILE}")
    if data is None:
        raise StoreUnreadable(f"{node_dir} has no file {IDENTITY_FILE}: is this a store directory?")
    try:
        identity = decode_identity(data)
    except CorruptFile as error:
        raise StoreUnreadable(f"{node_dir}/{IDENTITY_FILE}: {error}") from error
    if not identity.cluster:
        raise StoreUnreadable(f"{node_dir} never belonged to a group, so it holds nothing")
    return identity


def read_hard_state(files: Files, node_dir: str) -> tuple[int, HardState] | None:
    """Return the sequence number and the term and vote of the newest slot; None if no slot can be read."""
    data = read_file(files, f"{node_dir}/{HARD_STATE_FILE}") or b""
    return decode_hard_state(data[: 2 * SLOT_SIZE])


def read_checkpoint(files: Files, node_dir: str) -> Checkpoint:
    """Read the checkpoint, which is a hint of what was committed."""
    data = read_file(files, f"{node_dir}/{CHECKPOINT_FILE}")
    return (decode_checkpoint(data) if data else None) or Checkpoint()


def index_file_size(files: Files, node_dir: str) -> int | None:
    """Size, in bytes, of an index file of this store; None if there is no index file."""
    directory = f"{node_dir}/{INDEX_DIR}"
    names = [name for name in files.listdir(directory) if parse_segment_name(name) is not None]
    return max((files.size(f"{directory}/{name}") for name in names), default=None)


def durable_mark(files: Files, node_dir: str) -> int:
    """Index of the last unit of the index files; -1 if there is none."""
    directory = f"{node_dir}/{INDEX_DIR}"
    for name in reversed(files.listdir(directory)):
        start = parse_segment_name(name)
        if start is None:
            continue
        file = files.open(f"{directory}/{name}")
        try:
            index = _last_unit(file, start)
        finally:
            file.close()
        if index >= 0:
            return index
    return -1


def _last_unit(file: File, start: int) -> int:
    step = 4096 * INDEX_UNIT_SIZE
    at = file.size() // step * step
    while at >= 0:
        data = file.pread(step, at)
        for offset in range(len(data) // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE - INDEX_UNIT_SIZE, -1, -32):
            if data[offset : offset + 4] != _UNIT_MAGIC:
                continue
            unit = IndexUnit._make(INDEX_UNIT.unpack_from(data, offset))
            if unit.index == (start + at + offset) // INDEX_UNIT_SIZE:
                return unit.index
        at -= step
    return -1


_UNIT_MAGIC = MAGIC.to_bytes(4, "big")


def begins_at(files: Files, node_dir: str) -> int:
    """Log position at which the store says that its log begins, 0 if it says nothing.

    Raises InstallUnfinished, and StoreUnreadable if the file is damaged.
    """
    said = read_file(files, f"{node_dir}/{BEGINS_FILE}")
    if said is None:
        return 0
    try:
        value = decode_json(said)
    except CorruptFile as error:
        raise StoreUnreadable(f"{node_dir}/{BEGINS_FILE}: {error}") from error
    if value.get("replace"):
        raise InstallUnfinished(
            f"{node_dir}: the install of a snapshot was interrupted: start the node once to finish it"
        )
    pos = value.get("pos")
    return pos if isinstance(pos, int) and pos > 0 else 0


def log_base(files: Files, node_dir: str) -> LogBase | None:
    """The base of the log, if the store says where it begins and has the snapshot of that position; otherwise
    None.

    Raises InstallUnfinished and StoreUnreadable as `begins_at` does.
    """
    pos = begins_at(files, node_dir)
    if not pos:
        return None
    try:
        manifest = read_file(files, f"{node_dir}/{SNAPSHOTS_DIR}/{segment_name(pos)}/{MANIFEST_FILE}")
        found = decode_manifest(manifest or b"")
    except CorruptFile:
        return None  # then the walk takes the index from the first entry
    if found.pos != pos:
        return None
    return LogBase(found.index, found.term, found.pos, found.chain, found.store_time_ms)


def segment_starts(files: Files, node_dir: str, segment_size: int) -> list[int]:
    """Offsets of the segments, ascending. Raises StoreUnreadable if one is missing in between."""
    starts = [
        start
        for name in files.listdir(f"{node_dir}/{DATA_DIR}")
        if (start := parse_segment_name(name)) is not None
    ]
    for before, after in pairwise(starts):
        if after != before + segment_size:
            raise StoreUnreadable(f"{node_dir}: segment {segment_name(before + segment_size)} is missing")
    return starts


def walk(
    files: Files,
    node_dir: str,
    segment_size: int,
    until: int | None = None,
    found: Callable[[Found], None] = lambda piece: None,
    behind: LogBase | None = None,
) -> Walk:
    """Accept entry after entry, to the end or to the first end of a batch at or behind index `until`. The
    walk begins with the log, or after the entry that `behind` describes, where an earlier walk ended.

    For a log without entries the walk ends with its base (`log_base`, whose errors are raised). `found` is
    called with every accepted part of the log, in order. The last part may hold entries of an incomplete
    batch.
    """
    walker = _Walker(segment_size, until, found)
    starts = segment_starts(files, node_dir, segment_size)
    base = log_base(files, node_dir) if behind is None else behind
    first = 0
    if base is not None:
        first = base.pos // segment_size * segment_size
        starts = [start for start in starts if start >= first]  # retention may have been cut short
        walker.begin_behind(base)
    if starts:
        if base is not None and starts[0] != first:
            raise StoreUnreadable(f"{node_dir}: segment {segment_name(first)} is missing")
        walker.result.begin_pos = walker.result.end_pos = starts[0] if base is None else base.pos
    for start in starts:
        try:
            file = files.open(f"{node_dir}/{DATA_DIR}/{segment_name(start)}")
        except FileNotFoundError:
            walker.result.stopped_by = f"segment {segment_name(start)} was removed meanwhile"
            break
        try:
            goes_on = walker.segment(file, start, base.pos - start if base and start == first else 0)
        finally:
            file.close()
        if not goes_on:
            break
    return walker.result


class _Walker:
    def __init__(self, segment_size: int, until: int | None, found: Callable[[Found], None]) -> None:
        self.result = Walk()
        self._size = segment_size
        self._until = until
        self._found = found
        self._index = -1
        self._term = -1
        self._chain: int | None = None
        self._begun = False

    def begin_behind(self, base: LogBase) -> None:
        """Expect that the first entry continues this base."""
        self._begun = True
        self._index, self._term, self._chain = base.index, base.term, base.chain
        self.result = Walk(base.pos, base.index + 1, base.index, base.term, base.chain or 0, base.pos)
        self.result.newest_ms = base.store_time_ms

    def segment(self, file: File, start: int, offset: int = 0) -> bool:
        """Walk one segment from this offset on. Return True if it ended with a blank tail, so that the next
        segment may follow."""
        while True:
            window = memoryview(file.pread(min(WINDOW, self._size - offset), offset))
            headers: list[EntryHeader] = []
            at = 0
            ended = ""
            for header in self._entries(window, start + offset):
                if isinstance(header, str):
                    ended = header
                    break
                headers.append(header)
                at += header.size
                if self._until is not None and self.result.last_index >= self._until:
                    ended = _WANTED_END
                    break
            if headers:
                self._found(Found(start, offset, window[:at], headers))
            offset += at
            if ended == _WANTED_END:
                return False
            if ended == _MORE and headers:
                continue
            if is_blank(window, at):
                self._found(Found(start, offset, window[at : at + MIN_BLANK_SIZE], []))
                return True
            if any(window[at : at + HEADER_SIZE]):
                self.result.stopped_by = ended
            return False

    def _entries(self, window: memoryview, pos: int) -> Iterator[EntryHeader | str]:
        """Yield the accepted headers of a window that begins at log offset `pos`, and at the end the reason
        why there are no more."""
        at = 0
        while True:
            if len(window) - at < MAX_ENTRY_SIZE and len(window) == WINDOW:
                yield _MORE
                return
            if not self._begun:
                self._begin(window)
            try:
                header = check_entry(window, at, self._index + 1, pos + at, self._term, self._chain)
            except CorruptEntry as error:
                yield str(error)
                return
            self._believe(header)
            self.result.newest_ms = max(self.result.newest_ms, store_time_of(window, at))
            at += header.size
            yield header

    def _begin(self, window: memoryview) -> None:
        """Take the index of the first entry from the entry itself."""
        self._begun = True
        if len(window) >= HEADER_SIZE:
            self._index = int.from_bytes(window[8:16], "big", signed=True) - 1
            self._chain = 0 if self._index == -1 else None

    def _believe(self, header: EntryHeader) -> None:
        if self.result.last_index < 0 and self._term < 0:
            self.result.first_index = header.index
        self._index, self._term, self._chain = header.index, header.term, header.chain_crc
        if header.kind == Kind.CONFIG and self.result.first_config < 0:
            self.result.first_config = header.index
        if header.batch_remaining == 0:
            result = self.result
            result.last_index, result.last_term = header.index, header.term
            result.last_chain, result.end_pos = header.chain_crc, header.pos + header.size
            result.covered = bool(header.channel & COVERED)


_MORE = "more"
_WANTED_END = "end"
