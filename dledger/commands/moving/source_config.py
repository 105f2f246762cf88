"""Files that an Apache broker keeps beside its log: `config/*.json`, and the ends of its ConsumeQueues.
Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dledger.audit.segment_places import QUEUES_DIR
from dledger.broker.topic.topic_names import SYSTEM_PREFIX
from dledger.commands.moving.source_log import SourceUnusable
from dledger.formats.consume_queue import UNIT_SIZE, unpack_unit
from dledger.formats.store_files import parse_segment_name, segment_name
from dledger.remoting.errors import BadBody
from dledger.remoting.fastjson import loads
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

Queue = tuple[str, int]
"""A queue: topic and queue id."""
CONFIG_DIR = "config"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REVIVE_PREFIX = f"{SYSTEM_PREFIX}REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
OWN_TOPICS = frozenset({OP_HALF_TOPIC})
"""Topics that only hold bookkeeping of Apache's brokers. An import turns the state in them into tables,
and does not import their messages."""
OWN_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        TRANSACTION_GROUP,
    }
)
"""Groups that every Apache broker has for its own use."""
_TIMER_CHECKPOINTS = ("timercheck", "timercheckpoint")
_BATCH_QUEUES = "batchconsumequeue"


def is_bookkeeping(topic: str) -> bool:
    """Return whether messages of this topic are a broker's own bookkeeping."""
    return topic in OWN_TOPICS or topic.startswith(REVIVE_PREFIX)


@dataclass
class SourceConfig:
    """The tables of an Apache broker, as read from its files."""

    topics: dict[str, Mapping[str, Any]] | None = None
    """Maps a topic's name to its TopicConfig; None if there is no topics.json."""
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    offsets: dict[str, dict[Queue, int]] = field(default_factory=dict)
    """Maps a group and a queue to the next offset that the group consumes."""
    delays: dict[int, int] | None = None
    """Maps a delay level to the queue offset of the first message that waits in it; None if there is no
    delayOffset.json."""
    timer_read_ms: int | None = None
    """Time in ms up to which the broker has delivered timer messages; None if the broker recorded none."""
    queue_ends: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """Maps a queue to two numbers from its ConsumeQueue: the next offset, and the physical offset of the
    last message (-1 if there is none)."""
    notes: list[str] = field(default_factory=list)


def read_config(files: Files, root: str) -> SourceConfig:
    """Read all tables. Raises SourceUnusable if a file exists and cannot be read."""
    config = SourceConfig()
    topics = _table(files, root, "topics.json", "topicConfigTable", config)
    if topics is None and any(
        files.exists(f"{root}/{CONFIG_DIR}/{name}/CURRENT") for name in files.listdir(f"{root}/{CONFIG_DIR}")
    ):
        raise SourceUnusable(
            f"{root}/{CONFIG_DIR}: topics, groups and offsets are in RocksDB. Export them as JSON "
            "before the broker stops (mqadmin rocksDBConfigToJson), into files with the names that "
            "RocketMQ uses"
        )
    if topics is not None:
        config.topics = {name: row for name, row in topics.items() if isinstance(row, dict)}
    config.groups = _table(files, root, "subscriptionGroup.json", "subscriptionGroupTable", config) or {}
    for key, queues in (_table(files, root, "consumerOffset.json", "offsetTable", config) or {}).items():
        topic, _, group = key.partition("@")
        if group and isinstance(queues, dict):
            known = config.offsets.setdefault(group, {})
            for queue, offset in queues.items():
                if isinstance(offset, int) and offset >= 0 and str(queue).isdigit():
                    known[topic, int(queue)] = offset
    delays = _table(files, root, "delayOffset.json", "offsetTable", config)
    if delays is not None:
        config.delays = {int(level): int(offset) for level, offset in delays.items()}
    for name in _TIMER_CHECKPOINTS:
        data = read_file(files, f"{root}/{CONFIG_DIR}/{name}")
        if data is not None and len(data) >= 8:
            config.timer_read_ms = int.from_bytes(data[:8], "big", signed=True)
    if files.is_dir(f"{root}/{_BATCH_QUEUES}") and files.listdir(f"{root}/{_BATCH_QUEUES}"):
        raise SourceUnusable(
            f"{root}/{_BATCH_QUEUES}: topics whose queues hold batches (queue.type=BatchCQ) cannot be "
            "imported: here every message has its own offset in its queue. Consume their messages "
            "and delete these topics first"
        )
    config.queue_ends = _queue_ends(files, root)
    return config


def _table(files: Files, root: str, name: str, key: str, config: SourceConfig) -> dict[str, Any] | None:
    path = f"{root}/{CONFIG_DIR}/{name}"
    problem = ""
    for place in (path, f"{path}.bak"):  # as ConfigManager.load does
        data = read_file(files, place)
        if not data or not data.strip(b"\0 \n"):
            continue
        try:
            value = loads(data, large=True)
            table = value[key]
            if not isinstance(table, dict):
                raise TypeError(f"{key} is not a JSON object")
        except (BadBody, KeyError, TypeError) as error:
            problem = f"{place}: {error}"
            continue
        if problem:
            config.notes.append(f"{problem}; {place} was read instead")
        return table
    if problem:
        raise SourceUnusable(
            f"{problem}: its content would be lost; repair it, or remove it to continue without it"
        )
    return None


def _queue_ends(files: Files, root: str) -> dict[Queue, tuple[int, int]]:
    ends: dict[Queue, tuple[int, int]] = {}
    base = f"{root}/{QUEUES_DIR}"
    for topic in files.listdir(base):
        if not files.is_dir(f"{base}/{topic}"):
            continue
        for queue in files.listdir(f"{base}/{topic}"):
            if queue.isdigit():
                ends[topic, int(queue)] = _queue_end(files, f"{base}/{topic}/{queue}")
    return ends


def _queue_end(files: Files, directory: str) -> tuple[int, int]:
    starts = [start for name in files.listdir(directory) if (start := parse_segment_name(name)) is not None]
    for start in sorted(starts, reverse=True):
        data = read_file(files, f"{directory}/{segment_name(start)}") or b""
        units = (len(data.rstrip(b"\0")) + UNIT_SIZE - 1) // UNIT_SIZE
        if units:
            return start // UNIT_SIZE + units, unpack_unit(data, (units - 1) * UNIT_SIZE).physical_offset
    return min(starts, default=0) // UNIT_SIZE, -1
