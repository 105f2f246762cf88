"""Replicas behind live brokers, for the audit with and without Spark. Brokers scan their own disks and
send the rows.

The brokers of a group are found through the NameServers. Members that are not registered there are asked
too, if a registered broker knows their address. A broker that does not answer becomes a finding and does
not end the audit: the other replicas are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dledger.audit.digests import BLOCK_ENTRIES, DIGEST_VERSION
from dledger.audit.findings import Finding, QueueRow, ReplicaRow, Row, finding, unread_segment
from dledger.audit.replicas import Look
from dledger.audit.row_codec import (
    AnyRow,
    EntriesRow,
    MemberRow,
    TaskRow,
    UnitsRow,
    UnknownRow,
    as_task,
    decode_page,
)
from dledger.audit.scan import EntryRow
from dledger.audit.segment_stamp import SegmentStamp
from dledger.audit.store_directory import SegmentTask, StoreError
from dledger.audit.walk import UNREADABLE
from dledger.client.bulk.replicas import AuditOptions, ReplicaClient, find_groups
from dledger.client.errors import ClientError, is_not_permitted

NOT_PERMITTED = (
    "The broker runs and refuses the account: reading replicas needs an administrator, given in the "
    "environment (ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY) or, for the data source, with the options "
    "accessKey and secretKeyFile or secretKeyEnv"
)
FAILURES = (ClientError, UnknownRow)
"""Errors of reading one broker. The broker is down, is not a broker of this project, or is of a newer
version."""


@dataclass(frozen=True)
class BrokerReader:
    """The `audit.replicas.SegmentReader` of one broker."""

    address: str
    description: str
    options: AuditOptions

    def scan(self, task: SegmentTask, block_entries: int = BLOCK_ENTRIES) -> Iterator[Row]:
        try:
            with ReplicaClient(self.address, self.options) as client:
                pages = client.segment(self.description, task.start, block_entries)
                yield from [_mine(row, task.replica) for row in _rows(pages)]
        except FAILURES as error:
            yield finding("UNREACHABLE", task.replica, str(error), segment=task.start)
            yield unread_segment(task.replica, task.start)

    def drill(self, task: SegmentTask, ranges: Iterable[tuple[int, int]]) -> Iterator[EntryRow]:
        try:
            with ReplicaClient(self.address, self.options) as client:
                for row in _rows(client.drill(self.description, task.start, list(ranges))):
                    if isinstance(row, EntryRow):
                        yield row._replace(replica=task.replica)
        except FAILURES:
            yield EntryRow(task.replica, -1, -1, 0, 0, 0, UNREADABLE)

    def stamp(self, task: SegmentTask, rows: Iterable[Row] | None = None) -> SegmentStamp | None:
        """Return the stamp of a segment's file, which changes if the file changes. If the broker does not
        report a stamp, raises OSError, and the segment is scanned."""
        queues = None
        if rows is not None:
            queues = [
                (row.topic, row.queue_id, row.first_offset, row.last_offset)
                for row in rows
                if isinstance(row, QueueRow)
            ]
        try:
            with ReplicaClient(self.address, self.options) as client:
                found = list(_rows(client.stamp(self.description, task.start, queues)))
        except FAILURES as error:
            raise OSError(str(error)) from error
        return next((row for row in found if isinstance(row, SegmentStamp)), None)


@dataclass(frozen=True)
class RemoteReplica:
    """The `audit.replicas.ReplicaView` of the replica of one broker."""

    reader: BrokerReader
    described: ReplicaRow
    rows: tuple[TaskRow, ...]

    @property
    def name(self) -> str:
        return self.described.replica

    def named(self, name: str) -> RemoteReplica:
        return replace(self, described=self.described._replace(replica=name))

    def row(self) -> ReplicaRow:
        return self.described

    def tasks(self) -> Sequence[SegmentTask]:
        return [as_task(row, self.name) for row in self.rows]

    def entry(self, index: int) -> bytes | None:
        try:
            with ReplicaClient(self.reader.address, self.reader.options) as client:
                return client.log(index, 1).data or None  # an entry is never cut
        except FAILURES:
            return None

    def side(self) -> Iterator[Row]:
        told = False
        try:
            with ReplicaClient(self.reader.address, self.reader.options) as client:
                for row in _rows(client.side(self.reader.description)):
                    if isinstance(row, ReplicaRow):  # the first one
                        told = True
                        yield self.described._replace(log_start=row.log_start, hard_term=row.hard_term)
                    else:
                        yield _mine(row, self.name)
        except FAILURES as error:
            if not told:
                yield self.described
            yield finding("UNREACHABLE", self.name, str(error))


@dataclass(frozen=True)
class GroupSource:
    """All replicas of one broker group (`audit.replicas.ReplicaSource`)."""

    namesrv: str
    group: str
    cluster: str | None = None
    options: AuditOptions = field(default_factory=AuditOptions)

    @property
    def place(self) -> str:
        return f"group {self.group} at {self.namesrv}"

    def look(self) -> Look:
        """Ask the brokers of the group. Raises StoreError if no NameServer answers, if none knows the group,
        or if the account may not read replicas."""
        try:
            (registered,) = find_groups(self.namesrv, self.cluster, self.group, self.options.client())
        except ClientError as error:
            raise StoreError(str(error)) from error
        replicas: dict[str, RemoteReplica] = {}
        failures: dict[str, str] = {}
        members: dict[str, str] = {}
        untried = list(registered.addresses)
        while untried:
            address = untried.pop(0)
            try:
                replica, known = describe(address, self.options)
            except FAILURES as error:
                if is_not_permitted(error):
                    raise StoreError(f"{error}. {NOT_PERMITTED}") from error
                failures[address] = str(error)
                continue
            replicas[address] = replica
            members |= {node: place or members.get(node, "") for node, place in known.items()}
            seen = {*replicas, *failures, *untried, ""}
            untried += [place for place in members.values() if place not in seen]
        return Look(tuple(replicas.values()), tuple(_unreachable(members, replicas, failures)))

    def claim(self) -> Look:
        return self.look()


def describe(address: str, options: AuditOptions) -> tuple[RemoteReplica, dict[str, str]]:
    """Ask the broker at `address`. Return its replica, and a map of the group's members that it knows:
    from node id to address, which may be the empty text.

    Raises one of FAILURES.
    """
    with ReplicaClient(address, options) as client:
        description, pages = client.describe(DIGEST_VERSION)
    rows = list(_rows(pages))
    own = [row for row in rows if isinstance(row, ReplicaRow)]
    if len(own) != 1:
        raise UnknownRow(f"{address} described {len(own)} replicas")
    replica = RemoteReplica(
        BrokerReader(address, description, options),
        own[0]._replace(store=f"dledger://{address}/{own[0].store.lstrip('/')}", live=1),
        tuple(row for row in rows if isinstance(row, TaskRow)),
    )
    return replica, {row.node: row.address for row in rows if isinstance(row, MemberRow)}


def _unreachable(
    members: Mapping[str, str], replicas: Mapping[str, RemoteReplica], failures: Mapping[str, str]
) -> Iterator[Finding]:
    """Return one finding for each broker that could not be asked. It names the broker's node id if this is
    known, else its address."""
    nodes = {address: node for node, address in members.items() if address}
    for address, reason in failures.items():
        yield finding("UNREACHABLE", nodes.get(address, address), reason)
    seen = {replica.name for replica in replicas.values()}
    for node, address in members.items():
        if node not in seen and address not in failures:
            yield finding("UNREACHABLE", node, "a member of the group without a known address")


def _rows(pages: Iterable[bytes]) -> Iterator[AnyRow]:
    return (row for page in pages for row in decode_page(page))


def _mine(row: AnyRow, replica: str) -> Row:
    """Return the row with the name that the replica has in this audit. Raises UnknownRow for a kind of row
    that no scan yields."""
    if isinstance(row, EntryRow | EntriesRow | UnitsRow | TaskRow | MemberRow | SegmentStamp):
        raise UnknownRow(f"a {type(row).__name__} among the rows of a scan")
    return row._replace(replica=replica)
