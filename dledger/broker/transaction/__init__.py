"""Transactions (TransactionalMessageService).

* `half_messages`   half messages: while they wait, when they are committed, when they are discarded
* `end_processor`   37: a producer commits or rolls back
* `check_service`   the leader asks (39) producers that did neither
"""
