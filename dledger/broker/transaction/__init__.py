"""Transactions (TransactionalMessageService).

* `half_messages`   what a half message becomes: while it waits, when it is committed, when it is given up
* `end_processor`   37: its producer says what becomes of it
* `check_service`   the leader asks (39) producers that say nothing
"""
