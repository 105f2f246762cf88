"""Who is connected.

* `client_processor`   heartbeats, unregistration, the members of a group
* `clients`            the table of producers and consumers
* `agreement`          whether the members of a group agree
* `queue_locks`        who consumes a queue in order
"""
