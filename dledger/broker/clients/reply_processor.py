"""Replies to request messages: 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2 from the client that
replies, 326 PUSH_REPLY_MESSAGE_TO_CLIENT to the client that asked (ReplyMessageProcessor).

A consumer answers a request message with a reply message. The property REPLY_TO_CLIENT of the reply names the
client that asked. The broker pushes the reply over that client's connection, or has the member of the group
push it to which the client is connected (`client_calls`). The reply is not stored, because the client would
no longer wait for it when it could be read from a log.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.auth import actions, required
from dledger.broker.clients.client_calls import CALL_TIMEOUT_S, Reaching
from dledger.broker.core import Core
from dledger.broker.forwarding import Origins
from dledger.broker.requests import Call, Needs, handles
from dledger.formats.message_ids import host_text
from dledger.formats.properties import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ReplyMessageHeader, SendHeader, SendMessageHeader, SendMessageV2Header
from dledger.remoting.limits import MAX_FRAME_SIZE
from dledger.remoting.server import Connection


class ReplyProcessor:
    """Handlers of the requests 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2."""

    def __init__(self, core: Core, origins: Origins, reaching: Reaching) -> None:
        self._env = core.env
        self._settings = core.settings
        self._clients = core.clients
        self._origins = origins
        self._reaching = reaching

    @handles(
        RequestCode.SEND_REPLY_MESSAGE,
        SendMessageHeader,
        needs=Needs.ANY,
        reads="the brokers' own connections",
        max_body=MAX_FRAME_SIZE,
        may=required.ACCOUNT,
        does=actions.NOTHING,
    )
    def reply(self, call: Call[SendMessageHeader]) -> None:
        """Push a reply to the client that sent the request message."""
        self._reply(call, call.header)

    @handles(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        SendMessageV2Header,
        needs=Needs.ANY,
        reads="the brokers' own connections",
        max_body=MAX_FRAME_SIZE,
        may=required.ACCOUNT,
        does=actions.NOTHING,
    )
    def reply_v2(self, call: Call[SendMessageV2Header]) -> None:
        """Push a reply to the client that sent the request message. In this version of the request, the
        header has short field names."""
        self._reply(call, call.header)

    def _reply(self, call: Call[SendMessageHeader] | Call[SendMessageV2Header], header: SendHeader) -> None:
        body, limit = call.request.body, self._settings.now.max_message_size
        if len(body) > limit:
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body of the reply has {len(body)} bytes; the limit is {limit}",
            )
        properties = decode_properties(header.properties or "")
        client_id = properties.get(REPLY_TO_CLIENT)
        if not client_id:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the reply lacks the property {REPLY_TO_CLIENT}, which names the client that waits for it",
            )

        def push(connection: Connection) -> None:
            self._push(call, header, properties, connection)

        self._reaching.reach(
            call,
            self._clients.connection_of(client_id),
            push,
            f"push reply message fail, channel of <{client_id}> not found.",
        )

    def _push(
        self,
        call: Call[SendMessageHeader] | Call[SendMessageV2Header],
        header: SendHeader,
        properties: Mapping[str, str],
        connection: Connection,
    ) -> None:
        now = str(self._env.wall.now_ms())
        pushed = ReplyMessageHeader(
            producerGroup=header.producerGroup,
            topic=header.topic,
            defaultTopic=header.defaultTopic,
            defaultTopicQueueNums=header.defaultTopicQueueNums,
            queueId=header.queueId,
            sysFlag=header.sysFlag,
            bornTimestamp=header.bornTimestamp,
            flag=header.flag,
            properties=encode_properties({**properties, PUSH_REPLY_TIME: now}),
            reconsumeTimes=header.reconsumeTimes or 0,
            unitMode=header.unitMode,
            bornHost=host_text(self._origins.host(call.connection, call.request)),
            storeHost=self._settings.now.client_addr,
            storeTimestamp=int(now),
        )

        def answered(result: Response | RemotingError) -> None:
            if isinstance(result, Response) and result.code == ResponseCode.SUCCESS:
                call.respond(ext={"msgId": "0", "queueId": str(max(header.queueId, 0)), "queueOffset": "0"})
            else:
                why = result.remark or f"code {result.code}"
                self._failed(call, f"push reply message to {properties[REPLY_TO_CLIENT]} fail: {why}")

        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        connection.ask(code, pushed, call.request.body, CALL_TIMEOUT_S, answered)

    def _failed(self, call: Call[SendMessageHeader] | Call[SendMessageV2Header], remark: str) -> None:
        call.respond(ResponseCode.SYSTEM_ERROR, remark=remark)
