"""Receiving messages: consumers, and how the members of a consumer group share queues and keep offsets.

This package may import the modules of `dledger.client` itself. Of `dledger.client.producing` it uses one
function: a consumer with message trace sends its traces with a producer of its own.

The consumers that a program uses:

* `push_consumer`   `AsyncPushConsumer` calls a listener with each message of its topics
* `lite_pull_consumer`   `AsyncLitePullConsumer` shares queues in the same way; the program asks for messages
* `pull_consumer`   `AsyncPullConsumer` reads the queues and offsets that the program chooses
* `pop_consumer`   `AsyncPopConsumer` gets single messages, which brokers divide among the group
* `sync_consumers`   the four consumers for programs without an event loop
* `consumer_options`   the settings of consumers
* `consume_hooks`   functions that the application adds: around each call of a listener, and as filters
* `subscription`   which messages of a topic a consumer wants: all, by tags, or by an SQL expression

Sharing the queues of a topic in a consumer group:

* `group_consumer`   the common part of push and lite pull consumers
* `allocation`   strategies that divide queues among the members of a group
* `rebalancing`   applies the division: takes queues, reads them, commits their offsets, releases them
* `queue_locks`   locks at the brokers, for queues that are consumed in order
* `offsets`   offsets of queues, and the progress of a group at the brokers or in a file
* `initial_offsets`   where a group begins in a queue for which it has no committed offset
* `open_consumers`   the consumers that are open in this process; two with the same name are refused

From a queue to the listener:

* `queue_reader`   reads one queue by long polling, and follows its leader
* `process_queue`   messages that were pulled and are not consumed yet
* `consume_service`   the common part of the two ways of consuming: workers, start and stop
* `concurrent_service`   many messages at once, in no particular order
* `orderly_service`   the messages of each queue one after the other
* `listener_calls`   calls the listener, in a thread or on the event loop
* `send_back`   sends a failed message back to the broker, which delivers it again later

Information about a consumer for operators:

* `consume_statistics`   rates and response times for each topic
* `running_info`   answers a broker's questions about this consumer, and resets its offsets
* `consume_trace`   the hook that records listener calls for message trace
"""
