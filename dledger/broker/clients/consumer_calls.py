"""Requests of tools that only a consumer can answer (AdminBrokerProcessor.callConsumer, Broker2Client).

The broker passes 307 GET_CONSUMER_RUNNING_INFO and 309 CONSUME_MESSAGE_DIRECTLY on to the consumer. For 223
INVOKE_BROKER_TO_GET_CONSUMER_STATUS it sends 221 GET_CONSUMER_STATUS_FROM_CLIENT to each consumer of the
group.
"""

from __future__ import annotations

from functools import partial

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.clients.client_calls import CALL_TIMEOUT_S, Reaching
from dledger.broker.core import Core
from dledger.broker.requests import Call, Needs, handles
from dledger.formats.message_ids import decode_message_id
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import RemotingError, RequestTimeout
from dledger.remoting.operator_headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    ConsumerStatusOfClientHeader,
    RunningInfoHeader,
)
from dledger.remoting.server import Connection

OWN = "the consumer's own knowledge"
MAX_ASKED = 100
"""Largest number of consumers that are asked for one request 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS. If the
group has more, those whose ids come first in sorted order are asked."""
MAX_STATUS_BYTES = 64 * 1024
"""Limit, in bytes, of one consumer's answer to request 221 GET_CONSUMER_STATUS_FROM_CLIENT (about 800
queues). A longer answer is left out of the result."""
_TABLE = b'"messageQueueTable":'


class ConsumerCalls:
    """Handlers of the requests that only a consumer can answer."""

    def __init__(self, core: Core, reaching: Reaching) -> None:
        self._clients = core.clients
        self._settings = core.settings
        self._store = core.store
        self._reader = core.reader
        self._background = core.background
        self._reaching = reaching

    @handles(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RunningInfoHeader,
        needs=Needs.ANY,
        reads=OWN,
        may=required.OF_CONSUMER_GROUP,
        does=actions.Does(Action.GET, groups=("consumerGroup",)),
    )
    def running_info(self, call: Call[RunningInfoHeader]) -> None:
        """Ask a consumer for its state: settings, queues and rates, and with `jstackEnable` also its
        threads."""
        header = call.header
        self._call_consumer(call, header.consumerGroup, header.clientId, header, b"")

    @handles(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeDirectlyHeader,
        needs=Needs.ANY,
        reads="applied index of the answering broker",
        may=required.Rule(groups=("consumerGroup",), special=required.of_any_topic),
    )
    def consume_directly(self, call: Call[ConsumeDirectlyHeader]) -> None:
        """Have a consumer process one message at once, and answer with the result."""
        header = call.header
        try:
            position = decode_message_id(header.msgId or "").physical_offset
        except ValueError as error:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"{header.msgId} is not an offset message id: {error}"
            ) from error

        async def answer() -> None:
            found = await self._reader.message_at(position)
            if found is None:
                remark = f"can not find message by the offset: {position}"
                raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)
            group = self._store.state.groups.get(header.consumerGroup)
            topic = self._store.state.topics.get(found[1].topic)
            asked = msgspec.structs.replace(
                header,
                brokerName=self._settings.now.broker_name,
                groupSysFlag=0 if group is None else group.flags,
                topicSysFlag=0 if topic is None else topic.flags,
            )
            self._call_consumer(call, header.consumerGroup, header.clientId or "", asked, found[0])

        self._background.start(call.connection, call.request, answer())

    def _call_consumer(
        self,
        call: Call[RunningInfoHeader] | Call[ConsumeDirectlyHeader],
        group: str,
        client_id: str,
        header: msgspec.Struct,
        body: bytes,
    ) -> None:
        def ask(connection: Connection) -> None:
            connection.ask(call.request.code, header, body, CALL_TIMEOUT_S, answered)

        def answered(result: Response | RemotingError) -> None:
            if isinstance(result, Response):
                call.respond(result.code, ext=result.ext, body=result.body, remark=result.remark)
                return
            late = isinstance(result, RequestTimeout)
            code = ResponseCode.CONSUME_MSG_TIMEOUT if late else ResponseCode.SYSTEM_ERROR
            call.respond(code, remark=f"consumer <{group}> <{client_id}>: {result.remark}")

        members = self._clients.consumers.get(group)
        member = None if members is None else members.members.get(client_id)
        nowhere = f"The Consumer <{group}> <{client_id}> not online"
        self._reaching.reach(call, None if member is None else member.connection, ask, nowhere)

    @handles(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        ConsumerStatusHeader,
        needs=Needs.ANY,
        reads=OWN,
        may=required.OF_GROUP,
        does=actions.Does(Action.GET, topics=("topic",), groups=("group",)),
    )
    def status(self, call: Call[ConsumerStatusHeader]) -> None:
        """Ask the consumers of a group for their positions in the queues of a topic, and answer with what
        they report."""
        header = call.header
        group = self._clients.consumers.get(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, remark)
        only = (header.clientAddr or "").strip()
        asked = [name for name in sorted(group.members) if not only or name == only][:MAX_ASKED]
        waiting = dict.fromkeys(asked)
        found: dict[str, bytes] = {}

        def done() -> None:
            rows = [b"%b:%b" % (msgspec.json.encode(name), found[name]) for name in sorted(found)]
            call.respond(body=b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(rows))

        def answered(name: str, result: Response | RemotingError) -> None:
            del waiting[name]
            if isinstance(result, Response) and result.code == ResponseCode.SUCCESS:
                table = _table_of(bytes(result.body))
                if table is not None:
                    found[name] = table
            if not waiting:
                done()

        if not asked:
            done()
        question = ConsumerStatusOfClientHeader(header.topic, header.group)
        for name in asked:
            code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            connection = group.members[name].connection
            connection.ask(code, question, b"", CALL_TIMEOUT_S, partial(answered, name))


def _table_of(body: bytes) -> bytes | None:
    """Return the map in a GetConsumerStatusBody, without parsing it. (Its keys are JSON objects, which would
    take long to parse.) None if the body is malformed or too long."""
    at = body.find(_TABLE)
    if at < 0 or not body.endswith(b"}}") or len(body) > MAX_STATUS_BYTES:
        return None
    return body[at + len(_TABLE) : -1]
