"""Views derived from the log, which can be deleted and rebuilt (architecture rule 1).

* `consume_queue`  position, size and tag code of each message of a queue: memory tail and files
* `dispatch`       applies committed entries to queues and state
* `message_store`  reading by queue offset, time and position; flushing and snapshots in the background
* `config_export`  tables of the state in RocketMQ's files, for tools

The replicated state itself is `formats.state`: audits read it too.
"""
