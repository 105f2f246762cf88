"""Who is connected.

* `client_processor`       heartbeats, unregistration, the members of a group
* `connection_processor`   tools ask who is connected, and who consumes what
* `consumer_calls`         tools ask a consumer; `client_calls` wherever it is connected
* `client_table`           the table of producers and consumers
* `agreement`              whether the members of a group agree
* `queue_locks`            who consumes a queue in order
* `reply_processor`        replies, pushed to who asked
"""
