"""Transactions (TransactionalMessageService).

* `half_messages`   how half messages wait, are committed and are discarded
* `end_processor`   37 END_TRANSACTION: a producer commits or rolls back
* `check_service`   39 CHECK_TRANSACTION_STATE: the leader asks producers that did neither
* `check_relay`     asks producers that are connected to another member of the group
"""
