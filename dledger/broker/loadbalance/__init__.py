"""Rebalance by the broker: the broker, not the consumer, computes which queues each consumer gets
(broker/loadbalance, QueryAssignmentProcessor).

* `assignment_processor`: answers which consumer gets which queues, and whether it pulls or pops them
* `queue_routes`: the queues of a topic on all broker groups
* `allocation`: the strategies
"""
