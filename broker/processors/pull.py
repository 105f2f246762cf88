"""Pull: 11 PULL_MESSAGE, 361 LITE_PULL_MESSAGE, 33 VIEW_MESSAGE_BY_ID (PullMessageProcessor).

Read point (safety.md S25): the applied index of the leader. A follower answers 14 with the leader's
address, so `suggestWhichBrokerId` is always 0. Answers are views of mapped segments, gathered by the
connection in one write; what needs the device is read by a worker.
"""

from __future__ import annotations

from collections.abc import Container

from dledger.broker.background import Background
from dledger.broker.clients import Clients
from dledger.broker.commit_log import Sealer
from dledger.broker.config import BrokerConfig
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.offsets import PendingOffsets
from dledger.broker.processors.holding import HeldPulls, Pull
from dledger.broker.store.consume_queue import ConsumeQueue
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import GetResult, GetStatus, Reader
from dledger.broker.topic_creation import Catalog
from dledger.formats.state import Perm
from dledger.remoting.bodies import subscription_codes
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    ViewMessageHeader,
)
from dledger.remoting.server import Connection, Handler
from dledger.runtime.live_settings import LiveSettings

DEFAULT_COUNT = 32
"""Messages for a request that asks for none (a bug of a client, which would else spin)."""

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE depend on the offset asked for (spec A6.5)."""


class PullProcessor:
    """Handlers of the pull codes, and the pulls that wait."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        gate: LeaderGate,
        catalog: Catalog,
        store: MessageStore,
        clients: Clients,
        pending: PendingOffsets,
        background: Background,
        reader: Reader,
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._catalog = catalog
        self._store = store
        self._clients = clients
        self._pending = pending
        self._background = background
        self._reader = reader
        self.held = HeldPulls(lambda: settings.now.max_held_pulls, self._serve, self._expired)
        self.messages = 0
        """Messages given out since start."""
        self.bytes = 0

    def handlers(self) -> dict[int, Handler]:
        """Code -> handler."""
        pull = self._gate.leader_only(self.pull)
        return {
            RequestCode.PULL_MESSAGE: pull,
            RequestCode.LITE_PULL_MESSAGE: pull,
            RequestCode.VIEW_MESSAGE_BY_ID: self._gate.leader_only(self.view_message),
        }

    def pull(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """11, 361: messages from an offset on, now or when there are some."""
        header = request.header(PullMessageHeader)
        self._check(sealer, header)
        codes = self._codes(header)
        if header.sysFlag & PULL_COMMIT_OFFSET:
            self._pending.report(header.consumerGroup, header.topic, header.queueId, header.commitOffset)
        suspend_ms = 0
        config = self._settings.now
        if header.sysFlag & PULL_SUSPEND:
            suspend_ms = header.suspendTimeoutMillis if config.long_polling else config.short_polling_ms
        count = header.maxMsgNums if header.maxMsgNums > 0 else DEFAULT_COUNT
        size = config.pull_max_bytes
        if header.maxMsgBytes is not None and header.maxMsgBytes > 0:
            size = min(size, header.maxMsgBytes)
        self._serve(
            Pull(
                connection,
                request,
                header.topic,
                header.queueId,
                header.queueOffset,
                min(count, config.pull_max_count),
                size,
                codes,
                max(0, suspend_ms) / 1000,
            )
        )

    def arrived(self, queues: list[ConsumeQueue]) -> None:
        """Messages were applied to these queues."""
        self.held.arrived(queues)

    def release(self) -> None:
        """Leadership ended: those who wait hear who leads."""
        for pull in self.held.take_all():
            self._gate.refuse(pull.connection, pull.request)

    def view_message(self, sealer: Sealer, connection: Connection, request: Request) -> None:
        """33: one message by physical offset (that of its offset message id)."""
        offset = request.header(ViewMessageHeader).offset

        async def answer() -> None:
            found = await self._reader.message_at(offset)
            if found is None:
                raise RemotingError(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {offset}"
                )
            connection.respond(request, ResponseCode.SUCCESS, body=found[0])

        self._background.start(connection, request, answer())

    # -- checks ---------------------------------------------------------------------------------------

    def _check(self, sealer: Sealer, header: PullMessageHeader) -> None:
        group = self._catalog.group_for_consumer(sealer, self._store.state, header.consumerGroup)
        if group is None:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumerGroup}] does not exist",
            )
        if not group.enable:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumerGroup}"
            )
        topic = sealer.topic(header.topic)
        if topic is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & Perm.READ:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queueId < topic.read_queues:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"readQueueNums:[{topic.read_queues}] consumer:[{header.consumerGroup}]",
            )
        members = self._clients.consumers.get(header.consumerGroup)
        if members is not None and members.message_model == "BROADCASTING" and not group.broadcast:
            raise RemotingError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumerGroup}] consume by broadcast way is forbidden",
            )

    def _codes(self, header: PullMessageHeader) -> Container[int] | None:
        """Tag codes that the group wants, None for all: from the request, or from its heartbeat."""
        if header.sysFlag & PULL_SUBSCRIPTION:
            kind = header.expressionType or "TAG"
            expression = header.subscription
        else:
            group = self._clients.consumers.get(header.consumerGroup)
            subscription = None if group is None else group.subscriptions.get(header.topic)
            if subscription is None:
                raise RemotingError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
                )
            if subscription.subVersion < header.subVersion:
                raise RemotingError(
                    ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
                )
            kind, expression = subscription.expressionType, subscription.subString
        if kind != "TAG" or header.sysFlag & PULL_CLASS_FILTER:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        return frozenset(subscription_codes(expression)[1]) or None

    # -- answering ------------------------------------------------------------------------------------

    def _serve(self, pull: Pull) -> None:
        result = self._reader.get(pull.topic, pull.queue_id, pull.offset, pull.count, pull.size, pull.codes)
        if result is None:
            self._background.start(pull.connection, pull.request, self._serve_cold(pull))
        else:
            self._answer_or_hold(pull, result)

    async def _serve_cold(self, pull: Pull) -> None:
        count = min(pull.count, self._settings.now.pull_max_count_cold)
        size = min(pull.size, self._settings.now.pull_max_bytes_cold)
        result = await self._reader.get_cold(pull.topic, pull.queue_id, pull.offset, count, size, pull.codes)
        if self._gate.sealer is None:
            self._gate.refuse(pull.connection, pull.request)
        else:
            self._answer_or_hold(pull, result)

    def _answer_or_hold(self, pull: Pull, result: GetResult) -> None:
        code = _response_code(result.status, pull.offset)
        if code is ResponseCode.PULL_RETRY_IMMEDIATELY and pull.deadline:
            # Woken by messages that do not match: go on waiting behind them, if nothing came meanwhile.
            pull.offset = result.next_offset
            if self._store.state.next_offset(pull.topic, pull.queue_id) == pull.offset and self.held.hold(
                pull
            ):
                return
        elif code is ResponseCode.PULL_NOT_FOUND and pull.suspend_s > 0 and self.held.hold(pull):
            return
        self._answer(pull, result, code)

    def _expired(self, pull: Pull) -> None:
        queue = self._store.queues.get(pull.topic, pull.queue_id)
        low, high = (0, 0) if queue is None else (queue.bounds.min, queue.bounds.next)
        result = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, pull.offset, low, high)
        self._answer(pull, result, ResponseCode.PULL_NOT_FOUND)

    def _answer(self, pull: Pull, result: GetResult, code: ResponseCode) -> None:
        self.messages += len(result.parts)
        self.bytes += result.size
        pull.connection.respond(
            pull.request,
            code,
            ext={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(result.next_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            },
            body=result.parts,
            remark=result.status.name,
        )


def _response_code(status: GetStatus, offset: int) -> ResponseCode:
    code = _CODES.get(status)
    if code is not None:
        return code
    return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
