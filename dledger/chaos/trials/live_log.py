"""Reads the log of a running group over the network, for the judges of a trial at a group that others have
started.

Only what belongs to the trial is kept: its topics and consumer groups have a namespace of their own. So all
queues of the trial begin at offset 0, whatever else the log holds.
"""

from __future__ import annotations

from typing import Any, Protocol

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_replay import BrokerReplay
from dledger.chaos.scenarios.oracle import Offsets, Topics
from dledger.chaos.trials.evidence import UNREADABLE
from dledger.client.namespaces import without_namespace
from dledger.formats.entry import HEADER_SIZE, CorruptEntry, EntryHeader, check_entry, is_blank, unpack_header
from dledger.formats.record import Record

GIB = 1024 * 1024 * 1024
MAX_READ_BYTES = 16 * GIB
"""Largest part of a group's log that one trial reads, in bytes, with what others write meanwhile. A longer
log is not judged."""


class LogBytes(Protocol):
    """Bytes of a log. `position` is the log offset of the first byte."""

    @property
    def position(self) -> int: ...

    @property
    def data(self) -> bytes: ...


class LogSource(Protocol):
    """A log that is read over the network (`dledger.lake.log_reading.GroupLog`)."""

    def chunk(self, first: int) -> LogBytes:
        """Return bytes that begin with entry `first`, which is committed. They contain at least this entry,
        and may end within another. Raises ClientError or StoreError."""


class NamespaceReplay(BrokerReplay):
    """The state of the topics and groups of one namespace. Names are without the namespace. Entries of others
    are checked only for their store time."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace

    def _stored(self, header: EntryHeader, record: Record) -> None:
        if self._ours(record.topic):
            plain = without_namespace(record.topic, self._namespace)
            super()._stored(header, record._replace(topic=plain))
            return
        if record.store_timestamp < self.last_store_ms:
            raise InvariantViolated(f"store time goes back at entry {header.index}, of {record.topic}")
        self.last_store_ms = record.store_timestamp

    def _operation(self, op: dict[str, Any]) -> None:
        kind = op["op"]
        if kind in Offsets.operations and self._ours(op["group"]):
            rows = [[self._plain(topic), queue, offset] for topic, queue, offset in op["offsets"]]
            super()._operation({**op, "group": self._plain(op["group"]), "offsets": rows})
        elif kind in Topics.operations and self._ours(op["name"]):
            super()._operation({**op, "name": self._plain(op["name"])})

    def _plain(self, name: str) -> str:
        return without_namespace(name, self._namespace)

    def _ours(self, name: str) -> bool:
        return belongs_to(name, self._namespace)


def belongs_to(name: str, namespace: str) -> bool:
    """Whether a topic or consumer group, as brokers name it, belongs to this namespace. Topics that belong to
    no namespace, such as those of replies, never do."""
    return without_namespace(name, namespace) != name


class LiveLog:
    """The log of a running group from one entry on. `read` continues where it ended before."""

    def __init__(self, source: LogSource, begin: int, namespace: str) -> None:
        self.begin: int = begin
        """Index of the first entry that is read."""
        self.replay: NamespaceReplay = NamespaceReplay(namespace)
        self.broken: str = ""
        """The rule that the log breaks; empty if it breaks none. Nothing more is read then."""
        self._source = source
        self._next = begin
        self._term = 0
        self._chain: int | None = None
        self._bytes = 0

    def read(self, until: int) -> None:
        """Read up to entry `until`, which is committed. Raises ClientError or StoreError if no broker has the
        entries."""
        while self._next <= until and not self.broken:
            chunk = self._source.chunk(self._next)
            self._bytes += len(chunk.data)
            if self._bytes > MAX_READ_BYTES:
                self.broken = (
                    f"more than {MAX_READ_BYTES // GIB} GiB were written to the log during the trial: "
                    "the rest is not read"
                )
                return
            self._walk(chunk, until)

    def _walk(self, chunk: LogBytes, until: int) -> None:
        data, at = chunk.data, 0
        while self._next <= until and len(data) - at >= HEADER_SIZE and not is_blank(data, at):
            size = unpack_header(data, at).size
            if at and at + max(size, 1) > len(data):
                return  # the next chunk has the whole entry
            try:
                header = check_entry(data, at, self._next, chunk.position + at, self._term, self._chain)
                self.replay.apply(header, data[at + HEADER_SIZE : at + header.size])
            except CorruptEntry as error:
                self.broken = f"entry {self._next} is damaged: {error.reason}"
                return
            except InvariantViolated as error:
                self.broken = str(error)
                return
            except UNREADABLE as error:
                self.broken = f"the judge cannot follow entry {self._next}: {error!r}"
                return
            self._next += 1
            self._term, self._chain = header.term, header.chain_crc
            at += header.size
        if not at:
            self.broken = f"entry {self._next} cannot be read"
