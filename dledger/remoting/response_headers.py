"""The headers of answers as typed structs (RocketMQ's *ResponseHeader).

Use them from `remoting.headers`. They are for reading: a server writes answers as text by name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's int."""
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's long."""


class Header(msgspec.Struct, omit_defaults=True, gc=False):
    """Base of all headers: fields with their default value are not sent."""


class SendMessageResponseHeader(Header):
    """Answer to a send: offset message id (for a batch all ids, separated by commas), queue, first queue
    offset."""

    msgId: str
    queueId: I32
    queueOffset: I64
    transactionId: str | None = None
    batchUniqId: str | None = None
    regionId: str | None = msgspec.field(name="MSG_REGION", default=None)
    traceOn: bool = msgspec.field(name="TRACE_ON", default=True)


class PullMessageResponseHeader(Header):
    """Answer to a pull with code 0, 19, 20 or 21. suggestWhichBrokerId: where to pull next, 0 = master."""

    suggestWhichBrokerId: I64
    nextBeginOffset: I64
    minOffset: I64
    maxOffset: I64


class OffsetResponseHeader(Header):
    """Answer to 14, 29, 30, 31."""

    offset: I64


class TimestampResponseHeader(Header):
    """Answer to 32."""

    timestamp: I64


class QueryMessageResponseHeader(Header):
    """Answer to 12."""

    indexLastUpdateTimestamp: I64
    indexLastUpdatePhyoffset: I64


class RegisterBrokerResponseHeader(Header):
    """Answer to 103: where a slave finds its master."""

    haServerAddr: str | None = None
    masterAddr: str | None = None


class KvConfigResponseHeader(Header):
    """Answer to 101."""

    value: str | None = None


class QueryDataVersionResponseHeader(Header):
    """Answer to 322."""

    changed: bool


class WipeWritePermResponseHeader(Header):
    """Answer to 205."""

    wipeTopicCount: I32


class AddWritePermResponseHeader(Header):
    """Answer to 327."""

    addTopicCount: I32
