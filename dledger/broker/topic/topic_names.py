"""Names of topics and groups, and the topics that every broker has (TopicValidator)."""

from __future__ import annotations

import re

from dledger.broker.config import MAX_GROUP_NAME, BrokerConfig
from dledger.formats.record import MAX_TOPIC_V1, SYSTEM_TOPIC
from dledger.formats.state import Perm, TopicConfig
from dledger.formats.timers import TIMER_TOPIC

DEFAULT_TOPIC = "TBW102"
"""The default topic (AUTO_CREATE_TOPIC_KEY_TOPIC): its route lets producers send to topics that do not exist
yet."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_QUEUES = 18
"""Smallest number of queues of the schedule topic (SCHEDULE_TOPIC_QUEUE_NUM). If there are more delay levels,
the topic has one queue for each level."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The topic in which half messages of transactions wait."""
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic that gets half messages whose transactions were discarded, because no producer ended them."""
READ_WRITE = Perm.READ | Perm.WRITE

FORBIDDEN_TO_SEND = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        DISCARD_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        SYSTEM_TOPIC,
    }
)

_NAME = re.compile(r"^[%|a-zA-Z0-9_-]+$")
# Names of topics become names of directories, which these two cannot be.
_NO_DIRECTORY = frozenset({".", ".."})


def topic_problem(topic: str) -> str | None:
    """Return why a name is not a valid name of a topic, or None if it is valid. Names have at most 127 bytes,
    because old clients cannot read longer ones."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.match(topic) or topic in _NO_DIRECTORY or topic.endswith("\n"):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > MAX_TOPIC_V1:
        return f"The specified topic is longer than topic max length {MAX_TOPIC_V1}."
    return None


def group_problem(group: str) -> str | None:
    """Return why a name is not a valid name of a group, or None if it is valid."""
    if not group.strip():
        return "The specified group is blank."
    if not _NAME.match(group) or group.endswith("\n"):
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_NAME:
        return f"The specified group is longer than group max length {MAX_GROUP_NAME}."
    return None


def is_system_topic(topic: str) -> bool:
    """Whether only the broker itself writes to this topic."""
    return topic in FORBIDDEN_TO_SEND or topic.startswith(SYSTEM_PREFIX)


def system_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the topics that exist from the start. They follow from the configuration, so they are not in the
    log."""
    levels = max(SCHEDULE_QUEUES, len(config.delay_levels))
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1, READ_WRITE),
        TopicConfig(BENCHMARK_TOPIC, 8, 8, READ_WRITE),
        TopicConfig(OFFSET_MOVED_EVENT, 1, 1, READ_WRITE),
        TopicConfig(config.cluster_name, 16, 16, READ_WRITE | Perm.INHERIT),
        TopicConfig(config.broker_name, 1, 1, READ_WRITE | Perm.INHERIT),
        TopicConfig(f"{config.cluster_name}_REPLY_TOPIC", 1, 1, READ_WRITE),
        TopicConfig(SCHEDULE_TOPIC, levels, levels, READ_WRITE),
        TopicConfig(TIMER_TOPIC, 1, 1, READ_WRITE),
        TopicConfig(HALF_TOPIC, 1, 1, READ_WRITE),
        TopicConfig(DISCARD_TOPIC, 1, 1, READ_WRITE),
    ]
    if config.trace_topic_enable:
        topics.append(TopicConfig(config.trace_topic, 1, 1, READ_WRITE))
    if config.auto_create_topic:
        queues = config.default_topic_queues
        topics.append(TopicConfig(DEFAULT_TOPIC, queues, queues, READ_WRITE | Perm.INHERIT))
    return {topic.name: topic for topic in topics}
