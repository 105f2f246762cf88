"""The same load on groups of different systems, on this machine: `dledger bench compare`.

Each system is started by itself, loaded, and stopped before the next one: brokers that idle take CPU time,
too. Whatever is sent waits for what the system calls stored: `durability` says where a message is then.
Systems of one class are to be compared with each other:

* FSYNC: on the disks of a majority.
* PAGE_CACHE: in the memory of a majority's operating systems: a loss of power of two machines loses it.

Generators are as lean as they can be, one connection each, in this process: `load` counts, and each system
has a module that speaks its protocol, no more than is needed to send and to hear that it is stored.

| module     | system                                                                          |
|------------|---------------------------------------------------------------------------------|
| `ours`     | this project, SYNC_FLUSH and ASYNC_FLUSH, by its own client                     |
| `rocketmq` | Apache RocketMQ in DLedger mode, from a directory of its jars, by our client    |
| `rabbitmq` | RabbitMQ, quorum queues, by AMQP 0.9.1 with publisher confirms, and streams     |
| `streams`  | the protocol of its streams                                                     |
| `nats`     | NATS JetStream, by its own protocol                                             |
| `etcd`     | etcd: a put of a new key each, by gRPC; `http2` is below that                   |

`restart`, one level up, measures starts of our group alone.
"""
