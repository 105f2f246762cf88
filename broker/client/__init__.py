"""Who is connected.

* `client_processor`   heartbeats, unregistration, the members of a group
* `clients`            the table of producers and consumers
"""
