"""Options for reading with the data source `dledger`. A wrong name or value is refused with a hint.

Options that Spark's Kafka source also has keep their names from there, and RocketMQ's names for them are
aliases. An option that would have no effect is refused, because ignoring it silently would mislead the
user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.spark import access, kafka_options
from dledger.spark import option_values as values
from dledger.spark.option_values import EARLIEST, LATEST, BadOption, Queue, did_you_mean

VIEWS = ("messages", "entries", "queues", "index", "scan", "state")
UNMATCHED = ("error", "latest")
DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000
"""The default of maxTriggerDelay, as in Spark's Kafka source."""
ISOLATION = ("committed", "all")
CORRUPT: dict[str, tuple[str, ...]] = {
    "messages": ("fail", "skip", "include"),
    "entries": ("fail", "include"),
}
"""Maps a view to the allowed values of corruptRecords. The view `scan` reports damage as rows with every
value."""
READ_FROM = ("leader",)
OFFSET_TYPES = ("queue", "log")
DEFAULT_GROUP = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's own tools: reading in its name changes the offsets of no application."""


@dataclass(frozen=True)
class Option:
    """An option: its meaning, and where it has an effect: `views`; `of`, the sources `path` and `servers`;
    `mode`, batch and stream."""

    meaning: str
    views: tuple[str, ...] = VIEWS
    of: tuple[str, ...] = ("path", "servers")
    mode: tuple[str, ...] = ("batch", "stream")
    live: tuple[str, ...] | None = None
    """The views on which the option has an effect with `servers`; None if they are the same as `views`."""


_TIME = "ms since the epoch, or a time such as 2026-11-21T15:30:00 (UTC, or with a zone)"
_MESSAGES = ("messages",)
_TOPICS = ("messages", "queues")
_LOG = ("messages", "entries", "index")
_ENTRIES = ("messages", "entries")
_TASKS = ("messages", "entries", "scan")
_PUSHING = ("messages", "entries", "queues")
_LEADERS = ("messages", "queues", "state")

_FILES = ("path",)
_LIVE = ("servers",)
_BATCH = ("batch",)
_STREAM = ("stream",)

OPTIONS = {
    "path": Option("store directories (storePathRootDir), comma separated or a JSON list", of=_FILES),
    "servers": Option("NameServers of live brokers: host:port, several with , or ;", of=_LIVE),
    "view": Option("messages (default), entries, queues, index, scan or state"),
    "group": Option("broker groups to read, comma separated; default: all"),
    "subscribe": Option("topics, comma separated or a JSON list; default: all except system topics", _TOPICS),
    "subscribePattern": Option("topics whose whole name matches this regular expression", _TOPICS),
    "assign": Option('topics and queues: {"topic": [0, 1]}', _TOPICS),
    "includeSystemTopics": Option("true: also system topics, without naming them", _TOPICS),
    "tags": Option("only messages with one of these tags: 'A || B', or a JSON list", _MESSAGES),
    "keys": Option("only messages with one of these keys: 'A B', or a JSON list", _MESSAGES),
    "startingOffsets": Option('earliest, latest (streams) or {"topic": {"0": 23, "1": -2}}', _MESSAGES),
    "endingOffsets": Option("latest (default) or JSON as above; exclusive", _MESSAGES, mode=_BATCH),
    "startingTimestamp": Option(f"stored at or after: {_TIME}", _MESSAGES),
    "endingTimestamp": Option(f"stored before: {_TIME}", _MESSAGES, mode=_BATCH),
    "startingOffsetsByTimestamp": Option(
        'as startingTimestamp, with a time for each queue: {"topic": {"0": T}}', _MESSAGES
    ),
    "endingOffsetsByTimestamp": Option(
        'as endingTimestamp, with a time for each queue: {"topic": {"0": T}}', _MESSAGES, mode=_BATCH
    ),
    "startingOffsetsByTimestampStrategy": Option(
        "where to start in a queue with nothing stored at or after its time: error, or latest (its end); "
        "default: error for startingOffsetsByTimestamp, latest for startingTimestamp",
        _MESSAGES,
    ),
    "indexRanges": Option(
        'log indexes, inclusive: "0-99,200" or [[0,99]]', _LOG, mode=_BATCH, live=("entries", "index")
    ),
    "offsetType": Option("queue (default), or log: one offset, the log index", _MESSAGES, _FILES, _STREAM),
    "maxOffsetsPerTrigger": Option("largest number of messages in a batch", _MESSAGES, mode=_STREAM),
    "maxBytesPerTrigger": Option("approximate bytes of log in a batch", _MESSAGES, mode=_STREAM),
    "minOffsetsPerTrigger": Option(
        "smallest number of messages in a batch: a batch waits for so many, up to maxTriggerDelay",
        _MESSAGES,
        mode=_STREAM,
    ),
    "maxTriggerDelay": Option(
        "longest time between two batches for minOffsetsPerTrigger, such as 30s; default 15m",
        _MESSAGES,
        mode=_STREAM,
    ),
    "minPartitions": Option("smallest number of tasks, if there is enough work", _TASKS),
    "maxRecordsPerPartition": Option("largest number of messages that one task reads", _MESSAGES),
    "partitionBytes": Option(
        "approximate bytes of log that one task reads; default 64 MiB, or more if there would be "
        "over 20,000 tasks",
        _TASKS,
        of=_FILES,
        mode=_BATCH,
    ),
    "failOnDataLoss": Option("false: skip what retention or a deletion took", _MESSAGES),
    "includeHeaders": Option("true adds the column headers (properties)", _MESSAGES),
    "includeValue": Option("false leaves the column value out", _MESSAGES),
    "includeGroup": Option("true adds the column group, the name of the broker group", _MESSAGES),
    "includeLife": Option(
        "true adds the column life: which topic of this name it is, if it was deleted and made again",
        _TOPICS,
    ),
    "includeId": Option("true adds the column id, which no other message ever has", _MESSAGES),
    "includeDeleted": Option("true: also messages of deleted topics", _MESSAGES, _FILES),
    "isolation": Option(
        "committed (default); all: also entries that Raft may still remove",
        _ENTRIES,
        mode=_BATCH,
        live=("entries",),
    ),
    "corruptRecords": Option("fail (default), skip or include, as rows", _ENTRIES),
    "pushdown": Option("true: filters of the query are applied while reading", _PUSHING, mode=_BATCH),
    "blockRows": Option(f"entries of a digest block, default {BLOCK_ENTRIES}", ("scan",), mode=_BATCH),
    "readFrom": Option("leader: only leaders answer pulls", _MESSAGES, _LIVE),
    "consumerGroup": Option(
        f"consumer group whose name is used for pulls, default {DEFAULT_GROUP}", _MESSAGES, _LIVE
    ),
    "pullBatchSize": Option("messages of one pull, default 1024", _MESSAGES, _LIVE),
    "pullTimeoutMs": Option("how long to search for a leader, default 30000", _LEADERS, _LIVE),
    **{name: Option(meaning, of=_LIVE) for name, meaning in access.OPTIONS.items()},
}
"""Maps the name of an option to the option."""

ALIASES = {
    "paths": "path",
    "topic": "subscribe",
    "topics": "subscribe",
    "topicsPattern": "subscribePattern",
    "subExpression": "tags",
    "nameServer": "servers",
    "namesrvAddr": "servers",
    "kafka.bootstrap.servers": "servers",
}
"""Maps names that users of RocketMQ, Pulsar and Kafka know to our name of the option, and the name under
which Spark passes several paths (`load([a, b])`)."""
_ADDRESS = re.compile(r"[\w.-]+:[0-9]{1,5}")
"""Matches `host:port`, which is no path of a store."""
_TABLE_PROPERTIES = ("provider", "owner", "location")
"""Properties that Spark adds to the options of a table of its catalog (`CREATE TABLE ... USING dledger`)."""
NO_TABLE = (
    "CREATE TABLE ... USING dledger: when such a table is read, Spark passes none of its options to a "
    "data source in Python. Use CREATE TEMPORARY VIEW ... USING dledger OPTIONS (...), which takes the same "
    "options"
)


@dataclass(frozen=True)
class TopicChoice:
    """The topics to read: listed by name, by a pattern, or as queues. At most one of these is set. If none
    is set, all topics except system topics are read."""

    named: tuple[str, ...] | None = None
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    system: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are chosen by name."""
        return self.named if self.named is not None else tuple(self.assign or ())


ALL_TOPICS = TopicChoice()


@dataclass(frozen=True)
class Options:
    """Checked options. `starting`, `ending`: `earliest` or `latest`, or offsets by queue (-2 earliest, -1
    latest)."""

    paths: tuple[str, ...] = ()
    servers: str = ""
    view: str = "messages"
    groups: tuple[str, ...] = ()
    topics: TopicChoice = ALL_TOPICS
    tags: tuple[str, ...] = ()
    keys: frozenset[str] | None = None
    """Wanted message keys. None means all messages, also those without a key."""
    starting: str | Mapping[Queue, int] = ""
    ending: str | Mapping[Queue, int] = "latest"
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_times: Mapping[Queue, int] = field(default_factory=dict)
    ending_times: Mapping[Queue, int] = field(default_factory=dict)
    """Times of some queues, in ms since the epoch. They are empty if one time counts for all queues."""
    unmatched: str = "latest"
    """What to do with a queue that has nothing at or after its starting time: `error`, or `latest`."""
    index_ranges: tuple[tuple[int, int], ...] | None = None
    offset_type: str = "queue"
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records: int | None = None
    partition_bytes: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_value: bool = True
    include_group: bool = False
    include_life: bool = False
    include_id: bool = False
    include_deleted: bool = False
    isolation: str = "committed"
    corrupt_records: str = "fail"
    pushdown: bool = False
    block_rows: int = BLOCK_ENTRIES
    consumer_group: str = DEFAULT_GROUP
    pull_batch: int = 1024
    pull_timeout_ms: int = 30_000
    access: access.Access = access.NO_ACCESS
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the options that the user set."""

    @property
    def names_lives(self) -> bool:
        """Whether the rows of messages name the lives of topics."""
        return self.include_life or self.include_id

    @property
    def whole_history(self) -> bool:
        """Whether the lives of deleted topics are needed, too."""
        return self.include_deleted and self.names_lives


def parse(options: Mapping[str, str], mode: str | None = None) -> Options:
    """Check all options. Raises BadOption, which names what is wrong. `mode`: batch, stream, or None if
    not yet known."""
    given = canonical(options)
    source = _source(given)
    view = values.choice("view", given.get("view", "messages"), VIEWS)
    if mode == "stream" and view != "messages":
        raise BadOption(f"view {view} cannot be streamed: only messages can")
    _check_use(given, view, source, mode)
    corrupt = CORRUPT.get(view, ("fail",))
    get = given.get
    starting, ending, (low, high) = _starting(given, mode), _ending(given), _times(given)
    _check_order(starting, ending)
    return Options(
        paths=values.paths(get("path", "")),
        servers=get("servers", "").strip(),
        view=view,
        groups=values.listed("group", get("group", "")),
        topics=_topics(given),
        tags=values.tags("tags", get("tags", "*")),
        keys=values.keys("keys", given["keys"]) if "keys" in given else None,
        starting=starting,
        ending=ending,
        starting_ms=low,
        ending_ms=high,
        starting_times=_times_of(given, "starting"),
        ending_times=_times_of(given, "ending"),
        unmatched=_unmatched(given),
        index_ranges=values.ranges("indexRanges", given["indexRanges"]) if "indexRanges" in given else None,
        offset_type=values.choice("offsetType", get("offsetType", "queue"), OFFSET_TYPES),
        max_offsets=_count(given, "maxOffsetsPerTrigger"),
        max_bytes=_count(given, "maxBytesPerTrigger"),
        min_offsets=_count(given, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_trigger_delay(given),
        min_partitions=_count(given, "minPartitions"),
        max_records=_count(given, "maxRecordsPerPartition"),
        partition_bytes=_count(given, "partitionBytes"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_headers=_flag(given, "includeHeaders", False),
        include_value=_flag(given, "includeValue", True),
        include_group=_flag(given, "includeGroup", False),
        include_life=_flag(given, "includeLife", False),
        include_id=_flag(given, "includeId", False),
        include_deleted=_flag(given, "includeDeleted", False),
        isolation=values.choice("isolation", get("isolation", "committed"), ISOLATION),
        corrupt_records=values.choice("corruptRecords", get("corruptRecords", "fail"), corrupt),
        pushdown=_flag(given, "pushdown", False),
        block_rows=_count(given, "blockRows") or BLOCK_ENTRIES,
        consumer_group=get("consumerGroup", "").strip() or DEFAULT_GROUP,
        pull_batch=_count(given, "pullBatchSize") or 1024,
        pull_timeout_ms=_count(given, "pullTimeoutMs") or 30_000,
        access=access.access_of(given),
        given=frozenset(given),
    )


def canonical(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their standard names: aliases are replaced, and case does not matter.
    Raises BadOption for an unknown name, and if two names mean the same option."""
    by_lower = {name.lower(): name for name in OPTIONS} | {
        alias.lower(): name for alias, name in ALIASES.items()
    }
    refused = {name.lower(): reason for name, reason in access.REFUSED.items()}
    given: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, value in options.items():
        known = by_lower.get(name.lower())
        if name.lower() in refused:
            raise BadOption(f"option {name}: {refused[name.lower()]}")
        if known is None and name.lower() in _TABLE_PROPERTIES:
            raise BadOption(NO_TABLE)
        if known is None and (why := kafka_options.reason(name)):
            raise BadOption(why)
        if known is None:
            raise BadOption(f"unknown option {name!r}{did_you_mean(name, [*OPTIONS, *ALIASES])}")
        if known in given:
            raise BadOption(f"{written[known]} and {name} are the same option: give only one")
        given[known] = value
        written[known] = name
    return given


def _source(given: Mapping[str, str]) -> str:
    if "path" in given and "servers" in given:
        raise BadOption("path (files) and servers (live brokers) exclude each other: give only one")
    if given.get("servers", "").strip():
        return "servers"
    if "servers" in given:
        raise BadOption("option servers is empty: NameServers as host:port")
    paths = values.paths(given.get("path", ""))
    for path in paths:
        if _ADDRESS.fullmatch(path):
            raise BadOption(
                f"option path: {path!r} looks like the address of a NameServer: give it with servers "
                "(a directory of this name is ./" + path + ")"
            )
    if not paths:
        raise BadOption(
            "option path is missing: the store directories (storePathRootDir); or servers: NameServers"
        )
    return "path"


def _check_use(given: Mapping[str, str], view: str, source: str, mode: str | None) -> None:
    """Raises BadOption for options that have no effect with this view, source and mode."""
    for name in given:
        option = OPTIONS[name]
        if view not in option.views:
            raise BadOption(f"option {name} has no effect on view {view}, only on {', '.join(option.views)}")
        if source not in option.of:
            raise BadOption(f"option {name} has no effect with {source}, only with {', '.join(option.of)}")
        if source == "servers" and option.live is not None and view not in option.live:
            only = f"with path, or on {', '.join(option.live)}"
            raise BadOption(f"option {name} has no effect on view {view} with servers, only {only}")
        if mode is not None and mode not in option.mode:
            raise BadOption(f"option {name} has no effect on a {mode}, only on a {option.mode[0]}")
    if mode is None:
        _check_one_mode(given, view)
    if mode == "stream" and "includeDeleted" in given and given.get("offsetType", "").lower() != "log":
        raise BadOption(
            "option includeDeleted has no effect on a stream of queues, which begin again with a new "
            "topic: add offsetType=log"
        )
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        if given.get("offsetType", "").lower() == "log" and name in given:
            raise BadOption(f"option {name} has no effect with offsetType log: filter storeTimestamp")
    if given.get("readFrom", "").lower() == "any":
        raise BadOption("option readFrom: any has no effect: only leaders answer pulls; remove it")
    values.choice("readFrom", given.get("readFrom", "leader"), READ_FROM)


def _check_one_mode(given: Mapping[str, str], view: str) -> None:
    """Raises BadOption if the options fit neither a batch nor a stream. `load()` does not know which of them
    it is for, so this is all that it can tell about them."""
    only = {mode: [name for name in given if OPTIONS[name].mode == (mode,)] for mode in ("batch", "stream")}
    batch = [f"view {view}"] if view != "messages" else [f"option {name}" for name in only["batch"]]
    if batch and only["stream"]:
        raise BadOption(f"{batch[0]} is only for batches, and option {only['stream'][0]} only for streams")


def _topics(given: Mapping[str, str]) -> TopicChoice:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) > 1:
        raise BadOption(f"{' and '.join(ways)} exclude each other: give only one")
    named = None
    if "subscribe" in given:
        named = values.topics("subscribe", given["subscribe"])
        if not named:
            raise BadOption("option subscribe names no topic: remove it to read all topics")
    for name in ("subscribe", "assign"):
        if name in given and "includeSystemTopics" in given:
            raise BadOption(
                f"option includeSystemTopics has no effect with {name}: name the system topics there"
            )
    return TopicChoice(
        named=named,
        pattern=values.pattern("subscribePattern", given["subscribePattern"])
        if "subscribePattern" in given
        else None,
        assign=values.assignment("assign", given["assign"]) if "assign" in given else None,
        system=_flag(given, "includeSystemTopics", False),
    )


def _starting(given: Mapping[str, str], mode: str | None) -> str | Mapping[Queue, int]:
    """Return where reading starts without a time. An option with times takes precedence, as in Spark's Kafka
    source: then queues for which it has no time start at their first message."""
    text = given.get("startingOffsets", "")
    found: str | Mapping[Queue, int]
    if not text:
        found = "earliest" if mode == "batch" else "latest"
    elif not text.lstrip().startswith("{"):
        known = ("earliest",) if mode == "batch" else ("earliest", "latest")
        found = values.choice("startingOffsets", text, known)
    else:
        found = values.offsets("startingOffsets", text)
        if mode == "batch" and LATEST in found.values():
            raise BadOption("option startingOffsets: -1 (latest) is for streams: a batch would read nothing")
    return "earliest" if _has_times(given, "starting") else found


def _ending(given: Mapping[str, str]) -> str | Mapping[Queue, int]:
    text = given.get("endingOffsets", "latest")
    found: str | Mapping[Queue, int]
    if not text.lstrip().startswith("{"):
        found = values.choice("endingOffsets", text, ("latest",))
    else:
        found = values.offsets("endingOffsets", text)
        if any(offset < LATEST for offset in found.values()):
            raise BadOption("option endingOffsets: -2 (earliest) would read nothing")
    return "latest" if _has_times(given, "ending") else found


def _check_order(starting: str | Mapping[Queue, int], ending: str | Mapping[Queue, int]) -> None:
    """Raises BadOption if a queue is to end before it starts. An end at the start is accepted: programs that
    read from one offset to the next one come to it."""
    if isinstance(starting, str) or isinstance(ending, str):
        return
    for queue, end in ending.items():
        start = starting.get(queue, EARLIEST)
        if end != LATEST and start > end:
            raise BadOption(
                f"option endingOffsets: {queue[0]}/{queue[1]} ends at {end}, which is before its start "
                f"{start} (startingOffsets): nothing would be read"
            )


def _has_times(given: Mapping[str, str], end: str) -> bool:
    return f"{end}Timestamp" in given or f"{end}OffsetsByTimestamp" in given


def _times_of(given: Mapping[str, str], end: str) -> Mapping[Queue, int]:
    """Return the times of single queues. One time for all queues takes precedence."""
    name = f"{end}OffsetsByTimestamp"
    if name not in given:
        return {}
    found = values.times(name, given[name])
    if f"{end}Timestamp" in given:
        return {}
    other = "startingOffsetsByTimestamp"
    starting = values.times(other, given[other]) if end == "ending" and other in given else {}
    for queue, time in found.items():
        if time <= starting.get(queue, -1):
            raise BadOption(
                f"option {name}: the time of {queue[0]}/{queue[1]} must be after that of {other}: nothing "
                "would be read"
            )
    return found


def _unmatched(given: Mapping[str, str]) -> str:
    name = "startingOffsetsByTimestampStrategy"
    if name in given:
        if not _has_times(given, "starting"):
            raise BadOption(
                f"option {name} has no effect without startingOffsetsByTimestamp or startingTimestamp"
            )
        return values.choice(name, given[name], UNMATCHED)
    return "latest" if "startingTimestamp" in given else "error"


def _trigger_delay(given: Mapping[str, str]) -> int:
    """Return the longest time between two batches, in ms, after a check of minOffsetsPerTrigger."""
    if "maxTriggerDelay" in given and "minOffsetsPerTrigger" not in given:
        raise BadOption("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    least, most = (_count(given, f"{end}OffsetsPerTrigger") for end in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise BadOption(
            f"option minOffsetsPerTrigger ({least}) must not be above maxOffsetsPerTrigger ({most})"
        )
    if "maxTriggerDelay" not in given:
        return DEFAULT_TRIGGER_DELAY_MS
    return values.duration_ms("maxTriggerDelay", given["maxTriggerDelay"])


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    return values.flag(name, given[name]) if name in given else default


def _count(given: Mapping[str, str], name: str) -> int | None:
    return values.positive(name, given[name]) if name in given else None


def _times(given: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the bounds of the store times in ms since the epoch; None for a bound that is not given."""
    names = ("startingTimestamp", "endingTimestamp")
    low, high = (values.milliseconds(name, given[name]) if name in given else None for name in names)
    if low is not None and high is not None and low >= high:
        raise BadOption(
            f"option endingTimestamp ({given[names[1]]}) must be after startingTimestamp "
            f"({given[names[0]]}): nothing would be read"
        )
    return low, high
