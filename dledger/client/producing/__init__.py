"""Sending messages: producers, and everything that a message passes on its way to its acknowledgement.

This package may import the modules of `dledger.client` itself, and nothing of `dledger.client.consuming`.

The producers that a program uses:

* `producer`   `AsyncProducer`, the producer for programs with an event loop
* `sync_producer`   `Producer`, the same for programs without one
* `transaction_producer`, `sync_transaction_producer`   messages that consumers see only after a commit
* `spooling_producer`, `sync_spooling_producer`   messages wait on disk while the cluster cannot be reached
* `dual_write`   each message goes to two clusters, while a program moves from one to the other
* `producer_options`   the settings of producers
* `send_hooks`   functions of the application that are called around each send

What they are built of:

* `send_kernel`   attempts, failover and order: it carries each message until its outcome is known
* `pending_sends`   a message without an acknowledgement, its queue, and the lane of its broker group
* `leader_search`   finds the leader of a broker group, by asking with a message that must get there
* `queue_selection`   which queue a message goes to
* `latency`   which broker groups are slow, so that messages can go around them
* `accumulator`   messages that are sent one by one and travel as one batch
* `request_reply`   a message that asks, and the one that answers it
* `recalls`   recalls a message whose delivery time has not come
* `unique_ids`   makes the unique ids of messages
* `preset_ids`   messages that got their unique id before they are sent
* `spool_file`   the file in which a spooling producer keeps messages
* `send_trace`   the hook that records sends for message trace
"""
