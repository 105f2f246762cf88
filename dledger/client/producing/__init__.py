"""Sending messages: producers, and the modules that carry a message until its acknowledgement.

This package may import the modules of `dledger.client` itself, but none of `dledger.client.consuming`.

The producers that a program uses:

* `producer`   `AsyncProducer`, the producer for programs with an event loop
* `sync_producer`   `Producer`, the same for programs without one
* `transaction_producer`, `sync_transaction_producer`   messages that consumers see only after a commit
* `spooling_producer`, `sync_spooling_producer`   messages wait on disk while the cluster cannot be reached
* `dual_write`   each message goes to two clusters, while a program moves from one to the other
* `producer_options`   the settings of producers
* `send_hooks`   functions of the application that are called around each send

The modules that they use:

* `send_kernel`   attempts, failover and order: it carries each message until its outcome is known
* `pending_sends`   a message without an acknowledgement, its queue, and the lane of its broker group
* `leader_search`   finds the leader of a broker group, by sending it a message that has to be sent anyway
* `queue_selection`   which queue a message goes to
* `latency`   which broker groups are slow, so that messages can go around them
* `accumulator`   messages that are sent one by one and travel as one batch
* `request_reply`   request messages and their replies
* `recalls`   recalls a message whose delivery time has not come
* `unique_ids`   makes the unique ids of messages
* `preset_ids`   messages that got their unique id before they are sent
* `spool_file`   the file in which a spooling producer keeps messages
* `send_trace`   the hook that records sends for message trace
"""
