"""Creation of topics and groups by the leader, on request and automatic (TopicConfigManager)."""

from __future__ import annotations

from dledger.broker.commit_log import CommitLogWriter, TopicSlot
from dledger.broker.config import BrokerConfig
from dledger.broker.topic.topic_names import (
    DLQ_PREFIX,
    READ_WRITE,
    RETRY_PREFIX,
    group_problem,
    is_system_topic,
    topic_problem,
)
from dledger.broker.topic.topic_table import encode_topic
from dledger.formats.state import GroupConfig, Perm, ReplicatedState, TopicConfig
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.live_settings import LiveSettings

DLQ_QUEUES = 1
MAX_TOPIC_BYTES = 64 * 1024
"""Limit, in bytes, of one topic in a registration. A larger topic is refused."""
INTERNAL_TABLE_BYTES = 512 * 1024
"""Bytes of a registration reserved for retry and dead letter topics, in addition to `max_topic_table_bytes`.
About 2,000 such topics fit."""


class TopicCreation:
    """Creates topics and groups. Every creation is an entry of the log; later requests see it at once, before
    it is applied."""

    def __init__(self, settings: LiveSettings[BrokerConfig]) -> None:
        self._settings = settings

    def topic_for_send(
        self, writer: CommitLogWriter, topic: str, default_topic: str, queues: int
    ) -> TopicSlot:
        """Return the slot of a topic that a client sends to. The topic is created if that is allowed.

        Raises RemotingError with these codes:

        * 29 INVALID_PARAMETER if the name is invalid
        * 16 NO_PERMISSION for a system topic
        * 17 TOPIC_NOT_EXIST if the topic may not be created
        * 1 SYSTEM_ERROR at a limit
        """
        problem = topic_problem(topic)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        if is_system_topic(topic):
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        slot = writer.slot(topic)
        if slot is not None:
            return slot
        config = self._inherited(writer, topic, default_topic, queues)
        if config is None and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            config = TopicConfig(topic, 1, 1, READ_WRITE)
        if config is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        return self._created(writer, config, by_send=True)

    def internal_topic(
        self, writer: CommitLogWriter, topic: str, queues: int, *, by_send: bool = False
    ) -> TopicSlot:
        """Return a retry or dead letter topic, which is created if it does not exist. Raises RemotingError
        with code 1 SYSTEM_ERROR at a limit."""
        slot = writer.slot(topic)
        if slot is not None:
            return slot
        config = TopicConfig(topic, queues, queues, READ_WRITE)
        return self._created(writer, config, internal=True, by_send=by_send)

    def dead_letters(self, writer: CommitLogWriter, group: str) -> TopicSlot:
        """Return the dead letter topic of a group, which is created with its first message."""
        return self.internal_topic(writer, DLQ_PREFIX + group, DLQ_QUEUES, by_send=True)

    def put_topic(
        self, writer: CommitLogWriter, config: TopicConfig, *, internal: bool = False, by_send: bool = False
    ) -> int:
        """Create or change a topic. Returns the index of the entry. Raises RemotingError with code 1
        SYSTEM_ERROR at a limit, and with code 29 INVALID_PARAMETER if the topic is too large.

        The whole table of topics is sent to a NameServer in one frame, whose limit is 16 MiB, as in RocketMQ.
        A topic that does not fit is refused here, so that the client gets the error. RocketMQ 5 can split the
        table (enableSplitRegistration, off by default). But then a NameServer that knows nothing yet shows a
        leader with only a part of its topics. A NameServer with deleteTopicWithBrokerRegistration deletes the
        topics of the other parts. So a broker with id 0 always registers a whole table (safety.md S23).

        `internal`: a retry or dead letter topic. There are at most two for each consumer group, so their
        number is bounded. Without a dead letter topic, a message that cannot be consumed would block its
        queue for ever. So the limit of topics does not apply to them, and INTERNAL_TABLE_BYTES are reserved
        for them.

        `by_send`: see `CommitLogWriter.put_topic`.
        """
        limits = self._settings.now
        size = len(encode_topic(config))
        if size > MAX_TOPIC_BYTES:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"topic[{config.name}] has {size} bytes with its attributes; the limit is {MAX_TOPIC_BYTES}",
            )
        if not internal and writer.topic(config.name) is None and writer.topics >= limits.max_topics:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the limit of {limits.max_topics} topics is reached (retry and dead letter topics count): "
                f"topic[{config.name}] needs another broker group",
            )
        growth = writer.growth(config)
        limit = limits.max_topic_table_bytes + (INTERNAL_TABLE_BYTES if internal else 0)
        if growth > 0 and writer.table_bytes + growth > limit:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the limit of {limit} bytes of topics in a registration is reached "
                f"(topic[{config.name}] would make {writer.table_bytes + growth}): shorten names or "
                "attributes, or use another broker group",
            )
        return writer.put_topic(config, by_send=by_send)

    def group_for_consumer(
        self, writer: CommitLogWriter, state: ReplicatedState, name: str
    ) -> GroupConfig | None:
        """Return a consumer group. If it does not exist, it is created with its retry topic, if that is
        allowed. Returns None if it is not allowed, or if the log has no room; the client will repeat the
        heartbeat or pull.

        Raises RemotingError with code 29 INVALID_PARAMETER for an invalid name, and with code 1 SYSTEM_ERROR
        at a limit.
        """
        group = writer.group(name)
        if group is not None:
            return group
        problem = group_problem(name)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        if not self._settings.now.auto_create_group or not writer.room:
            return None
        if len(state.groups) >= self._settings.now.max_groups:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the limit of {self._settings.now.max_groups} groups is reached"
            )
        group = GroupConfig(name)
        # The topic first: at a limit neither is created, and each pull of the consumer gets the reason.
        self.internal_topic(writer, RETRY_PREFIX + name, group.retry_queues)
        writer.put_group(group)
        return group

    def retry_topic_for_consumer(self, writer: CommitLogWriter, name: str) -> None:
        """Create the retry topic of a group when its first consumer comes, because tools find a group by its
        retry topic. A group that was created by a command does not have one before. Does nothing while the
        log has no room. Raises RemotingError with code 1 SYSTEM_ERROR at a limit."""
        group = writer.group(name)
        if group is not None and writer.room:
            self.internal_topic(writer, RETRY_PREFIX + name, group.retry_queues)

    def _created(
        self, writer: CommitLogWriter, config: TopicConfig, *, internal: bool = False, by_send: bool = False
    ) -> TopicSlot:
        self.put_topic(writer, config, internal=internal, by_send=by_send)
        created = writer.slot(config.name)
        if created is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"topic[{config.name}] could not be created")
        return created

    def _inherited(
        self, writer: CommitLogWriter, topic: str, default_topic: str, queues: int
    ) -> TopicConfig | None:
        """Return the configuration of a topic that a send creates (createTopicInSendMessageMethod). It has as
        many queues as requested, but at most those of the default topic. Returns None if the topic cannot be
        created from the default topic."""
        if not self._settings.now.auto_create_topic:
            return None
        parent = writer.topic(default_topic)
        if parent is None or not parent.perm & Perm.INHERIT:
            return None
        count = max(1, min(queues, parent.write_queues))
        return TopicConfig(topic, count, count, parent.perm & ~Perm.INHERIT)
