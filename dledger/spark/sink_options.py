"""Options and columns of the sink of the data source `dledger`. Unknown names are refused with a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dledger.client import ClientError, MessageQueue
from dledger.client.message import MAX_MESSAGE_SIZE, check_topic
from dledger.client.options import namesrv_addresses
from dledger.spark import access, kafka_options
from dledger.spark import option_values as values
from dledger.spark.option_values import BadOption, did_you_mean
from dledger.spark.sink_rows import IdColumn

OPTIONS = {
    "servers": "NameServers of live brokers: host:port, several with , or ;",
    "topic": "topic of all rows; without it each row names its topic in the column topic",
    "createTopic": "true: a topic that does not exist is created when the write begins; default false: it is "
    "refused",
    "maxBatchBytes": "approximate bytes of one request; default 524288, at most 4194304",
    "maxInFlight": "requests of one task in flight at the same time, to different queues; default 4; "
    "1: one by one",
    "retries": "further attempts for a batch that was not acknowledged; default 3, 0 for none",
    "idColumn": "column with an id of each row, of type string; default: the column id of our own source",
    "dedupId": "default: messages carry the ids of their rows if there are any (DEDUP_ID); true: rows "
    "without ids are refused; false: no ids",
    "exactlyOnce": "true: brokers look up each row by its id, recognise it when it is sent again, and refuse "
    "another body; needs ids; default false",
    **access.OPTIONS,
}
"""Maps the name of an option to its meaning."""
QUORUM_ONLY = (
    "a row always counts as written when a quorum of its broker group has acknowledged it: remove this option"
)
NO_DELAY = "the sink cannot delay messages: remove this option or column"
REFUSED = {
    "path": "only live brokers can be written to: give NameServers with servers",
    "acks": QUORUM_ONLY,
    "delayLevel": NO_DELAY,
    **access.REFUSED,
}
"""Options of other sinks that this sink refuses. Each option is mapped to what this sink does instead, and
what to do."""
ALIASES = {"nameServer": "servers", "namesrvAddr": "servers", "kafka.bootstrap.servers": "servers"}
SPARK_OWN = ("checkpointLocation", "queryName")
"""Options of Spark itself. Spark passes them to the sink, too."""

TEXT = ("string",)
NUMBER = ("tinyint", "smallint", "int", "bigint")
COLUMNS: dict[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": TEXT,
    "topic": TEXT,
    "tags": TEXT,
    "partition": NUMBER,
    "headers": ("map<string,string>",),
    "flag": NUMBER,
    "id": TEXT,
    "life": TEXT,
}
"""Maps a column to the types that it may have. `life` is ignored. `id` names the row, as our source writes
it with `includeId`."""
HOW_TO_NAME = (
    "read rows of our source with includeId=true and keep the column id, or name a column with an id of each "
    "row with the option idColumn"
)
NO_IDS = (
    "the rows have no ids, so the sink delivers them at least once: rows that a failed task has sent are "
    f"stored again, and consumers cannot recognise them. To change that, {HOW_TO_NAME}. To keep it without "
    "this warning, set dedupId to false"
)


@dataclass(frozen=True)
class SinkOptions:
    """Checked options. `topic`: empty if the column `topic` names the topic of each row."""

    servers: str
    topic: str = ""
    max_batch_bytes: int = 512 * 1024
    retries: int = 3
    dedup_id: bool | None = None
    """False: rows get no ids. None: rows get ids if a column has them."""
    max_in_flight: int = 4
    access: access.Access = access.NO_ACCESS
    id_column: str = ""
    """The option `idColumn`, in lower case."""
    exactly_once: bool = False
    checkpoint: str = ""
    """The option `checkpointLocation` of Spark, for a stream."""
    ids: IdColumn | None = None
    """The column that names the rows, if there is one (`with_ids`)."""
    create_topic: bool = False
    queues: tuple[MessageQueue, ...] = ()
    """The queues of `topic` with `exactlyOnce`, as they were when the driver began the write. All attempts of
    its tasks use them, whatever broker groups are up then. Empty if each attempt asks for the queues."""


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Check all options. Raises BadOption, which names what is wrong."""
    given = _known(options)
    servers = given.get("servers", "").strip()
    if not servers:
        raise BadOption("option servers is missing: NameServers as host:port")
    topic = given.get("topic", "").strip()
    try:
        namesrv_addresses(servers)
    except ClientError as error:
        raise BadOption(f"option servers: {error}") from error
    if "topic" in given:
        try:
            check_topic(topic)
        except ClientError as error:
            raise BadOption(f"option topic: {error}") from error
    default = SinkOptions(servers)
    size = values.positive("maxBatchBytes", given.get("maxBatchBytes", str(default.max_batch_bytes)))
    if size > MAX_MESSAGE_SIZE:
        raise BadOption(
            f"option maxBatchBytes: {size} is more than brokers accept; the limit is {MAX_MESSAGE_SIZE}"
        )
    retries = given.get("retries", str(default.retries))
    if not retries.isdecimal():
        raise BadOption(f"option retries: {retries!r} is not a number of 0 or more")
    dedup_id = values.flag("dedupId", given["dedupId"]) if "dedupId" in given else None
    exactly_once = values.flag("exactlyOnce", given.get("exactlyOnce", "false"))
    id_column = given.get("idColumn", "").strip().lower()
    if "idColumn" in given and not id_column:
        raise BadOption("option idColumn is empty: name the column with the ids of the rows")
    for name, wants in (("idColumn", bool(id_column)), ("exactlyOnce", exactly_once)):
        if wants and dedup_id is False:
            raise BadOption(f"options {name} and dedupId=false contradict each other: remove one")
    in_flight = values.positive("maxInFlight", given.get("maxInFlight", str(default.max_in_flight)))
    known = access.access_of(given)
    return SinkOptions(
        servers,
        topic,
        size,
        int(retries),
        dedup_id,
        in_flight,
        known,
        id_column,
        exactly_once,
        given.get("checkpointLocation", ""),
        create_topic=values.flag("createTopic", given.get("createTopic", "false")),
    )


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their standard names. Raises BadOption for an unknown or refused option."""
    by_lower = {name.lower(): name for name in (*OPTIONS, *SPARK_OWN)}
    by_lower |= {alias.lower(): name for alias, name in ALIASES.items()}
    refused = {name.lower(): reason for name, reason in REFUSED.items()}
    given: dict[str, str] = {}
    for name, value in options.items():
        known = by_lower.get(name.lower())
        if name.lower() in refused:
            raise BadOption(f"option {name}: {refused[name.lower()]}")
        if known is None and (why := kafka_options.sink_reason(name)):
            raise BadOption(why)
        if known is None:
            raise BadOption(f"unknown option {name!r}{did_you_mean(name, [*OPTIONS, *ALIASES])}")
        if known in given:
            raise BadOption(f"option {known} is given twice, once by an alias: give one")
        given[known] = value
    return given


def with_ids(options: SinkOptions, columns: Sequence[str]) -> SinkOptions:
    """Return the options with the column that names the rows, if there is one. Raises BadOption if the
    options ask for ids, and no column has them."""
    if options.dedup_id is False:
        return options
    if options.id_column:
        return replace(options, ids=IdColumn(options.id_column, ours=False))
    if "id" in columns:
        return replace(options, ids=IdColumn("id", ours=True))
    for name, wanted in (("exactlyOnce", options.exactly_once), ("dedupId", options.dedup_id)):
        if wanted:
            raise BadOption(
                f"option {name}: the rows have no ids. Their place in a task cannot be one, because a "
                f"repeated task may read them in another order: {HOW_TO_NAME}"
            )
    return options


def check_columns(columns: Sequence[tuple[str, str]], topic: str, id_column: str = "") -> tuple[str, ...]:
    """Return the names of the columns in their order, in lower case. `columns`: name and Spark's simple
    type of each column. `id_column`: the option `idColumn` in lower case. Raises BadOption."""
    names = tuple(name.lower() for name, _ in columns)
    for name, (written, kind) in zip(names, columns, strict=True):
        if name == "delaylevel":
            raise BadOption(f"column {written}: {NO_DELAY}")
        if name not in COLUMNS and name != id_column:
            hint = did_you_mean(written, list(COLUMNS))
            raise BadOption(
                f"unknown column {written!r}{hint}. The sink ignores no column: leave it out with "
                f"drop({written!r})"
            )
        kinds = TEXT if name == id_column else COLUMNS[name]
        if kind not in kinds:
            raise BadOption(f"column {written} is {kind}: cast it to {' or '.join(kinds)}")
        if names.count(name) > 1:
            raise BadOption(f"column {written} is given twice")
    if "value" not in names:
        raise BadOption("column value (string or binary) is missing: it is the body of the message")
    if not topic and "topic" not in names:
        raise BadOption("option topic is missing, and there is no column topic")
    if id_column and id_column not in names:
        raise BadOption(f"option idColumn: there is no column {id_column!r}, only {', '.join(names)}")
    return names
