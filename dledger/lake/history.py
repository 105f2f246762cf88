"""`dledger.read`: messages as Arrow batches, of stores, of brokers, of a table, or of a table and the brokers
behind it.

With a table and brokers, the rows of the table come first, and then the messages that the brokers have behind
them. The seam is an offset for each queue: the table holds every message of a queue up to it, and the brokers
are asked for those from there on. So nothing is left out and nothing comes twice, also while the table is
being filled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.spark import arrow_reader
from dledger.spark.option_values import EARLIEST, BadOption, did_you_mean, names

if TYPE_CHECKING:
    import pyarrow as pa

    from dledger.lake.tables import TopicTable
    from dledger.spark.live_queues import LiveQueues
    from dledger.spark.options import Options

_WITH_TABLE = (
    "subscribe",
    "tags",
    "keys",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "includeValue",
    "includeGroup",
)
"""Options that can be given together with a table."""


def read(
    path: arrow_reader.Path | Sequence[arrow_reader.Path] | None = None,
    *,
    servers: str | Sequence[str] | None = None,
    table: str | TopicTable | None = None,
    table_options: Mapping[str, str] | None = None,
    columns: str | Sequence[str] | None = None,
    **options: arrow_reader.Value,
) -> pa.RecordBatchReader:
    """Return committed messages, or rows of another view, of store directories or of the brokers behind
    NameServers.

    `path`: one or more store directories (`storePathRootDir`) or URLs; their nodes may be running. Instead
    of it, `servers`: NameServers as `host:port`, in a list or separated by `,`. `columns`: return only these
    columns, in this order; by default all that the options ask for.

    `options`: options of a batch query of the data source (docs/reference/spark-source.md) under their
    names, as `view="queues"`, `subscribe="orders"`, `tags=["web", "app"]`, `keys=["order-17"]`. Options that
    take several values accept lists, and options in JSON lists and maps. A time is a number (ms since the
    epoch), a text in ISO form, or a `datetime` with a time zone. An option that is None is not set.

    With `table`, the place of a table that `dledger lake` fills, its messages are returned. With `servers` as
    well, those that only the brokers have come after them: the whole history, each message once. A message of
    the table has a `logIndex`, one of the brokers has none. Messages of topics that were deleted, as far as
    the table or the brokers know it, are left out. `table_options` are those of the storage or the catalog,
    as `--option` of `dledger lake`; `{"table": "NAMESPACE.NAME"}` names one of several Iceberg tables.

    Rows of one queue come in their order, but those of a table only within one of its files. The reader is
    lazy: only the batches of one task (some 64 MiB of log) are in memory at a time. Pandas (`read_pandas`),
    polars (`from_arrow`) and DuckDB accept the reader directly. It can be used once.

    Raises spark.option_values.BadOption (a ValueError) for wrong options and columns,
    audit.store_directory.StoreError if a store or a broker cannot be read, lake.tables.TableError if a table
    cannot, and ModuleNotFoundError, which says what to install. While rows are read, raises
    spark.messages.CorruptMessage for damage, unless `corruptRecords` says otherwise.
    """
    if table is None and table_options is not None:
        raise BadOption("table_options has no effect without table")
    if table is None:
        return arrow_reader.read(path, servers=servers, columns=columns, **options)
    if path is not None:
        raise BadOption("path and table exclude each other: give the table alone, or with servers")
    for name in options:
        if name not in _WITH_TABLE:
            raise BadOption(f"option {name} cannot be given with table{did_you_mean(name, _WITH_TABLE)}")
    opened, columns = _opened(table, table_options), names(columns) if isinstance(columns, str) else columns
    _check_columns(columns)
    if servers is None:
        return _alone(opened, columns, dict(options))
    servers = servers if isinstance(servers, str) else ";".join(servers)
    return _joined(servers, opened, columns, dict(options))


def _check_columns(columns: Sequence[str] | None) -> None:
    from dledger.lake.rows import VIEW

    have = [*VIEW.values(), "group"]
    for name in columns or ():
        if name not in have:
            raise BadOption(f"a table cannot give the column {name!r}{did_you_mean(name, have)}")


def _check_topics(table: TopicTable, options: Options) -> None:
    for topic in options.topics.named or ():
        if topic not in table.about.topics:
            there = ", ".join(table.about.topics)
            raise BadOption(f"option subscribe: the table has the topics {there}, not {topic}")


def _alone(table: TopicTable, columns: Sequence[str] | None, options: dict[str, Any]) -> pa.RecordBatchReader:
    """Return the messages of a table, without asking brokers."""
    import pyarrow as pa

    from dledger.lake.deleted import is_dead
    from dledger.spark.options import parse

    given = {"path": "table"} | {  # no store is opened: only the other options and the columns count
        name: arrow_reader.as_option(name, value) for name, value in options.items() if value is not None
    }
    parsed = parse(given, "batch")
    _check_topics(table, parsed)
    _, schema = arrow_reader.view_and_schema(given, columns)
    newest: dict[str, tuple[int, Mapping[str, int]]] = {}
    for one in table.certificates():
        if one.last < (table.position(one.cluster) or 0) and one.last >= newest.get(one.cluster, (-1,))[0]:
            newest[one.cluster] = one.last, one.births_after

    def is_alive(topic: str, group: str, life: str) -> bool:
        _, births = newest.get(life.partition(".")[0], (-1, {}))
        return not is_dead(topic, life, births)

    return pa.RecordBatchReader.from_batches(schema, _of_table(table, is_alive, schema, parsed))


@dataclass(frozen=True)
class _Seam:
    """Where the brokers go on. `lives`: the present life of each topic, by (topic, group). `ends`: for each
    queue, by (topic, group, queue), the offset behind its last row in the table."""

    lives: Mapping[tuple[str, str], str]
    ends: Mapping[tuple[str, str, int], int]


def _joined(
    servers: str, table: TopicTable, columns: Sequence[str] | None, options: dict[str, Any]
) -> pa.RecordBatchReader:
    import pyarrow as pa
    import pyarrow.compute as pc

    from dledger.lake.sources import lives_at_brokers
    from dledger.spark.live_queues import LiveQueues
    from dledger.spark.options import parse

    if "subscribe" not in options:
        known = lives_at_brokers(table.about.topics, servers).values()
        options["subscribe"] = ",".join(sorted({topic for lives in known for topic in lives}))
    given = {"servers": servers} | {
        name: arrow_reader.as_option(name, value) for name, value in options.items()
    }
    parsed = parse(given, "batch")
    _check_topics(table, parsed)
    queues = LiveQueues(parse({"servers": servers, "subscribe": str(given["subscribe"])}, "batch"))
    try:
        seam = _seam(table, queues)
        starting = _starting(seam, queues)
    finally:
        queues.close()
    options.pop("startingTimestamp", None)  # the source takes offsets or a time
    asked = columns
    if columns is not None and parsed.starting_ms is not None and "storeTimestamp" not in columns:
        asked = [*columns, "storeTimestamp"]
    live = arrow_reader.read(servers=servers, columns=asked, startingOffsets=starting, **options)
    schema = live.schema if columns is None else pa.schema([live.schema.field(name) for name in columns])

    def is_alive(topic: str, group: str, life: str) -> bool:
        return seam.lives.get((topic, group)) == life

    def batches() -> Iterator[pa.RecordBatch]:
        yield from _of_table(table, is_alive, schema, parsed)
        for batch in live:
            if parsed.starting_ms is not None:
                first = pa.scalar(parsed.starting_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
                batch = batch.filter(pc.greater_equal(batch.column("storeTimestamp"), first))
            yield batch.select(schema.names)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _opened(table: str | TopicTable, options: Mapping[str, str] | None = None) -> TopicTable:
    from dledger.lake.opening import Place, open_table

    if isinstance(table, str):
        return open_table(Place("", table, dict(options or {})))
    if options is not None:
        raise BadOption("table_options is for a table that is given by its place")
    return table


def _seam(table: TopicTable, queues: LiveQueues) -> _Seam:
    import pyarrow as pa

    from dledger.spark.selection import topic_and_group

    lives = {topic_and_group(name): life for name, life in queues.lives(qualify=True)[0].items()}
    ends: dict[tuple[str, str, int], int] = {}
    for batch in table.scan(("topic", "broker_group", "life", "queue", "offset")):
        queues_of = pa.Table.from_batches([batch]).group_by(["topic", "broker_group", "life", "queue"])
        for row in queues_of.aggregate([("offset", "max")]).to_pylist():
            queue = row["topic"], row["broker_group"], row["queue"]
            if lives.get(queue[:2]) == row["life"]:
                ends[queue] = max(ends.get(queue, 0), row["offset_max"] + 1)
    return _Seam(lives, ends)


def _starting(seam: _Seam, queues: LiveQueues) -> dict[str, object]:
    """Return the option `startingOffsets` for the brokers."""
    from dledger.spark.selection import topic_and_group

    groups = queues.groups()
    found: dict[str, dict[str, int]] = {}
    for name, queue_id in queues.bounds(qualify=True):
        topic, group = topic_and_group(name)
        end = seam.ends.get((topic, group, queue_id), EARLIEST)
        found.setdefault(topic if len(groups) == 1 else name, {})[str(queue_id)] = end
    return dict(found)


def _of_table(
    table: TopicTable, is_alive: Callable[[str, str, str], bool], schema: pa.Schema, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of the table. `is_alive`: whether the topic of a broker group with this life
    exists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from dledger.lake.rows import VIEW
    from dledger.spark.selection import Selection

    columns = {view: name for name, view in VIEW.items()} | {"group": "broker_group"}
    needed = {"topic", "broker_group", "life", "store_time", "tags", "keys"}
    needed |= {columns[name] for name in schema.names}
    selection = Selection(tags=frozenset(options.tags) if options.tags else None, keys=options.keys)
    lives = ("topic", "broker_group", "life")
    for batch in table.scan(sorted(needed)):
        column = batch.column
        found = pa.Table.from_batches([batch]).group_by(list(lives)).aggregate([]).to_pylist()
        alive = ["/".join(row.values()) for row in found if is_alive(*(row[name] for name in lives))]
        wanted = pc.is_in(
            pc.binary_join_element_wise(*map(column, lives), "/"), value_set=pa.array(alive, pa.string())
        )
        if options.topics.named is not None:
            wanted = pc.and_(wanted, pc.is_in(column("topic"), value_set=pa.array(options.topics.named)))
        stored = pc.divide(column("store_time").cast(pa.int64()), 1000)
        if options.starting_ms is not None:
            wanted = pc.and_(wanted, pc.greater_equal(stored, options.starting_ms))
        if options.ending_ms is not None:
            wanted = pc.and_(wanted, pc.less(stored, options.ending_ms))
        for matching in (selection.of_tags(column("tags")), selection.of_keys(column("keys"))):
            if matching is not None:
                wanted = pc.and_(wanted, pa.array(matching))
        chosen = batch.filter(wanted)
        arrays = [chosen.column(columns[name]).cast(schema.field(name).type) for name in schema.names]
        if chosen.num_rows:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def starting_offsets(servers: str, table: str | TopicTable) -> str:
    """Return the option `startingOffsets` with which the data source reads, from the brokers, the messages
    that come behind a table. Spark can unite the table and these messages to one history."""
    from dledger.spark.live_queues import LiveQueues
    from dledger.spark.options import parse

    opened = _opened(table)
    queues = LiveQueues(parse({"servers": servers, "subscribe": ",".join(opened.about.topics)}, "batch"))
    try:
        return json.dumps(_starting(_seam(opened, queues), queues))
    finally:
        queues.close()
