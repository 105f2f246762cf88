"""Bodies of requests for pop consumption, and for the queue allocation that brokers compute."""

from __future__ import annotations

from typing import Any

import msgspec

from dledger.remoting.bodies import Body, MessageQueue, convert_body
from dledger.remoting.errors import BadBody
from dledger.remoting.fastjson import loads, without_nulls

LONG_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}
"""Maps the long names of the fields of an acknowledgement, which are accepted too, to the usual short
names."""


class BatchAck(Body):
    """Acknowledgements of messages that one pop returned from one queue (the messages of a checkpoint). The
    fields are: group, requested topic, kind of the real topic, start, queue, revive queue, pop time,
    invisible time (ms), and bits (`java.util.BitSet` in base64). Bit i stands for the offset `so` + i."""

    c: str
    t: str
    r: str
    so: int
    q: int
    rq: int
    pt: int
    it: int = 0
    b: str = ""


class BatchAckBody(Body):
    """Body of 200151 BATCH_ACK_MESSAGE."""

    brokerName: str = ""
    acks: list[BatchAck] = msgspec.field(default_factory=list)


class QueryAssignmentBody(Body):
    """Body of 400 QUERY_ASSIGNMENT, which asks for the queues that are assigned to this client."""

    topic: str
    consumerGroup: str
    clientId: str
    strategyName: str = "AVG"
    messageModel: str = "CLUSTERING"


class Assignment(Body):
    """One queue, and how to ask for its messages (PULL or POP). queueId -1 means all queues of the broker."""

    messageQueue: MessageQueue
    mode: str


class Assignments(Body):
    """Answer to 400 QUERY_ASSIGNMENT. None means that the broker knows nothing; the client then keeps its
    queues."""

    messageQueueAssignments: list[Assignment] | None = None


class RequestModeBody(Body):
    """Body of 401 SET_MESSAGE_REQUEST_MODE, which sets PULL or POP for a group and topic; see
    `formats.state.RequestMode`."""

    topic: str
    consumerGroup: str
    mode: str = "PULL"
    popShareQueueNum: int = 0


def decode_batch_ack(data: bytes) -> BatchAckBody:
    """Decode a body of 200151 BATCH_ACK_MESSAGE, with short or long names of the fields."""
    value: Any = loads(data)
    if not isinstance(value, dict):
        raise BadBody("the acknowledgements are not a JSON object")
    acks = value.get("acks")
    for ack in acks if isinstance(acks, list) else []:
        if isinstance(ack, dict):
            for long, short in LONG_NAMES.items():
                if long in ack:
                    ack.setdefault(short, ack.pop(long))
    return convert_body(without_nulls(value), BatchAckBody, "acknowledgement")


def decode_assignment_query(data: bytes) -> QueryAssignmentBody:
    """Decode a body of 400 QUERY_ASSIGNMENT."""
    return convert_body(without_nulls(loads(data)), QueryAssignmentBody, "query of an assignment")


def decode_request_mode(data: bytes) -> RequestModeBody:
    """Decode a body of 401 SET_MESSAGE_REQUEST_MODE."""
    return convert_body(without_nulls(loads(data)), RequestModeBody, "request mode")
