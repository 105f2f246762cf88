"""Administration: 17, 200 create topics and groups; 21, 28, 201 show things (AdminBrokerProcessor).

Creation is answered when it is applied here and the NameServers know, so that a client that asks for the
route next finds it. What is shown is applied state, on every node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dledger.broker.background import Background
from dledger.broker.commit_log import Sealer
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.pending_responses import Completions
from dledger.broker.registration import Registrar
from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic_creation import Catalog
from dledger.broker.topic_table import TopicTable
from dledger.broker.topics import group_problem, is_system_topic, topic_problem
from dledger.formats.state import MAX_INT, MAX_QUEUES, GroupConfig, TopicConfig
from dledger.remoting.bodies import KvTable, SubscriptionGroupConfig, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.fastjson import dumps
from dledger.remoting.headers import CreateTopicHeader
from dledger.remoting.registration import table_body
from dledger.remoting.server import Connection, Handler

MAX_PERM = 7


class AdminProcessor:
    """Handlers of the administration codes."""

    def __init__(
        self,
        gate: LeaderGate,
        catalog: Catalog,
        store: MessageStore,
        applied: Completions,
        background: Background,
        topic_table: TopicTable,
        registrar: Registrar,
        runtime_info: Callable[[], dict[str, str]],
    ) -> None:
        self._gate = gate
        self._catalog = catalog
        self._store = store
        self._applied = applied
        self._background = background
        self._topic_table = topic_table
        self._registrar = registrar
        self._runtime_info = runtime_info

    def handlers(self) -> dict[int, Handler]:
        """Code -> handler."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._gate.leader_only(self.create_topic),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._gate.leader_only(self.create_group),
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
        }

    def create_topic(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """17: create a topic or change it."""
        header = request.header(CreateTopicHeader)
        config = self._topic_config(sealer, header)
        answer = partial(connection.respond, request, ResponseCode.SUCCESS)
        if self._store.state.topics.get(header.topic) == config and sealer.topic(header.topic) == config:
            self._registrar.announce(answer)
            return
        _check_room(sealer)
        index = self._catalog.put_topic(sealer, config)
        self._applied.add(index, connection, request, partial(self._registrar.announce, answer))

    def create_group(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """200: create a consumer group or change it."""
        body = decode_body(request.body, SubscriptionGroupConfig, "subscription group")
        problem = group_problem(body.groupName)
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        numbers = (body.retryMaxTimes, body.groupSysFlag)
        if not 0 <= body.retryQueueNums <= MAX_QUEUES or not all(0 <= one <= MAX_INT for one in numbers):
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, "retryQueueNums, retryMaxTimes or groupSysFlag out of range"
            )
        _check_room(sealer)
        config = GroupConfig(
            body.groupName,
            body.consumeEnable,
            body.consumeBroadcastEnable,
            body.consumeMessageOrderly,
            body.retryQueueNums,
            body.retryMaxTimes,
            body.groupSysFlag,
        )
        index = sealer.put_group(config)
        answer = partial(connection.respond, request, ResponseCode.SUCCESS)
        self._applied.add(index, connection, request, answer)

    def all_topics(self, connection: Connection, request: Request) -> None:
        """21: every topic."""
        table = self._topic_table

        async def answer() -> None:
            await table.prepare()
            body = table_body(table.entries(), self._registrar.data_version())
            ext = {"totalTopicNum": str(len(table))}
            connection.respond(request, ResponseCode.SUCCESS, ext=ext, body=body)

        self._background.start(connection, request, answer())

    def all_groups(self, connection: Connection, request: Request) -> None:
        """201: every consumer group."""
        groups = {
            name: SubscriptionGroupConfig(
                name,
                consumeEnable=group.enable,
                consumeBroadcastEnable=group.broadcast,
                consumeMessageOrderly=group.order,
                retryQueueNums=group.retry_queues,
                retryMaxTimes=group.retry_max,
                groupSysFlag=group.flags,
            )
            for name, group in self._store.state.groups.items()
        }
        version = self._registrar.data_version()
        body = dumps({"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": groups})
        connection.respond(request, ResponseCode.SUCCESS, ext={"totalGroupNum": str(len(groups))}, body=body)

    def runtime(self, connection: Connection, request: Request) -> None:
        """28: figures for dashboards."""
        body = KvTable(self._runtime_info()).encode()
        connection.respond(request, ResponseCode.SUCCESS, body=body)

    def _topic_config(self, sealer: Sealer, header: CreateTopicHeader) -> TopicConfig:
        problem = topic_problem(header.topic)
        if problem is None and is_system_topic(header.topic):
            problem = f"The topic[{header.topic}] is conflict with system topic."
        if problem is None and not (
            0 < header.readQueueNums <= MAX_QUEUES and 0 < header.writeQueueNums <= MAX_QUEUES
        ):
            problem = f"readQueueNums and writeQueueNums: 1 to {MAX_QUEUES}"
        if problem is None and not 0 <= header.perm <= MAX_PERM:
            problem = f"perm {header.perm}: 0 to {MAX_PERM}"
        if problem is None and not 0 <= (header.topicSysFlag or 0) <= 0x7FFFFFFF:
            problem = "topicSysFlag out of range"
        if problem is not None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        existing = sealer.topic(header.topic)
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


def _change_attributes(attributes: dict[str, str], text: str) -> None:
    """`+key=value,-key` (AttributeParser); RemotingError 29 for anything else."""
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, separator, value = part[1:].partition("=")
        if part[0] == "+" and separator and key:
            attributes[key] = value
        elif part[0] == "-" and key and not separator:
            attributes.pop(key, None)
        else:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"attribute {part!r}: +key=value or -key is expected"
            )


def _check_room(sealer: Sealer) -> None:
    if not sealer.room:
        raise sealer.refused
