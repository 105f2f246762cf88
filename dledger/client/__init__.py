"""Clients for RocketMQ-compatible brokers: producers and consumers that follow a leader change.

`Producer`, `PushConsumer` and `PullConsumer` are for programs without an event loop, `AsyncProducer`,
`AsyncPushConsumer` and `AsyncPullConsumer` for those with one; both have the same methods.

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"body", tags="paid", keys="order-17"))

The public names are those of this package (all of them are also names of `dledger`). Its modules are for the
project itself, and may be renamed.

* `producing/`   sends messages: producers, transactions, the spool
* `consuming/`   receives messages: consumers, rebalancing, offsets
* `bulk/`   reads whole topics, replicas and states, for the Spark jobs

Both `producing/` and `consuming/` are built on these modules, which import neither of them.

The life of a client and its connections:

* `lifecycle`   start and end of every client
* `loop_thread`   runs a client's event loop in a thread, for programs that have no event loop
* `core`   connections, routes, leaders and heartbeats of one client
* `heartbeat_answers`   decides when brokers refuse a client, and which of their warnings are new
* `name_servers`   asks one NameServer, or all of them when one answer is not enough
* `address_hints`   finds out which server answers in place of a NameServer, for the error message
* `routes`   reads a topic's route: its queues, and the addresses behind them
* `broker_group`   one broker group: its addresses, and which of them is probably the leader's
* `options`   settings that producers and consumers share

Messages and what happens to them:

* `message`   messages, queues and results
* `errors`   every exception of a client, sorted by what the application can do about it
* `codecs`   typed bodies
* `listeners`   arguments and results of an application's listener
* `encoding`   encodes message properties and send headers, decodes records
* `compression`   compressed bodies
* `namespaces`   puts the name of an instance before the names of topics and groups
* `times`   checks points in time that users give
* `topics`   creates and deletes topics
* `message_queries`   finds messages by key
* `trace`, `trace_records`   message trace: how records are sent, and how they are written
* `callback_failures`   logs exceptions of the application's code, without flooding the log
"""

from dledger.client.codecs import BodyFormat, Codec, UnreadableBody
from dledger.client.compression import CompressionType
from dledger.client.consuming.allocation import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateStrategy,
)
from dledger.client.consuming.consume_hooks import ConsumeContext, ConsumeHook, ConsumeReturnType, FilterHook
from dledger.client.consuming.consumer_options import ConsumerOptions, PopOptions, PullOptions
from dledger.client.consuming.group_consumer import MessageModel
from dledger.client.consuming.lite_pull_consumer import AsyncLitePullConsumer, Delivery
from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.pop_consumer import AsyncPopConsumer
from dledger.client.consuming.process_queue import FlowLimits
from dledger.client.consuming.pull_consumer import AsyncPullConsumer
from dledger.client.consuming.push_consumer import AsyncPushConsumer
from dledger.client.consuming.subscription import Sql
from dledger.client.consuming.sync_consumers import LitePullConsumer, PopConsumer, PullConsumer, PushConsumer
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
from dledger.client.listeners import ConsumeOrderlyStatus, ConsumeStatus
from dledger.client.message import (
    Message,
    MessageQueue,
    QueueSelector,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from dledger.client.options import ClientOptions
from dledger.client.producing.dual_write import AsyncDualProducer, DualCount
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.queue_selection import SelectMessageQueueByHash, SelectMessageQueueByMachineRoom
from dledger.client.producing.request_reply import reply_to
from dledger.client.producing.send_hooks import SendContext, SendHook
from dledger.client.producing.spool_file import SpoolFailed
from dledger.client.producing.spooling_producer import AsyncSpoolingProducer, Spooled, SpoolOptions
from dledger.client.producing.sync_producer import Producer
from dledger.client.producing.sync_spooling_producer import SpoolingProducer
from dledger.client.producing.sync_transaction_producer import Transaction, TransactionProducer
from dledger.client.producing.transaction_producer import (
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
