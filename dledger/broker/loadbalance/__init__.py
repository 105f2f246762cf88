"""The balance of consumers that brokers compute (broker/loadbalance, QueryAssignmentProcessor).

* `assignment_processor`   which queues are whose, and how they are asked for messages
* `queue_routes`           the queues of a topic, on all broker groups
* `allocation`             the strategies
"""
