"""`dledger bench compare`: compares groups of different systems under the same load, on this machine.

Each system is started alone, loaded, and stopped before the next one, because idle brokers take CPU time,
too. Each request waits until the system reports that the message is stored. The class `durability` of a
system says where the message is at this time. Compare only systems of the same class with each other:

* FSYNC: on the disks of a majority.
* PAGE_CACHE: in the memory of a majority's operating systems; the message is lost when two machines lose
  power.

The load generators run in this process, with one connection each, and do as little as possible. The module
`load` applies the loads and counts the answers. Each system has a module with the part of its protocol
that is needed to send a message and to learn that it is stored.

| module     | system                                                                          |
|------------|---------------------------------------------------------------------------------|
| `ours`     | this project, SYNC_FLUSH and ASYNC_FLUSH, by its own client                     |
| `rocketmq` | Apache RocketMQ in DLedger mode, from a directory of its jars, by our client    |
| `rabbitmq` | RabbitMQ, quorum queues, by AMQP 0.9.1 with publisher confirms, and streams     |
| `streams`  | the protocol of RabbitMQ's streams                                              |
| `nats`     | NATS JetStream, by its own protocol                                             |
| `etcd`     | etcd: a put of a new key each, by gRPC over `http2`                             |

The module `dledger.bench.restart` measures starts, only those of this project's groups.
"""
