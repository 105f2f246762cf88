"""Entries of the log as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dledger.audit.scan import Window
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.life import Life
from dledger.formats.record import CorruptRecord, decode_record
from dledger.formats.state import TOPIC_DELETE, ReplicatedState, TopicBirth
from dledger.lake.tables import About
from dledger.lake.typed import TypedBodies
from dledger.spark import columns
from dledger.spark.log_lives import NO_LIVES
from dledger.spark.messages import MessageRows
from dledger.spark.options import TopicChoice
from dledger.spark.selection import Selection

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_group", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("life", pa.string()),
        ("log_index", pa.int64()),
        ("log_term", pa.int64()),
        ("store_time", TIME),
        ("born_time", TIME),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("flag", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("day", pa.date32()),
    ]
)
"""Columns of a table.

* `life`: the life of the topic (`formats.life`). Offsets begin again at 0 in each life.
* `log_index`, `log_term`: index and term of the entry in the log of the broker group.
* `store_time`: when the broker stored the message. `born_time`: when the producer made it.
* `body`: the uncompressed body.
* `day`: the day of `store_time` in UTC, by which the table is partitioned.
"""
VIEW = {
    "topic": "topic",
    "queue": "partition",
    "offset": "offset",
    "log_index": "logIndex",
    "log_term": "logTerm",
    "store_time": "storeTimestamp",
    "born_time": "timestamp",
    "keys": "key",
    "tags": "tags",
    "flag": "flag",
    "properties": "headers",
    "body": "value",
}
"""Maps columns of the table to columns of the view `messages` (`spark.columns`)."""
Births = dict[str, int]
"""Maps a topic to the position in the log at which it was made (`formats.life`). A topic is missing, or has
0, if the position is not known. It has DELETED if it was deleted, and not made again."""
DELETED = -1


def table_schema(about: About) -> pa.Schema:
    """Return the columns of a table: those of `SCHEMA` and, if bodies are typed, their values."""
    return pa.schema([*SCHEMA, *(TypedBodies(about.schema).fields if about.schema else ())])


class TableRows:
    """Turns entries of one broker group's log into rows, in order of the log.

    `births` are those of the topics before the first entry. They change with entries that make or delete a
    topic.
    """

    def __init__(self, topics: Sequence[str], cluster: str, group: str, births: Mapping[str, int]) -> None:
        self.births: Births = dict(births)
        self._topics = frozenset(topics)
        self._cluster, self._group = cluster, group
        selection = Selection(TopicChoice(named=tuple(topics)))
        wanted = columns.message_columns(
            value=True, headers=True, group=False, life=False, ident=False, corrupt=False
        )
        self._rows = MessageRows(selection, wanted, "fail", group, NO_LIVES, True)

    def of_window(self, window: Window) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these entries. Raises spark.messages.CorruptMessage for an entry whose CRCs are
        right and whose content is not a message record."""
        for part in self._parts(window):
            for batch in self._rows.of_window(part, store=self._group):
                yield self._row(batch)

    def _parts(self, window: Window) -> Iterator[Window]:
        """Yield the entries of a window in parts. A topic is made or deleted only between two parts, and then
        `births` is changed."""
        entries = window.columns
        begin = 0
        for at in np.flatnonzero(entries.channel >> 24 & KIND_MASK == Kind.SYSTEM).tolist():
            changed = self._changed(window, at)
            if changed is not None:
                if at > begin:
                    yield replace(window, columns=entries[begin:at])
                begin = at
                self.births.update(changed)
        if begin < len(entries):
            yield replace(window, columns=entries[begin:])

    def births_in(self, window: Window) -> Births:
        """Return the births that these entries change, as they are at the end."""
        changed: Births = {}
        entries = window.columns
        for at in np.flatnonzero(entries.channel >> 24 & KIND_MASK == Kind.SYSTEM).tolist():
            changed |= self._changed(window, at) or {}
        return changed

    def _changed(self, window: Window, at: int) -> Births | None:
        start = int(window.columns.pos[at]) - window.base
        return self._change(window.data[start + HEADER_SIZE : start + int(window.columns.size[at])])

    def _change(self, record: bytes) -> Births | None:
        """Return the birth that an operation changes, if it makes or deletes one of the topics."""
        try:
            op = ReplicatedState.read(decode_record(record).body)
        except CorruptRecord:
            return None
        if op is None or op.get("name") not in self._topics:
            return None
        if op["op"] == TopicBirth.operation:
            return {op["name"]: op["at"]}
        return {op["name"]: DELETED} if op["op"] == TOPIC_DELETE else None

    def _row(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = {name: batch.column(source) for name, source in VIEW.items()}
        count = batch.num_rows
        topics = found["topic"].dictionary_encode()
        names = topics.dictionary.to_pylist()
        lives = [str(Life(self._cluster, max(self.births.get(name, 0), 0))) for name in names]
        found["life"] = pa.array(lives, pa.string()).take(topics.indices)
        found["broker_group"] = pa.repeat(pa.scalar(self._group, pa.string()), count)
        found["day"] = found["store_time"].cast(pa.timestamp("us")).cast(pa.date32())
        return pa.RecordBatch.from_arrays([found[name] for name in SCHEMA.names], schema=SCHEMA)
