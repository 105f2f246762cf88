"""Clients for RocketMQ-compatible brokers: producers and consumers that follow a leader change.

`Producer`, `PushConsumer` and `PullConsumer` are for programs without an event loop, `AsyncProducer`,
`AsyncPushConsumer` and `AsyncPullConsumer` for those with one; both have the same methods.

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"body", tags="paid", keys="order-17"))

How it is built: `core` (connections, routes, leaders, heartbeats), `life` (start and end of every client),
`sending` with `search` and `pending` (the way of a message to its acknowledgement), `selection` and `latency`
(which queue it takes), `accumulator` (automatic batching), `compression`, `hooks`, `trace`, `namespaces`,
`reading` (long polling of one queue), `group_consumer` with `rebalancing` (sharing of queues), `listening`
(push consumer), `orderly` and `queue_locks` (the same in order), `lite_pull_consumer`, `pop_consumer`,
`requests` (request and reply), `transactions`, `offsets`, `sync`, `sync_consumers` and `sync_transactions` on
`hosting` (the face without an event loop).
"""

from dledger.client.allocation import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateStrategy,
)
from dledger.client.codecs import BodyFormat, Codec, UnreadableBody
from dledger.client.compression import CompressionType
from dledger.client.dual_write import AsyncDualProducer, DualCount
from dledger.client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    InvalidMessage,
    LibraryMissing,
    NoBroker,
    NoNameServer,
    NoReply,
    OutcomeUnknown,
    Overflow,
    SendFailed,
    TopicNotFound,
)
from dledger.client.group_consumer import MessageModel
from dledger.client.hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeReturnType,
    FilterHook,
    SendContext,
    SendHook,
)
from dledger.client.listening import ConsumeOrderlyStatus, ConsumeStatus
from dledger.client.lite_pull_consumer import AsyncLitePullConsumer, Delivery
from dledger.client.message import (
    Message,
    MessageQueue,
    QueueSelector,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from dledger.client.offsets import FromWhere
from dledger.client.options import ClientOptions, ConsumerOptions, PopOptions, ProducerOptions, PullOptions
from dledger.client.pop_consumer import AsyncPopConsumer
from dledger.client.process_queue import FlowLimits
from dledger.client.producer import AsyncProducer
from dledger.client.pull_consumer import AsyncPullConsumer
from dledger.client.push_consumer import AsyncPushConsumer
from dledger.client.requests import reply_to
from dledger.client.selection import SelectMessageQueueByHash, SelectMessageQueueByMachineRoom
from dledger.client.spool import SpoolFailed
from dledger.client.spooling import AsyncSpoolingProducer, Spooled, SpoolOptions
from dledger.client.subscription import Sql
from dledger.client.sync import Producer
from dledger.client.sync_consumers import LitePullConsumer, PopConsumer, PullConsumer, PushConsumer
from dledger.client.sync_spooling import SpoolingProducer
from dledger.client.sync_transactions import Transaction, TransactionProducer
from dledger.client.transactions import (
    AsyncTransaction,
    AsyncTransactionProducer,
    LocalTransactionState,
    TransactionListener,
    TransactionSendResult,
)
from dledger.remoting.signing import Credentials
from dledger.runtime.remoting_tls import TlsOptions

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateStrategy",
    "AsyncDualProducer",
    "AsyncLitePullConsumer",
    "AsyncPopConsumer",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncSpoolingProducer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "BodyFormat",
    "BrokerRefused",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "Codec",
    "CompressionType",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeOrderlyStatus",
    "ConsumeReturnType",
    "ConsumeStatus",
    "ConsumerOptions",
    "Credentials",
    "Delivery",
    "DualCount",
    "FilterHook",
    "FlowLimits",
    "FromWhere",
    "InvalidMessage",
    "LibraryMissing",
    "LitePullConsumer",
    "LocalTransactionState",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NoBroker",
    "NoNameServer",
    "NoReply",
    "OutcomeUnknown",
    "Overflow",
    "PopConsumer",
    "PopOptions",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "QueueSelector",
    "ReceivedMessage",
    "SelectMessageQueueByHash",
    "SelectMessageQueueByMachineRoom",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SpoolFailed",
    "SpoolOptions",
    "Spooled",
    "SpoolingProducer",
    "Sql",
    "TlsOptions",
    "TopicNotFound",
    "Transaction",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "UnreadableBody",
    "reply_to",
]
