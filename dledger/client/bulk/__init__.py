"""Reading whole topics, replicas and states, for programs such as the Spark jobs; not for users.

* `ranges`   reads ranges of queues, in order
* `range_puller`   the same for programs without an event loop
* `replicas`   asks running brokers to scan their own stores, and fetches the results
* `patient_core`   a client core that says when it waits for a leader
* `group_state`   asks the leader of a broker group for its replicated state
"""
