"""A Raft-replicated message log service that speaks Apache RocketMQ's remoting protocol.

from dledger import Message, Producer

with Producer("orders-service", "127.0.0.1:9876") as producer:
    producer.send(Message("orders", b"order 17"))

The names below are the public ones: clients for every RocketMQ-compatible broker (`dledger.client`). They are
imported when they are first used, so that `import dledger` costs nothing and a client never loads what only a
broker, an audit or Spark needs. A group is started with the command `dledger up`.

The parts, each a package:

* `admin`, `client`, `remoting`, `namesrv`, `broker`   the message service, from its clients to its core
* `election`, `replication`, `log`, `peers`, `node`   the replicated log, which knows nothing of topics
* `formats`, `runtime`     byte layouts; access to clock, files, network and threads
* `audit`, `spark`, `lake` readers of stores, alone and distributed, and tables
* `chaos`, `bench`         tests with faults, and measurements
* `commands`, `local`      the command line, and groups of processes on one machine

How a message goes through the log: `dledger.log.appender` gives entries their index, position and checksums.
`dledger.node.leadership` hands the batch to `dledger.log.store` (a worker writes and syncs it) and to
`dledger.replication.leader` (which pushes it to the followers). Their acknowledgements move the commit index;
then `dledger.host.Host` applies the entries.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger.admin import AdminClient, AsyncAdminClient
    from dledger.client import (
        AllocateMachineRoomNearby,
        AllocateMessageQueueAveragely,
        AllocateMessageQueueAveragelyByCircle,
        AllocateMessageQueueByConfig,
        AllocateMessageQueueByMachineRoom,
        AllocateMessageQueueConsistentHash,
        AllocateStrategy,
        AsyncDualProducer,
        AsyncLitePullConsumer,
        AsyncPopConsumer,
        AsyncProducer,
        AsyncPullConsumer,
        AsyncPushConsumer,
        AsyncSpoolingProducer,
        AsyncTransaction,
        AsyncTransactionProducer,
        BodyFormat,
        BrokerRefused,
        ClientClosed,
        ClientError,
        ClientOptions,
        Codec,
        CompressionType,
        ConsumeContext,
        ConsumeHook,
        ConsumeOrderlyStatus,
        ConsumeReturnType,
        ConsumerOptions,
        ConsumeStatus,
        Credentials,
        Delivery,
        DualCount,
        FilterHook,
        FlowLimits,
        FromWhere,
        InvalidMessage,
        LibraryMissing,
        LitePullConsumer,
        LocalTransactionState,
        Message,
        MessageModel,
        MessageQueue,
        NoBroker,
        NoNameServer,
        NoReply,
        OutcomeUnknown,
        Overflow,
        PopConsumer,
        PopOptions,
        Producer,
        ProducerOptions,
        PullConsumer,
        PullOptions,
        PushConsumer,
        QueueSelector,
        ReceivedMessage,
        SelectMessageQueueByHash,
        SelectMessageQueueByMachineRoom,
        SendContext,
        SendFailed,
        SendHook,
        SendResult,
        SendStatus,
        Spooled,
        SpoolFailed,
        SpoolingProducer,
        SpoolOptions,
        Sql,
        TlsOptions,
        TopicNotFound,
        Transaction,
        TransactionListener,
        TransactionProducer,
        TransactionSendResult,
        UnreadableBody,
        reply_to,
    )
    from dledger.lake.history import read

__all__ = [
    "AdminClient",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateStrategy",
    "AsyncAdminClient",
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
    "read",
    "reply_to",
]
_ELSEWHERE = {
    "AdminClient": "dledger.admin",
    "AsyncAdminClient": "dledger.admin",
    "read": "dledger.lake.history",
}
"""Public names that other modules than `dledger.client` define. `read` needs packages that a client does not
need."""


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> object:
        """Return a public name. Its module is imported when the name is first used (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module 'dledger' has no attribute {name!r}")
        value: object = getattr(import_module(_ELSEWHERE.get(name, "dledger.client")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
