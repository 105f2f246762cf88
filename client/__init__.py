"""Clients for RocketMQ-compatible brokers: producers and consumers that follow a leader change.

`Producer`, `PushConsumer` and `PullConsumer` are for programs without an event loop, `AsyncProducer`,
`AsyncPushConsumer` and `AsyncPullConsumer` for those with one; both have the same methods.

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"body", tags="paid", keys="order-17"))

How it is built: `core` (connections, routes, leaders, heartbeats), `life` (start and end of every client),
`sending` with `search` and `pending` (the way of a message to its acknowledgement), `reading` (long polling
of one queue), `rebalancing` and `listening` (push consumer), `offsets`, `sync` on `hosting` (the face without
an event loop).
"""

from dledger.client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoBroker,
    NoNameServer,
    OutcomeUnknown,
    Overflow,
    SendFailed,
    TopicNotFound,
)
from dledger.client.listening import ConsumeStatus
from dledger.client.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from dledger.client.offsets import FromWhere
from dledger.client.options import ClientOptions, ConsumerOptions, ProducerOptions, PullOptions
from dledger.client.process_queue import FlowLimits
from dledger.client.producer import AsyncProducer
from dledger.client.pull_consumer import AsyncPullConsumer
from dledger.client.push_consumer import AsyncPushConsumer, MessageModel
from dledger.client.subscription import Sql
from dledger.client.sync import Producer, PullConsumer, PushConsumer

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "BrokerRefused",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "ConsumeStatus",
    "ConsumerOptions",
    "FlowLimits",
    "FromWhere",
    "InvalidMessage",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NoBroker",
    "NoNameServer",
    "OutcomeUnknown",
    "Overflow",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "ReceivedMessage",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "Sql",
    "TopicNotFound",
]
