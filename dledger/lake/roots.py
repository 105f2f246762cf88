"""Roots: what a table holds in all, written into the log once a day.

A root has the number of rows and the sum of their hashes for each life of a topic, from the first entry of
the table on. It is a message in the topic `ROOTS` of the same broker group, so it is replicated and covered
by the chain of the log like any other message, and whoever can only write to the table cannot change it. So
the audit of a table can prove ranges that retention has deleted from the log since.

A root continues the one before it: rows that are already in a root are not summed up again. The certificates
must agree with both, or no root is written. So somebody who changes old rows together with their certificates
gets no root for them, and the audit finds that the roots do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from dledger.audit.store_directory import StoreError
from dledger.client.errors import ClientError, TopicNotFound
from dledger.client.message import Message, MessageQueue
from dledger.client.producing.sync_producer import Producer
from dledger.formats.life import Life
from dledger.lake.certificates import TopicLife, row_hashes, series, total
from dledger.lake.log_reading import Log
from dledger.lake.rows import SCHEMA
from dledger.lake.sources import lives_at_brokers
from dledger.lake.tables import Entries, TableError, TopicTable
from dledger.spark import arrow_reader
from dledger.spark.option_values import BadOption
from dledger.spark.selection import TABLE_ROOTS

ROOTS = TABLE_ROOTS
"""The topic of the roots of all tables. The key of a message is the id of its table."""
EVERY_H = 24
"""Age of the newest root, in hours, from which another one is written."""
MAX_ROOTS = 1000
"""Largest number of roots of a table that an audit compares; the newest are taken."""
MAX_LIVES = 5000
"""Largest number of lives of topics in one root. A table with more gets no roots."""


class Sum(NamedTuple):
    """Number of rows, and the sum of their hashes (`certificates.row_hashes`)."""

    rows: int
    digest: int

    def plus(self, other: Sum) -> Sum:
        """Add up."""
        return Sum(self.rows + other.rows, total([self.digest, other.digest]))


NOTHING = Sum(0, 0)


@dataclass(frozen=True)
class Root:
    """What a table held of one log, up to entry `last`.

    `table` is the id of the table (`TopicTable.uuid`), `cluster` that of the log. `lives` has the rows of
    each life of a topic, of all entries from `first` to `last`. `written_ms` is when the broker stored the
    root, in ms since the epoch, and `place` where it is in the log, for texts.
    """

    table: str
    cluster: str
    group: str
    first: int
    last: int
    lives: Mapping[TopicLife, Sum]
    written_ms: int = 0
    place: str = ""

    @property
    def named(self) -> str:
        """Which root this is, for texts."""
        when = datetime.fromtimestamp(self.written_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"the root of {when} ({self.place})"

    def without(self, dropped: Iterable[TopicLife]) -> Sum:
        """Return the sum of all lives but these."""
        left_out = frozenset(dropped)
        found = NOTHING
        for life, rows in self.lives.items():
            found = found if life in left_out else found.plus(rows)
        return found

    def encode(self) -> bytes:
        """Return the body of the message: JSON, with digests in hexadecimal digits."""
        known = {name: getattr(self, name) for name in _FIELDS}
        known["lives"] = [[*life, rows.rows, f"{rows.digest:x}"] for life, rows in sorted(self.lives.items())]
        return json.dumps(known, sort_keys=True).encode()

    @classmethod
    def decode(cls, body: bytes, written_ms: int, place: str) -> Root:
        """Inverse of `encode`. Raises ValueError for a body that is not a root."""
        try:
            known = json.loads(body)
            lives: dict[TopicLife, Sum] = {}
            for topic, life, rows, digest in known.pop("lives"):
                Life.parse(life)
                _check(topic, str)
                _check(rows, int)
                lives[TopicLife(topic, life)] = Sum(rows, int(digest, 16))
            if sorted(known) != sorted(_FIELDS):
                raise ValueError("other fields")
            for name, kind in _FIELDS.items():
                _check(known[name], kind)
            return cls(**known, lives=lives, written_ms=written_ms, place=place)
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a root: {error}") from error


_FIELDS = {"table": str, "cluster": str, "group": str, "first": int, "last": int}


def _check(value: object, kind: type) -> None:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")


def root_of(table: TopicTable, cluster: str, before: Root | None = None) -> Root | None:
    """Return the root of what the table holds of one log now, which continues the root `before`. None if it
    holds nothing.

    Raises TableError if certificates are missing, or if they do not agree with the root before or with the
    rows behind it.
    """
    end, begin = table.position(cluster), table.begin(cluster)
    if end is None or begin is None:
        return None
    ask = "run `dledger audit table`"
    known = series(table.certificates(cluster), end)
    whole = bool(known) and known[0].first == begin and known[-1].last + 1 == end
    if not whole or any(not after.follows(one) for one, after in pairwise(known)):
        raise TableError(f"{table.place}: certificates are missing: {ask}")
    if before is not None and (before.first != begin or before.last >= end):
        raise TableError(
            f"{table.place} holds the entries {begin} to {end - 1} of {known[0].group}, and held "
            f"{before.first} to {before.last} when {before.named} was written: {ask}"
        )
    lives = dict(before.lives) if before else {}
    first = before.last + 1 if before else begin
    for batch in table.scan(SCHEMA.names, Entries(cluster, first, end - 1)):
        topics, names = batch.column("topic").to_pylist(), batch.column("life").to_pylist()
        for topic, life, digest in zip(topics, names, row_hashes(batch), strict=True):
            key = TopicLife(topic, life)
            lives[key] = lives.get(key, NOTHING).plus(Sum(1, digest))
    if len(lives) > MAX_LIVES:
        raise TableError(f"{table.place} has more than {MAX_LIVES} lives of topics, too many for a root")
    root = Root(table.uuid, cluster, known[0].group, begin, end - 1, lives)
    certified = NOTHING
    for one in known:
        certified = certified.plus(Sum(one.rows, one.digest))
    if root.without(life for one in known for life in one.dropped) != certified:
        since = f" or with {before.named}" if before else ""
        raise TableError(f"{table.place}: certificates do not agree with the rows{since}: {ask}")
    return root


def written_roots(table: str, servers: str = "", stores: Sequence[str] = ()) -> list[Root]:
    """Return the roots of a table, given by its id, that store directories or else brokers hold, at most
    `MAX_ROOTS`, oldest first. Messages that are no roots, or that are in the log of another group than they
    say, are left out.

    Raises StoreError or ClientError if they cannot be read.
    """
    columns = ("value", "storeTimestamp", "group", "partition", "offset")
    where: dict[str, arrow_reader.Value] = {"path": list(stores)} if stores else {"servers": servers}
    try:
        if servers and not stores:
            lives_at_brokers([ROOTS], servers)
        rows = arrow_reader.read(
            subscribe=ROOTS,
            keys=[table],
            columns=columns,
            corruptRecords="skip",
            **where,  # type: ignore[arg-type]
        ).read_all()
    except TopicNotFound:
        return []
    except BadOption as error:
        if ROOTS in f"{error}":  # the stores do not have the topic
            return []
        raise
    found = []
    for row in rows.to_pylist():
        place = f"{ROOTS} queue {row['partition']} offset {row['offset']} of {row['group']}"
        written_ms = int(row["storeTimestamp"].timestamp() * 1000)
        try:
            root = Root.decode(row["value"], written_ms, place)
        except ValueError:
            continue
        if (root.table, root.group) == (table, row["group"]):
            found.append(root)
    return sorted(found, key=lambda root: (root.written_ms, root.last))[-MAX_ROOTS:]


def write_roots(table: TopicTable, logs: Sequence[Log], servers: str, now_ms: int) -> list[str]:
    """Write the roots that are due, of those of the table's logs that are given: the newest one is a day old,
    or there is none. The topic is made where it does not exist. Return what was done, and what failed, as
    texts for people.

    Without roots the table has the same rows, but less of it can be proven later. So nothing is raised but
    TableError if the table cannot be read.
    """
    table.refresh()
    said = []
    try:
        newest = {root.cluster: root for root in written_roots(table.uuid, servers)}
    except (StoreError, ClientError, BadOption) as error:
        return [f"the roots of the table cannot be read: {error}"]
    for log in logs:
        try:
            state = log.state()
            before = newest.get(state.cluster)
            if before is not None and now_ms - before.written_ms < EVERY_H * 3600 * 1000:
                continue
            root = root_of(table, state.cluster, before)
            if root is not None:
                _send(root, state.group, servers)
                text = f"the root of entries {root.first:,} to {root.last:,} was written to the topic {ROOTS}"
                said.append(f"{state.group}: {text}")
        except (StoreError, ClientError, TableError) as error:
            said.append(f"no root was written for {log.name}: {error}")
    return said


def _send(root: Root, group: str, servers: str) -> None:
    try:
        there = group in lives_at_brokers([ROOTS], servers)
    except TopicNotFound:
        there = False
    with Producer("dledger_lake", servers) as producer:
        if not there:
            producer.create_topic(ROOTS, 1, group)
        message = Message(ROOTS, root.encode(), tags="root", keys=[root.table])
        producer.send(message, MessageQueue(ROOTS, group, 0))
