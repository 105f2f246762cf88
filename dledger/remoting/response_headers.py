"""The headers of answers as typed structs (RocketMQ's *ResponseHeader).

Use them from `remoting.headers`. They are only for reading, because a server writes the fields of its answers
as text.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's int."""
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's long."""


class Header(msgspec.Struct, omit_defaults=True, gc=False):
    """Base of all headers. Fields that have their default value are not sent."""


class SendMessageResponseHeader(Header):
    """Answer to a send: the offset message id (for a batch all ids, separated by commas), the queue, and the
    queue offset of the first message."""

    msgId: str
    queueId: I32
    queueOffset: I64
    transactionId: str | None = None
    batchUniqId: str | None = None
    regionId: str | None = msgspec.field(name="MSG_REGION", default=None)
    traceOn: bool = msgspec.field(name="TRACE_ON", default=True)


class PullMessageResponseHeader(Header):
    """Answer to a pull with code 0, 19, 20 or 21. suggestWhichBrokerId says from which broker to pull next; 0
    is the master."""

    suggestWhichBrokerId: I64
    nextBeginOffset: I64
    minOffset: I64
    maxOffset: I64


class OffsetResponseHeader(Header):
    """Answer to 14 QUERY_CONSUMER_OFFSET, 29 SEARCH_OFFSET_BY_TIMESTAMP, 30 GET_MAX_OFFSET, 31
    GET_MIN_OFFSET."""

    offset: I64


class TimestampResponseHeader(Header):
    """Answer to 32 GET_EARLIEST_MSG_STORETIME."""

    timestamp: I64


class QueryMessageResponseHeader(Header):
    """Answer to 12 QUERY_MESSAGE."""

    indexLastUpdateTimestamp: I64
    indexLastUpdatePhyoffset: I64


class RegisterBrokerResponseHeader(Header):
    """Answer to 103 REGISTER_BROKER. It tells a slave the address of its master."""

    haServerAddr: str | None = None
    masterAddr: str | None = None


class KvConfigResponseHeader(Header):
    """Answer to 101 GET_KV_CONFIG."""

    value: str | None = None


class QueryDataVersionResponseHeader(Header):
    """Answer to 322 QUERY_DATA_VERSION."""

    changed: bool


class WipeWritePermResponseHeader(Header):
    """Answer to 205 WIPE_WRITE_PERM_OF_BROKER."""

    wipeTopicCount: I32


class AddWritePermResponseHeader(Header):
    """Answer to 327 ADD_WRITE_PERM_OF_BROKER."""

    addTopicCount: I32
