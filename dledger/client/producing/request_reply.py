"""Request and reply (RIP-16): a request message and the reply to it, matched by a correlation id.

The broker pushes the reply over the connection of the client that sent the request message (request 326
PUSH_REPLY_MESSAGE_TO_CLIENT). The reply is stored nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dledger.client.encoding import decompressed
from dledger.client.errors import InvalidMessage, LibraryMissing
from dledger.client.message import Body, Message, MessageQueue, ReceivedMessage
from dledger.client.namespaces import REPLY_SUFFIX
from dledger.formats.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQ_KEY,
    decode_properties,
)
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.headers import ReplyMessageHeader

_TYPE_REPLY = "reply"


def reply_to(request: ReceivedMessage, body: Body, properties: Mapping[str, str] | None = None) -> Message:
    """Make the reply to a request message; any producer may send it.

    Raises InvalidMessage if `request` is a message that does not expect a reply, or came from a broker that
    does not name its cluster.
    """
    asked = request.properties
    cluster = asked.get(CLUSTER)
    if REPLY_TO_CLIENT not in asked or CORRELATION_ID not in asked or not cluster:
        raise InvalidMessage("this message expects no reply: it was not sent with `request`")
    own = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in asked}
    return Message(
        cluster + REPLY_SUFFIX, body, properties={**(properties or {}), MSG_TYPE: _TYPE_REPLY, **own}
    )


class Requests:
    """The request messages of one client that have no reply yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    @contextmanager
    def expecting(self, correlation_id: str) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """Context manager that returns a future of the reply with this correlation id. After the block, such
        a reply is ignored."""
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]

    def pushed(self, address: str, request: Request) -> Response:
        """Handle request 326 PUSH_REPLY_MESSAGE_TO_CLIENT: a broker pushes a reply to this client."""
        header = request.header(ReplyMessageHeader)
        properties = decode_properties(header.properties or "")
        waiting = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():  # otherwise it is too late, or a second reply
            try:
                body, sys_flag = decompressed(request.body, header.sysFlag)
            except LibraryMissing as error:
                waiting.set_exception(error)
                return Response(ResponseCode.SUCCESS)
            waiting.set_result(
                ReceivedMessage(
                    topic=header.topic,
                    body=body,
                    queue=MessageQueue(header.topic, "", header.queueId),
                    queue_offset=0,
                    message_id=properties.get(UNIQ_KEY, ""),
                    offset_message_id="",
                    properties=properties,
                    flag=header.flag,
                    reconsume_times=header.reconsumeTimes or 0,
                    born_timestamp_ms=header.bornTimestamp,
                    store_timestamp_ms=header.storeTimestamp,
                    born_host=header.bornHost,
                    store_host=header.storeHost,
                    physical_offset=0,
                    sys_flag=sys_flag,
                )
            )
        return Response(ResponseCode.SUCCESS)
