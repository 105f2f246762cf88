"""Reading whole topics, replicas and states, for programs such as the Spark jobs; not for users.

* `ranges`   reads ranges of queues, in order
* `range_puller`   the same for programs without an event loop
* `replicas`   scans the stores of live brokers, which do the scanning
* `group_state`   asks the leader of a broker group for its replicated state
"""
