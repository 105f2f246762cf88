"""The clients that are connected to a broker.

* `client_processor`: heartbeats, unregistration, the members of a group
* `connection_processor`: answers tools that ask which clients are connected, and what they consume
* `consumer_calls`: passes requests of tools on to a consumer; `client_calls` finds where the consumer is
  connected
* `client_table`: the table of producers and consumers
* `agreement`: checks whether the members of a consumer group have the same subscriptions
* `queue_locks`: which consumer has locked a queue, to consume it in order
* `reply_processor`: passes a reply on to the client that sent the request message
"""
