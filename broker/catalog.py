"""Creation of topics and groups by the leader, on request and by itself (TopicConfigManager)."""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.sealing import Sealer, TopicSlot
from broker.topics import (
    DLQ_PREFIX,
    READ_WRITE,
    RETRY_PREFIX,
    group_problem,
    is_system_topic,
    topic_problem,
)
from formats.state import GroupConfig, Perm, ReplicatedState, TopicConfig
from remoting.codes import ResponseCode
from remoting.errors import RemotingError

DLQ_QUEUES = 1


class Catalog:
    """Rules of creation. Every creation is an entry of the log; what follows it may count on it at once."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def topic_for_send(
        self, sealer: Sealer, state: ReplicatedState, topic: str, default_topic: str, queues: int
    ) -> TopicSlot:
        """The slot of a topic that a client sends to, created if it may be; RemotingError 29, 16 or 17."""
        problem = topic_problem(topic)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        if is_system_topic(topic):
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        slot = sealer.slot(topic)
        if slot is not None:
            return slot
        config = self._inherited(sealer, topic, default_topic, queues)
        if config is None and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            config = TopicConfig(topic, 1, 1, READ_WRITE)
        if config is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        self.check_topic_count(state)
        sealer.put_topic(config)
        created = sealer.slot(topic)
        if created is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] could not be created")
        return created

    def internal_topic(self, sealer: Sealer, topic: str, queues: int) -> TopicSlot:
        """A retry or dead letter topic, created when it is not there."""
        slot = sealer.slot(topic)
        if slot is None:
            sealer.put_topic(TopicConfig(topic, queues, queues, READ_WRITE))
            slot = sealer.slot(topic)
        if slot is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] could not be created")
        return slot

    def group_for_consumer(self, sealer: Sealer, state: ReplicatedState, name: str) -> GroupConfig | None:
        """A consumer group, created with its retry topic if it may be; None when it may not.

        RemotingError 29 for a name that is none. Creation waits for room in the log: a heartbeat or pull
        comes again.
        """
        group = sealer.group(name)
        if group is not None:
            return group
        problem = group_problem(name)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        if not self._config.auto_create_group or not sealer.room:
            return None
        if len(state.groups) >= self._config.max_groups:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the limit of {self._config.max_groups} groups is reached"
            )
        group = GroupConfig(name)
        sealer.put_group(group)
        self.internal_topic(sealer, RETRY_PREFIX + name, group.retry_queues)
        return group

    def check_topic_count(self, state: ReplicatedState) -> None:
        """RemotingError 1 at the limit on topics."""
        if len(state.topics) >= self._config.max_topics:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the limit of {self._config.max_topics} topics is reached"
            )

    def _inherited(self, sealer: Sealer, topic: str, default_topic: str, queues: int) -> TopicConfig | None:
        """createTopicInSendMessageMethod: as many queues as asked for, at most those of the default."""
        if not self._config.auto_create_topic:
            return None
        parent = sealer.topic(default_topic)
        if parent is None or not parent.perm & Perm.INHERIT:
            return None
        count = max(1, min(queues, parent.write_queues))
        return TopicConfig(topic, count, count, parent.perm & ~Perm.INHERIT)
