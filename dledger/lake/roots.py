"""Roots: what all certificates of a table say together, written into the log once a day.

A root is the sum of the certificates of one log, from the first entry of the table on. It is a message in the
topic `ROOTS` of the same broker group, so it is replicated and covered by the chain of the log like any other
message. Whoever changes rows of the table and their certificates cannot change it. So the audit of a table
can prove ranges that retention has deleted from the log since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise

from dledger.audit.store_directory import StoreError
from dledger.client.errors import ClientError, TopicNotFound
from dledger.client.message import Message, MessageQueue
from dledger.client.producing.sync_producer import Producer
from dledger.lake.certificates import Certificate, TopicLife, series
from dledger.lake.tables import TopicTable
from dledger.spark import arrow_reader
from dledger.spark.option_values import BadOption

ROOTS = "dledger_table_roots"
"""The topic of the roots of all tables. The key of a message is the id of its table."""
EVERY_MS = 24 * 3600 * 1000
"""Age of the newest root, in ms, from which another one is written."""
MAX_ROOTS = 1000
"""Largest number of roots of a table that an audit compares; the newest are taken."""


@dataclass(frozen=True)
class Root:
    """What a table held of one log, up to entry `last`.

    `table` is the id of the table (`TopicTable.uuid`), `cluster` that of the log. `rows`, `digest` and
    `dropped` are those of `certificates.Certificate`, of all entries from `first` to `last`. `chain_last` is
    the chain value of entry `last`. `written_ms` is when the broker stored the root, in ms since the epoch,
    and `place` where it is in the log, for texts.
    """

    table: str
    cluster: str
    group: str
    first: int
    last: int
    rows: int
    digest: int
    chain_last: int
    dropped: frozenset[TopicLife]
    written_ms: int = 0
    place: str = ""

    @property
    def named(self) -> str:
        """Which root this is, for texts."""
        when = datetime.fromtimestamp(self.written_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"the root of {when} ({self.place})"

    def encode(self) -> bytes:
        """Return the body of the message: JSON, with the digest in hexadecimal digits."""
        known = asdict(replace(self, dropped=frozenset()))
        known |= {"digest": f"{self.digest:x}", "dropped": sorted(self.dropped)}
        del known["written_ms"], known["place"]
        return json.dumps(known, sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes, written_ms: int, place: str) -> Root:
        """Inverse of `encode`. Raises ValueError for a body that is not a root."""
        try:
            known = json.loads(body)
            known["digest"] = int(known["digest"], 16)
            known["dropped"] = frozenset(TopicLife(*one) for one in known["dropped"])
            found = cls(**known, written_ms=written_ms, place=place)
            texts, numbers = (found.table, found.cluster, found.group), (found.first, found.last, found.rows)
            if all(type(one) is str for one in texts) and all(type(one) is int for one in numbers):
                return found
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"not a root: {error}") from error
        raise ValueError("not a root: a value has the wrong type")


def root_of(table: TopicTable, cluster: str) -> Root | None:
    """Return the root of what the table holds of one log now. None if it holds nothing, or if certificates
    are missing."""
    end, begin = table.position(cluster), table.begin(cluster)
    if end is None or begin is None:
        return None
    known = series(table.certificates(cluster), end)
    if not known or known[0].first != begin or known[-1].last + 1 != end:
        return None
    if any(not after.follows(one) for one, after in pairwise(known)):
        return None
    whole: Certificate = reduce(Certificate.merged, known)
    dropped = frozenset(life for one in known for life in one.dropped)
    rows, digest, chain = whole.rows, whole.digest, whole.chain_last
    return Root(table.uuid, cluster, whole.group, begin, whole.last, rows, digest, chain, dropped)


def written_roots(table: str, servers: str = "", stores: Sequence[str] = ()) -> list[Root]:
    """Return the roots of a table, given by its id, that brokers or store directories hold, at most
    `MAX_ROOTS`, oldest first. Messages that are no roots are left out.

    Raises StoreError or ClientError if they cannot be read.
    """
    given = {"servers": servers} if servers else {"path": list(stores)}
    columns = ("value", "storeTimestamp", "group", "partition", "offset")
    try:
        reader = arrow_reader.read(**given, subscribe=ROOTS, keys=[table], columns=columns)
        rows = reader.read_all().to_pylist()
    except (TopicNotFound, BadOption):
        return []  # no table has a root here
    found = []
    for row in rows:
        place = f"{ROOTS} queue {row['partition']} offset {row['offset']} of {row['group']}"
        written_ms = int(row["storeTimestamp"].timestamp() * 1000)
        try:
            root = Root.decode(row["value"], written_ms, place)
        except ValueError:
            continue
        if root.table == table:
            found.append(root)
    return sorted(found, key=lambda root: (root.written_ms, root.last))[-MAX_ROOTS:]


def write_roots(table: TopicTable, servers: str, now_ms: int) -> list[Root]:
    """Write the roots that are due: of each log whose newest one is a day old, or is from before rows were
    removed. The topic is made if it does not exist. Return the roots that were written.

    Raises TableError, StoreError or ClientError.
    """
    table.refresh()
    newest = {root.cluster: root for root in written_roots(table.uuid, servers)}
    due = []
    for cluster in table.logs():
        root, before = root_of(table, cluster), newest.get(cluster)
        if root is None:
            continue
        if before is None or now_ms - before.written_ms >= EVERY_MS or before.dropped != root.dropped:
            due.append(root)
    if not due:
        return []
    with Producer("dledger_lake", servers) as producer:
        for root in due:
            if root.cluster not in newest:
                producer.create_topic(ROOTS, 1, root.group)
            message = Message(ROOTS, root.encode(), tags="root", keys=[root.table])
            producer.send(message, MessageQueue(ROOTS, root.group, 0))
    return due


ERRORS = (StoreError, ClientError)
"""What `written_roots` and `write_roots` raise, except TableError."""
