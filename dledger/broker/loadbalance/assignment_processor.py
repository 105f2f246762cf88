"""Rebalance by the broker: 400 QUERY_ASSIGNMENT, 401 SET_MESSAGE_REQUEST_MODE (QueryAssignmentProcessor).

Consumers with `clientRebalance=false` ask a broker which queues are theirs, and whether they should pull or
pop. The mode (pull or pop) is part of the replicated state. The members of the group are those that the
leader knows.
"""

from __future__ import annotations

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.loadbalance.allocation import STRATEGIES, for_pop
from dledger.broker.loadbalance.queue_routes import QueueRoutes
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.formats.state import REQUEST_MODES, Perm, RequestMode
from dledger.remoting.bodies import MessageQueue
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.pop_bodies import (
    Assignment,
    Assignments,
    QueryAssignmentBody,
    decode_assignment_query,
    decode_request_mode,
)

MAX_QUERY = 4096
"""Limit, in bytes, of the body of either request; a longer one is refused."""
MAX_REQUEST_MODES = 20_000
"""Largest number of pairs of group and topic for which a mode was set; one more is refused."""
PULL, POP = "PULL", "POP"


class AssignmentProcessor:
    """Handlers of the requests 400 QUERY_ASSIGNMENT and 401 SET_MESSAGE_REQUEST_MODE."""

    def __init__(
        self, core: Core, creation: TopicCreation, client: RemotingClient, name_servers: NameServers
    ) -> None:
        self._settings = core.settings
        self._creation = creation
        self._store = core.store
        self._clients = core.clients
        self._background = core.background
        self._committed = core.committed
        self._routes = QueueRoutes(core.settings, name_servers, client)

    @handles(
        RequestCode.QUERY_ASSIGNMENT,
        needs=Needs.LEADER,
        reads="applied index of the leader, its own connections, and a route of at most 5 s ago",
        max_body=MAX_QUERY,
        may=required.Rule(special=required.of_assignment),
    )
    def query(self, call: LeaderCall[None]) -> None:
        """Answer with the queues of the consumer that asks."""
        body = decode_assignment_query(call.request.body)
        others = self._routes.fresh(body.topic)
        if others is not None:
            self._answer(call, body, others)
            return

        async def ask() -> None:
            self._answer(call, body, await self._routes.others(body.topic))

        self._background.start(call.connection, call.request, ask())

    def _answer(
        self, call: LeaderCall[None], body: QueryAssignmentBody, others: tuple[MessageQueue, ...]
    ) -> None:
        mode = request_mode(call.writer, body.topic, body.consumerGroup)
        own = call.writer.topic(body.topic)
        queues = list(others)
        if own is not None and own.perm & Perm.READ:
            name = self._settings.now.broker_name
            queues += [MessageQueue(body.topic, name, queue_id) for queue_id in range(own.read_queues)]
        chosen = self._allocate(body, sorted(queues), mode)
        answer = Assignments(None if chosen is None else [Assignment(queue, mode.mode) for queue in chosen])
        call.respond(body=answer.encode())

    def _allocate(
        self, body: QueryAssignmentBody, queues: list[MessageQueue], mode: RequestMode
    ) -> list[MessageQueue] | None:
        if not queues:
            return None  # the client keeps what it has
        if body.messageModel == "BROADCASTING" or not self._settings.now.server_load_balancer:
            return queues
        strategy = STRATEGIES.get(body.strategyName)
        group = self._clients.consumers.get(body.consumerGroup)
        if group is None or not group.client_ids:
            return None
        if strategy is None:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"the strategy {body.strategyName[:40]!r} is unknown; this broker has "
                f"{', '.join(STRATEGIES)}",
            )
        clients = group.client_ids
        if mode.mode == POP:
            return for_pop(strategy, body.clientId, queues, clients, mode.share)
        return strategy(body.clientId, queues, clients)

    @handles(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        needs=Needs.LEADER,
        max_body=MAX_QUERY,
        may=required.ADMIN,
        does=actions.Does(Action.UPDATE, body=actions.of_mode),
    )
    def set_mode(self, call: LeaderCall[None]) -> None:
        """Set whether the consumers of a group pull the messages of a topic or pop them."""
        body, writer = decode_request_mode(call.request.body), call.writer
        if body.topic.startswith(RETRY_PREFIX):
            raise RemotingError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.mode not in (PULL, POP):
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"the mode {body.mode[:40]!r} is unknown: use PULL or POP"
            )
        if writer.topic(body.topic) is None:
            raise RemotingError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        # Tools may set the mode before the first consumer connects.
        if self._creation.group_for_consumer(writer, self._store.state, body.consumerGroup) is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        if not -(1 << 31) <= body.popShareQueueNum < 1 << 31:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, "popShareQueueNum is not a 32-bit number")
        rows = writer.pending[REQUEST_MODES].rows
        if (body.topic, body.consumerGroup) not in rows and len(rows) >= MAX_REQUEST_MODES:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"the limit of {MAX_REQUEST_MODES} request modes is reached"
            )
        if not writer.room:
            raise writer.refused
        writer.note_version(RequestMode.operation)
        row = RequestMode(body.topic, body.consumerGroup, body.mode, body.popShareQueueNum)
        index = writer.append_op(row.op())
        self._committed.add(index, call.connection, call.request, call.respond)


def request_mode(writer: CommitLogWriter, topic: str, group: str) -> RequestMode:
    """Return how a group asks for messages of a topic. It is the mode that was set; without one it is
    PULL."""
    row = writer.pending[REQUEST_MODES].rows.get((topic, group))
    return row or RequestMode(topic, group, PULL)
