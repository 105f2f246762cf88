"""Connected clients.

* `client_processor`       heartbeats, unregistration, the members of a group
* `connection_processor`   answers tools that ask which clients are connected, and what they consume
* `consumer_calls`         questions of tools to a consumer; `client_calls` finds where it is connected
* `client_table`           the table of producers and consumers
* `agreement`              whether the members of a group agree
* `queue_locks`            which consumer has locked a queue, to consume it in order
* `reply_processor`        replies, pushed to the client that asked
"""
