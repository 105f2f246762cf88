"""Message properties: `name \\x01 value \\x02` repeated (MessageDecoder.messageProperties2String)."""

from __future__ import annotations

from collections.abc import Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
MAX_PROPERTIES_SIZE = 32767
"""Limit, in bytes, of the text of all properties, because its length is a signed 16-bit number."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
CONSUME_START_TIME = "CONSUME_START_TIME"
POP_CK = "POP_CK"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
START_DELIVER_TIME = "__STARTDELIVERTIME"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
MSG_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
FIRST_POP_TIME = "1ST_POP_TIME"
RESEND = "__RESEND"
"""Name of a property of this project. With the value "1" its producer says that the outcome of an earlier
send of this message is not known. It is the last property of a message."""
IDEMPOTENT = "__IDEMPOTENT"
"""Name of a property of this project. With the value "1", beside RESEND, the unique id of the message is an
idempotency key: it names one message, whoever sends it and in whatever batch."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode as text, with a separator after every property. Raises ValueError if a name or value contains a
    separator."""
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise ValueError(f"property {name!r} holds a separator (\\x01 or \\x02)")
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Parse leniently as Java does: an item shorter than 3 characters or without separator is skipped."""
    result = {}
    for item in text.split(PROPERTY_SEPARATOR):
        name, separator, value = item.partition(NAME_VALUE_SEPARATOR)
        if separator and name and len(item) >= 3:
            result[name] = value
    return result


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Find one value in the encoded text without decoding the rest (hot path of the dispatcher)."""
    needle = name + b"\x01"
    if raw.startswith(needle):
        start = len(needle)
    else:
        found = raw.find(b"\x02" + needle)
        if found < 0:
            return None
        start = found + 1 + len(needle)
    end = raw.find(b"\x02", start)
    return raw[start:] if end < 0 else raw[start:end]
