"""Compare groups of different systems under the same load, on this machine: `dledger bench compare`.

Each system is started alone, loaded, and stopped before the next one, because idle brokers take CPU time,
too. Each request waits until the system reports that the message is stored: `durability` says where the
message is then. Compare only systems of one class with each other:

* FSYNC: on the disks of a majority.
* PAGE_CACHE: in the memory of a majority's operating systems; it is lost when two machines lose power.

Generators are as lean as possible, with one connection each, in this process. `load` counts. Each system has
a module that speaks its protocol, only as much as is needed to send and to learn that a message is stored.

| module     | system                                                                          |
|------------|---------------------------------------------------------------------------------|
| `ours`     | this project, SYNC_FLUSH and ASYNC_FLUSH, by its own client                     |
| `rocketmq` | Apache RocketMQ in DLedger mode, from a directory of its jars, by our client    |
| `rabbitmq` | RabbitMQ, quorum queues, by AMQP 0.9.1 with publisher confirms, and streams     |
| `streams`  | the protocol of RabbitMQ's streams                                              |
| `nats`     | NATS JetStream, by its own protocol                                             |
| `etcd`     | etcd: a put of a new key each, by gRPC over `http2`                             |

`restart`, one level up, measures only starts of our own group.
"""
