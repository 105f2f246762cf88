"""The balance of consumers that brokers compute (broker/loadbalance, QueryAssignmentProcessor).

* `assignment_processor`   which consumer gets which queues, and whether it pulls or pops them
* `queue_routes`           the queues of a topic, on all broker groups
* `allocation`             the strategies
"""
