"""Headers of requests for pop consumption, and for the queue allocation that brokers compute
(PopMessageRequestHeader and others). Times are in ms, offsets in messages. `queueId` -1 means all queues."""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class PopMessageHeader(Header):
    """200050 POP_MESSAGE. initMode says where a new group begins: 0 at the first message, 1 at the last."""

    consumerGroup: str
    topic: str
    queueId: I32
    maxMsgNums: I32
    invisibleTime: I64
    pollTime: I64
    initMode: I32
    bornTime: I64 = 0
    expType: str | None = None
    exp: str | None = None
    order: bool = False
    attemptId: str | None = None


class AckMessageHeader(Header):
    """Header of 200051 ACK_MESSAGE. `extraInfo` is the handle (POP_CK)."""

    consumerGroup: str
    topic: str
    queueId: I32
    extraInfo: str
    offset: I64


class ChangeInvisibleTimeHeader(AckMessageHeader):
    """200053 CHANGE_MESSAGE_INVISIBLETIME. The new time begins when the request is executed."""

    invisibleTime: I64


class NotificationHeader(Header):
    """Header of 200054 NOTIFICATION."""

    consumerGroup: str
    topic: str
    queueId: I32
    pollTime: I64
    bornTime: I64 = 0
    order: bool = False
    attemptId: str | None = None


class PeekMessageHeader(Header):
    """Header of 200052 PEEK_MESSAGE."""

    topic: str
    queueId: I32
    maxMsgNums: I32
    consumerGroup: str


class PollingInfoHeader(Header):
    """Header of 200055 POLLING_INFO."""

    consumerGroup: str
    topic: str
    queueId: I32


class PopMessageResponseHeader(Header):
    """Answer to 200050 POP_MESSAGE, which also an answer without messages has."""

    popTime: I64
    invisibleTime: I64
    reviveQid: I32
    restNum: I64
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to 200053 CHANGE_MESSAGE_INVISIBLETIME. The fields are those of the new handle."""

    popTime: I64
    invisibleTime: I64
    reviveQid: I32
