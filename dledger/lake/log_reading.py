"""Reads the committed entries of a broker group in order of the log, and checks them.

Every entry that is returned matches its CRC, and its chain value continues that of the entry before it
(`formats.entry`). So two readers of the same range see the same entries, or one of them gets `LogDamaged`.
All calls block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from dledger.audit.entries import Before, Entry, columns_of, join, plain_run
from dledger.audit.scan import Window
from dledger.audit.store_directory import Replica, StoreError
from dledger.client.bulk.replicas import ReplicaClient, find_groups
from dledger.client.errors import ClientError, NoBroker
from dledger.formats.entry import CorruptEntry, check_entry
from dledger.runtime.remote_files import files_for
from dledger.spark.stores import IndexUnits, known_committed, open_replicas

READ_BYTES = 4 * 1024 * 1024
"""Number of bytes of the log in one request. Brokers send at most this many, unless one entry is larger."""


class LogDamaged(StoreError):
    """An entry of the log is damaged, or does not continue the entry before it."""


class LogGone(StoreError):
    """Entries that are needed were deleted from the log by retention."""


class LogState(NamedTuple):
    """What a log holds now. `cluster` is the id of the log, `group` the name of its broker group. `begin` is
    the index of its first entry, `committed` that of the last committed entry."""

    cluster: str
    group: str
    begin: int
    committed: int


@dataclass(frozen=True)
class LogPlace:
    """Where a task finds a log: a store directory, or the brokers of a group behind NameServers."""

    store: str = ""
    servers: str = ""
    group: str = ""

    @contextmanager
    def open(self) -> Iterator[Log]:
        """Open the log."""
        if self.store:
            (replica,) = open_replicas([self.store])
            yield StoreLog(replica)
        else:
            with GroupLog(self.servers, self.group) as log:
                yield log


class Chunk(NamedTuple):
    """Bytes of a log. `position` is the log offset of the first byte."""

    position: int
    data: bytes


class Log(Protocol):
    """A log whose bytes can be read, from one of its copies. Methods raise StoreError or ClientError."""

    @property
    def name(self) -> str:
        """Name of the copy that is read, for texts."""

    @property
    def place(self) -> LogPlace:
        """Where another process finds the log."""

    @property
    def copies(self) -> int:
        """How many copies of the log there are."""

    def turn(self) -> None:
        """Read another copy from now on."""

    def state(self) -> LogState:
        """Return what the log holds now."""

    def chunk(self, first: int) -> Chunk:
        """Return bytes that begin with entry `first`, which is committed. They contain at least this entry,
        and may end within another. Raises LogGone if the log begins behind entry `first`."""


class Link(NamedTuple):
    """The end of what was read so far: index, term and chain value of the last entry. `chain` is -1 if it is
    not known."""

    index: int  # type: ignore[assignment]  # the field's name; tuple.index is not used
    term: int
    chain: int


def link_before(log: Log, first: int, begin: int) -> Link:
    """Return the link of the entry before `first`. Its chain value is not known if `first` is the first
    entry that the log still holds."""
    if first == 0:
        return Link(-1, -1, 0)
    if first <= begin:
        return Link(first - 1, -1, -1)
    for attempt in range(log.copies):
        try:
            entry = _unlinked(log.name, log.chunk(first - 1), Link(first - 2, -1, -1))
            return Link(entry.index, entry.term, entry.chain)
        except LogDamaged:
            if attempt == log.copies - 1:
                raise
            log.turn()
    raise AssertionError("a log has at least one copy")


def windows(log: Log, before: Link, last: int) -> Iterator[Window]:
    """Yield the entries after `before` up to entry `last`, which is committed. Raises LogDamaged, LogGone,
    StoreError or ClientError."""
    at = before
    while at.index < last:
        window = _next_window(log, at)
        columns = window.columns
        if columns.index[-1] > last:
            columns = columns[columns.index <= last]
        yield Window(window.data, window.base, columns)
        end = columns.entry(len(columns) - 1)
        at = Link(end.index, end.term, end.chain)


def _next_window(log: Log, before: Link) -> Window:
    """Read the entries that follow. If one copy of the log is damaged there, read another."""
    for attempt in range(log.copies):
        try:
            return _window(log.name, log.chunk(before.index + 1), before)
        except LogDamaged:
            if attempt == log.copies - 1:
                raise
            log.turn()
    raise AssertionError("a log has at least one copy")


def _window(name: str, chunk: Chunk, before: Link) -> Window:
    first, data = before.index + 1, chunk.data
    chain = None if before.chain < 0 else before.chain
    found, end = columns_of(()), 0
    if chain is None:
        entry = _unlinked(name, chunk, before)
        found, end, chain = columns_of([entry]), entry.size, entry.chain
        first, before = first + 1, Link(entry.index, entry.term, entry.chain)
    run, _ = plain_run(data, end, chunk.position, Before(first, before.term, chain, 0, bool(chain)))
    found = join([found, run])
    if not len(found):
        _unlinked(name, chunk, before)
        raise LogDamaged(
            f"{name}: entry {first} does not continue the chain of the entry before it: run the audit"
        )
    return Window(data, chunk.position, found)


def _unlinked(name: str, chunk: Chunk, before: Link) -> Entry:
    """Return the first entry of the bytes, checked without the entry before it. Raises LogDamaged."""
    try:
        header = check_entry(chunk.data, 0, before.index + 1, chunk.position, max(before.term, 0), None)
    except CorruptEntry as error:
        raise LogDamaged(
            f"{name}: entry {before.index + 1} is damaged: {error.reason}: run the audit"
        ) from error
    crc = header.body_crc
    return Entry(
        header.index, header.term, header.pos, header.size, header.channel, crc, crc, header.chain_crc, 0
    )


@dataclass
class BrokerLog:
    """The log of one broker (`Log`). Use it inside its `with` block."""

    address: str

    def __post_init__(self) -> None:
        self._client = ReplicaClient(self.address)

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)

    @property
    def name(self) -> str:
        return self.address

    def state(self) -> LogState:
        header = self._client.log(0, 1).header
        return LogState(header.cluster, header.group, header.begin, header.applied)

    def chunk(self, first: int) -> Chunk:
        header, data = self._client.log(first, READ_BYTES)
        if data:
            return Chunk(header.position, data)
        if first < header.begin:
            raise LogGone(
                f"{self.address}: retention deleted entries {first} to {header.begin - 1} of the log"
            )
        raise NoBroker(f"{self.address}: entry {first} is committed, but this broker has not applied it yet")


class GroupLog:
    """The log of a broker group (`Log`), read from one of its brokers: a follower, if there is one. If that
    broker fails, the next one is asked. Use it inside its `with` block."""

    def __init__(self, servers: str | Sequence[str], group: str) -> None:
        self._servers, self._group = servers, group
        self._stack = ExitStack()
        self._brokers: deque[BrokerLog] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        return f"{self._group} ({self._brokers[0].name})" if self._brokers else self._group

    @property
    def place(self) -> LogPlace:
        servers = self._servers if isinstance(self._servers, str) else ";".join(self._servers)
        return LogPlace(servers=servers, group=self._group)

    @property
    def copies(self) -> int:
        return max(1, len(self._brokers))

    def turn(self) -> None:
        self._brokers.rotate(-1)

    def state(self) -> LogState:
        """See `Log`. All brokers are asked, because retention is up to each of them, and a follower may be
        behind."""
        self._find()
        found: list[LogState] = []
        for broker in self._brokers:
            try:
                found.append(broker.state())
            except ClientError as error:
                failure = error
        if not found:
            self._forget()  # brokers may have moved: the next call asks the NameServers
            raise failure
        cluster = next((one.cluster for one in found if one.cluster), "")
        begin, committed = min(one.begin for one in found), max(one.committed for one in found)
        return LogState(cluster, found[0].group, begin, committed)

    def chunk(self, first: int) -> Chunk:
        """See `Log`. The brokers are asked one after the other until one has the entry."""
        self._find()
        failures: list[ClientError | LogGone] = []
        for _ in range(len(self._brokers)):
            try:
                return self._brokers[0].chunk(first)
            except (ClientError, LogGone) as error:
                failures.append(error)
                self.turn()
        self._forget()
        raise next((one for one in failures if not isinstance(one, LogGone)), failures[-1])

    def _find(self) -> None:
        if self._brokers:
            return
        (found,) = find_groups(self._servers, group=self._group)
        leader, *followers = found.addresses
        for address in (*followers, leader):
            self._brokers.append(self._stack.enter_context(BrokerLog(address)))

    def _forget(self) -> None:
        self._stack.close()
        self._brokers.clear()


class StoreLog:
    """The log in a store directory (`Log`), of our brokers or of Apache's."""

    copies = 1

    def __init__(self, replica: Replica, read_bytes: int = READ_BYTES) -> None:
        self._replica, self._read_bytes = replica, read_bytes
        self._files = files_for(replica.directory)
        self._committed = known_committed(replica)

    @property
    def name(self) -> str:
        return self._replica.store

    @property
    def place(self) -> LogPlace:
        return LogPlace(store=self._replica.directory)

    def turn(self) -> None:
        """Do nothing, as there is only one copy."""

    def state(self) -> LogState:
        identity, segments = self._replica.identity, self._replica.segments
        begin = next((one.first_index for one in segments if one.first_index is not None), 0)
        cluster = identity.cluster if identity else ""
        return LogState(cluster, self._replica.group, begin, self._committed)

    def chunk(self, first: int) -> Chunk:
        with closing(IndexUnits(self._files, self._replica)) as units:
            position, end = units.position(first), units.end_position(first)
        if position is None or end is None:
            begin = self.state().begin
            if first < begin:
                raise LogGone(f"{self.name}: entries {first} to {begin - 1} are not in this store")
            raise LogDamaged(f"{self.name}: its index files do not name entry {first}: run the audit")
        start = position - position % self._replica.segment_size
        try:
            file = self._files.open_read(self._replica.places.path_of(start))
        except FileNotFoundError as error:
            raise LogDamaged(
                f"{self.name}: the segment of entry {first} is missing: run the audit"
            ) from error
        with closing(file):
            return Chunk(position, file.pread(max(self._read_bytes, end - position), position - start))
