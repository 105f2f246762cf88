"""Topics and consumer groups (AdminBrokerProcessor).

* create or change one: 17 UPDATE_AND_CREATE_TOPIC, 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
* create or change several: 18 UPDATE_AND_CREATE_TOPIC_LIST, 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
* delete one: 215 DELETE_TOPIC_IN_BROKER, 207 DELETE_SUBSCRIPTIONGROUP
* show one: 351 GET_TOPIC_CONFIG, 352 GET_SUBSCRIPTIONGROUP_CONFIG
* show all: 21 GET_ALL_TOPIC_CONFIG, 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG

The creation of a topic is answered when it is applied here and the NameServers know the topic. So a client
that asks for the route next finds it. The requests that show topics and groups read the applied state, on
every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.registration.registrar import Registrar
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.broker.topic.deletion import Deletions
from dledger.broker.topic.shown import shown_group
from dledger.broker.topic.topic_creation import MAX_TOPIC_BYTES, TopicCreation
from dledger.broker.topic.topic_names import (
    FORBIDDEN_TO_SEND,
    group_problem,
    is_system_topic,
    topic_problem,
)
from dledger.broker.topic.topic_table import TopicTable, topic_body
from dledger.formats import life
from dledger.formats.life import Life
from dledger.formats.state import (
    GROUP_BIRTHS,
    MAX_INT,
    MAX_QUEUES,
    TOPIC_BIRTHS,
    Birth,
    Declared,
    GroupConfig,
    TopicConfig,
)
from dledger.remoting.bodies import (
    GroupConfigList,
    SubscriptionGroupConfig,
    TopicConfigList,
    TopicList,
    decode_body,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import dumps
from dledger.remoting.headers import (
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    DeleteTopicHeader,
    GroupHeader,
    TopicConfigHeader,
)
from dledger.remoting.registration import table_body

B = TypeVar("B", bound=Birth)
APPLIED_HERE = "applied index of the node that answers (any), with the queue counts of the applied state"
MAX_PERM = 7
MAX_LIST = 100
"""Largest number of topics or groups in one request. A request with more is refused."""
MAX_LIST_BODY = 64 * 1024
"""Limit, in bytes, of the body of a request with several topics or groups. A request with a larger body is
refused."""


class TopicProcessor:
    """Handlers of the requests that create, delete and show topics and groups."""

    def __init__(
        self,
        core: Core,
        creation: TopicCreation,
        topic_table: TopicTable,
        registrar: Registrar,
        deletions: Deletions,
    ) -> None:
        self._creation = creation
        self._store = core.store
        self._gate = core.gate
        self._node = core.node
        self._applied = core.applied
        self._background = core.background
        self._topic_table = topic_table
        self._registrar = registrar
        self._deletions = deletions
        self._log = core.env.log.child("topics")

    @handles(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicHeader,
        needs=Needs.LEADER,
        may=required.ADMIN,
        does=actions.Does(Action.CREATE, topics=("topic",)),
    )
    def create_topic(self, call: LeaderCall[CreateTopicHeader]) -> None:
        """Create a topic or change it. Queues that hold messages stay readable, even if the request asks for
        fewer read queues. Producers no longer choose these queues, and the answer says so. (In RocketMQ their
        messages can no longer be read.)"""
        header, writer = call.header, call.writer
        config = self._topic_config(writer, header)
        respond = call.respond
        kept = self._queues_with_messages(writer, header.topic)
        if config.read_queues < kept:
            remark = (
                f"readQueueNums stays {kept} instead of {config.read_queues}, as the queues up to "
                f"{kept - 1} hold messages. Change it again after they have expired"
            )
            respond = partial(respond, remark=remark)
            config = msgspec.structs.replace(config, read_queues=kept)
        if self._store.state.topics.get(header.topic) == config and writer.topic(header.topic) == config:
            self._gate.confirm(call.connection, call.request, partial(self._registrar.announce, respond))
            return
        _check_room(writer)
        index = self._creation.put_topic(writer, config)
        announce = partial(self._registrar.announce, respond)
        self._applied.add(index, call.connection, call.request, announce)

    @handles(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        needs=Needs.LEADER,
        max_body=MAX_LIST_BODY,
        may=required.ADMIN,
        does=actions.Does(Action.CREATE, body=actions.of_topics),
    )
    def create_topics(self, call: LeaderCall[None]) -> None:
        """Create or change several topics. All of them are checked before the first is created."""
        writer = call.writer
        asked = decode_body(call.request.body, TopicConfigList, "list of topics").topicConfigList
        _check_length(len(asked))
        configs: list[TopicConfig] = []
        for one in asked:
            header = CreateTopicHeader(
                one.topicName,
                "",
                one.readQueueNums,
                one.writeQueueNums,
                one.perm,
                topicSysFlag=one.topicSysFlag,
                order=one.order,
                attributes=",".join(
                    text if text.startswith("-") else f"{'' if text.startswith('+') else '+'}{text}={value}"
                    for text, value in one.attributes.items()
                ),
            )
            config = self._topic_config(writer, header)
            kept = self._queues_with_messages(writer, one.topicName)
            configs.append(msgspec.structs.replace(config, read_queues=max(config.read_queues, kept)))
        _check_room(writer)
        index = None
        for config in configs:
            if writer.topic(config.name) != config:
                index = self._creation.put_topic(writer, config)
        announce = partial(self._registrar.announce, call.respond)
        if index is None:
            self._gate.confirm(call.connection, call.request, announce)
        else:
            self._applied.add(index, call.connection, call.request, announce)

    @handles(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        needs=Needs.LEADER,
        max_body=MAX_LIST_BODY,
        may=required.ADMIN,
        does=actions.Does(Action.CREATE, body=actions.of_groups),
    )
    def create_groups(self, call: LeaderCall[None]) -> None:
        """Create or change several groups. All of them are checked before the first is created. The answer
        names settings that have no effect."""
        asked = decode_body(call.request.body, GroupConfigList, "list of groups").groupConfigList
        _check_length(len(asked))
        configs = [_group_config(one) for one in asked]
        _check_room(call.writer)
        index = -1
        for config in configs:
            index = call.writer.put_group(config)
        remark = _without_effect(asked, configs)
        self._applied.add(index, call.connection, call.request, partial(call.respond, remark=remark))

    @handles(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        needs=Needs.LEADER,
        may=required.ADMIN,
        does=actions.Does(Action.CREATE, body=actions.of_group),
    )
    def create_group(self, call: LeaderCall[None]) -> None:
        """Create a consumer group or change it. The answer names settings that have no effect."""
        writer = call.writer
        asked = decode_body(call.request.body, SubscriptionGroupConfig, "subscription group")
        config = _group_config(asked)
        _check_room(writer)
        index = writer.put_group(config)
        remark = _without_effect([asked], [config])
        self._applied.add(index, call.connection, call.request, partial(call.respond, remark=remark))

    @handles(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        DeleteTopicHeader,
        needs=Needs.LEADER,
        may=required.ADMIN,
        does=actions.Does(Action.DELETE, topics=("topic",)),
    )
    def delete_topic(self, call: LeaderCall[DeleteTopicHeader]) -> None:
        """Delete a topic and everything that belongs to it. The answer is sent when the topic is deleted in
        the state of this node and the NameServers know that. If there is no such topic, or if the request
        names the life of an earlier topic of that name, nothing is deleted and the answer is success."""
        topic = call.header.topic
        problem = topic_problem(topic)
        if problem is None and (is_system_topic(topic) or topic in self._topic_table.system_names):
            problem = f"The topic[{topic}] is conflict with system topic."
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        _check_room(call.writer)
        index = None
        if call.header.life in (None, str(self._life(call.writer.pending[TOPIC_BIRTHS].rows.get(topic)))):
            index = self._deletions.delete_topic(call.writer, topic)
        announce = partial(self._registrar.announce, call.respond)
        if index is None:
            self._gate.confirm(call.connection, call.request, announce)
            return
        self._log.info("topic deleted", topic=topic, by=call.connection.peer)
        self._applied.add(index, call.connection, call.request, announce)

    @handles(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        DeleteSubscriptionGroupHeader,
        needs=Needs.LEADER,
        may=required.ADMIN,
        does=actions.Does(Action.DELETE, groups=("groupName",)),
    )
    def delete_group(self, call: LeaderCall[DeleteSubscriptionGroupHeader]) -> None:
        """Delete a consumer group. With `cleanOffset`, everything that belongs to the group is deleted:
        offsets, locks, pops, its retry topic and its dead letters. Without `cleanOffset`, only its
        configuration is deleted, as in RocketMQ; a later group of that name finds the rest. If the group does
        not exist, the answer is success, as for a topic."""
        name = call.header.groupName
        problem = group_problem(name)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        _check_room(call.writer)
        index = None
        if call.header.life in (None, str(self._life(call.writer.pending[GROUP_BIRTHS].rows.get(name)))):
            keep = not call.header.cleanOffset
            index = self._deletions.delete_group(call.writer, name, keep_offsets=keep)
        announce = partial(self._registrar.announce, call.respond)
        if index is None:
            self._gate.confirm(call.connection, call.request, announce)
            return
        peer = call.connection.peer
        self._log.info("group deleted", group=name, offsets=call.header.cleanOffset, by=peer)
        self._applied.add(index, call.connection, call.request, announce)

    @handles(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.LISTED,
    )
    def all_topics(self, call: Call[None]) -> None:
        """Show all topics with their configuration."""
        table = self._topic_table

        async def answer() -> None:
            await table.prepare()
            body = table_body(table.entries(), self._registrar.data_version())
            ext = {"totalTopicNum": str(len(table))}
            call.respond(ext=ext, body=body)

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.LISTED,
    )
    def all_groups(self, call: Call[None]) -> None:
        """Show all consumer groups with their configuration."""
        groups = {name: shown_group(group) for name, group in self._store.state.groups.items()}
        version = self._registrar.data_version()
        body = dumps({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": groups})
        call.respond(ext={"totalGroupNum": str(len(groups))}, body=body)

    @handles(
        RequestCode.GET_TOPIC_CONFIG,
        TopicConfigHeader,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.SHOWN_TOPIC,
    )
    def one_topic(self, call: Call[TopicConfigHeader]) -> None:
        """Show the configuration of one topic, and its life (`formats.life`)."""
        self._answer_one(call, partial(self._one_topic, call))

    def _one_topic(self, call: Call[TopicConfigHeader]) -> None:
        name = call.header.topic
        config = self._topic_table.config(name)
        if config is None:
            remark = f"No topic in this broker. topic: {name}"
            call.respond(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
            return
        births = self._births(TOPIC_BIRTHS)
        call.respond(ext={life.FIELD: str(self._life(births.get(name)))}, body=topic_body(config))

    @handles(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        GroupHeader,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, groups=("group",)),
    )
    def one_group(self, call: Call[GroupHeader]) -> None:
        """Show the configuration of one consumer group, and its life (`formats.life`)."""
        self._answer_one(call, partial(self._one_group, call))

    def _one_group(self, call: Call[GroupHeader]) -> None:
        name = call.header.group
        group = self._store.state.groups.get(name)
        if group is None:
            remark = f"No group in this broker. group: {name}"
            call.respond(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
            return
        births = self._births(GROUP_BIRTHS)
        call.respond(ext={life.FIELD: str(self._life(births.get(name)))}, body=shown_group(group).encode())

    def _answer_one(
        self, call: Call[TopicConfigHeader] | Call[GroupHeader], answer: Callable[[], None]
    ) -> None:
        """Answer at once or, if the request is for the leader only, when a quorum has confirmed that this
        node leads. The confirmation is needed because a later deletion names the life from the answer. With
        an outdated life, the deletion would do nothing but still report success."""
        if not call.header.byLeader:
            answer()
        elif self._gate.writer is None:
            self._gate.wait_or_refuse(call.connection, call.request)
        else:
            self._gate.confirm(call.connection, call.request, answer)

    def _births(self, table: Declared[str, B]) -> Mapping[str, B]:
        """Return the births of topics or groups: the log positions at which they were created. On the leader
        they include births that are appended and not applied yet."""
        writer = self._gate.writer
        return self._store.state[table].rows if writer is None else writer.pending[table].rows

    def _life(self, birth: Birth | None) -> Life:
        return Life(self._node.cluster_id, 0 if birth is None else birth.at)

    @handles(
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        needs=Needs.ANY,
        reads="nothing",
        may=required.ACCOUNT,
        does=actions.NOTHING,
    )
    def system_topics(self, call: Call[None]) -> None:
        """Show the names of the system topics."""
        call.respond(body=TopicList(sorted(self._topic_table.system_names | FORBIDDEN_TO_SEND)).encode())

    def _queues_with_messages(self, writer: CommitLogWriter, topic: str) -> int:
        """Return how many queues of a topic consumers must be able to read: all queues up to the last one
        that holds a message. Messages that are appended and not applied yet count."""
        slot = writer.slot(topic)
        if slot is None:
            return 0
        for queue_id in reversed(range(slot.config.read_queues)):
            queue = self._store.queues.get(topic, queue_id)
            if slot.next[queue_id] > (0 if queue is None else queue.bounds.min):
                return queue_id + 1
        return 0

    def _topic_config(self, writer: CommitLogWriter, header: CreateTopicHeader) -> TopicConfig:
        problem = topic_problem(header.topic)
        if problem is None and is_system_topic(header.topic):
            problem = f"The topic[{header.topic}] is conflict with system topic."
        if problem is None and not (
            0 < header.readQueueNums <= MAX_QUEUES and 0 < header.writeQueueNums <= MAX_QUEUES
        ):
            problem = f"readQueueNums and writeQueueNums must be from 1 to {MAX_QUEUES}"
        if problem is None and not 0 <= header.perm <= MAX_PERM:
            problem = f"perm is {header.perm}; it must be from 0 to {MAX_PERM}"
        if problem is None and not 0 <= (header.topicSysFlag or 0) <= 0x7FFFFFFF:
            problem = "topicSysFlag out of range"
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        existing = writer.topic(header.topic)
        attributes = dict(existing.attributes) if existing is not None else {}
        _change_attributes(attributes, header.attributes or "")
        return TopicConfig(
            header.topic,
            header.readQueueNums,
            header.writeQueueNums,
            header.perm,
            header.order,
            header.topicSysFlag or 0,
            tuple(sorted(attributes.items())),
        )


def _group_config(body: SubscriptionGroupConfig) -> GroupConfig:
    """Return a group as requested. Raises RemotingError with code 29 INVALID_PARAMETER if a value is
    invalid."""
    problem = group_problem(body.groupName)
    numbers = (body.retryMaxTimes, body.groupSysFlag)
    if problem is None and (
        not 0 <= body.retryQueueNums <= MAX_QUEUES or not all(0 <= one <= MAX_INT for one in numbers)
    ):
        problem = "retryQueueNums, retryMaxTimes or groupSysFlag out of range"
    if problem is not None:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
    return GroupConfig(
        body.groupName,
        body.consumeEnable,
        body.consumeBroadcastEnable,
        body.consumeMessageOrderly,
        body.retryQueueNums,
        body.retryMaxTimes,
        body.groupSysFlag,
    )


def _without_effect(asked: Sequence[SubscriptionGroupConfig], made: Sequence[GroupConfig]) -> str | None:
    """Return a text with the names of the requested group settings that are not kept, or None if all are
    kept."""
    fields = SubscriptionGroupConfig.__struct_fields__
    shown = [shown_group(config) for config in made]
    lost = [
        name
        for name in fields
        if any(getattr(one, name) != getattr(kept, name) for one, kept in zip(asked, shown, strict=True))
    ]
    return f"these settings have no effect here: {', '.join(lost)}" if lost else None


def _check_length(count: int) -> None:
    if not 0 < count <= MAX_LIST:
        raise RemotingError(
            ResponseCode.INVALID_PARAMETER, f"the list has {count} items; it must have 1 to {MAX_LIST}"
        )


def _change_attributes(attributes: dict[str, str], text: str) -> None:
    """Change `attributes` by a text such as `+key=value,-key` (AttributeParser). Raises RemotingError with
    code 29 INVALID_PARAMETER if the text has another form."""
    if len(text) > MAX_TOPIC_BYTES:
        raise RemotingError(
            ResponseCode.INVALID_PARAMETER,
            f"the attributes have {len(text)} characters; the limit is {MAX_TOPIC_BYTES}",
        )
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, separator, value = part[1:].partition("=")
        if part[0] == "+" and separator and key:
            attributes[key] = value
        elif part[0] == "-" and key and not separator:
            attributes.pop(key, None)
        else:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"attribute {part!r}: expected +key=value or -key"
            )


def _check_room(writer: CommitLogWriter) -> None:
    if not writer.room:
        raise writer.refused
