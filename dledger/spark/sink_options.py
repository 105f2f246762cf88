"""Options and columns of the sink of the data source `dledger`. Unknown names are refused with a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dledger.client import ClientError
from dledger.client.message import MAX_MESSAGE_SIZE, check_topic
from dledger.client.options import namesrv_addresses
from dledger.spark import access
from dledger.spark import option_values as values
from dledger.spark.option_values import BadOption, did_you_mean

OPTIONS = {
    "servers": "NameServers of live brokers: host:port, several with , or ;",
    "topic": "topic of all rows; without it each row names its topic in the column topic",
    "maxBatchBytes": "approximate bytes of one request; default 524288, at most 4194304",
    "maxInFlight": "requests of one task in flight at the same time, to different queues; default 4; "
    "1: one by one",
    "retries": "further attempts for a batch that was not acknowledged; default 3, 0 for none",
    "dedupId": "true (default): every message carries a DEDUP_ID, the same one when it is sent again",
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
    "kafka.acks": QUORUM_ONLY,
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
}
"""Maps a column to the types that it may have."""


@dataclass(frozen=True)
class SinkOptions:
    """Checked options. `topic`: empty if the column `topic` names the topic of each row."""

    servers: str
    topic: str = ""
    max_batch_bytes: int = 512 * 1024
    retries: int = 3
    dedup_id: bool = True
    max_in_flight: int = 4
    access: access.Access = access.NO_ACCESS


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
    dedup_id = values.flag("dedupId", given.get("dedupId", "true"))
    in_flight = values.positive("maxInFlight", given.get("maxInFlight", str(default.max_in_flight)))
    known = access.access_of(given)
    return SinkOptions(servers, topic, size, int(retries), dedup_id, in_flight, known)


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
        if known is None:
            raise BadOption(f"unknown option {name!r}{did_you_mean(name, [*OPTIONS, *ALIASES])}")
        if known in given:
            raise BadOption(f"option {known} is given twice, once by an alias: give one")
        given[known] = value
    return given


def check_columns(columns: Sequence[tuple[str, str]], topic: str) -> tuple[str, ...]:
    """Return the names of the columns in their order, in lower case. `columns`: name and Spark's simple
    type of each column. Raises BadOption."""
    names = tuple(name.lower() for name, _ in columns)
    for name, (written, kind) in zip(names, columns, strict=True):
        if name == "delaylevel":
            raise BadOption(f"column {written}: {NO_DELAY}")
        if name not in COLUMNS:
            hint = did_you_mean(written, list(COLUMNS))
            raise BadOption(
                f"unknown column {written!r}{hint}. The sink ignores no column: leave it out with "
                f"drop({written!r})"
            )
        if kind not in COLUMNS[name]:
            raise BadOption(f"column {written} is {kind}: cast it to {' or '.join(COLUMNS[name])}")
        if names.count(name) > 1:
            raise BadOption(f"column {written} is given twice")
    if "value" not in names:
        raise BadOption("column value (string or binary) is missing: it is the body of the message")
    if not topic and "topic" not in names:
        raise BadOption("option topic is missing, and there is no column topic")
    return names
