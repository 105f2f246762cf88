"""For programs that read whole topics, replicas and states, as the Spark jobs do; not for users.

* `ranges`        ranges of queues, in order; `range_puller` without an event loop
* `replicas`      the stores of live brokers, scanned by them
* `group_state`   what the leader of a group says of its state
"""
